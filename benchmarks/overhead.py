"""What `codid fit` costs over a bare PyTorch loop that takes the same steps, on random data in CMNIST's shapes.

    python benchmarks/overhead.py                     # BASE against a loop written for it
    python benchmarks/overhead.py --method codid      # CoDID against a loop around its training_step

`codid fit` runs with its default logging, progress bar (drawn as in a terminal) and checkpoint; the loop takes the same
batches by indexing whole tensors, updates with the same fused Adam, adds up its losses and saves a checkpoint after the
epoch. Validation, tests and set-up are outside of what is measured, on both sides; so is mode discovery, which precedes
the epoch. Both run in turns in one process, on one thread, by CPU time: the ratios hold on a busy machine. The last
line is `fit/loop RATIO`, the median over repeats.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["FORCE_COLOR"] = "1"  # so that the progress bar is drawn although nobody looks

import torch
import torch.nn.functional as F
from lightning import Callback
from torch import Tensor

from codid_lightning.cli import CLI
from codid_lightning.console import quiet
from datamodules import CMNIST
from datamodules.base import AttributeDataset, EpochBatches, stack_columns

SAMPLES, BATCH, WARM_UP = 29000, 128, 10  # batches before the clock starts


class RandomDigits(CMNIST):
    """CMNIST's facts with random pixels.

    Args:
        samples: Size of the training set.
    """

    def __init__(self, samples: int = SAMPLES, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.samples = samples

    def prepare_data(self) -> None:
        """Nothing to fetch."""

    def build(self) -> dict[str, AttributeDataset]:
        """The training set, and a batch for every other split."""
        return {
            name: self._draw(self.samples if name == "train" else BATCH) for name in ("train", "val", *self.test_names)
        }

    def _draw(self, size: int) -> AttributeDataset:
        generator = torch.Generator().manual_seed(size)
        mode, a2 = (torch.randint(n, (size,), generator=generator) for n in (5, 2))
        x = torch.rand(size, *self.input_shape, generator=generator)
        unknown = torch.full_like(mode, -1)
        return AttributeDataset(x, stack_columns([mode >= 3, a2]), stack_columns([mode, unknown]))


class Clock(Callback):
    """CPU seconds from the end of the warm-up to the end of training, epoch-end work included."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Start after the warm-up."""
        if batch_idx == WARM_UP:
            self.start = time.process_time()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop."""
        self.seconds = time.process_time() - self.start


def fit(method: str, samples: int, root: Path) -> CLI:
    """One epoch of `codid fit`, as a user runs it."""
    arguments = ["-c", f"configs/cmnist/{method}.yaml", "--data=overhead.RandomDigits", f"--data.samples={samples}"]
    arguments += [f"--data.batch_size={BATCH}", "--trainer.max_epochs=1", "--trainer.limit_val_batches=0"]
    arguments += [
        "--trainer.callbacks=overhead.Clock",
        f"--trainer.default_root_dir={root}",
        "--trainer.accelerator=cpu",
    ]
    if method == "codid":
        arguments += ["--model.clusterer=TrueModes", "--model.pretrain_epochs=0", "--model.cluster_every=null"]
    with quiet(), Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        return CLI.run(["fit", *arguments])


def clock_of(run: CLI) -> Any:
    """The clock that ran with a fit."""
    return next(callback for callback in run.trainer.callbacks if type(callback).__name__ == "Clock")


def bare_loop(run: CLI, root: Path) -> float:
    """CPU seconds of the same epoch in a plain loop with the networks of `run`."""
    model: Any = run.model
    data = run.datamodule.datasets["train"]
    batches = EpochBatches(len(data), BATCH, shuffle=True)
    model.train()
    if model.automatic_optimization:
        optimizers = [model.adam(model.parameters(), model.lr)]
        step = base_step
    else:
        optimizers = run.trainer.optimizers
        step = own_step
    total = torch.zeros(())
    start = 0.0
    for number, index in enumerate(batches):
        if number == WARM_UP:
            start = time.process_time()
        total += step(model, data, index, optimizers[0])
    state = {"model": model.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in optimizers]}
    torch.save(state, root / "bare.ckpt")
    return time.process_time() - start


def base_step(model: Any, data: AttributeDataset, index: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """BASE as one would write it without a framework."""
    x, a = data.x[index], data.a[index]
    z = model.encoder(x)
    loss = sum(F.cross_entropy(predictor(z[:, q]), a[:, q]) for q, predictor in enumerate(model.predictors))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def own_step(model: Any, data: AttributeDataset, index: Tensor, _: torch.optim.Optimizer) -> Tensor:
    """A method with several optimizers steps them itself."""
    model.training_step(data[index], 0)
    return torch.zeros(())


def main() -> None:
    """Measure in turns, print each pair and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=("base", "codid"), default="base")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="size of the training set")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeats):
            run = fit(options.method, options.samples, Path(folder))
            framework, bare = clock_of(run).seconds, bare_loop(run, Path(folder))
            ratios.append(framework / bare)
            print(f"fit {framework:6.2f} s   loop {bare:6.2f} s   {ratios[-1]:.3f}", flush=True)
    print(f"fit/loop {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
