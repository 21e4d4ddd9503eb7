"""Small random data on which every method can be trained in a second, in one process or two."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import torch
import torch.multiprocessing as mp
from lightning import Trainer, seed_everything

from codid_lightning.methods import baselines
from codid_lightning.methods.base import DisentanglementModule
from datamodules.base import AttributeDataModule, AttributeDataset, stack_columns

RANKS = 2


class ManyValues(AttributeDataModule):
    """Three attributes, one of 30 values: in batches of 8 most of them occur once or never."""

    input_shape = (6,)
    attribute_names = ("a1", "a2", "a3")
    value_names = (("0", "1"), tuple(str(v) for v in range(30)), ("0", "1", "2"))
    mode_sizes = (None, None, None)
    test_attributes = (0,)

    def build(self) -> dict[str, AttributeDataset]:
        return {name: self._draw(seed) for seed, name in enumerate(("train", "val", *self.test_names))}

    def _draw(self, seed: int) -> AttributeDataset:
        generator = torch.Generator().manual_seed(seed)
        columns = [torch.randint(size, (24,), generator=generator) for size in self.attribute_sizes]
        x = torch.randn(24, *self.input_shape, generator=generator)
        x.flatten(1)[:, 0] += columns[0]
        return AttributeDataset(x, stack_columns(columns))


def build(name: str, data: AttributeDataModule, **kwargs) -> DisentanglementModule:
    seed_everything(0, verbose=False)
    facts = {k: getattr(data, k) for k in ("input_shape", "attribute_sizes", "test_names", "test_attributes")}
    return getattr(baselines, name)(**{**facts, "latent_dim": 4, **kwargs})


def trainer(**kwargs) -> Trainer:
    quiet = {f"enable_{part}": False for part in ("checkpointing", "progress_bar", "model_summary")}
    return Trainer(**{"accelerator": "cpu", "max_epochs": 1, "logger": False} | quiet | kwargs)


def epochs_of(model: DisentanglementModule) -> int:
    """One epoch, or two for a method that needs a second one."""
    return 1 if model.schedule_problem(1) is None else 2


def flat(model: DisentanglementModule) -> torch.Tensor:
    """All parameters and running statistics in one vector."""
    return torch.cat([v.detach().flatten().float() for v in model.state_dict().values() if isinstance(v, torch.Tensor)])


def train_on_two_ranks(folder: Path) -> list[dict[str, dict[str, torch.Tensor]]]:
    """Train every method in one pair of processes; per rank and method the losses and the flat state."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(_train_all, args=(port, str(folder)), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(RANKS)]


def _train_all(rank: int, port: int, folder: str) -> None:
    # The variables of a launcher: Lightning then joins these two processes instead of starting its own.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"NODE_RANK": "0", "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    found = {}
    for name in baselines.__all__:
        data = ManyValues(batch_size=4)
        model = build(name, data)
        epochs = epochs_of(model)
        run = trainer(strategy="ddp", devices=RANKS, use_distributed_sampler=False, max_epochs=epochs)
        run.fit(model, data)
        found[name] = {k: v for k, v in run.callback_metrics.items() if k.startswith("train/")}
        found[name]["state"] = flat(model)
    torch.save(found, Path(folder) / f"{rank}.pt")
