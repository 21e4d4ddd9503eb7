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
    """Concatenation over ranks; each rank's gradient is the sum of all ranks' gradients for its rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        parts = [x.new_empty(size, *x.shape[1:]) for size in sizes]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        start = sum(ctx.sizes[: dist.get_rank()])
        return total[start : start + ctx.sizes[dist.get_rank()]], None


def gather(x: Tensor) -> Tensor:
    """Rows of all ranks in rank order, differentiable: the loss may be any function of the global batch."""
    return x if world_size() == 1 else _Gather.apply(x, row_counts(x))


def row_counts(x: Tensor) -> list[int]:
    """Number of rows on each rank; the last batch of an epoch may differ by one."""
    counts = [torch.zeros((), dtype=torch.long, device=x.device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor(len(x), device=x.device))
    return [int(c) for c in counts]
