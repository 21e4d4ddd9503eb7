"""Would validation data alone have chosen the methods beyond the paper? Accuracy in the worst of two kinds of cells.

    codid benchmark -c benchmarks/beyond.yaml
    python benchmarks/selection.py runs/beyond --output results/beyond_selection.csv

Cells are (a_1, a_2), which is what `--selection val_worst` looks at, and (c_1, a_2), with
modes by propensity as `codid_modes` finds them: in the latent of the seed's own autoencoder, of training and validation
images together, their number searched. No mode label is read, and test 3 only to be printed.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from codid_lightning.analysis.evaluation import encode, load_run
from codid_lightning.analysis.modes import SLOTS
from codid_lightning.analysis.tables.scores import Run, load_runs
from codid_lightning.clustering import DPGMM, ModesPerValue
from codid_lightning.methods.codid.parts.propensity import propensity
from codid_lightning.metrics.groups import group_accuracies, worst_group_accuracy
from datamodules.base import AttributeDataset

MIN_CELL_SIZE = 10  # samples; fewer say too little


@torch.no_grad()
def contents(model: Any, data: AttributeDataset) -> Tensor:
    """What of each sample is left without its a_2, (N, p)."""
    latent = model.counterfactuals.symmetrised_latent
    return torch.cat([latent(data[index]["x"]) for index in torch.arange(len(data)).split(500)])


def clusters(model: Any, train: AttributeDataset, validation: AttributeDataset) -> Tensor:
    """Clusters (N,) of validation samples, which the training samples help to find."""
    content = torch.cat([contents(model, train), contents(model, validation)])
    a = torch.cat([train.a, validation.a])
    features = propensity(content, a[:, 0], a[:, 1:])
    values = int(a[:, 0].max()) + 1
    found = ModesPerValue(DPGMM(), [1] * values, SLOTS, search=True).fit(features, a[:, 0])
    return found.labels[len(train) :]


def rows(runs: list[Run], dataset: str, seed: int) -> list[dict[str, Any]]:
    """One row per method of a data set and seed; none where there is no accepted counterfactual run."""
    here = {run.method: run for run in runs if (run.dataset, run.seed) == (dataset, seed)}
    if not here.get("counterfactual") or not here["counterfactual"].metrics.get("gate/accepted"):
        return []
    swapper = load_run([str(here["counterfactual"].directory)])
    validation = swapper.data.datasets["val"]
    a = validation.a
    found = clusters(swapper.model, swapper.data.datasets["train"], validation)
    table = []
    for method, run in here.items():
        predicted = encode(load_run([str(run.directory)]).model, validation).predicted[:, 0]
        row: dict[str, Any] = {"dataset": dataset, "seed": seed, "method": method, "val": run.metrics["val/acc"]}
        for name, groups in (("a1_a2", a[:, 0] * 100 + a[:, 1]), ("c1_a2", found * 100 + a[:, 1])):
            enough = [acc for acc, n in group_accuracies(predicted, a[:, 0], groups).values() if n >= MIN_CELL_SIZE]
            row[f"balanced_{name}"] = sum(enough) / len(enough)
            row[f"worst_{name}"] = worst_group_accuracy(predicted, a[:, 0], groups, min_samples=MIN_CELL_SIZE)
        table.append({**row, "test3": run.metrics["test3/acc"]})
    return table


def main() -> None:
    """Write one line per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    runs, _ = load_runs([arguments.root])
    table = []
    for dataset in sorted({run.dataset for run in runs if "test3/acc" in run.metrics}):
        for seed in sorted({run.seed for run in runs if run.dataset == dataset}):
            table += rows(runs, dataset, seed)
    if not table:
        sys.exit(f"{arguments.root} holds no run of `counterfactual` that its gate accepted.")
    with arguments.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in table)


if __name__ == "__main__":
    main()
