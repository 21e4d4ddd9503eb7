"""BatchNorm layers and their running statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d | nn.SyncBatchNorm


def tracking_layers(network: nn.Module) -> list[BatchNorm]:
    """The BatchNorm layers of a network that keep running statistics."""
    return [m for m in network.modules() if isinstance(m, BATCH_NORMS) and m.track_running_stats]


@contextmanager
def frozen_running_stats(network: nn.Module) -> Iterator[None]:
    """Normalise by the statistics of the batch, and leave the running statistics as they are.

    Use it for inputs that are not training samples, and for a second pass over the same samples.
    """
    layers = tracking_layers(network)
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
