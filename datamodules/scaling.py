"""Scaling of channels with statistics of the training data."""

from __future__ import annotations

import torch
from torch import Tensor

from datamodules.base import DataError


class Scaling:
    """Shifts and scales every channel; the identity before `fit`.

    Args:
        channels: Size of the inputs' second dimension.
    """

    def __init__(self, channels: int) -> None:
        self.center, self.spread = torch.zeros(channels), torch.ones(channels)

    def __call__(self, x: Tensor) -> Tensor:
        """Scaled inputs (B, C, ...)."""
        shape = (-1, *(1 for _ in x.shape[2:]))
        return (x - self.center.view(shape)) / self.spread.view(shape)

    def fit(self, x: Tensor, scaling: str) -> Scaling:
        """Map each channel's range to [-1, 1] (`minmax`), or its mean and deviation to 0 and 1 (`standard`).

        Samples with NaN or infinity are ignored.
        """
        known = x[torch.isfinite(x).flatten(1).all(1)].transpose(0, 1).flatten(1)  # (C, N * ...)
        if not known.numel():
            raise DataError("No training sample is free of NaN and infinity; check the files below data.root.")
        if scaling == "minmax":
            low, high = known.amin(1), known.amax(1)
            self.center, spread = (low + high) / 2, (high - low) / 2
        else:
            self.center, spread = known.mean(1), known.std(1)
        self.spread = torch.where(spread > 0, spread, 1.0)  # a constant channel stays constant
        return self
