"""The collective operations that the methods need. In a single process they return their input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


def world_size() -> int:
    """Number of ranks."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def average(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Means over ranks, in one collective."""
    if world_size() == 1 or not tensors:
        return list(tensors)
    flat = _flatten(tensors)
    dist.all_reduce(flat)
    return _split_like(flat / world_size(), tensors)


def _flatten(tensors: Sequence[Tensor]) -> Tensor:
    """All tensors in one vector."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def _split_like(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """The parts of a vector, in the shapes of the given tensors."""
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def average_in_place(tensors: Sequence[Tensor]) -> None:
    """Replace every tensor by its mean over ranks."""
    for tensor, mean in zip(tensors, average(tensors), strict=True):
        tensor.copy_(mean)


class _Gather(torch.autograd.Function):
    """Concatenation over ranks.

    Every rank then computes the same loss of the same global batch, so each rank has the whole gradient of its own
    rows. DDP averages the gradients of parameters over ranks; the factor turns this mean into the sum.
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
    """Rows of all ranks in rank order. Gradients are correct for losses that every rank computes in the same way."""
    if world_size() == 1:
        return x
    gathered: Tensor = _Gather.apply(x, row_counts(x))
    return gathered


def gather_objects(value: Any) -> list[Any]:
    """A value of every rank that is not a tensor, in rank order."""
    values = [value] * world_size()
    if len(values) > 1:
        dist.all_gather_object(values, value)
    return values


def from_first_rank(compute: Callable[[], T]) -> T:
    """What rank 0 computes, on every rank."""
    first = world_size() == 1 or dist.get_rank() == 0
    value: T = gather_objects(compute() if first else None)[0]
    return value


class _Sum(torch.autograd.Function):
    """Sum over ranks. The gradient of an input is the sum of the gradients of all ranks' losses."""

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
    """Means over ranks, differentiable with respect to the inputs of all ranks."""
    if world_size() == 1:
        return list(tensors)
    flat: Tensor = _Sum.apply(_flatten(tensors)) / world_size()
    return _split_like(flat, tensors)


def moments(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance over some dimensions and over all ranks, and how many numbers they are of.

    Both are differentiable any number of times, with respect to the inputs of all ranks.
    """
    mean, variance = x.mean(dims), x.var(dims, correction=0)
    count = mean.new_full((1,), x.numel() // mean.numel())
    if world_size() == 1:
        return mean, variance, count
    own = torch.cat([mean, variance, count])
    places = [own if rank == dist.get_rank() else torch.zeros_like(own) for rank in range(world_size())]
    means, variances, counts = _Sum.apply(torch.stack(places)).split([len(mean), len(mean), 1], dim=1)
    share = counts / counts.sum()
    mean = (share * means).sum(0)
    return mean, (share * (variances + (means - mean).square())).sum(0), counts.sum(0)


def scale_to_global_mean(mean: Tensor, x: Tensor) -> Tensor:
    """A mean over this rank's rows of `x`, weighted so that the mean over ranks is the mean over all rows."""
    return mean if world_size() == 1 else mean * relative_size(x)


def relative_size(x: Tensor) -> float:
    """Rows of `x` on this rank, relative to their mean number over ranks."""
    counts = row_counts(x)
    return len(x) * len(counts) / sum(counts)


def row_counts(x: Tensor) -> list[int]:
    """Number of rows on each rank; the last batch of an epoch may differ by one."""
    if world_size() == 1:
        return [len(x)]
    counts = [torch.zeros((), dtype=torch.long, device=x.device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor(len(x), device=x.device))
    return [int(c) for c in counts]
