"""Run something on two processes, as `--trainer.devices 2 --trainer.strategy ddp` on the CPU does."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def on_two_ranks(work: Callable[[], Any], folder: Path) -> list[Any]:
    """What `work` returns on each rank; Lightning finds the processes launched and joins them."""
    mp.spawn(_run, args=(work, free_port(), str(folder)), nprocs=RANKS)
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)]


def free_port() -> int:
    """A port for the ranks to meet at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def become_rank(rank: int, port: int) -> None:
    """Tell this process which rank it is, in the words of torch's launcher, which Lightning understands."""
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "TORCHELASTIC_RUN_ID": "test",
    }


def assert_gradients_agree(work: Callable[[], dict[str, Any]], folder: Path, tolerance: float = 1e-12) -> None:
    """Gradients by case, step and parameter are those of one process with the ranks' batches together."""
    alone = work()
    for on_rank in on_two_ranks(work, folder):
        for case, steps in alone.items():
            for step, gradients in steps.items():
                assert gradients.keys() == on_rank[case][step].keys()
                assert any(g.abs().max() > 1e-6 for g in gradients.values()), (case, step)
                for name, gradient in gradients.items():
                    found = on_rank[case][step][name]
                    where = partial("{}, {}, {}: {}".format, case, step, name)
                    torch.testing.assert_close(found, gradient, rtol=tolerance, atol=tolerance, msg=where)


def _run(rank: int, work: Callable[[], Any], port: int, folder: str) -> None:
    become_rank(rank, port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.save(work(), Path(folder) / f"rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
