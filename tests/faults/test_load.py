"""Much data, many values, many clusters, many refinements."""

from __future__ import annotations

import gc
import os
import resource
from functools import partial
from typing import Any

import pytest
import torch
from lightning import Callback
from torch import Tensor, nn

from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.nn.virtual import EncoderPass
from tests.codid.tiny import tiny_codid, tiny_data, tiny_trainer
from tests.faults.test_degenerate import Given, labels
from tests.faults.victims import CONTEXT, PATIENCE

GIGABYTE = 1 << 30


class Spread(nn.Module):
    """Points of the plane to representations (B, 2, 128) on a plane, at next to no cost."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).unflatten(1, (2, 128))


def discover_in_a_million(samples: int) -> None:
    """Encode, cluster and adopt, a batch of training, and all of it once more; the exit code tells the memory."""
    data = tiny_data(samples_per_mode=samples // 6 * 10 // 9 + 1, batch_size=128)
    module = tiny_codid(data, latent_dim=128, discovery={"n_clusters": 3, "start": 0})
    module.encoder = Spread()
    module.encode = partial(EncoderPass, module.encoder)
    tiny_trainer(2, limit_train_batches=1, limit_val_batches=0).fit(module, data)
    assert len(module.target_list[0].labels) == len(data.datasets["train"]) >= samples
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"peak memory {peak / GIGABYTE:.2f} GB")
    os._exit(0 if peak < 4 * GIGABYTE else 3)


@pytest.mark.slow
def test_a_million_samples_in_four_gigabytes() -> None:
    process = CONTEXT.Process(target=discover_in_a_million, args=(1_000_000,))
    process.start()
    process.join(2 * PATIENCE)
    alive = process.is_alive()
    process.kill()
    assert not alive
    assert process.exitcode == 0, "exit code 3 says more than 4 GB"


def test_many_values_and_many_clusters() -> None:
    """200 values of the attribute; under the first, 64 clusters."""
    a = torch.cat([labels(130, (1, 2)), labels(800, (200, 2))])
    data = Given(a, a[:50], sizes=(200, 2), batch_size=128)
    module = tiny_codid(data, discovery={"n_clusters": [64] + [1] * 199}, max_clusters=64)
    tiny_trainer(2).fit(module, data)
    counts = module.target_list[0].active.sum(1)
    assert len(counts) == 200
    assert counts[0] > 32
    assert counts.min() >= 1
    assert all(torch.isfinite(p).all() for p in module.parameters())


class Usage(Callback):
    """Memory and open files of the process at the start of each epoch."""

    def __init__(self) -> None:
        self.memory: list[int] = []
        self.files: list[int] = []

    def on_train_epoch_start(self, *_: Any) -> None:
        gc.collect()
        with open("/proc/self/statm") as file:
            self.memory.append(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        self.files.append(len(os.listdir("/proc/self/fd")))


@pytest.mark.slow
def test_fifty_refinements_without_growth() -> None:
    usage, data = Usage(), tiny_data(samples_per_mode=15, batch_size=128)
    module = tiny_codid(data, discovery={"n_clusters": 3})
    trainer = tiny_trainer(52, callbacks=[usage])
    trainer.fit(module, data)
    (discovery,) = (c for c in trainer.callbacks if isinstance(c, ModeDiscovery))
    assert len(discovery.history) >= 50
    assert usage.files[-1] <= usage.files[5]
    growth = usage.memory[-1] - usage.memory[10]
    assert growth < 8 << 20, f"{growth / 2**20:.1f} MB in 40 refinements"
