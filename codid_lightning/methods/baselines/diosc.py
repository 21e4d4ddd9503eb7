"""DIOSC: a representation is similar to its own augmented view only."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.nn.statistics import frozen_running_stats
from datamodules.base import Batch

MAX_SHIFT = 0.04  # of an axis' length: one pixel of 28, five of 128 time steps
MAX_SCALE = 0.1  # largest relative change of the amplitude
NOISE = 0.03  # in standard deviations of the batch


def weak_augmentation(x: Tensor) -> Tensor:
    """Slightly shifted, scaled and noisy copies of (B, channels, ...); vectors (B, features) are not shifted.

    All channels of a sample are shifted and scaled in the same way, so that colours and ratios of sensors are kept.
    """
    for axis in range(2, x.ndim):
        x = _shift(x, axis)
    scale = 1 + MAX_SCALE * (2 * torch.rand(len(x), *[1] * (x.ndim - 1), device=x.device) - 1)
    return scale * x + NOISE * x.std() * torch.randn_like(x)


def _shift(x: Tensor, axis: int) -> Tensor:
    """Move each sample along an axis by its own number of steps, repeating the border."""
    size = x.shape[axis]
    reach = round(MAX_SHIFT * size)
    steps = torch.randint(-reach, reach + 1, (len(x), 1), device=x.device)
    source = (torch.arange(size, device=x.device) + steps).clamp(0, size - 1)  # (B, size)
    shape = [len(x) if d == 0 else size if d == axis else 1 for d in range(x.ndim)]
    return x.gather(axis, source.view(shape).expand_as(x))


def contrastive_loss(z: Tensor, views: Tensor, temperature: float) -> Tensor:
    """InfoNCE over all (sample, attribute) representations (B, Q, d).

    The positive of a representation is its own view. Negatives are all other views: of other samples, and of the other
    representations of the same sample.
    """
    anchors, keys = (F.normalize(r.flatten(0, 1), dim=1) for r in (z, views))
    return F.cross_entropy(anchors @ keys.T / temperature, torch.arange(len(anchors), device=z.device))


class DIOSC(DisentanglementModule):
    """Minimises the similarity of a representation to those of other samples and attributes by a contrastive loss.

    Oublal et al., "Disentangling Time Series Representations via Contrastive Independence-of-Support on l-Variational
    Inference", ICLR 2024: the contrastive term, -log of exp(<z, own view> / t) over the sum of exp(<z, view> / t) over
    all views. Its attention layers are left out: they belong to another backbone.

    Args:
        temperature: Of the softmax over cosine similarities.
        **kwargs: Of `DisentanglementModule`.
    """

    title = "DIOSC"

    def __init__(self, temperature: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.temperature = temperature

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """Contrastive loss between the batch and an augmented view of it."""
        with frozen_running_stats(self.encoder):
            views = self(weak_augmentation(batch["x"]))
        return contrastive_loss(z, views, self.temperature)
