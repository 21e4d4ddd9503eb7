"""Methods of two stages: a plain network shows which samples follow the shortcut, then they are used accordingly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codid_lightning.methods import stepping
from codid_lightning.methods.baselines.base import Base
from codid_lightning.methods.baselines.samples import SampleTable, drawn, split_of
from codid_lightning.methods.hardware import to_module
from codid_lightning.nn import distributed
from datamodules.base import Batch


class TwoStageModule(Base):
    """The first stage is BASE, the second trains new networks.

    Between them, a method finds a number for every training sample (`identify`) from one pass over the training set.
    Both stages together have the epochs of the schedule that all methods share: `first_stage` is the share of the
    first.

    Args:
        first_stage: Share of the epochs of the first stage, rounded to whole epochs, at least one.
        **kwargs: Of `DisentanglementModule`.
    """

    def __init__(self, first_stage: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= first_stage < 1:
            raise ValueError(f"model.first_stage is {first_stage}; it must be a share, from 0 to below 1.")
        self.first_stage = first_stage
        self.table = SampleTable()

    def identify(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The number (N,) of every training sample, given the first stage's logits (N, A_1) and a_1 (N,).

        All are on the CPU. Only rank 0 computes it; randomness comes from the global generator, which is seeded.
        """
        raise NotImplementedError

    def first_epochs(self, epochs: int) -> int:
        """How many of so many epochs the first stage has."""
        return max(1, round(self.first_stage * epochs))

    def schedule_problem(self, epochs: int) -> str | None:
        """A run that ends before its second stage is BASE."""
        first = self.first_epochs(epochs)
        if not 0 < epochs <= first:  # -1 is without end
            return None
        return (
            f"trainer.max_epochs is {epochs} and the first stage takes {first} (model.first_stage {self.first_stage}): "
            f"the run ends before its second stage. Raise trainer.max_epochs above {first}."
        )

    def selectable(self) -> bool:
        """The first stage is no candidate of model selection."""
        return self.table.values is not None

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Begin the second stage if it is due and has not begun."""
        if self.table.values is None and self.current_epoch >= self.first_epochs(self.trainer.max_epochs or 0):
            self.begin_second_stage()
        super().on_train_batch_start(batch, batch_idx)

    def begin_second_stage(self) -> None:
        """Find the number of every sample, and start with new networks."""
        logits, labels = self.training_outputs(), split_of(self, "train").a[:, 0]
        torch.manual_seed(self.step_seed(0))
        self.table.values = distributed.from_first_rank(lambda: self.identify(logits, labels))
        torch.manual_seed(self.step_seed(1))  # all ranks start alike; rank 0 alone has drawn numbers
        stepping.reinitialise(self.modules(), self.trainer.optimizers)

    @torch.no_grad()
    def training_outputs(self) -> Tensor:
        """Logits (N, A_1) of a_1 of all training samples in evaluation mode, on the CPU."""
        self.eval()
        parts = []
        for batch in self.trainer.datamodule.encode_dataloader():  # type: ignore[attr-defined]
            batch = to_module(self.trainer, self, batch)
            parts.append(self.attribute_logits(self.represent(batch), batch["a"])[0].float())
        self.train()
        return distributed.gather(torch.cat(parts)).cpu()


class UpsamplingModule(TwoStageModule):
    """The numbers are weights: the second stage draws its samples with replacement in proportion to them.

    A step has as many samples and an epoch as many steps as with any other method.
    """

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """BASE's step, in the second stage on drawn samples."""
        weights = self.table.values
        super().training_step(batch if weights is None else drawn(self, weights, batch), batch_idx)
