"""BatchNorm layers and their running statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codid_lightning.nn import distributed

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


class GlobalBatchNorm(nn.SyncBatchNorm):
    """BatchNorm that normalises by the global batch: by the statistics of all ranks' samples together.

    Gradients on several devices are then those of one device with the same global batch. Unlike torch's
    `SyncBatchNorm`, it can be differentiated twice, as the meta step does, and works on CPUs.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (B, C, ...); all ranks must call it in training, while evaluation needs no other rank."""
        if not self.training:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        mean, variance, count = distributed.moments(x, [dim for dim in range(x.ndim) if dim != 1])
        if self.track_running_stats:
            self._track(mean, variance * (count / (count - 1).clamp_min(1)))
        scale = (variance + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        shape = (-1, *[1] * (x.ndim - 2))
        centred = (x - mean.view(shape)) * scale.view(shape)
        return (centred if self.bias is None else centred + self.bias.view(shape)).to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        count = self.get_buffer("num_batches_tracked").add_(1)
        momentum = 1 / float(count) if self.momentum is None else self.momentum
        for name, value in (("running_mean", mean), ("running_var", variance)):
            running = self.get_buffer(name)
            running.lerp_(value.to(running), momentum)


def over_all_ranks(network: nn.Module) -> nn.Module:
    """Replace the BatchNorm layers of a network by `GlobalBatchNorm`, with the same parameters and statistics."""
    for name, child in network.named_children():
        if (replaced := over_all_ranks(child)) is not child:
            setattr(network, name, replaced)
    if not isinstance(network, BATCH_NORMS) or type(network) not in BATCH_NORMS:  # subclasses may do more
        return network
    layer = GlobalBatchNorm(network.num_features, network.eps, network.momentum, network.affine)
    layer.track_running_stats, layer.training = network.track_running_stats, network.training
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        setattr(layer, name, getattr(network, name))
    return layer
