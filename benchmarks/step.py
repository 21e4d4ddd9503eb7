"""One CoDID step at the paper's CMNIST setting, part by part, in units of its inform step.

    python benchmarks/step.py [--repeats 40] [--clusters 10]

All parts are measured in turns within one process, by CPU time on one thread, so that ratios hold on a busy machine.
Then come how the step grows with the number of clusters, and what a refinement every five epochs adds to training. The
last line is `codid/base RATIO`: the whole step against BASE's step with reconstruction.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch.utils.data import DataLoader

from codid_lightning import Base, CoDID
from codid_lightning.clustering import DPGMM, Clustering, ModesPerValue
from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.methods.codid.target import View
from codid_lightning.nn.statistics import frozen_running_stats
from datamodules.base import AttributeDataset, Batch, EpochBatches

SHAPE, SIZES, SAMPLES, BATCH, N_CL = (3, 28, 28), (2, 2), 29000, 128, 5
FEW, MANY = 4, 32


def attached(module: Any) -> Any:
    """A module with its optimizers, outside of a trainer."""
    found = module.configure_optimizers()
    optimizers = found if isinstance(found, list) else [found]
    trainer = SimpleNamespace(current_epoch=module_epoch(module), world_size=1, optimizers=optimizers)
    module.trainer = trainer
    return module.train()


def module_epoch(module: Any) -> int:
    """An epoch in which clusters are in use."""
    return module.discovery.start if isinstance(module, CoDID) else 0


def clustered(module: CoDID, a: torch.Tensor, clusters: int) -> CoDID:
    """Let every target adopt as many random clusters as wanted, shared evenly by its values."""
    for target in module.target_list:
        values, slots = target.values, target.slots
        per_value = max(1, clusters // values)
        labels = a[:, target.attribute] * slots + torch.randint(per_value, (len(a),))
        active = (torch.arange(slots) < per_value).expand(values, slots).clone()
        centres = torch.randn(values, slots, 2, module.latent_dim)
        probs = torch.nn.functional.one_hot(labels % slots, slots).float()
        found = Clustering(
            labels=labels, probs=probs, active=active, inherit=torch.diag_embed(active.float()),
            share=torch.ones(values, slots), means=centres.mean(2), sub_means=centres,
            sub_probs=torch.full((len(a), 2), 0.5), moves=(),
        )  # fmt: skip
        module.adopt(target, found, torch.zeros(len(a), module.latent_dim))
    module.generator = torch.Generator().manual_seed(0)
    return module


def seconds(work: Callable[[], Any]) -> float:
    """CPU time of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def parts_of(module: CoDID, base: Base) -> dict[str, Callable[[Batch], float]]:
    """CPU seconds of BASE's step, of each part of CoDID's, and of the whole, given a batch."""
    alignment: Any = module.alignment
    splits: Any = module.splits

    def base_step(batch: Batch) -> None:
        base.training_step(batch, 0)

    def later(part: Callable[[CoDID, list[View]], None], batch: Batch) -> float:
        """Bring the step to where `part` begins, then measure it."""
        with frozen_running_stats(module.encoder):
            views = module.views(module.encode(batch["x"]).z, batch)
            return seconds(lambda: part(module, views))

    def coordinate(batch: Batch) -> float:
        """The encoder's pass serves these two steps and counts with them."""
        with frozen_running_stats(module.encoder):
            encoding: list[Any] = []
            passed = seconds(lambda: encoding.append(module.encode(batch["x"])))
            views = module.views(encoding[0].z, batch)

            def both() -> None:
                pairs = alignment.shuffled_pairs(module, views)
                alignment.weigh(module, batch, encoding[0], views, pairs)
                alignment.disentangle(module, encoding[0], views, pairs)

            return passed + seconds(both)

    return {
        "base": lambda batch: seconds(lambda: base_step(batch)),
        "inform": lambda batch: seconds(lambda: module.inform(batch)),
        "subcluster": lambda batch: later(splits.step, batch),
        "discriminate": lambda batch: later(alignment.discriminate, batch),
        "weigh + disentangle": coordinate,
        "codid": lambda batch: seconds(lambda: module.training_step(batch, 0)),
    }


def refinement(module: CoDID, a: torch.Tensor) -> tuple[float, float]:
    """CPU seconds of encoding the training set and of refining ten clusters of it."""
    images = AttributeDataset(torch.rand(SAMPLES, *SHAPE), a)
    loader: DataLoader[Batch] = DataLoader(
        dataset=images, sampler=EpochBatches(SAMPLES, BATCH, shuffle=False), batch_size=None
    )
    data = SimpleNamespace(encode_dataloader=lambda: loader)
    strategy = SimpleNamespace(batch_to_device=lambda batch, device: batch)
    plugin = SimpleNamespace(convert_input=lambda batch: batch)
    trainer: Any = SimpleNamespace(datamodule=data, strategy=strategy, precision_plugin=plugin)
    encoding = seconds(lambda: ModeDiscovery().encode(trainer, module))
    modes = ModesPerValue(DPGMM(max_rounds=0), [6, 4], 16)
    centres = 4 * torch.randn(10, module.latent_dim)
    z = centres[a[:, 0] * 5 + torch.randint(5, (SAMPLES,))] + torch.randn(SAMPLES, module.latent_dim)
    modes.fit(z, a[:, 0])
    moved = z + 0.1 * torch.randn_like(z)
    rounds = [seconds(lambda move=move: modes.refine(moved, a[:, 0], move)) for move in ("merge", "split")]  # type: ignore[misc]
    return encoding, statistics.mean(rounds)


def main() -> None:
    """Measure in turns and print medians of ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--clusters", type=int, default=10, help="over both values")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    a = torch.stack([torch.randint(size, (SAMPLES,)) for size in SIZES], dim=1)
    base = attached(Base(SHAPE, SIZES, backbone="mlp", reconstruction=1.1))
    module, few, many = (
        clustered(attached(CoDID(SHAPE, SIZES, backbone="mlp")), a, k) for k in (options.clusters, FEW, MANY)
    )
    parts = parts_of(module, base)
    parts |= {f"codid, {k} clusters": parts_of(m, base)["codid"] for k, m in ((FEW, few), (MANY, many))}
    turns = []
    for _ in range(options.repeats + 1):
        index = torch.randperm(SAMPLES)[:BATCH]
        batch = Batch(x=torch.rand(BATCH, *SHAPE), a=a[index], mode=torch.full_like(a[index], -1), index=index)
        turns.append({name: work(batch) for name, work in parts.items()})
    del turns[0]  # warming up
    for name in parts:
        unit = statistics.median(turn[name] / turn["inform"] for turn in turns)
        print(f"{name:<20} {1000 * statistics.median(t[name] for t in turns):7.2f} ms  {unit:5.2f} x inform")
    first, last = (f"codid, {k} clusters" for k in (FEW, MANY))
    slope = statistics.median((turn[last] - turn[first]) / turn[first] for turn in turns) / (MANY - FEW)
    print(f"one more cluster adds {100 * slope:.2f} % to the step")
    training = N_CL * SAMPLES / BATCH * statistics.median(turn["codid"] for turn in turns)
    encoding, refining = refinement(module, a)
    print(f"encoding takes {100 * encoding / training:.2f} %, refining {100 * refining / training:.2f} % of training")
    print(f"codid/base {statistics.median(turn['codid'] / turn['base'] for turn in turns):.2f}")


if __name__ == "__main__":
    main()
