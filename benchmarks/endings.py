"""Three endings of the encoder for series: accuracy of BASE on UCI-HAR with each of them.

    python -m benchmarks.endings --data data --source hapt --output results/endings.md

Only z_1 is learnt by the network of the paper: without reconstruction, BASE's z_2 has no part in predicting a_1, and
gets a linear layer. Group 0 is the test set. Finished runs are kept. No setting is chosen by the test accuracies,
which are printed, too.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import nn

from benchmarks.provenance import header
from codid_lightning.training import build, fit
from codid_lightning.training.runs import RESULT, read_result

SCORES = {"val/acc": "validation", "val/worst_acc": "validation, worst cell", "test/acc": "test"}
SHORT = {"trainer.max_epochs": 12, "data.batch_size": 64, "model.init_args.decay_from": 0.4}
QUIET = {"trainer.enable_progress_bar": False, "trainer.logger": False, "trainer.accelerator": "cpu", "resume": True}
_MOMENTS = 13  # of windows of 128 samples after the convolutions and the pooling


def as_built(layers: nn.Sequential) -> nn.Sequential:
    """ReLU, max pooling and mean over time."""
    return layers


def linear(layers: nn.Sequential) -> nn.Sequential:
    """The same without the ReLU after the last convolution: z of any sign."""
    last = max(place for place, layer in enumerate(layers) if isinstance(layer, nn.ReLU))
    return nn.Sequential(*(nn.Identity() if place == last else layer for place, layer in enumerate(layers)))


def flattened(layers: nn.Sequential) -> nn.Sequential:
    """Without the ReLU and without the mean: a linear layer from all moments, which the paper's table does not have."""
    width = int(next(layer for layer in reversed(layers) if isinstance(layer, nn.BatchNorm1d)).num_features)
    kept = [layer for layer in linear(layers) if not isinstance(layer, nn.AdaptiveAvgPool1d)]
    return nn.Sequential(*kept, nn.Linear(width * _MOMENTS, width))


ENDINGS: dict[str, tuple[str, Callable[[nn.Sequential], nn.Sequential]]] = {
    "relu": ("ReLU, max pooling, mean over time (kept)", as_built),
    "linear": ("max pooling, mean over time", linear),
    "flattened": ("max pooling, linear layer from all moments", flattened),
}


def trained(directory: Path, ending: str, settings: dict[str, object]) -> dict[str, float]:
    """Metrics of a run, trained unless its result is there already."""
    if not (directory / RESULT).is_file():
        run = build("configs/uci_har/base.yaml", {**SHORT, **QUIET, **settings, "run_dir": str(directory)})
        networks = run.module.encoder.subnetworks
        assert isinstance(networks[0], nn.Sequential)
        networks[0] = ENDINGS[ending][1](networks[0])
        networks[1] = nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.LazyLinear(run.module.latent_dim))
        networks[1](torch.zeros(2, *run.data.input_shape))
        fit(run)
    metrics: dict[str, float] = read_result(directory)["metrics"]
    return metrics


def rows(found: dict[str, dict[int, dict[str, float]]]) -> Iterator[str]:
    """Of the table, with mean, deviation and single seeds in percent; then the differences from what is built."""
    yield "| after the last BatchNorm | seeds | " + " | ".join(SCORES.values()) + " |"
    yield "|---|---|" + "---|" * len(SCORES)
    for ending, runs in found.items():
        cells = [score([100 * runs[seed][name] for seed in sorted(runs)]) for name in SCORES]
        yield f"| {ENDINGS[ending][0]} | {len(runs)} | " + " | ".join(cells) + " |"
    for ending, runs in found.items():
        if ending != "relu" and "relu" in found:
            pairs = [seed for seed in sorted(runs) if seed in found["relu"]]
            cells = [score([100 * (runs[s][name] - found["relu"][s][name]) for s in pairs]) for name in SCORES]
            yield f"| difference: `{ending}` - `relu` | {len(pairs)} | " + " | ".join(cells) + " |"


def score(values: list[float]) -> str:
    """Mean, spread and every seed's value."""
    spread = f" ±{statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread} ({', '.join(f'{value:.1f}' for value in values)})"


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="Folder of the data sets.")
    parser.add_argument("--source", choices=["uci_har", "hapt"], default="uci_har", help="Which files of it.")
    parser.add_argument("--signal", choices=["body", "total"], default="body", help="Acceleration without gravity.")
    parser.add_argument("--runs", type=Path, default=Path("runs/endings"), help="Folder for the runs.")
    parser.add_argument("--epochs", type=int, default=SHORT["trainer.max_epochs"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=list(ENDINGS), default=list(ENDINGS))
    parser.add_argument("--output", type=Path, default=Path("endings.md"))
    options = parser.parse_args()
    data = {"data.root": str(options.data), "data.source": options.source, "data.signal": options.signal}
    lines = [
        *header("Endings of the encoder for series"), "",
        f"Accuracy of the activity in %, BASE on UCI-HAR ({options.source}, {options.signal} acceleration), "
        f"{options.epochs} epochs, batches of 64, group 0 as test set; mean, standard deviation and the single seeds. "
        "Validation windows are of the training users and share no sample with training windows.", "",
    ]  # fmt: skip
    found: dict[str, dict[int, dict[str, float]]] = {ending: {} for ending in options.only}
    for seed in options.seeds:
        for ending, runs in found.items():
            settings = {**data, "seed_everything": seed, "trainer.max_epochs": options.epochs}
            runs[seed] = trained(options.runs / f"{ending}-{seed}", ending, settings)
        options.output.write_text("\n".join([*lines, *rows(found), ""]))
    print("\n".join(rows(found)))


if __name__ == "__main__":
    main()
