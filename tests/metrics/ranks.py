"""Evaluate metrics in two processes, each of which sees half of the samples."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torchmetrics import Metric

Case = tuple[type[Metric], dict[str, object], tuple[Tensor, ...]]
RANKS = 2


def values_on_two_ranks(cases: Callable[[], list[Case]], folder: Path) -> list[object]:
    """The value of every case on rank 0, where rank r was given the r-th half in batches of 37."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_run, args=(cases, port, str(folder / "values.pt")), nprocs=RANKS)
    return torch.load(folder / "values.pt", weights_only=True)


def _run(rank: int, cases: Callable[[], list[Case]], port: int, path: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    values = []
    for metric_class, options, samples in cases():
        metric = metric_class(**options)
        half = [tensor.chunk(RANKS)[rank] for tensor in samples]
        for batch in zip(*(tensor.split(37) for tensor in half), strict=True):
            metric.update(*batch)
        values.append(metric.compute())
    if rank == 0:
        torch.save(values, path)
    dist.destroy_process_group()
