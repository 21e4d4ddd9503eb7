"""Evaluate metrics in two processes, each of which sees half of the samples."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric

from tests.codid.ranks import RANKS, on_two_ranks

Case = tuple[type[Metric], dict[str, object], tuple[Tensor, ...]]


def values_on_two_ranks(cases: Callable[[], list[Case]], folder: Path) -> list[object]:
    """The value of every case on rank 0, where rank r was given the r-th half."""
    found: list[object] = on_two_ranks(partial(values, cases), folder)[0]
    return found


def values(cases: Callable[[], list[Case]]) -> list[object]:
    """The value of every case from batches of 37 samples: of all, or of this rank's half."""
    ranks, rank = (RANKS, dist.get_rank()) if dist.is_initialized() else (1, 0)
    found = []
    for metric_class, options, samples in cases():
        metric = metric_class(**options)
        part = [tensor.chunk(ranks)[rank] for tensor in samples]
        for batch in zip(*(tensor.split(37) for tensor in part), strict=True):
            metric.update(*batch)
        found.append(metric.compute())
    return found
