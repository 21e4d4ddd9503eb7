"""Scaling of channels with statistics of the training data."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from datamodules.base import DataError

ScalingKind = Literal["minmax", "standard", "log", "window"]
_FINE = 0.02  # of a channel's deviation: where `log` changes from linear to logarithmic
_SILENT = 1e-6  # of the channels' deviation: `window` does not amplify what is smaller
_FITTED = ("center", "spread", "offset", "limit")


class Scaling:
    """Shifts and scales every channel.

    * `minmax` maps the range of the training samples to [-1, 1].
    * `standard` maps their mean and deviation to 0 and 1.
    * `log` is sign(x) log(1 + |x| / 0.02 s), where x is the difference from the mean and s the deviation, divided by
      the largest value in training. It lies in [-1, 1] as `minmax` does, but shows small movements beside large ones.
    * `window` divides a sample by the root mean square of its own differences from the means, and adds a channel with
      the logarithm of this number, standardised.

    Args:
        shape: Of one sample, (C, ...).
        kind: One of these; `none` changes nothing.
    """

    def __init__(self, shape: tuple[int, ...], kind: ScalingKind | Literal["none"]) -> None:
        if kind == "window" and len(shape) != 2:
            raise DataError(
                f"data.scaling is window, which needs series of shape (channels, length), not {shape}; choose minmax, "
                "standard or log."
            )
        self.kind = kind
        self.shape = (shape[0] + (kind == "window"), *shape[1:])  # of a scaled sample
        self.center, self.spread = torch.zeros(shape[0]), torch.ones(shape[0])
        self.offset, self.limit = torch.zeros(1), torch.ones(1)  # of logarithms

    def __call__(self, x: Tensor) -> Tensor:
        """Scaled inputs (B, C, ...)."""
        x = x - _by_channel(self.center, x)
        if self.kind == "window":
            level = self._level(x)
            channel = ((level.log() - self.offset) / self.limit).expand(-1, 1, x.shape[2])
            return torch.cat([x / level, channel], dim=1)
        x = x / _by_channel(self.spread, x)
        return _signed_log(x) / _by_channel(self.limit, x) if self.kind == "log" else x

    def fit(self, x: Tensor) -> Scaling:
        """Take the statistics of the training samples x (N, C, ...). Samples with NaN or infinity are ignored."""
        if self.kind == "none":
            return self
        x = x[torch.isfinite(x).flatten(1).all(1)]
        if not x.numel():
            raise DataError("No training sample is free of NaN and infinity; check the files below data.root.")
        channels = x.transpose(0, 1).flatten(1)  # (C, N * ...)
        if self.kind == "minmax":
            low, high = channels.amin(1), channels.amax(1)
            self.center, self.spread = (low + high) / 2, _or_one((high - low) / 2)
        else:
            self.center, self.spread = channels.mean(1), _or_one(channels.std(1))
        if self.kind == "log":
            self.spread = _FINE * self.spread
            self.limit = _or_one(_signed_log((channels - self.center[:, None]) / self.spread[:, None]).abs().amax(1))
        elif self.kind == "window":
            levels = self._level(x - _by_channel(self.center, x)).log()
            self.offset, self.limit = levels.mean()[None], _or_one(levels.std()[None])
        return self

    def state_dict(self) -> dict[str, Any]:
        """What `fit` found."""
        return {name: getattr(self, name) for name in _FITTED}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Scale as a checkpoint says; those of earlier versions have `center` and `spread` alone."""
        for name in _FITTED:
            setattr(self, name, state.get(name, getattr(self, name)))

    def _level(self, x: Tensor) -> Tensor:
        """Root mean square (B, 1, 1) of centred series."""
        return x.square().nanmean((1, 2), keepdim=True).sqrt().clamp_min(_SILENT * float(self.spread.mean()))


def _by_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *(1 for _ in x.shape[2:]))


def _or_one(spread: Tensor) -> Tensor:
    """A constant channel stays constant."""
    return torch.where(spread > 0, spread, 1.0)


def _signed_log(x: Tensor) -> Tensor:
    return x.sign() * x.abs().log1p()
