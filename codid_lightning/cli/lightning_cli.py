"""LightningCLI, with the config keys and the objects of the training room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.training.config import parse, run_parser
from codid_lightning.training.run import build
from datamodules.base import AttributeDataModule


class CodidCLI(LightningCLI):
    """Turns arguments into a `Run`.

    Keys come from `training.config`, so that files and values mean the same on the command line and in Python. `build`
    makes the objects, because a run needs its directory before its trainer.

    Args:
        args: Arguments of `fit`, `validate`, `test` or `predict`.
        record: Whether the run has a directory and leaves a result.
    """

    def __init__(self, args: Sequence[str], record: bool) -> None:
        self.record = record
        super().__init__(
            DisentanglementModule,
            AttributeDataModule,
            save_config_callback=None,  # the run's directory holds it
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,  # `build` records hyperparameters
            args=list(args),
            run=False,
        )

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """The parser that Python uses, too; it has all keys already."""
        return run_parser()

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Nothing to add."""

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Nothing to add."""

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse configs and keys."""
        self.config = parse(args)

    def instantiate_classes(self) -> None:
        """Build the run."""
        self.built = build(self.config, record=self.record)
        self.trainer, self.model, self.datamodule = self.built
