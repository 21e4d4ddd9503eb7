"""The training set as methods see it between steps: its labels, batches drawn from it, and a number for each sample."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn

from codid_lightning.errors import RunError
from codid_lightning.methods.hardware import to_module
from datamodules.base import AttributeDataModule, AttributeDataset, Batch


def split_of(module: LightningModule, name: str) -> AttributeDataset:
    """A split of the data that the module is trained on."""
    data = module.trainer.datamodule  # type: ignore[attr-defined]
    if not isinstance(data, AttributeDataModule):
        raise RunError(
            f"{type(module).__name__} reads whole splits of its data: give the trainer an AttributeDataModule (in "
            "Python: trainer.fit(model, datamodule=data)) instead of bare loaders."
        )
    return data.datasets[name]


def drawn(module: LightningModule, weights: Tensor, batch: Batch) -> Batch:
    """As many training samples as a batch has, drawn with replacement in proportion to weights (N,) on the CPU.

    They come from the global generator, which every step seeds: a resumed run draws the same samples.
    """
    index = torch.multinomial(weights, len(batch["index"]), replacement=True)
    return to_module(module.trainer, module, split_of(module, "train")[index])


class SampleTable(nn.Module):
    """Numbers for every training sample, which checkpoints keep; None before there are any.

    They are no buffer: a checkpoint is read into a module that has not seen the data, and knows no number of samples.
    """

    def __init__(self) -> None:
        super().__init__()
        self.values: Tensor | None = None

    def get_extra_state(self) -> dict[str, Any]:
        """The numbers."""
        return {"values": self.values}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the numbers."""
        self.values = state["values"]
