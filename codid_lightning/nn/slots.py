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
        hidden = table.collect(torch.baddbmm(self.bias, table.spread(z), self.weight).relu())
        weight, bias = self.out_weight.index_select(0, slot), self.out_bias.index_select(0, slot)
        logits = (weight * hidden[:, None]).sum(2) + bias
        log_odds = logits[:, 0] - logits[:, 1]
        first = (log_odds / (1 + log_odds.abs() / MAX_LOGIT)).sigmoid()
        return torch.stack([first, 1 - first], dim=1)


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


def _inherit(table: Tensor, inherit: Tensor) -> None:
    rows = table.view(*inherit.shape[:2], -1)
    moved = torch.bmm(inherit.to(rows), rows)
    survivor = inherit.diagonal(dim1=1, dim2=2) == 1
    rows.copy_(torch.where(survivor[..., None], rows, moved))
