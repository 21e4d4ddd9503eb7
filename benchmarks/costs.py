"""What the prior in the logits costs in training, and what adaptation costs beside prediction.

    python -m benchmarks.costs --output results/costs.md

Steps on CMNIST's shapes with the prior in the logits and with the paper's mode loss, on the same clusters: CoDID with
all its parts, and the network alone. They take turns within one process, by CPU time on one thread, so that the ratios
hold on a busy machine. Then the model is adapted to 10,000 images, and predicts them, as `codid adapt` and
`codid predict` do: the former takes 5,000 of the images at random, the latter writes a file.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from lightning import Trainer

from benchmarks.provenance import header
from benchmarks.step import BATCH, SAMPLES, SHAPE, SIZES, attached, clustered, seconds
from codid_lightning import CoDID
from codid_lightning.analysis.adaptation import Place, adapt
from codid_lightning.methods.codid.parts.decoding import DecodedSamples
from codid_lightning.methods.codid.parts.mode_losses import ModeLoss, PredictModes
from codid_lightning.methods.codid.parts.prior import PriorInLogits
from codid_lightning.training import LoadedRun, quiet
from codid_lightning.training.callbacks.predictions import PredictionWriter
from datamodules import ArrayDataModule
from datamodules.base import Batch

ALONE: dict[str, Any] = {"alignment": None, "splits": None, "reconstruction": 0.0}


def model(a: torch.Tensor, clusters: int, **parts: Any) -> CoDID:
    """An untrained network with random clusters."""
    module = CoDID(SHAPE, SIZES, ("test",), backbone="mlp", **parts)
    module.training_attributes = lambda: a  # type: ignore[method-assign]
    return clustered(attached(module), a, clusters)


def steps(repeats: int, clusters: int, **parts: Any) -> dict[str, list[float]]:
    """CPU seconds of steps, by what is trained."""
    a = torch.stack([torch.randint(size, (SAMPLES,)) for size in SIZES], dim=1)
    losses: dict[str, ModeLoss] = {"prior in the logits": PriorInLogits(), "paper's mode loss": PredictModes()}
    modules = {name: model(a, clusters, mode_loss=loss, **parts) for name, loss in losses.items()}
    turns: dict[str, list[float]] = {name: [] for name in modules}
    for repeat in range(repeats + 3):
        index = torch.randperm(SAMPLES)[:BATCH]
        batch = Batch(x=torch.rand(BATCH, *SHAPE), a=a[index], mode=torch.full_like(a[index], -1), index=index)
        for name, module in modules.items():
            taken = seconds(lambda module=module, batch=batch: module.training_step(batch, 0))  # type: ignore[misc]
            if repeat >= 3:  # the first warm up
                turns[name].append(taken)
    return turns


def uses(repeats: int, samples: int, clusters: int) -> dict[str, list[float]]:
    """CPU seconds of adapting to samples, and of predicting them."""
    x, a = torch.rand(samples, *SHAPE), torch.stack([torch.randint(size, (samples,)) for size in SIZES], dim=1)
    module = model(a, clusters, mode_loss=PriorInLogits(), decoding=DecodedSamples(), **ALONE)
    assert module.counterfactuals is not None
    module.counterfactuals.gate_metrics = {"gate/accepted": 1.0}
    module.counterfactuals.occurring.fill_(True)  # type: ignore[operator]
    few = {"target": a[:200, 0].numpy(), "other": a[:200, 1].numpy()}
    test = {"test": (x.numpy(), a[:, 0].numpy(), a[:, 1].numpy())}
    data = ArrayDataModule.from_arrays(x[:200].numpy(), **few, test=test)
    data.setup()
    turns: dict[str, list[float]] = {"adaptation": [], "prediction": []}
    with tempfile.TemporaryDirectory() as folder, quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        place = Place("test", data.datasets["test"], torch.arange(samples), a[:, 1:])
        run = LoadedRun(module, data, Path(folder), {})

        def predict() -> None:
            names = ("enable_progress_bar", "enable_model_summary", "enable_checkpointing", "logger")
            silent: dict[str, Any] = dict.fromkeys(names, False)
            trainer = Trainer(accelerator="cpu", callbacks=[PredictionWriter(Path(folder))], **silent)
            trainer.predict(module, data, return_predictions=False)

        for repeat in range(repeats + 1):
            adapting, predicting = seconds(lambda: adapt(run, place.some())), seconds(predict)
            if repeat > 0:
                turns["adaptation"].append(adapting)
                turns["prediction"].append(predicting)
    return turns


def rows(turns: dict[str, list[float]], unit: float, name: str) -> list[str]:
    """Lines of a table: medians, and medians of ratios to the first, turn by turn."""
    first = next(iter(turns))
    lines = [f"| | {name} | {first} / this |", "|---|---|---|"]
    for own in turns:
        ratio = statistics.median(a / b for a, b in zip(turns[first], turns[own], strict=True))
        lines.append(
            f"| {own} | {unit * statistics.median(turns[own]):.2f} | {'' if own == first else f'{ratio:.3f}'} |"
        )
    return lines


def main() -> None:
    """Measure in turns, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=200, help="Steps of each kind.")
    parser.add_argument("--uses", type=int, default=5, help="Adaptations and predictions.")
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--clusters", type=int, default=10, help="Over both values.")
    parser.add_argument("--output", type=Path, default=Path("costs.md"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lines = [
        *header("Costs of CoDID-A"), "",
        f"Medians of {options.repeats} steps with {BATCH} images, {options.clusters} clusters, and of {options.uses} "
        f"uses of {options.samples:,} images; ratios turn by turn.", "",
        *rows(steps(options.repeats, options.clusters), 1000, "milliseconds of a step of CoDID"), "",
        *rows(steps(options.repeats, options.clusters, **ALONE), 1000, "milliseconds of a step, network alone"), "",
        *rows(uses(options.uses, options.samples, options.clusters), 1, f"seconds for {options.samples:,} images"), "",
    ]  # fmt: skip
    options.output.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
