"""Control over BatchNorm's running statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def resting_statistics(network: nn.Module) -> Iterator[None]:
    """Normalise by the batch without counting it: for inputs that are not data, or passes beside the main one."""
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
