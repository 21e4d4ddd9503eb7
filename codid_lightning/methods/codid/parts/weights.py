"""Weights of shuffled pairs, learnt by a meta step (Eq. 6 to 8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from codid_lightning.methods.codid.parts.base import OptimizerSettings, Part
from codid_lightning.methods.losses import reconstruction_loss, summary_divergence
from codid_lightning.nn.conditional import ConditionalMLP
from codid_lightning.nn.statistics import frozen_running_stats
from datamodules.base import Batch

if TYPE_CHECKING:
    from codid_lightning.methods.codid.module import CoDID
    from codid_lightning.methods.codid.target import Target, View


@dataclass(frozen=True)
class LearnedWeights(Part):
    """A weight net W learns the weights of shuffled pairs. This is the paper's coordination.

    W minimises the attribute and reconstruction loss (L_meta, Eq. 8) after one virtual step of the encoder (Eq. 7).

    Args:
        lr: Learning rate of W.
        reconstruction: Weight of reconstruction in the meta loss (lambda_mr).
        step: Step of the virtual encoder update (beta); null is the encoder's learning rate.
        direction: The virtual update descends L_wd as Eq. 7 is written, or ascends it as the real update does.
        scale: Scale weights to mean 1 within each cluster of the batch, or leave the sigmoid's output.
    """

    lr: float = 1e-3
    reconstruction: float = 1.0
    step: float | None = None
    direction: Literal["descend", "ascend"] = "descend"
    scale: Literal["cluster", "none"] = "cluster"

    def heads(self, target: Target) -> dict[str, nn.Module]:
        """W. Its inputs are Q attribute losses, the mode and discrimination losses, and the other attributes."""
        if not target.moded:
            return {}
        features = len(target.attribute_sizes) + 2 + sum(target.attribute_sizes) - target.values
        return {"weight_net": ConditionalMLP(target.values, target.total_slots, features, 32)}

    def slot_tables(self, target: Target) -> list[nn.Parameter]:
        """Rows of W's condition."""
        return [target.weight_net.condition] if target.moded else []

    def optimizers(self, codid: CoDID) -> dict[str, OptimizerSettings]:
        """One for W."""
        networks = [target.weight_net for target in codid.target_list if target.moded]
        return {"weigh": OptimizerSettings(networks, self.lr)} if networks else {}

    def virtual_step(self, codid: CoDID) -> float:
        """Signed step of the virtual update."""
        return (codid.lr if self.step is None else self.step) * (1 if self.direction == "descend" else -1)

    def weigh(self, target: Target, view: View, permutation: Tensor, pair_losses: Tensor) -> Tensor:
        """Weights w (B,) of shuffled pairs (Eq. 6), given whose z_-q and the discrimination loss of each, (B,) both."""
        own, rest, mode = view.losses[:, :1], view.losses[permutation, 1:-1], view.losses[:, -1:]
        inputs = torch.cat([own, rest, mode, pair_losses[:, None], view.others[permutation]], dim=1)
        weights: Tensor = target.weight_net(inputs, view.table, view.slot).sigmoid()
        if self.scale == "none":
            return weights
        size = torch.zeros(target.total_slots, device=weights.device, dtype=weights.dtype)
        total = size.index_add(0, view.slot, weights)
        size = size.index_add(0, view.slot, torch.ones_like(weights))
        return weights * (size / total.clamp_min(1e-12)).index_select(0, view.slot)

    def meta_loss(self, codid: CoDID, z: Tensor, batch: Batch) -> Tensor:
        """L_meta (Eq. 8): loss of attributes and data given the moved representations z (B, Q, d)."""
        losses = codid.attribute_losses(z, batch["a"])
        loss = torch.stack([losses[:, t.attribute].mean() for t in codid.target_list if t.moded]).sum()
        if codid.decoder is not None and self.reconstruction > 0:
            with frozen_running_stats(codid.decoder):
                loss = loss + self.reconstruction * reconstruction_loss(codid.decoder(z), batch["x"])
        return loss

    @torch.no_grad()
    def divergence(self, target: Target, view: View, pair_losses: Tensor) -> tuple[Tensor, Tensor]:
        """Averaged divergence of the weight summaries of the pairs within clusters that are compared.

        Args:
            target: Whose weight net.
            view: The batch.
            pair_losses: Discrimination loss of every pair (z_q of i, z_-q of k) of a block of `target.compared`,
                (G, M, M).

        Returns:
            Divergences and the mask of pairs in one cluster, (G, M, M) each.
        """
        table = target.compared(view).table
        slot = table.pad(view.slot, fill=-1)  # (G, M), -1 in padding
        together = (slot[:, :, None] == slot[:, None, :]) & (slot >= 0)[:, None, :]
        weights = self.weight_grid(target, view, pair_losses)
        return summary_divergence(weights, together, table.pad(view.others)), together

    @torch.no_grad()
    def weight_grid(self, target: Target, view: View, pair_losses: Tensor) -> Tensor:
        """Unscaled weights of all pairs (z_q of i, z_-q of k) of a block, (G, M, M), given their losses, (G, M, M).

        For pairs of one cluster these are the weights of `weigh`. Other entries, such as padding, have no meaning.
        """
        compared, net, rows = target.compared(view), target.weight_net, pair_losses.shape[1]
        of = None if compared.slot is None else compared.slot // target.slots  # value of each block
        table, weight = compared.table, net.weight if of is None else net.weight[of]
        slot = table.pad(view.slot)  # (G, M)
        losses, others = table.pad(view.losses), table.pad(view.others)
        left = torch.cat([losses[..., :1], losses[..., -1:]], dim=2)  # of z_q: (G, M, 2)
        right = torch.cat([losses[..., 1:-1], others], dim=2)  # of z_-q: (G, M, Q - 1 + V)
        first, last = weight[:, :1], weight[:, right.shape[2] - others.shape[2] + 1 :]
        # The first layer is linear: its parts from z_q, from z_-q and from the pair add up.
        of_left = left[..., :1] @ first + left[..., 1:] @ last[:, :1] + net.condition[slot]
        of_right = right[..., : -others.shape[2]] @ weight[:, 1 : 1 + right.shape[2] - others.shape[2]]
        of_right = of_right + others @ last[:, 2:]
        hidden = pair_losses[..., None] * last[:, None, None, 1]
        hidden += of_left[:, :, None]
        hidden += of_right[:, None]
        weights: Tensor = net.output(hidden.relu_().flatten(1, 2), of).unflatten(1, (rows, rows)).sigmoid_()
        return weights
