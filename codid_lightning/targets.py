"""The heads of one attribute to disentangle, and what they know of its clusters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from codid_lightning.clustering import Clustering
from codid_lightning.losses import has_partner, summary_divergence
from codid_lightning.networks.conditional import ConditionalMLP, Table
from codid_lightning.networks.discriminator import Discriminator, PairGradients, PairTable
from codid_lightning.networks.slots import ModePredictor, SubclusterNet, carry_over

Sharing = Literal["value", "mode", "all"]
HALF_MEMORY = 64  # how many samples the running mean of a half is worth


@dataclass
class Marginals:
    """Pairs of z_q of each sample with another sample's z_-q."""

    permutation: Tensor  # (B,) whose z_-q
    losses: Tensor  # (B,) discrimination loss l_d, constants
    gradients: PairGradients | None = None  # in closed form; None leaves them to automatic differentiation


@dataclass
class View:
    """One target's look at a (global) batch: B samples, which of them belong together, and how to pair them."""

    own: Tensor  # (B, d) representations of the target attribute
    rest: Tensor  # (B, (Q - 1) d) representations of all others
    value: Tensor  # (B,) values of the target attribute
    slot: Tensor  # (B,) clusters
    half: Tensor  # (B,) rows of their halves, 2 * slot and the next one
    group: Tensor  # (B,) subnetworks of the discriminator
    table: Table  # the batch laid out by value
    partnered: Tensor  # (B,) float mask: samples whose cluster has a partner in the batch
    others: Tensor  # (B, V) one-hot values of all other attributes, side by side
    losses: Tensor  # (B, Q + 1) attribute losses (own first) and mode prediction loss, constants
    pairs: PairTable | None = None  # laid out for the discriminator's closed forms

    @property
    def count(self) -> Tensor:
        """Number of samples that can be paired."""
        return self.partnered.sum().clamp_min(1)


class Target(nn.Module):
    """Discriminator, and for an attribute with modes also mode predictor, weight net and subclustering net.

    Without modes the attribute's own value is the condition, which makes it A-CMI for this attribute.

    Args:
        attribute: Position q of the attribute.
        attribute_sizes: Number of values of all attributes.
        latent_dim: Dimensions of each representation.
        max_clusters: Slots per value; 1 for an attribute without modes.
        moded: Whether the attribute has modes to discover.
        sharing: Which clusters share a discriminator: those of a value, none, or all.
    """

    active: Tensor  # (A, K) slots in use
    sub_means: Tensor  # (A * K, 2, d)
    labels: Tensor  # (N,) cluster of every training sample, 32 bits
    probs: Tensor  # (N * clusters of the value,) its probabilities of its value's clusters, sample after sample
    starts: Tensor  # (N,) twice where a sample's probabilities begin, odd in the second half of its cluster, 32 bits
    columns: Tensor  # (A, C) slots of a value's clusters, C the largest number; one is repeated if there are fewer
    modes_known: bool

    def __init__(
        self,
        attribute: int,
        attribute_sizes: tuple[int, ...],
        latent_dim: int,
        max_clusters: int,
        moded: bool,
        sharing: Sharing,
    ) -> None:
        super().__init__()
        self.attribute, self.moded = attribute, moded
        self.attribute_sizes = attribute_sizes
        self.values, self.slots = attribute_sizes[attribute], max_clusters if moded else 1
        self.shared: Sharing = sharing if moded else "value"
        total, attributes = self.values * self.slots, len(attribute_sizes)
        groups = {"value": self.values, "mode": total, "all": 1}[self.shared]
        self.discriminator = Discriminator(groups, total, latent_dim, (attributes - 1) * latent_dim)
        if moded:
            other_values = sum(attribute_sizes) - self.values
            self.mode_predictor = ModePredictor(total, latent_dim)
            self.weight_net = ConditionalMLP(self.values, total, attributes + 2 + other_values, 32)
            self.subcluster_net = SubclusterNet(self.values, total, latent_dim)
        # Sized by the training set: kept as extra state, so that a checkpoint of any set can be loaded.
        self.register_buffer("active", torch.full((self.values, self.slots), not moded), persistent=False)
        self.register_buffer("sub_means", torch.zeros(total, 2, latent_dim), persistent=False)
        self.register_buffer("labels", torch.empty(0, dtype=torch.int32), persistent=False)
        self.register_buffer("probs", torch.empty(0), persistent=False)
        self.register_buffer("starts", torch.empty(0, dtype=torch.int32), persistent=False)
        self.register_buffer("columns", torch.zeros(self.values, 1, dtype=torch.long), persistent=False)

    @property
    def ready(self) -> bool:
        """Whether there are clusters to condition on."""
        return not self.moded or len(self.labels) > 0

    @property
    def second(self) -> Tensor:
        """Half of its cluster that the mixture puts every training sample in: 0 or 1, (N,)."""
        return self.starts % 2

    # ---------------------------------------------------------------------------------------------------- the batch

    def slot_of(self, a: Tensor, index: Tensor) -> Tensor:
        """Clusters of training samples, or their values where the attribute has no modes."""
        return self.labels[index].long() if self.moded else a[:, self.attribute]

    def view(self, z: Tensor, a: Tensor, index: Tensor, attribute_losses: Tensor) -> View:
        """Arrange a batch for this target: z (B, Q, d), labels (B, Q), sample indices (B,), losses (B, Q)."""
        q = self.attribute
        rest = [j for j in range(len(self.attribute_sizes)) if j != q]
        slot = self.slot_of(a, index)
        losses = attribute_losses[:, [q, *rest]]
        if self.moded:
            losses = torch.cat([losses, self.mode_losses(z[:, q].detach(), index)[1].detach()[:, None]], dim=1)
        value = a[:, q]
        group = {"value": value, "mode": slot, "all": torch.zeros_like(slot)}[self.shared]
        return View(
            own=z[:, q],
            rest=z[:, rest].flatten(1),
            value=value,
            slot=slot,
            half=2 * slot + self.starts[index] % 2 if self.moded else 2 * slot,
            group=group,
            table=Table(value, self.values),
            partnered=has_partner(slot, self.values * self.slots).to(z),
            others=torch.cat([_one_hot(a[:, j], self.attribute_sizes[j]) for j in rest], dim=1).to(z),
            losses=losses,
        )

    def mode_losses(self, z: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """KL divergence (Eq. 2) and cross-entropy of the mode prediction from the cluster probabilities, (B,) each."""
        log_probs = self.mode_predictor(z, self.active.flatten())
        value = self.labels[index].long() // self.slots
        slots = value[:, None] * self.slots + self.columns[value]
        column = torch.arange(slots.shape[1], device=slots.device)
        own = column < self.active.sum(1)[value][:, None]  # what follows belongs to the next sample
        target = (self.probs[self.starts[index].long()[:, None] // 2 + column] * own).to(z)
        cross_entropy = -(target * log_probs.gather(1, slots).clamp_min(-1e4)).sum(1)
        return cross_entropy + torch.xlogy(target, target).sum(1), cross_entropy

    # --------------------------------------------------------------------------------------------------------- pairs

    def discriminate(self, own: Tensor, rest: Tensor, view: View) -> Tensor:
        """Logits (B,) that each pair (own, rest) is of one sample."""
        return self.discriminator(torch.cat([own, rest], dim=1), view.group, view.slot)  # type: ignore[no-any-return]

    def lay_out(self, view: View) -> PairTable:
        """The batch as the discriminator's closed forms take it."""
        table = view.table if self.shared == "value" else Table(view.group, len(self.discriminator.weight))
        dtype = self.discriminator.weight.dtype
        own, rest, partnered = (part.detach().to(dtype) for part in (view.own, view.rest, view.partnered))
        return PairTable.lay_out(table, own, rest, view.slot, partnered)

    def marginals(self, view: View, permutation: Tensor) -> Marginals:
        """Pairs of one permutation; their gradients come with them where the batch is laid out."""
        if view.pairs is None:
            with torch.no_grad():
                return Marginals(permutation, F.softplus(self.discriminate(view.own, view.rest[permutation], view)))
        gradients = self.discriminator.input_gradients(view.pairs, permutation)
        return Marginals(permutation, gradients.marginal_loss, gradients)

    def weigh(self, view: View, marginals: Marginals, normalise: bool) -> Tensor:
        """Weights w (B,) of marginal pairs (Eq. 6), scaled to mean 1 within each cluster where wanted."""
        permutation, discrimination = marginals.permutation, marginals.losses
        own, rest, mode = view.losses[:, :1], view.losses[permutation, 1:-1], view.losses[:, -1:]
        inputs = torch.cat([own, rest, mode, discrimination[:, None], view.others[permutation]], dim=1)
        weights: Tensor = self.weight_net(inputs, view.table, view.slot).sigmoid()
        if not normalise:
            return weights
        size = torch.zeros(self.values * self.slots, device=weights.device, dtype=weights.dtype)
        total = size.index_add(0, view.slot, weights)
        size = size.index_add(0, view.slot, torch.ones_like(weights))
        return weights * (size / total.clamp_min(1e-12)).index_select(0, view.slot)

    def slope(self, view: View, marginals: Marginals, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Gradient (B, Q, d) of this target's L_wd with respect to z, linear in the weights (B,), and L_wd."""
        found = marginals.gradients
        assert found is not None  # noqa: S101  (closed forms come with the marginals)
        share = view.partnered / view.count
        weighted = share if weights is None else share * weights
        joint, marginal = share[:, None] * found.joint, weighted[:, None] * found.marginal
        dim = view.own.shape[1]
        # The marginal pair's z_-q belongs to another sample.
        rest = joint[:, dim:].index_add(0, marginals.permutation, marginal[:, dim:])
        parts = list(rest.split(dim, dim=1))
        parts.insert(self.attribute, joint[:, :dim] + marginal[:, :dim])
        loss = (share * found.joint_loss + weighted.detach() * found.marginal_loss).sum()
        return torch.stack(parts, dim=1), loss

    # ------------------------------------------------------------------------------------------------- subclustering

    @torch.no_grad()
    def weight_divergence(self, view: View) -> tuple[Tensor, Tensor]:
        """Averaged divergence of the weight summaries of all pairs within clusters, laid out by value.

        Returns:
            Divergences and the mask of pairs in one cluster, (A, M, M) each.
        """
        table = view.table
        slot = table.spread(view.slot, fill=-1)  # (A, M), -1 in padding
        together = (slot[:, :, None] == slot[:, None, :]) & (slot >= 0)[:, None, :]
        losses, others = table.spread(view.losses), table.spread(view.others)
        rows = slot.shape[1]
        discrimination = self._pair_losses(table.spread(view.own), table.spread(view.rest), slot.clamp_min(0))
        left = torch.cat([losses[..., :1], losses[..., -1:]], dim=2)  # of z_q: (A, M, 2)
        right = torch.cat([losses[..., 1:-1], others], dim=2)  # of z_-q: (A, M, Q - 1 + V)
        net = self.weight_net
        first, last = net.weight[:, :1], net.weight[:, right.shape[2] - others.shape[2] + 1 :]
        # The first layer is linear: its part from z_q, from z_-q and from the pair add up.
        of_left = left[..., :1] @ first + left[..., 1:] @ last[:, :1] + net.condition[slot.clamp_min(0)]
        of_right = right[..., : -others.shape[2]] @ net.weight[:, 1 : 1 + right.shape[2] - others.shape[2]]
        of_right = of_right + others @ last[:, 2:]
        hidden = discrimination[..., None] * last[:, None, None, 1]
        hidden += of_left[:, :, None]
        hidden += of_right[:, None]
        weights = net.output(hidden.relu_().flatten(1, 2)).unflatten(1, (rows, rows)).sigmoid_()
        return summary_divergence(weights, together, others), together

    def _pair_losses(self, own: Tensor, rest: Tensor, slot: Tensor) -> Tensor:
        """Discrimination loss of every pair (z_q of i, z_-q of k) of one value, (A, M, M)."""
        if self.shared == "value":
            return F.softplus(self.discriminator.all_pairs(own, rest, slot))
        rows = own.shape[1]
        pair = torch.cat([own[:, :, None].expand(-1, -1, rows, -1), rest[:, None].expand(-1, rows, -1, -1)], dim=3)
        slots = slot[:, :, None].expand(-1, -1, rows).flatten()
        group = slots if self.shared == "mode" else torch.zeros_like(slots)
        logits: Tensor = self.discriminator(pair.flatten(0, 2), group, slots)
        return F.softplus(logits).view(len(own), rows, rows)

    @torch.no_grad()
    def follow_halves(self, view: View) -> Tensor:
        """Means (A * K, 2, d) of the mixture's halves, moved along with the representations of a batch.

        Between two refinements the encoder carries clusters further than their halves are apart; measured from where
        the halves were, all samples of a cluster would soon be in the same one.
        """
        flat = self.sub_means.flatten(0, 1)  # a view: it moves in place
        count = flat.new_zeros(len(flat)).index_add(0, view.half, torch.ones_like(view.half, dtype=flat.dtype))
        away = view.own.detach().to(flat) - flat[view.half]
        flat.index_add_(0, view.half, away / (count + HALF_MEMORY)[view.half, None])
        return self.sub_means

    def halves(self, z: Tensor, value: Tensor | Table, slot: Tensor) -> Tensor:
        """Probabilities (B, 2) that the subclustering net gives the halves of each sample's cluster."""
        return self.subcluster_net(z, value, slot)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------------------------------------------ adoption

    @torch.no_grad()
    def adopt(self, found: Clustering, optimizers: Iterable[Optimizer], reset: bool) -> None:
        """Take over a clustering and let heads inherit from the clusters that were split or merged.

        Args:
            found: Labels, probabilities and lineage of the clusters.
            optimizers: Optimizers whose moments move along.
            reset: Re-initialise all heads when any cluster changed, instead of inheriting.
        """
        first = len(self.labels) == 0
        # Compared by lineage: a split may fill the very slot that a vanished cluster left.
        changed = not first and not torch.equal(found.inherit, torch.diag_embed(self.active).to(found.inherit))
        if changed and reset:
            self._reset(list(optimizers))
        elif changed:
            carry_over(self._tables(), found.inherit.to(self.active.device), list(optimizers))
            # Both children inherit the parent's logit; sharing its mass keeps their sum at the parent's probability.
            self.mode_predictor.bias.add_(found.share.to(self.mode_predictor.bias).log().flatten())
        labels, second = found.labels.to(self.active.device), found.sub_probs.argmax(1).to(self.active.device)
        turned = torch.zeros(self.values * self.slots, dtype=torch.bool, device=labels.device)
        if not first:  # a mixture names its halves anew each time; in the order known, S need not turn round
            agree = torch.where(self.labels == labels, 1.0 - 2.0 * (self.second != second), 0.0)
            turned = torch.zeros_like(turned, dtype=agree.dtype).index_add_(0, labels, agree) < 0
        self.active.copy_(found.active)
        self.sub_means.copy_(found.sub_means.flatten(0, 1))
        self.sub_means[turned] = self.sub_means[turned].flip(1)
        self.labels = labels.to(torch.int32)
        # Most slots sleep: N rows of all of them would outweigh everything else a run keeps by sample.
        counts = self.active.sum(1)
        order = self.active.long().argsort(dim=1, descending=True, stable=True)[:, : int(counts.max())]
        awake = self.active.gather(1, order)
        self.columns = torch.where(awake, order, order[:, :1])
        value = self.labels.long() // self.slots
        starts = counts[value].cumsum(0) - counts[value]
        self.starts = (2 * starts + (second ^ turned[labels])).to(torch.int32)
        held = found.probs.to(self.active.device).gather(1, self.columns[value])[awake[value]]
        self.probs = F.pad(held, (0, order.shape[1]))  # so that the last samples, too, can be read C at a time

    def _tables(self) -> list[nn.Parameter]:
        """All parameters with a row per slot."""
        predictor, net = self.mode_predictor, self.subcluster_net
        tables = [predictor.weight, predictor.bias, net.out_weight, net.out_bias]
        tables += [self.discriminator.condition, self.weight_net.condition]
        if self.shared == "mode":
            tables += [p for p in self.discriminator.parameters() if p is not self.discriminator.condition]
        return tables

    def _reset(self, optimizers: list[Optimizer]) -> None:
        for head in (self.mode_predictor, self.discriminator, self.weight_net, self.subcluster_net):
            head.reset_parameters()
            for parameter in head.parameters():
                for optimizer in optimizers:
                    optimizer.state.pop(parameter, None)

    def get_extra_state(self) -> dict[str, Any]:
        """Everything known of the clusters."""
        names = ("active", "sub_means", "labels", "probs", "starts", "columns")
        return {name: getattr(self, name) for name in names}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore clusters of a training set of any size."""
        for name, value in state.items():
            setattr(self, name, value.to(self.active.device))


def _one_hot(labels: Tensor, size: int) -> Tensor:
    """Indicators (B, size) of labels (B,), without the device round trip of the checks in `torch`'s."""
    return labels[:, None] == torch.arange(size, device=labels.device)
