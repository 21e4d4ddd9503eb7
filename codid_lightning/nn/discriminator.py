"""The discriminator of pairs, with its gradients in closed form.

The first layer is linear: its output for a pair is the sum of a term of z_q (with the condition) and a term of z_-q. A
new shuffle reuses both terms. The gradients of the two layers are a few batched products. For the many small updates of
a batch, they take a third of the time of automatic differentiation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from codid_lightning.nn.conditional import ConditionalMLP, Parts, Table


@dataclass
class PairTable:
    """A batch arranged by group for the discriminator: G blocks of M rows; the share of padding is zero."""

    table: Table
    own: Tensor  # (G, M, d) representations of the target attribute
    rest: Tensor  # (G, M, r) representations of all others
    condition: Tensor  # (G, M)
    share: Tensor  # (G, M) weight of each pair in the mean loss: 1 / number of pairs, or 0 without a partner

    @classmethod
    def from_batch(cls, table: Table, own: Tensor, rest: Tensor, condition: Tensor, partnered: Tensor) -> PairTable:
        """Arrange representations (B, d) and (B, r), conditions (B,) and the mask of samples with a partner (B,)."""
        share = partnered / partnered.sum().clamp_min(1)
        return cls(table, *(table.pad(part) for part in (own, rest, condition, share)))

    def positions(self, permutation: Tensor) -> Tensor:
        """Permutations (R, B) of samples as permutations (R, G * M) of rows; padding is not moved."""
        position = self.table.position
        rows = torch.arange(self.own.shape[0] * self.own.shape[1], device=position.device)
        return rows.repeat(len(permutation), 1).index_copy_(1, position, position[permutation])


class Discriminator(ConditionalMLP):
    """D: logits that z_q and z_-q belong to the same sample, with a subnetwork per group and a vector per condition.

    Args:
        num_groups: Subnetworks, G.
        num_conditions: Conditions over all groups.
        own_features: Dimensions d of z_q.
        rest_features: Dimensions r of z_-q.
        hidden: Hidden units.
    """

    def __init__(
        self, num_groups: int, num_conditions: int, own_features: int, rest_features: int, hidden: int = 512
    ) -> None:
        super().__init__(num_groups, num_conditions, own_features + rest_features, hidden)
        self.own_features = own_features

    @torch.no_grad()
    def updates(self, pairs: PairTable, permutations: Tensor) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """For each shuffle: L_wd with w = 1 (Eq. 5) and its gradients, in the order of the parameters.

        Parameters may change between two shuffles. The tensors of the gradients are reused for the next shuffle.

        Args:
            pairs: The batch.
            permutations: Index of the sample whose z_-q is in each sample's marginal pair, (R, B).
        """
        orders = pairs.positions(permutations)
        (groups, rows, d), (own, rest) = pairs.own.shape, (pairs.own.mT, pairs.rest.mT)
        condition, share = pairs.condition.flatten(), pairs.share.repeat(1, 2)
        weight, of_condition = torch.empty_like(self.weight), torch.empty_like(self.condition)
        work = Workspace.of(self.weight, groups, rows)
        for order, inverse in zip(orders, orders.argsort(dim=1), strict=True):
            signed = self._evaluate(pairs, order, work)
            loss = (F.softplus(signed) * share).sum()
            grad_logits = signed.sigmoid_().mul_(share)
            grad_logits[:, :rows].neg_()  # (G, 2M): gradients of the logits
            out_weight = torch.bmm(grad_logits[:, None], work.hidden)
            self._through_relu(grad_logits, work)
            torch.add(work.joint, work.marginal, out=work.first)
            work.second.copy_(work.marginal)
            torch.index_select(work.second.flatten(0, 1), 0, inverse, out=work.shuffled.flatten(0, 1))
            torch.bmm(own, work.first, out=weight[:, :d])
            torch.bmm(rest, work.shuffled.add_(work.joint), out=weight[:, d:])
            of_condition.zero_().index_add_(0, condition, work.first.flatten(0, 1))
            yield loss, [weight, of_condition, out_weight, grad_logits.sum(1, keepdim=True)]

    @torch.no_grad()
    def input_gradients(self, pairs: PairTable, permutation: Tensor) -> PairGradients:
        """Losses of joint and marginal pairs, and their gradients with respect to the representations, per pair."""
        (groups, rows, _), table = pairs.own.shape, pairs.table
        work = Workspace.of(self.weight, groups, rows)
        signed = self._evaluate(pairs, pairs.positions(permutation[None])[0], work)
        losses = F.softplus(signed)
        grad_logits = signed.sigmoid_()
        grad_logits[:, :rows].neg_()
        self._through_relu(grad_logits, work)
        into = torch.bmm(work.gradient, self.weight.mT)  # (G, 2M, d + r)
        return PairGradients(
            *(table.unpad(part) for part in (losses[:, :rows], losses[:, rows:], into[:, :rows], into[:, rows:]))
        )

    @torch.no_grad()
    def all_pairs(self, own: Tensor, rest: Tensor, condition: Tensor) -> Tensor:
        """Logits (G, M, M) of all pairs in a group: z_q and condition of row i, z_-q of row k."""
        return self._of_pairs(*self._first_layer(own, rest, condition))

    @torch.no_grad()
    def pairs_in(self, parts: Parts, of: Tensor, pairs: PairTable) -> Tensor:
        """Logits (blocks, rows, rows) of all pairs in a part of a group: z_q and condition of row i, z_-q of row k.

        Args:
            parts: The arrangement of the result.
            of: Subnetwork of each block.
            pairs: The same batch, arranged by subnetwork.
        """
        left, right = self._first_layer(pairs.own, pairs.rest, pairs.condition)
        left, right = (parts.pad(pairs.table.unpad(part)) for part in (left, right))
        at_once = max(1, _MAX_CACHED // (parts.shape[1] * left[0].numel()))  # blocks that fit into the cache
        blocks = zip(left.split(at_once), right.split(at_once), of.split(at_once), strict=True)
        return torch.cat([self._of_pairs(*block) for block in blocks])

    def _first_layer(self, own: Tensor, rest: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """The terms (G, M, H) of z_q, with the condition, and of z_-q in the first layer's output."""
        rows = self.condition.index_select(0, condition.flatten()).unflatten(0, condition.shape)
        left = torch.bmm(own, self.weight[:, : self.own_features]) + rows
        return left, torch.bmm(rest, self.weight[:, self.own_features :])

    def _of_pairs(self, left: Tensor, right: Tensor, of: Tensor | None = None) -> Tensor:
        """Logits (G, M, M) of all pairs of a term of z_q and one of z_-q."""
        at_once = max(1, _MAX_CACHED // right.numel())  # rows that fit into the processor's cache
        partners = right.shape[1]
        logits = [
            self.output((part[:, :, None] + right[:, None]).relu_().flatten(1, 2), of).unflatten(1, (-1, partners))
            for part in left.split(at_once, dim=1)
        ]
        return torch.cat(logits, dim=1)

    def _evaluate(self, pairs: PairTable, order: Tensor, work: Workspace) -> Tensor:
        """Compute the hidden units of joint and marginal pairs; return logits (G, 2M), negated for joint pairs."""
        d, rows = self.own_features, pairs.own.shape[1]
        torch.bmm(pairs.own, self.weight[:, :d], out=work.first)
        torch.index_select(self.condition, 0, pairs.condition.flatten(), out=work.shuffled.flatten(0, 1))
        work.first += work.shuffled
        torch.bmm(pairs.rest, self.weight[:, d:], out=work.second)
        torch.index_select(work.second.flatten(0, 1), 0, order, out=work.shuffled.flatten(0, 1))
        torch.add(work.first, work.second, out=work.hidden[:, :rows])
        torch.add(work.first, work.shuffled, out=work.hidden[:, rows:])
        logits = self.output(work.hidden.relu_())
        logits[:, :rows].neg_()
        return logits

    def _through_relu(self, grad_logits: Tensor, work: Workspace) -> None:
        """Compute the gradients of the first layer's output, given those (G, 2M) of the logits."""
        torch.mul(grad_logits[..., None], self.out_weight, out=work.gradient)
        torch.ops.aten.threshold_backward.grad_input(work.gradient, work.hidden, 0, grad_input=work.gradient)


@dataclass
class Workspace:
    """Memory for the hidden layer of a batch. New memory for each update would double its time."""

    hidden: Tensor  # (G, 2M, H) units of joint pairs, then of marginal ones
    gradient: Tensor  # (G, 2M, H) of the first layer's output
    first: Tensor  # (G, M, H)
    second: Tensor  # (G, M, H)
    shuffled: Tensor  # (G, M, H)

    @classmethod
    def of(cls, weight: Tensor, groups: int, rows: int) -> Workspace:
        """For weights (G, d + r, H) and M rows."""
        both, one = (groups, 2 * rows, weight.shape[2]), (groups, rows, weight.shape[2])
        return cls(*(weight.new_empty(shape) for shape in (both, both, one, one, one)))

    @property
    def joint(self) -> Tensor:
        """Gradient of joint pairs, (G, M, H)."""
        return self.gradient[:, : self.first.shape[1]]

    @property
    def marginal(self) -> Tensor:
        """Gradient of marginal pairs, (G, M, H)."""
        return self.gradient[:, self.first.shape[1] :]


_MAX_CACHED = 1 << 18  # numbers in the processor's cache


@dataclass
class PairGradients:
    """Losses of B joint and marginal pairs, and their gradients with respect to [z_q, z_-q] of the pair."""

    joint_loss: Tensor  # (B,)
    marginal_loss: Tensor  # (B,)
    joint: Tensor  # (B, d + r)
    marginal: Tensor  # (B, d + r)
