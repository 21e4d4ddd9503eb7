"""Would validation data alone have chosen the methods beyond the paper? Accuracy in the worst of two kinds of cells.

    codid benchmark -c benchmarks/beyond.yaml
    python benchmarks/selection.py runs/beyond --output results/beyond_selection.csv

Cells are (a_1, a_2), what `--selection val_worst` looks at, and (c_1, a_2) with clusters of the validation images
averaged over a_2 by the seed's own autoencoder: spectral clustering on nearest neighbours under each value of a_1, with
as many clusters as the data set's codid.yaml starts from. No mode label is read, and test 3 only to be printed.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import torch
from sklearn.cluster import SpectralClustering
from sklearn.decomposition import PCA
from sklearn.preprocessing import normalize
from torch import Tensor

from codid_lightning.benchmark import Resolver, method_configs
from codid_lightning.evaluation import encode, load_run
from codid_lightning.metrics.groups import group_accuracies, worst_group_accuracy
from codid_lightning.report.scores import Run, load_runs
from datamodules.base import AttributeDataset

SMALLEST_CELL = 10  # samples; fewer say too little


@torch.no_grad()
def symmetrised(model: Any, data: AttributeDataset) -> Tensor:
    """Images (N, D), each the mean of its decodings under all values of a_2, at unit length."""
    parts = []
    for index in torch.arange(len(data)).split(500):
        x = data[index]["x"]
        numbers = range(model.combinations())
        decoded = (model.swap(x, model.combination(torch.full((len(x),), n))) for n in numbers)
        parts.append((sum(decoded) / len(numbers)).flatten(1))
    return torch.from_numpy(normalize(torch.cat(parts).numpy()))


def clusters(images: Tensor, a1: Tensor, counts: list[int]) -> Tensor:
    """Clusters (N,) under each value of a_1."""
    found = torch.zeros_like(a1)
    for value, count in enumerate(counts):
        here = a1 == value
        reduced = PCA(30, random_state=0).fit_transform(images[here].numpy())
        spectral = SpectralClustering(count, affinity="nearest_neighbors", n_neighbors=15, random_state=0)
        found[here] = torch.from_numpy(spectral.fit_predict(reduced)).long() + 100 * value
    return found


def rows(runs: list[Run], dataset: str, seed: int, counts: list[int]) -> list[dict[str, Any]]:
    """One row per method of a data set and seed; none where there is no accepted counterfactual run."""
    here = {run.method: run for run in runs if (run.dataset, run.seed) == (dataset, seed)}
    if not here.get("counterfactual") or not here["counterfactual"].metrics.get("gate/accepted"):
        return []
    swapper = load_run([str(here["counterfactual"].directory)])
    validation = swapper.data.datasets["val"]
    a = validation.a
    found = clusters(symmetrised(swapper.model, validation), a[:, 0], counts)
    table = []
    for method, run in here.items():
        predicted = encode(load_run([str(run.directory)]).model, validation).predicted[:, 0]
        row: dict[str, Any] = {"dataset": dataset, "seed": seed, "method": method, "val": run.metrics["val/acc"]}
        for name, groups in (("a1_a2", a[:, 0] * 100 + a[:, 1]), ("c1_a2", found * 100 + a[:, 1])):
            enough = [acc for acc, n in group_accuracies(predicted, a[:, 0], groups).values() if n >= SMALLEST_CELL]
            row[f"balanced_{name}"] = sum(enough) / len(enough)
            row[f"worst_{name}"] = worst_group_accuracy(predicted, a[:, 0], groups, min_samples=SMALLEST_CELL)
        table.append({**row, "test3": run.metrics["test3/acc"]})
    return table


def main() -> None:
    """Write one line per run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    runs, _ = load_runs([arguments.root])
    resolver = Resolver.run([], run=False)
    table = []
    for dataset in sorted({run.dataset for run in runs if "test3/acc" in run.metrics}):
        counts = resolver.resolve(["-c", *method_configs(dataset, "codid")])["model"]["init_args"]["n_clusters"]
        for seed in sorted({run.seed for run in runs if run.dataset == dataset}):
            table += rows(runs, dataset, seed, counts)
    with arguments.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]))
        writer.writeheader()
        writer.writerows({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in table)


if __name__ == "__main__":
    main()
