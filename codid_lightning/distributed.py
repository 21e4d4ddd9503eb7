"""The few collectives the methods need; all of them are the identity in a single process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors


def world_size() -> int:
    """Number of ranks."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def average(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Means over ranks, in one collective."""
    if world_size() == 1 or not tensors:
        return list(tensors)
    flat = _flatten_dense_tensors(tensors)
    dist.all_reduce(flat)
    return list(_unflatten_dense_tensors(flat / world_size(), tensors))


def average_in_place(tensors: Sequence[Tensor]) -> None:
    """Replace every tensor by its mean over ranks."""
    for tensor, mean in zip(tensors, average(tensors), strict=True):
        tensor.copy_(mean)


class _Gather(torch.autograd.Function):
    """Concatenation over ranks.

    Every rank goes on to compute the same loss of the same global batch, so its own rows' gradient is already whole;
    the factor makes the mean over ranks of parameter gradients their sum.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        largest = max(sizes)
        padded = torch.cat([x, x.new_zeros(largest - len(x), *x.shape[1:])])
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded.contiguous())
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        start = sum(ctx.sizes[: dist.get_rank()])
        return gradients[0][start : start + ctx.sizes[dist.get_rank()]] * len(ctx.sizes), None


def gather(x: Tensor) -> Tensor:
    """Rows of all ranks in rank order. Differentiable for losses that every rank computes alike."""
    if world_size() == 1:
        return x
    gathered: Tensor = _Gather.apply(x, row_counts(x))
    return gathered


def gather_plain(value: Any) -> list[Any]:
    """A plain value of every rank, in rank order."""
    values = [value] * world_size()
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


class _Sum(torch.autograd.Function):
    """Sum over ranks; what a rank's input adds to every rank's loss flows back to it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total: Tensor = _Sum.apply(gradients[0])
        return total


def average_differentiably(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Means over ranks that gradients can flow through, to all ranks' inputs."""
    if world_size() == 1:
        return list(tensors)
    flat: Tensor = _Sum.apply(_flatten_dense_tensors(tensors)) / world_size()
    return list(_unflatten_dense_tensors(flat, tensors))


def part(mean: Tensor, x: Tensor) -> Tensor:
    """A mean over this rank's rows of `x`, weighted so that the mean over ranks is the mean over all rows."""
    if world_size() == 1:
        return mean
    counts = row_counts(x)
    return mean * (len(x) * len(counts) / sum(counts))


def row_counts(x: Tensor) -> list[int]:
    """Number of rows on each rank; the last batch of an epoch may differ by one."""
    counts = [torch.zeros((), dtype=torch.long, device=x.device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor(len(x), device=x.device))
    return [int(c) for c in counts]
