"""One attribute to disentangle: its clusters, its heads, and its view of a batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from codid_lightning.clustering import Clustering
from codid_lightning.methods.codid.parts.base import Part
from codid_lightning.methods.codid.parts.compared import Compared
from codid_lightning.methods.losses import has_partner
from codid_lightning.nn.conditional import ConditionalMLP, Table
from codid_lightning.nn.discriminator import Discriminator, PairTable
from codid_lightning.nn.slots import ModePredictor, PriorPredictor, SubclusterNet

HALF_MEMORY = 64  # how many samples the running mean of a half is worth


@dataclass
class View:
    """A (global) batch of B samples as one target sees it."""

    own: Tensor  # (B, d) representations of the target attribute
    rest: Tensor  # (B, (Q - 1) d) representations of all other attributes
    value: Tensor  # (B,) values of the target attribute
    slot: Tensor  # (B,) clusters
    half: Tensor  # (B,) rows of the clusters' halves: 2 * slot, or one more
    table: Table  # the batch laid out by value
    partnered: Tensor  # (B,) float mask of samples whose cluster has another sample in the batch
    others: Tensor  # (B, V) one-hot values of all other attributes, side by side
    losses: Tensor  # (B, Q + 1) attribute losses (own first) and mode prediction loss, constants
    pairs: PairTable | None = None  # laid out by a discriminator, when first needed
    compared: Compared | None = None  # whose weights are compared, when first needed

    @property
    def count(self) -> Tensor:
        """Number of samples that can be paired."""
        return self.partnered.sum().clamp_min(1)


class Target(nn.Module):
    """The clusters of one attribute, and the heads that CoDID's parts build for it.

    An attribute without modes has one cluster per value.

    Args:
        attribute: Position q of the attribute.
        attribute_sizes: Number of values of all attributes.
        latent_dim: Dimensions of each representation.
        max_clusters: Slots per value; an attribute without modes has one.
        moded: Whether the attribute has modes to discover.
        parts: Parts of CoDID, in the order in which they build their heads.
    """

    active: Tensor  # (A, K) slots in use
    sub_means: Tensor  # (A * K, 2, d)
    labels: Tensor  # (N,) cluster of every training sample, 32 bits
    probs: Tensor  # (N * clusters of the value,) probabilities of the value's clusters, sample after sample
    starts: Tensor  # (N,) twice the position where a sample's probabilities begin, plus its half (0 or 1), 32 bits
    columns: Tensor  # (A, C) slots of a value's clusters, C the largest number; one is repeated if there are fewer

    discriminator: Discriminator
    mode_predictor: ModePredictor | PriorPredictor
    weight_net: ConditionalMLP
    subcluster_net: SubclusterNet

    def __init__(
        self,
        attribute: int,
        attribute_sizes: tuple[int, ...],
        latent_dim: int,
        max_clusters: int,
        moded: bool,
        parts: Iterable[Part] = (),
    ) -> None:
        super().__init__()
        self.attribute, self.moded = attribute, moded
        self.attribute_sizes, self.latent_dim = attribute_sizes, latent_dim
        self.values, self.slots = attribute_sizes[attribute], max_clusters if moded else 1
        self.parts = tuple(parts)
        for part in self.parts:
            for name, head in part.heads(self).items():
                self.add_module(name, head)
        # Sized by the training set: kept as extra state, so that a checkpoint of any set can be loaded.
        self.register_buffer("active", torch.full((self.values, self.slots), not moded), persistent=False)
        self.register_buffer("sub_means", torch.zeros(self.total_slots, 2, latent_dim), persistent=False)
        self.register_buffer("labels", torch.empty(0, dtype=torch.int32), persistent=False)
        self.register_buffer("probs", torch.empty(0), persistent=False)
        self.register_buffer("starts", torch.empty(0, dtype=torch.int32), persistent=False)
        self.register_buffer("columns", torch.zeros(self.values, 1, dtype=torch.long), persistent=False)

    @property
    def total_slots(self) -> int:
        """Slots of all values together."""
        return self.values * self.slots

    @property
    def ready(self) -> bool:
        """Whether there are clusters to condition on."""
        return not self.moded or len(self.labels) > 0

    @property
    def second(self) -> Tensor:
        """Half of its cluster that the mixture puts every training sample in: 0 or 1, (N,)."""
        return self.starts % 2

    @property
    def predicts_modes(self) -> bool:
        """Whether a mode predictor was built."""
        return hasattr(self, "mode_predictor")

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
            losses = torch.cat([losses, self._mode_cross_entropy(z[:, q].detach(), index)[:, None]], dim=1)
        return View(
            own=z[:, q],
            rest=z[:, rest].flatten(1),
            value=a[:, q],
            slot=slot,
            half=2 * slot + self.starts[index] % 2 if self.moded else 2 * slot,
            table=Table(a[:, q], self.values),
            partnered=has_partner(slot, self.total_slots).to(z),
            others=torch.cat([_one_hot(a[:, j], self.attribute_sizes[j]) for j in rest], dim=1).to(z),
            losses=losses,
        )

    def compared(self, view: View) -> Compared:
        """The pairs of a batch whose weights are compared."""
        if view.compared is None:
            view.compared = Compared.of(self, view)
        return view.compared

    def _mode_cross_entropy(self, z: Tensor, index: Tensor) -> Tensor:
        """Cross-entropy of the mode prediction, (B,), a constant; zero without a mode predictor."""
        return self.mode_losses(z, index)[1].detach() if self.predicts_modes else z.new_zeros(len(z))

    def mode_losses(self, z: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """KL divergence (Eq. 2) and cross-entropy of the mode prediction from the cluster probabilities, (B,) each."""
        slots, target = self._cluster_probs(index)
        target = target.to(z)
        cross_entropy = _cross_entropy(self.mode_predictor(z, self.active.flatten()), slots, target)
        return cross_entropy + torch.xlogy(target, target).sum(1), cross_entropy

    def cluster_cross_entropy(self, log_probs: Tensor, a: Tensor, index: Tensor) -> Tensor:
        """Cross-entropy (B,) of log-probabilities (B, slots) from the cluster probabilities of training samples."""
        if not self.moded:
            return -log_probs.gather(1, a[:, self.attribute, None])[:, 0]
        slots, target = self._cluster_probs(index)
        return _cross_entropy(log_probs, slots, target.to(log_probs))

    def _cluster_probs(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Slots of the clusters of each training sample's value, and the sample's probabilities, (B, C) each."""
        value = self.labels[index].long() // self.slots
        slots = value[:, None] * self.slots + self.columns[value]
        column = torch.arange(slots.shape[1], device=slots.device)
        own = column < self.active.sum(1)[value][:, None]  # what follows belongs to the next sample
        return slots, self.probs[self.starts[index].long()[:, None] // 2 + column] * own

    def most_likely_cluster(self, z: Tensor) -> Tensor:
        """The cluster (B,) that the mode predictor finds most likely for z (B, d)."""
        log_probs: Tensor = self.mode_predictor(z, self.active.flatten())
        return log_probs.argmax(1)

    @torch.no_grad()
    def update_subcluster_means(self, view: View) -> Tensor:
        """Move the means (A * K, 2, d) of the mixture's halves towards the representations of a batch.

        Between two refinements the encoder moves clusters further than their halves are apart. With fixed means, all
        samples of a cluster would soon be in the same half.
        """
        flat = self.sub_means.flatten(0, 1)  # a view: it moves in place
        count = flat.new_zeros(len(flat)).index_add(0, view.half, torch.ones_like(view.half, dtype=flat.dtype))
        away = view.own.detach().to(flat) - flat[view.half]
        flat.index_add_(0, view.half, away / (count + HALF_MEMORY)[view.half, None])
        return self.sub_means

    # ------------------------------------------------------------------------------------------------------ adoption

    @torch.no_grad()
    def adopt(self, found: Clustering, z: Tensor, optimizers: Iterable[Optimizer], reset: bool = False) -> None:
        """Take over a clustering. Heads of split or merged clusters inherit from their former clusters.

        Args:
            found: Labels, probabilities and lineage of the clusters.
            z: Representations (N, d) of the samples.
            optimizers: Optimizers whose moments are inherited too.
            reset: Re-initialise all heads when any cluster changed, instead of inheriting.
        """
        first, optimizers = len(self.labels) == 0, list(optimizers)
        # Compared by lineage: a split may fill the very slot that a vanished cluster left.
        changed = not first and not torch.equal(found.inherit, torch.diag_embed(self.active).to(found.inherit))
        if changed and reset:
            self._reset_heads(optimizers)
        elif changed:
            for part in self.parts:
                part.clusters_changed(self, found, z.to(self.active.device), optimizers)
        labels = found.labels.to(self.active.device)
        second = found.sub_probs.argmax(1).to(self.active.device)
        turned = torch.zeros(self.total_slots, dtype=torch.bool, device=labels.device)
        if not first:
            turned = self._turned_halves(labels, second)
        self.active.copy_(found.active)
        self.sub_means.copy_(found.sub_means.flatten(0, 1))
        self.sub_means[turned] = self.sub_means[turned].flip(1)
        self._keep_samples(labels, second ^ turned[labels], found.probs.to(self.active.device))

    def _turned_halves(self, labels: Tensor, second: Tensor) -> Tensor:
        """Clusters whose two halves the mixture names the other way round than before, (A * K,)."""
        agree = torch.where(self.labels == labels, 1.0 - 2.0 * (self.second != second), 0.0)
        return agree.new_zeros(self.total_slots).index_add_(0, labels, agree) < 0

    def _keep_samples(self, labels: Tensor, second: Tensor, probs: Tensor) -> None:
        """Keep labels, halves and probabilities of all samples. Only slots in use take memory."""
        self.labels = labels.to(torch.int32)
        counts = self.active.sum(1)
        order = self.active.long().argsort(dim=1, descending=True, stable=True)[:, : int(counts.max())]
        used = self.active.gather(1, order)
        self.columns = torch.where(used, order, order[:, :1])
        value = self.labels.long() // self.slots
        starts = counts[value].cumsum(0) - counts[value]
        self.starts = (2 * starts + second).to(torch.int32)
        held = probs.gather(1, self.columns[value])[used[value]]
        self.probs = F.pad(held, (0, order.shape[1]))  # so that the last samples, too, can be read C at a time

    def _reset_heads(self, optimizers: list[Optimizer]) -> None:
        for head in self.children():
            if callable(reset := getattr(head, "reset_parameters", None)):
                reset()
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


def _cross_entropy(log_probs: Tensor, slots: Tensor, target: Tensor) -> Tensor:
    return -(target * log_probs.gather(1, slots).clamp_min(-1e4)).sum(1)


def _one_hot(labels: Tensor, size: int) -> Tensor:
    """Indicators (B, size) of labels (B,), without the device round trip of the checks in `torch`'s."""
    return labels[:, None] == torch.arange(size, device=labels.device)
