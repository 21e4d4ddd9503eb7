"""Alignments: what makes z_q independent of the other representations within each cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from codid_lightning.methods.codid.parts.base import OptimizerSettings, Part
from codid_lightning.methods.codid.parts.weights import LearnedWeights
from codid_lightning.metrics.permutation import shuffle_within
from codid_lightning.nn import distributed
from codid_lightning.nn.conditional import Parts, Table
from codid_lightning.nn.discriminator import Discriminator, PairGradients, PairTable
from codid_lightning.nn.virtual import EncoderPass, KernelPass
from datamodules.base import Batch

if TYPE_CHECKING:
    from codid_lightning.methods.codid.module import CoDID
    from codid_lightning.methods.codid.target import Target, View

Sharing = Literal["value", "mode", "all"]
Encoding = EncoderPass | KernelPass
MIN_WEIGHT_STD = 1e-4  # standard deviation of pair weights below which they are all the same


@dataclass(frozen=True)
class Alignment(Part, ABC):
    """What makes z_q independent of the other representations within each cluster."""

    @abstractmethod
    def step(self, codid: CoDID, batch: Batch, encoding: Encoding, views: list[View]) -> None:
        """Update the alignment's own networks, and then the encoder.

        Args:
            codid: The model; `codid.step` and `codid.minimise` apply gradients.
            batch: This rank's samples.
            encoding: The encoder's pass on them: representations z (B, Q, d) of the global batch, the encoder's
                parameters, and their gradients for a given gradient of z.
            views: The global batch as each target sees it.
        """

    def weight_divergence(self, target: Target, view: View) -> tuple[Tensor, Tensor] | None:
        """How differently two samples' pairs are weighted, and which pairs count; None without learnt weights."""
        return None

    def sampled_weights(
        self, target: Target, view: View, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Weights (B,) of randomly shuffled pairs and whose z_-q each has, (B,); None without learnt weights."""
        return None

    def epoch_end(self, codid: CoDID) -> None:
        """Called at the end of an epoch, before its losses are logged."""


@dataclass(frozen=True)
class ShuffledPairs:
    """Pairs of each sample's z_q with another sample's z_-q."""

    permutation: Tensor  # (B,) whose z_-q
    gradients: PairGradients  # of these pairs and of the unshuffled ones


@dataclass(frozen=True)
class DiscriminatorAlignment(Alignment):
    """A discriminator learns to separate joint from shuffled pairs; the encoder makes them alike (Eq. 5).

    Args:
        strength: Weight of -L_wd in the encoder's update.
        lr: Learning rate of the discriminators (l_d).
        steps: Discriminator updates per batch (N_d).
        momentum: Adam's beta_1 of the discriminators and, where `encoder_lr` is given, of the encoder's update. With
            momentum, discriminator and encoder circle around their equilibrium (Gidel et al., AISTATS 2019).
        encoder_lr: Learning rate of a separate Adam for the encoder's update; null uses the inform step's Adam.
        sharing: Which clusters share a discriminator: those of one `value`, none (`mode`), or `all`.
        weights: How shuffled pairs are weighted; null weighs all the same.
    """

    strength: float = 1.0
    lr: float = 3e-4
    steps: int = 15
    momentum: float = 0.9
    encoder_lr: float | None = None
    sharing: Sharing = "value"
    weights: LearnedWeights | None = LearnedWeights()  # noqa: RUF009  (immutable)

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"model.alignment.steps is {self.steps}; it must be positive.")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"model.alignment.momentum is {self.momentum}; it must be from 0 to below 1.")

    # ------------------------------------------------------------------------------------------------------ networks

    def heads(self, target: Target) -> dict[str, nn.Module]:
        """A discriminator, with one subnetwork per group of clusters that share it."""
        groups = {"value": target.values, "mode": target.total_slots, "all": 1}[self._sharing(target)]
        rest = (len(target.attribute_sizes) - 1) * target.latent_dim
        return {"discriminator": Discriminator(groups, target.total_slots, target.latent_dim, rest)}

    def slot_tables(self, target: Target) -> list[nn.Parameter]:
        """Rows of the condition; with one discriminator per cluster, of all layers."""
        per_cluster = self._sharing(target) == "mode"
        return list(target.discriminator.parameters()) if per_cluster else [target.discriminator.condition]

    def optimizers(self, codid: CoDID) -> dict[str, OptimizerSettings]:
        """One for the discriminators, and one for the encoder where it has its own."""
        discriminators = [target.discriminator for target in codid.target_list]
        found = {"discriminator": OptimizerSettings(discriminators, self.lr, self.momentum)}
        if self.encoder_lr is not None:
            found["disentangle"] = OptimizerSettings([codid.encoder], self.encoder_lr, self.momentum)
        return found

    def _sharing(self, target: Target) -> Sharing:
        return self.sharing if target.moded else "value"

    # --------------------------------------------------------------------------------- Algorithm 1, lines 17 to 21

    def step(self, codid: CoDID, batch: Batch, encoding: Encoding, views: list[View]) -> None:
        """Discriminate N_d times, weigh the shuffled pairs, disentangle."""
        self.discriminate(codid, views)
        pairs = self.shuffled_pairs(codid, views)
        if self.weights is not None and any(target.moded for target in codid.target_list):
            self.weigh(codid, batch, encoding, views, pairs)
        self.disentangle(codid, encoding, views, pairs)

    def discriminate(self, codid: CoDID, views: list[View]) -> None:
        """Discriminators learn to separate joint from shuffled pairs (Eq. 5 with w = 1, lines 17 to 19)."""
        optimizer = codid.optimizer("discriminator")
        for target, view in zip(codid.target_list, views, strict=True):
            parameters, losses = list(target.discriminator.parameters()), []
            permutations = shuffle_within(view.slot, codid.generator, self.steps)
            for loss, gradients in target.discriminator.updates(self.pair_table(target, view), permutations):
                codid.step(optimizer, parameters, gradients, reduce=False)
                losses.append(loss)
            codid.losses.add("discriminator", *losses)

    def weigh(
        self, codid: CoDID, batch: Batch, encoding: Encoding, views: list[View], pairs: list[ShuffledPairs]
    ) -> None:
        """Weight nets learn large weights for pairs whose alignment keeps z informative (Eq. 8, line 20)."""
        assert self.weights is not None  # noqa: S101
        gradient, _ = self.gradient_of_z(codid, views, pairs, self.pair_weights(codid, views, pairs))
        moved = encoding.moved(gradient, self.weights.virtual_step(codid))
        loss = self.weights.meta_loss(codid, moved, batch)
        codid.losses.add("meta", loss)
        codid.minimise(codid.optimizer("weigh"), distributed.scale_to_global_mean(loss, batch["x"]))

    def disentangle(self, codid: CoDID, encoding: Encoding, views: list[View], pairs: list[ShuffledPairs]) -> None:
        """The encoder makes joint and weighted shuffled pairs alike (Eq. 5 with w, maximised, line 21)."""
        weights = [None if w is None else w.detach() for w in self.pair_weights(codid, views, pairs)]
        for w in weights:
            if w is not None:
                codid.losses.add("weight_spread", w.std(correction=0))
        gradient, loss = self.gradient_of_z(codid, views, pairs, weights)
        codid.losses.add("discrimination", loss)
        name = "inform" if self.encoder_lr is None else "disentangle"
        codid.step(codid.optimizer(name), encoding.parameters, encoding.gradients(-self.strength * gradient))

    # --------------------------------------------------------------------------------------------------------- pairs

    def pair_table(self, target: Target, view: View) -> PairTable:
        """The batch in the arrangement that the discriminator needs; made once per view."""
        if view.pairs is None:
            shared = self._sharing(target) == "value"
            groups = len(target.discriminator.weight)
            table = view.table if shared else Table(self._groups(target, view.slot), groups)
            dtype = target.discriminator.weight.dtype
            own, rest, partnered = (part.detach().to(dtype) for part in (view.own, view.rest, view.partnered))
            view.pairs = PairTable.from_batch(table, own, rest, view.slot, partnered)
        return view.pairs

    def _groups(self, target: Target, slot: Tensor) -> Tensor:
        """Subnetwork of the discriminator for samples in these slots."""
        sharing = self._sharing(target)
        return {"value": slot // target.slots, "mode": slot, "all": torch.zeros_like(slot)}[sharing]

    def shuffled_pairs(self, codid: CoDID, views: list[View]) -> list[ShuffledPairs]:
        """Each target's shuffled pairs for the encoder's update, with their gradients."""
        targets = zip(codid.target_list, views, strict=True)
        return [self._shuffled(target, view, codid.generator) for target, view in targets]

    def _shuffled(self, target: Target, view: View, generator: torch.Generator | None) -> ShuffledPairs:
        permutation = shuffle_within(view.slot, generator)
        gradients = target.discriminator.input_gradients(self.pair_table(target, view), permutation)
        return ShuffledPairs(permutation, gradients)

    def pair_weights(self, codid: CoDID, views: list[View], pairs: list[ShuffledPairs]) -> list[Tensor | None]:
        """Learnt weights (B,) of each target's shuffled pairs; None where all count the same."""
        return [
            self.weights.weigh(target, view, shuffled.permutation, shuffled.gradients.marginal_loss)
            if target.moded and self.weights is not None
            else None
            for target, view, shuffled in zip(codid.target_list, views, pairs, strict=True)
        ]

    def gradient_of_z(
        self, codid: CoDID, views: list[View], pairs: list[ShuffledPairs], weights: list[Tensor | None]
    ) -> tuple[Tensor, Tensor]:
        """Gradient (B, Q, d) of L_wd with respect to z, differentiable in the weights, and L_wd."""
        found = [
            _target_gradient(target.attribute, view, shuffled, w)
            for target, view, shuffled, w in zip(codid.target_list, views, pairs, weights, strict=True)
        ]
        gradients, losses = zip(*found, strict=True)
        return torch.stack(gradients).sum(0), torch.stack(losses).sum()

    def sampled_weights(
        self, target: Target, view: View, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Weights (B,) of randomly shuffled pairs and whose z_-q each has, (B,)."""
        if self.weights is None or not target.moded:
            return None
        shuffled = self._shuffled(target, view, generator)
        losses = shuffled.gradients.marginal_loss
        return self.weights.weigh(target, view, shuffled.permutation, losses), shuffled.permutation

    def weight_divergence(self, target: Target, view: View) -> tuple[Tensor, Tensor] | None:
        """Divergence of the weight summaries, from the discrimination loss of all pairs of one value."""
        if self.weights is None:
            return None
        return self.weights.divergence(target, view, self._all_pair_losses(target, view))

    @torch.no_grad()
    def _all_pair_losses(self, target: Target, view: View) -> Tensor:
        """Discrimination loss of every pair (z_q of i, z_-q of k) of one block, (blocks, rows, rows)."""
        compared, table = target.compared(view), view.table
        if isinstance(compared.table, Parts) and compared.slot is not None:
            of = self._groups(target, compared.slot)
            return F.softplus(target.discriminator.pairs_in(compared.table, of, self.pair_table(target, view)))
        own, rest, slot = table.pad(view.own), table.pad(view.rest), table.pad(view.slot)
        if self._sharing(target) == "value":
            return F.softplus(target.discriminator.all_pairs(own, rest, slot))
        rows = own.shape[1]
        pair = torch.cat([own[:, :, None].expand(-1, -1, rows, -1), rest[:, None].expand(-1, rows, -1, -1)], dim=3)
        slots = slot[:, :, None].expand(-1, -1, rows).flatten()
        logits: Tensor = target.discriminator(pair.flatten(0, 2), self._groups(target, slots), slots)
        return F.softplus(logits).view(len(own), rows, rows)

    def epoch_end(self, codid: CoDID) -> None:
        """Warn if W weighs all pairs the same."""
        std = codid.losses.mean("weight_spread")
        if std is not None and std < MIN_WEIGHT_STD:
            rank_zero_warn(
                f"The weight net weighs all pairs the same (train/weight_spread {float(std):.1e}), so correlations "
                "within clusters have no effect. Lower model.alignment.weights.lr or model.alignment.strength."
            )


def _target_gradient(
    attribute: int, view: View, shuffled: ShuffledPairs, weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Gradient (B, Q, d) of one target's L_wd with respect to z, linear in the weights (B,), and L_wd."""
    found = shuffled.gradients
    share = view.partnered / view.count
    weighted = share if weights is None else share * weights
    joint, marginal = share[:, None] * found.joint, weighted[:, None] * found.marginal
    dim = view.own.shape[1]
    # The shuffled pair's z_-q belongs to another sample.
    rest = joint[:, dim:].index_add(0, shuffled.permutation, marginal[:, dim:])
    parts = list(rest.split(dim, dim=1))
    parts.insert(attribute, joint[:, :dim] + marginal[:, :dim])
    loss = (share * found.joint_loss + weighted.detach() * found.marginal_loss).sum()
    return torch.stack(parts, dim=1), loss
