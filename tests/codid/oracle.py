"""CoDID with all gradients left to automatic differentiation: what the closed forms are compared with."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from codid_lightning import CoDID
from codid_lightning.methods.codid.parts.alignments import DiscriminatorAlignment, ShuffledPairs
from codid_lightning.methods.codid.target import Target, View
from codid_lightning.methods.losses import discrimination_loss
from codid_lightning.metrics.permutation import shuffle_within
from codid_lightning.nn.discriminator import PairGradients
from codid_lightning.nn.virtual import EncoderPass


def logits(module: CoDID, target: Target, own: Tensor, rest: Tensor, view: View) -> Tensor:
    """Logits (B,) that each pair (own, rest) is of one sample."""
    sharing = module.alignment.sharing if target.moded else "value"
    group = {"value": view.value, "mode": view.slot, "all": torch.zeros_like(view.slot)}[sharing]
    return target.discriminator(torch.cat([own, rest], dim=1), group, view.slot)


def total_discrimination_loss(
    module: CoDID, views: list[View], pairs: list[ShuffledPairs], weights: list[Tensor | None]
) -> Tensor:
    """L_wd (Eq. 5), summed over targets; clusters without a pair in the batch contribute nothing."""
    total = views[0].own.new_zeros(())
    for target, view, shuffled, w in zip(module.target_list, views, pairs, weights, strict=True):
        joint = logits(module, target, view.own, view.rest, view)
        marginal = logits(module, target, view.own, view.rest.index_select(0, shuffled.permutation), view)
        total = total + discrimination_loss(joint, marginal, w, view.partnered)
    return total


class ExactAlignment(DiscriminatorAlignment):
    """The same steps, differentiated by autograd."""

    def discriminate(self, codid: CoDID, views: list[View]) -> None:
        for target, view in zip(codid.target_list, views, strict=True):
            parameters = list(target.discriminator.parameters())
            own, rest = view.own.detach(), view.rest.detach()
            for permutation in shuffle_within(view.slot, codid.generator, self.steps):
                joint = logits(codid, target, own, rest, view)
                marginal = logits(codid, target, own, rest[permutation], view)
                loss = discrimination_loss(joint, marginal, partnered=view.partnered)
                gradients = torch.autograd.grad(loss, parameters)
                codid.step(codid.optimizer("discriminator"), parameters, gradients, reduce=False)
                codid.losses.add("discriminator", loss)

    @torch.no_grad()
    def shuffled_pairs(self, codid: CoDID, views: list[View]) -> list[ShuffledPairs]:
        found = []
        for target, view in zip(codid.target_list, views, strict=True):
            permutation = shuffle_within(view.slot, codid.generator)
            losses = F.softplus(logits(codid, target, view.own, view.rest[permutation], view))
            empty = torch.empty(0)
            found.append(ShuffledPairs(permutation, PairGradients(empty, losses, empty, empty)))
        return found

    def gradient_of_z(self, codid: CoDID, views: Any, pairs: Any, weights: Any) -> tuple[Tensor, Tensor]:
        loss = total_discrimination_loss(codid, views, pairs, weights)
        total = 0
        for target, view in zip(codid.target_list, views, strict=True):
            own, rest = torch.autograd.grad(loss, [view.own, view.rest], create_graph=True)
            parts = list(rest.split(own.shape[1], dim=1))
            parts.insert(target.attribute, own)
            total = total + torch.stack(parts, dim=1)
        return total, loss


class ExactCoDID(CoDID):
    """CoDID whose encoder pass goes through the whole network, whatever the network."""

    def encode(self, x: Tensor) -> EncoderPass:
        return EncoderPass(self.encoder, x)
