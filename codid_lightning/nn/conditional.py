"""Networks with one subnetwork per group of samples and a conditional input, evaluated for all groups at once.

The discriminator, weight net and subclustering net of the paper have a subnetwork per attribute value, with the
cluster as conditional input. A batch contains several values; `Table` arranges it as one padded block per group, so
that every layer is a single batched matrix product.

Rows are selected with `index_select`: on several threads, the backward pass of `x[index]` sums in an order that differs
from run to run.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor, nn


class Table:
    """A batch arranged as (groups, rows): the samples of a group are the first rows of its block, the rest is padding.

    Args:
        group: Group of each sample, (B,).
        num_groups: Number of blocks.
    """

    def __init__(self, group: Tensor, num_groups: int) -> None:
        counts = torch.zeros(num_groups, dtype=group.dtype, device=group.device)
        counts.index_add_(0, group, torch.ones_like(group))
        order = group.argsort(stable=True)
        starts = counts.cumsum(0) - counts
        row = torch.empty_like(group)
        row[order] = torch.arange(len(group), device=group.device) - starts[group[order]]
        self.shape = (num_groups, max(1, int(counts.max())))  # the one host synchronisation of a batch
        self.position = group * self.shape[1] + row  # (B,) of each sample in the flattened table

    def pad(self, x: Tensor, fill: float = 0) -> Tensor:
        """Arrange samples (B, ...) as a table (G, M, ...); padding has the value `fill`."""
        flat = x.new_full((self.shape[0] * self.shape[1], *x.shape[1:]), fill)
        table: Tensor = flat.index_copy(0, self.position, x).unflatten(0, self.shape)
        return table

    def unpad(self, table: Tensor) -> Tensor:
        """Values of a table (G, M, ...) in the order of the samples (B, ...)."""
        return table.flatten(0, 1).index_select(0, self.position)


class Parts(Table):
    """A batch arranged as (blocks, rows), where a group fills as many blocks as it needs, evenly.

    The number of blocks does not depend on how samples spread over groups, so the device is not waited for.

    Args:
        group: Group of each sample, (B,).
        num_groups: Number of groups.
        rows: Rows of a block, the most samples of a part.
    """

    def __init__(self, group: Tensor, num_groups: int, rows: int) -> None:
        counts = torch.zeros(num_groups, dtype=group.dtype, device=group.device)
        counts.index_add_(0, group, torch.ones_like(group))
        parts = (counts + rows - 1) // rows
        ends, order = parts.cumsum(0), group.argsort(stable=True)
        starts = counts.cumsum(0) - counts
        place = torch.empty_like(group)
        place[order] = torch.arange(len(group), device=group.device) - starts[group[order]]
        own = parts[group]
        self.shape = (num_groups + len(group) // rows, rows)  # at most so many parts, whatever the sizes
        self.position = ((ends - parts)[group] + place % own) * rows + place // own
        blocks = torch.arange(self.shape[0], device=group.device)
        self.group = torch.searchsorted(ends, blocks, right=True).clamp_max(num_groups - 1)  # of each block


class ConditionalMLP(nn.Module):
    """Two layers to one output, with separate weights per group and a learned vector per condition.

    A one-hot condition concatenated to the input of a linear layer adds one row of that layer's weight to the output.
    Here, this row is `condition`, which also replaces the bias.

    Args:
        num_groups: Subnetworks, G.
        num_conditions: Conditions over all groups.
        in_features: Inputs of a subnetwork, without the condition.
        hidden: Hidden units, H.
    """

    def __init__(self, num_groups: int, num_conditions: int, in_features: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_groups, in_features, hidden))
        self.condition = nn.Parameter(torch.empty(num_conditions, hidden))
        self.out_weight = nn.Parameter(torch.empty(num_groups, 1, hidden))
        self.out_bias = nn.Parameter(torch.empty(num_groups, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all weights like `nn.Linear`."""
        _, in_features, hidden = self.weight.shape
        for parameter in self.parameters():
            fan_in = in_features if parameter is self.weight or parameter is self.condition else hidden
            nn.init.uniform_(parameter, -1 / sqrt(fan_in), 1 / sqrt(fan_in))

    def forward(self, x: Tensor, group: Tensor | Table, condition: Tensor) -> Tensor:
        """Outputs (B,) for inputs (B, in_features), groups (B,) or their `Table`, and conditions (B,)."""
        table = group if isinstance(group, Table) else Table(group, len(self.weight))
        rows = self.condition.index_select(0, table.pad(condition).flatten()).unflatten(0, table.shape)
        hidden = torch.bmm(table.pad(x), self.weight) + rows
        return table.unpad(self.output(hidden.relu()))

    def output(self, hidden: Tensor, of: Tensor | None = None) -> Tensor:
        """Outputs (G, M) of hidden units (G, M, H); row times matrix is ten times faster than matrix times column.

        Args:
            hidden: Hidden units of blocks.
            of: Group of each block; by default there is one block per group.
        """
        weight: Tensor = self.out_weight if of is None else self.out_weight[of]
        bias: Tensor = self.out_bias if of is None else self.out_bias[of]
        return torch.bmm(weight, hidden.mT).squeeze(1) + bias
