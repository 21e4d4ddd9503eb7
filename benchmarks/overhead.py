"""What `codid fit` costs over a bare PyTorch loop that does the same, on random data in CMNIST's shapes.

    python benchmarks/overhead.py                     # BASE against a loop written for it
    python benchmarks/overhead.py --select            # the same, which takes rows as fast as the library does
    python benchmarks/overhead.py --method codid      # CoDID against a loop around its training_step

`codid fit` runs with its default logging, progress bar (drawn as in a terminal) and checkpoint. The loop takes the same
batches by indexing whole tensors, updates with torch's fused Adam, adds up its losses, and after the epoch takes the
encoder's BatchNorm statistics anew and saves a checkpoint. Validation, tests and set-up are outside of what is
measured, on both sides, and so is the first epoch, which pays for what a process does once (and, for CoDID, discovers
the modes). Both take turns of a few batches in one process, on one thread, by CPU time: the ratios hold on a busy
machine. The last line is `fit/loop RATIO`, the median over repeats; before it stands the same for a loop that leaves
BatchNorm's running averages as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["FORCE_COLOR"] = "1"  # so that the progress bar is drawn although nobody looks

import torch
import torch.nn.functional as F
from lightning import Callback
from torch import Tensor, nn
from torch.optim import Adam

from codid_lightning import Base
from codid_lightning.methods.batchnorm import RecomputeBatchNorm
from codid_lightning.training import build, fit, quiet
from codid_lightning.training.config import parse
from datamodules import CMNIST
from datamodules.base import AttributeDataset, EpochBatches, stack_columns

# Lightning lets torch ask the driver for GPUs, at every step of torch's own Adam. A bare loop would not pay for that.
os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)

SAMPLES, BATCH = 29000, 128
TURN = 8  # batches that one side takes before the other has its turn


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


class Turns(Callback):
    """Stops the clock of `codid fit` every few batches and lets the bare loop take as many. The last epoch counts.

    Args:
        select: Whether the loop takes rows by `index_select`, as the library does, and not by `x[index]`.
    """

    def __init__(self, select: bool = False) -> None:
        self.select = select

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Both begin an epoch."""
        self.loop = BareLoop(pl_module, trainer.datamodule.datasets["train"], trainer.optimizers, self.select)
        self.fit_seconds = self.loop_seconds = 0.0
        self.resumed = time.process_time()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Give the loop its turn."""
        if batch_idx % TURN == 0 and batch_idx > 0:
            self.stop_for(self.loop.turn)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The loop's last turn, and what follows it."""
        self.stop_for(self.loop.turn)
        before = self.loop_seconds
        self.stop_for(self.loop.settle)
        self.settling = self.loop_seconds - before
        self.stop_for(lambda: self.loop.save(Path(trainer.default_root_dir) / "bare.ckpt"))

    def stop_for(self, work: Callable[[], None]) -> None:
        """Count for the loop what `work` takes, and for the fit what it took since the last time."""
        stopped = time.process_time()
        work()
        self.fit_seconds += stopped - self.resumed
        self.resumed = time.process_time()
        self.loop_seconds += self.resumed - stopped


class BareLoop:
    """An epoch in a plain loop, a turn at a time; one would write it as one loop without the class around it."""

    def __init__(
        self, model: Any, data: AttributeDataset, optimizers: list[torch.optim.Optimizer], select: bool
    ) -> None:
        self.model, self.data, self.select = model, data, select
        written_for_base = isinstance(model, Base)
        self.step = self.base_step if written_for_base else self.own_step
        self.optimizers = [Adam(model.parameters(), model.lr, fused=True)] if written_for_base else optimizers
        self.batches = iter(EpochBatches(len(data), BATCH, shuffle=True))
        self.total = torch.zeros(())

    def turn(self) -> None:
        """A few batches."""
        for index in itertools.islice(self.batches, TURN):
            self.total += self.step(index)

    @torch.no_grad()
    def settle(self) -> None:
        """Mean BatchNorm statistics of some batches under the weights as they are now."""
        encoder, count = self.model.encoder, RecomputeBatchNorm().batches
        layers = [layer for layer in encoder.modules() if isinstance(layer, nn.BatchNorm1d)]
        momentum = layers[0].momentum
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None
        for index in itertools.islice(EpochBatches(len(self.data), BATCH, shuffle=True), count):
            encoder(self.data.x[index])
        for layer in layers:
            layer.momentum = momentum

    def base_step(self, index: Tensor) -> Tensor:
        """BASE as one would write it without a framework."""
        model, (optimizer,) = self.model, self.optimizers
        if self.select:
            x, a = self.data.x.index_select(0, index), self.data.a.index_select(0, index)
        else:
            x, a = self.data.x[index], self.data.a[index]
        z = model.encoder(x)
        loss = sum(F.cross_entropy(predictor(z[:, q]), a[:, q]) for q, predictor in enumerate(model.predictors))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def own_step(self, index: Tensor) -> Tensor:
        """A method with several optimizers steps them itself."""
        self.model.training_step(self.data[index], 0)
        return torch.zeros(())

    def save(self, path: Path) -> None:
        """What it takes to go on."""
        optimizers = [optimizer.state_dict() for optimizer in self.optimizers]
        torch.save({"model": self.model.state_dict(), "optimizers": optimizers}, path)


def measured(method: str, samples: int, root: Path, select: bool = False) -> Turns:
    """Run `codid fit` as a user runs it, with the bare loop in between."""
    arguments = ["-c", f"configs/cmnist/{method}.yaml", "--data=overhead.RandomDigits", f"--data.samples={samples}"]
    arguments += [f"--data.batch_size={BATCH}", "--trainer.max_epochs=2", "--trainer.limit_val_batches=0"]
    arguments += [
        "--trainer.callbacks=overhead.Turns",
        f"--trainer.callbacks.select={str(select).lower()}",
        f"--trainer.default_root_dir={root}",
        "--trainer.accelerator=cpu",
    ]
    if method == "codid":
        arguments += ['--model.discovery={"clusterer": {"class_path": "TrueModes"}, "start": 0, "every": null}']
    with quiet(), Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        run = build(parse(arguments))
        fit(run)
    turns: Any = next(c for c in run.trainer.callbacks if type(c).__name__ == "Turns")
    return turns  # type: ignore[no-any-return]


def main() -> None:
    """Measure in turns, print each pair and the median ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=("base", "codid"), default="base")
    parser.add_argument("--select", action="store_true", help="let BASE's loop take rows by index_select")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="size of the training set")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ratios, stricter = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.repeats):
            gc.collect()  # what earlier repeats left; a collection in the middle of a later one took 0.3 s of its fit
            turns = measured(options.method, options.samples, Path(folder), options.select)
            fit, loop = turns.fit_seconds, turns.loop_seconds
            ratios.append(fit / loop)
            stricter.append(fit / (loop - turns.settling))
            print(f"fit {fit:6.2f} s   loop {loop:6.2f} s   {ratios[-1]:.3f}", flush=True)
    print(f"with running averages in the loop {statistics.median(stricter):.3f}")
    print(f"fit/loop {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
