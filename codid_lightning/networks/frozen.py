"""Passes that leave no trace in BatchNorm's running statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Normalise by the batch as in training, but keep the running statistics as they are."""
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    kept = [(m.running_mean, m.running_var, m.num_batches_tracked) for m in layers]
    for m in layers:
        m.running_mean = m.running_var = m.num_batches_tracked = None
    try:
        yield
    finally:
        for m, (mean, variance, count) in zip(layers, kept, strict=True):
            m.running_mean, m.running_var, m.num_batches_tracked = mean, variance, count
