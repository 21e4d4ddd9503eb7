"""Heads for a changing number of clusters: tables of fixed size, with one row (slot) per possible cluster.

A cluster is a slot `value * K + k`, with K slots under each attribute value. The paper adds and removes neurons in four
layers: the output of the mode predictor and of the subclustering net, and the conditional input of discriminator and
weight net. Here, these layers are tables with one row per slot, and slots are activated and deactivated. Parameters
keep their shape, so that optimizers, DDP and checkpoints need no change.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from codid_lightning.nn.conditional import Table

MAX_LOGIT = 5.0  # of the subclustering net: with larger logits its gradients would vanish
UNUSED = -1e9  # logit of slots not in use; a sum over such slots alone has finite gradients, unlike with -inf


class ModePredictor(nn.Module):
    """C^m: log-probabilities over the clusters of all attribute values.

    Args:
        num_slots: Slots over all values.
        latent_dim: Dimensions of the representation.
    """

    def __init__(self, num_slots: int, latent_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_slots, latent_dim))
        self.bias = nn.Parameter(torch.empty(num_slots))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the rows like `nn.Linear`."""
        bound = 1 / sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, z: Tensor, active: Tensor) -> Tensor:
        """Log-probabilities (B, slots) of representations (B, d); -inf for slots that are not `active`."""
        logits = torch.addmm(self.bias, z, self.weight.T)
        return logits.masked_fill(~active, -torch.inf).log_softmax(1)


class PriorPredictor(nn.Module):
    """A mode predictor that keeps apart what content says about clusters and what other attributes say about them.

    Content s gives logits of pairs (c, e): cluster c together with value e of the other attributes. With one value
    these are logits of clusters. The tables of training's frequencies are buffers, so that a checkpoint has them.

    Args:
        num_slots: Slots over all values, C.
        latent_dim: Dimensions of the representation.
        pairs: Values e that are predicted together with the cluster, E; 1 predicts clusters alone.
        rows: Rows of the table of log-ratios: values of the other attributes.
    """

    log_ratio: Tensor  # (R, C) log p(c | e) / p(c) in training
    log_marginal: Tensor  # (C,) log p(c) in training
    temperature: Tensor  # () divides the logits in evaluation

    def __init__(self, num_slots: int, latent_dim: int, pairs: int, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_slots, pairs, latent_dim))
        self.bias = nn.Parameter(torch.empty(num_slots, pairs))
        self.register_buffer("log_ratio", torch.zeros(rows, num_slots))
        self.register_buffer("log_marginal", torch.zeros(num_slots))
        self.register_buffer("temperature", torch.ones(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the rows like `nn.Linear`."""
        bound = 1 / sqrt(self.weight.shape[2])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def logits(self, z: Tensor, active: Tensor) -> Tensor:
        """Logits (B, C, E) of representations (B, d); about `UNUSED` for slots that are not `active`."""
        # Values before clusters in memory: sums over either are then of long rows.
        weight, bias = self.weight.transpose(0, 1).flatten(0, 1), self.bias.T.masked_fill(~active, UNUSED)
        logits = torch.addmm(bias.flatten(), z, weight.T).view(len(z), *bias.shape)
        return logits.transpose(1, 2)

    def forward(self, z: Tensor, active: Tensor) -> Tensor:
        """Log-probabilities log p(c | s) (B, C) of representations (B, d)."""
        return cluster_logits(self.logits(z, active)).log_softmax(1)


def cluster_logits(pairs: Tensor) -> Tensor:
    """Logits (B, C) of clusters, given those of clusters with other attributes (B, C, E): the latter are added up."""
    if pairs.shape[2] == 2:  # several times faster than the general case
        return torch.logaddexp(pairs[..., 0], pairs[..., 1])
    return pairs.logsumexp(2)


class SubclusterNet(nn.Module):
    """S: probabilities of the two subclusters of a sample's cluster.

    Args:
        num_values: Subnetworks, one per attribute value.
        num_slots: Slots over all values.
        latent_dim: Dimensions of the representation.
        hidden: Hidden units.
    """

    def __init__(self, num_values: int, num_slots: int, latent_dim: int, hidden: int = 256) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_values, latent_dim, hidden))
        self.bias = nn.Parameter(torch.empty(num_values, 1, hidden))
        self.out_weight = nn.Parameter(torch.empty(num_slots, 2, hidden))
        self.out_bias = nn.Parameter(torch.empty(num_slots, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all weights like `nn.Linear`."""
        for parameter in self.parameters():
            fan_in = self.weight.shape[1 if parameter is self.weight or parameter is self.bias else 2]
            nn.init.uniform_(parameter, -1 / sqrt(fan_in), 1 / sqrt(fan_in))

    def forward(self, z: Tensor, value: Tensor | Table, slot: Tensor) -> Tensor:
        """Probabilities (B, 2) for representations (B, d), values (B,) or their `Table`, and slots (B,)."""
        table = value if isinstance(value, Table) else Table(value, len(self.weight))
        hidden = table.unpad(torch.baddbmm(self.bias, table.pad(z), self.weight).relu())
        weight, bias = self.out_weight.index_select(0, slot), self.out_bias.index_select(0, slot)
        return _halves((weight * hidden[:, None]).sum(2) + bias)

    def in_all_slots(self, z: Tensor, value: Tensor) -> Tensor:
        """Probabilities (B, K, 2) in every slot of the value (B,), for representations (B, d)."""
        table, values = Table(value, len(self.weight)), len(self.weight)
        hidden = torch.baddbmm(self.bias, table.pad(z), self.weight).relu()
        weight, bias = self.out_weight.reshape(values, -1, hidden.shape[2]), self.out_bias.reshape(values, 1, -1)
        return _halves(table.unpad(torch.baddbmm(bias, hidden, weight.mT)).unflatten(1, (-1, 2)))


def _halves(logits: Tensor) -> Tensor:
    """Probabilities (..., 2) of bounded log-odds."""
    log_odds = logits[..., 0] - logits[..., 1]
    first = (log_odds / (1 + log_odds.abs() / MAX_LOGIT)).sigmoid()
    return torch.stack([first, 1 - first], dim=-1)


@torch.no_grad()
def carry_over(tables: Iterable[nn.Parameter], inherit: Tensor, optimizers: Iterable[Optimizer]) -> None:
    """Compute the rows of the new clusters, and their Adam moments, from those of the former clusters.

    Both children of a split get the row of their parent. A merged cluster gets the mean of its parts, weighted by size.
    The rows of unchanged clusters stay the same bit for bit.

    Args:
        tables: Parameters with one leading row per slot.
        inherit: Weight of former slot j in slot k of each value, (A, K, K); rows of inactive slots are zero.
        optimizers: All optimizers that may hold moments of the tables.
    """
    for table in tables:
        _inherit(table, inherit)
        for optimizer in optimizers:
            for name, moment in optimizer.state.get(table, {}).items():
                if name in ("exp_avg", "exp_avg_sq"):
                    _inherit(moment, inherit)


@torch.no_grad()
def conserving_shifts(former: Tensor, inherited: Tensor, inherit: Tensor, share: Tensor) -> Tensor:
    """What to add to inherited logits, so that clusters that split or merge keep the probability they had.

    The children of a split share their parent's for every sample. A merged cluster gets the sum of its parts', in the
    mean of the samples: one logit, linear in z, cannot be the logarithm of the sum of two exponentials everywhere.

    Args:
        former: Log-probabilities of samples (N, A * K) before, -inf for slots not in use.
        inherited: Log-probabilities or logits (N, A * K) after the rows were inherited, -inf for slots not in use.
        inherit: Weight of former slot j in slot k of each value, (A, K, K).
        share: Share of its parent's probability, (A, K).

    Returns:
        The shifts, (A * K,).
    """
    shifts = share.double().log().flatten()
    parts = (inherit > 0).double()
    merged = (parts.sum(2) > 1).flatten()
    if merged.any():
        before = former.double().exp().mean(0).view(parts.shape[:2])
        goal = (parts @ before[..., None]).flatten()[merged]
        logits = inherited.double() + shifts
        shifts[merged] = _calibrated(logits[:, merged], logits[:, ~merged].logsumexp(1), goal)
    return shifts.to(former)


def _calibrated(logits: Tensor, rest: Tensor, goal: Tensor) -> Tensor:
    """Shifts (m,) with which logits (N, m) have these mean probabilities (m,), beside one more logit (N,).

    They maximise a concave function, the mean log-likelihood of labels that occur as often as the goal says.
    """
    shifts = torch.zeros_like(goal)
    search = torch.optim.LBFGS(
        [shifts], max_iter=200, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def loss() -> float:
        table = torch.cat([rest[:, None], logits + shifts], dim=1)
        shifts.grad = table.softmax(1)[:, 1:].mean(0) - goal
        return float(table.logsumexp(1).mean() - goal @ shifts)

    search.step(loss)
    return shifts


def _inherit(table: Tensor, inherit: Tensor) -> None:
    rows = table.view(*inherit.shape[:2], -1)
    moved = torch.bmm(inherit.to(rows), rows)
    survivor = inherit.diagonal(dim1=1, dim2=2) == 1
    rows.copy_(torch.where(survivor[..., None], rows, moved))
