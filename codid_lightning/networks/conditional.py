"""Networks with one subnetwork per group of samples and a conditional input, evaluated for all groups at once.

The discriminator, weight net and subclustering net of the paper have a subnetwork per attribute value, with the
cluster as conditional input. A batch mixes values; `Table` lays it out as one padded block per group, so that every
layer is a single batched matrix product.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn


class Table:
    """A batch laid out as (groups, rows): each group's samples in the leading rows of its block, the rest padding.

    Args:
        group: Group of each sample, (B,).
        num_groups: Number of blocks.
    """

    def __init__(self, group: Tensor, num_groups: int) -> None:
        counts = group.bincount(minlength=num_groups)
        order = group.argsort(stable=True)
        starts = counts.cumsum(0) - counts
        row = torch.empty_like(group)
        row[order] = torch.arange(len(group), device=group.device) - starts[group[order]]
        self.shape = (num_groups, max(1, int(counts.max())))  # the one host synchronisation of a batch
        self.position = group * self.shape[1] + row  # (B,) of each sample in the flattened table

    def spread(self, x: Tensor, fill: float = 0) -> Tensor:
        """Samples (B, ...) to their places (G, M, ...)."""
        flat = x.new_full((self.shape[0] * self.shape[1], *x.shape[1:]), fill)
        table: Tensor = flat.index_copy(0, self.position, x).unflatten(0, self.shape)
        return table

    def collect(self, table: Tensor) -> Tensor:
        """Values (G, M, ...) back to samples (B, ...)."""
        return table.flatten(0, 1)[self.position]


class ConditionalMLP(nn.Module):
    """Two layers with separate weights per group and a learned vector per condition.

    A one-hot condition concatenated to the input of a linear layer adds a row of that layer's weight; here this row
    is `condition`, which also takes the bias's place.

    Args:
        num_groups: Subnetworks, G.
        num_conditions: Conditions over all groups.
        in_features: Inputs of a subnetwork, without the condition.
        hidden: Hidden units.
        out_features: Outputs.
    """

    def __init__(self, num_groups: int, num_conditions: int, in_features: int, hidden: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_groups, in_features, hidden))
        self.condition = nn.Parameter(torch.empty(num_conditions, hidden))
        self.out_weight = nn.Parameter(torch.empty(num_groups, hidden, out_features))
        self.out_bias = nn.Parameter(torch.empty(num_groups, out_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights as `nn.Linear` does."""
        for parameter, fan_in in (
            (self.weight, self.weight.shape[1]),
            (self.condition, self.weight.shape[1]),
            (self.out_weight, self.out_weight.shape[1]),
            (self.out_bias, self.out_weight.shape[1]),
        ):
            nn.init.uniform_(parameter, -1 / sqrt(fan_in), 1 / sqrt(fan_in))

    def forward(self, x: Tensor, group: Tensor, condition: Tensor) -> Tensor:
        """Outputs (B, out_features) for inputs (B, in_features) of the given groups and conditions (B,)."""
        table = Table(group, len(self.weight))
        return table.collect(self.on_table(table.spread(x), table.spread(condition)))

    def on_table(self, x: Tensor, condition: Tensor) -> Tensor:
        """Outputs (G, M, out_features) for a laid-out batch."""
        hidden = (torch.bmm(x, self.weight) + self.condition[condition]).relu()
        return torch.baddbmm(self.out_bias[:, None], hidden, self.out_weight)
