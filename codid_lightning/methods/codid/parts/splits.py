"""Splits: the proposed division of a cluster into two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from codid_lightning.methods.codid.parts.base import OptimizerSettings, Part
from codid_lightning.methods.losses import isotropic_loss, weight_alignment_loss
from codid_lightning.nn.slots import SubclusterNet

if TYPE_CHECKING:
    from codid_lightning.methods.codid.module import CoDID
    from codid_lightning.methods.codid.target import Target, View


@dataclass(frozen=True)
class LearnedSplits(Part):
    """A subclustering net S proposes splits. Without this part the mixture proposes its own.

    S learns the halves of the mixture, corrected by the weights of pairs (Eq. 11, line 16).

    Args:
        weight_alignment: Weight of the weight alignment loss (lambda_wa). It applies where the alignment has weights.
    """

    weight_alignment: float = 0.3

    def heads(self, target: Target) -> dict[str, nn.Module]:
        """S."""
        if not target.moded:
            return {}
        return {"subcluster_net": SubclusterNet(target.values, target.total_slots, target.latent_dim)}

    def slot_tables(self, target: Target) -> list[nn.Parameter]:
        """Rows of S."""
        return [target.subcluster_net.out_weight, target.subcluster_net.out_bias] if target.moded else []

    def optimizers(self, codid: CoDID) -> dict[str, OptimizerSettings]:
        """One for S, with the encoder's learning rate."""
        networks = [target.subcluster_net for target in codid.target_list if target.moded]
        return {"subcluster": OptimizerSettings(networks, codid.lr)} if networks else {}

    def step(self, codid: CoDID, views: list[View]) -> None:
        """One update of S for each target with modes."""
        for target, view in zip(codid.target_list, views, strict=True):
            if not target.moded:
                continue
            own = view.own.detach()
            subcluster_probs = target.subcluster_net(own, view.table, view.slot)
            loss = isotropic_loss(subcluster_probs, own, target.update_subcluster_means(view)[view.slot])
            codid.losses.add("isotropic", loss)
            summaries = None if codid.alignment is None else codid.alignment.weight_divergence(target, view)
            if summaries is not None:
                alignment = weight_alignment_loss(target.compared(view).table.pad(subcluster_probs[:, 0]), *summaries)
                codid.losses.add("weight_alignment", alignment)
                loss = loss + self.weight_alignment * alignment
            codid.minimise(codid.optimizer("subcluster"), loss, parameters=target.subcluster_net, reduce=False)

    @torch.no_grad()
    def subcluster_probs(self, target: Target, z: Tensor, values: Tensor) -> Tensor:
        """Probabilities (N, 2) of the two halves of each training sample's cluster, given z (N, d) and values (N,)."""
        parts = zip(z.split(4096), values.split(4096), target.labels.split(4096), strict=True)
        return torch.cat([target.subcluster_net(*part) for part in parts])

    @torch.no_grad()
    def propose(self, target: Target, z: Tensor, values: Tensor) -> Tensor:
        """Probabilities (N, K, 2) of the two halves of all clusters of a value, given z (N, d) and values (N,).

        The mixture moves samples to other clusters before it splits one, so the halves of all may be needed.
        """
        parts = zip(z.split(4096), values.split(4096), strict=True)
        return torch.cat([target.subcluster_net.in_all_slots(*part) for part in parts])
