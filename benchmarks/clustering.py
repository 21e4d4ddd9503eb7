"""DPGMM beside other clusterings on the data sets of clustering_sets.py, the number of clusters unknown.

    OMP_NUM_THREADS=1 CODID_DATA_ROOT=/path/to/data python -m benchmarks.clustering run --half development
    python -m benchmarks.clustering run --half held-out  # once, at the end
    python -m benchmarks.clustering costs  # time and memory on a million samples

Rows are appended to results/clustering.csv as they come; what is there is not run again (remove a row to measure it
afresh). Every data set by the same `DPGMM()`; no method has options chosen per data set. k-means alone gets the true
number of classes. CPU time of the process, one thread.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import HDBSCAN
from sklearn.cluster import KMeans as ScikitKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

from benchmarks.clustering_sets import HALVES, large, made
from benchmarks.rows import append_row, rows_of
from codid_lightning.clustering import DPGMM

RESULTS = Path("results")
FIELDS = ("half", "data", "n", "d", "classes", "method", "seed", "nmi", "ari", "k", "seconds")
COSTS = ("method", "n", "d", "seconds", "peak_mb", "data_mb", "nmi", "k")
_CANDIDATES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 125)
_PATIENCE = 3  # numbers of clusters without a better BIC before the search ends

Method = Callable[[np.ndarray, int, int], np.ndarray]  # labels from samples, number of classes and seed


def _dpgmm(x: np.ndarray, classes: int, seed: int) -> np.ndarray:
    labels: np.ndarray = DPGMM(random_state=seed).fit(x).labels_
    return labels


def _bayesian(x: np.ndarray, classes: int, seed: int) -> np.ndarray:
    return BayesianGaussianMixture(n_components=min(50, len(x) // 4), random_state=seed).fit_predict(x)


def _hdbscan(x: np.ndarray, classes: int, seed: int) -> np.ndarray:
    return HDBSCAN(copy=False).fit_predict(x)  # without a seed; its noise is one cluster


def _by_bic(x: np.ndarray, classes: int, seed: int) -> np.ndarray:
    best, best_bic, worse = None, np.inf, 0
    for k in _CANDIDATES:
        if k > len(x) // 2 or worse == _PATIENCE:
            break
        model = GaussianMixture(k, random_state=seed).fit(x)
        bic = model.bic(x)
        best, best_bic, worse = (model, bic, 0) if bic < best_bic else (best, best_bic, worse + 1)
    assert best is not None
    return best.predict(x)


def _k_means(x: np.ndarray, classes: int, seed: int) -> np.ndarray:
    return ScikitKMeans(classes, n_init=10, random_state=seed).fit_predict(x)


OURS, TOLD = "DPGMM", "k-means, told K"
METHODS: dict[str, Method] = {
    OURS: _dpgmm,
    "HDBSCAN": _hdbscan,
    TOLD: _k_means,
    "BGM50": _bayesian,
    "GMM + BIC": _by_bic,
}


def measure(half: str, data: str, method: str, seed: int, x: np.ndarray, y: np.ndarray) -> dict[str, object]:
    """One row: quality, number of clusters and CPU time of a method on a data set."""
    classes = len(np.unique(y))
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels = METHODS[method](x, classes, seed)
    seconds = time.process_time() - start
    quality = {"nmi": normalized_mutual_info_score(y, labels), "ari": adjusted_rand_score(y, labels)}
    row = {"half": half, "data": data, "n": len(x), "d": x.shape[1], "classes": classes, "method": method, "seed": seed}
    row |= {name: f"{value:.4f}" for name, value in quality.items()}
    return row | {"k": len(np.unique(labels)), "seconds": f"{seconds:.3f}"}


def run(output: Path, half: str, seeds: int, only: list[str], methods: list[str], cache: Path) -> None:
    """Measure what is not in the table yet, all data sets with the first seed first."""
    root = Path(os.environ.get("CODID_DATA_ROOT", "data"))
    done = {(row["data"], row["method"], int(row["seed"])) for row in rows_of(output)}
    todo = [(seed, method, data) for seed in range(seeds) for method in methods for data in only or HALVES[half]]
    todo = [job for job in todo if job[1] != "HDBSCAN" or job[0] == 0]
    for place, (seed, method, data) in enumerate(todo, 1):
        if (data, method, seed) not in done:
            row = measure(half, data, method, seed, *made(data, root, cache))
            append_row(output, FIELDS, row)
            print(
                f"[{place}/{len(todo)}] {data} | {method} | NMI {row['nmi']} ARI {row['ari']} K {row['k']}", flush=True
            )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cost(method: str, n: int) -> dict[str, object]:
    """Time and memory of one method on large data, in a process of its own."""
    x, y = large(n)
    x = x.astype(np.float32)
    METHODS[method](x[:500], 2, 0)  # libraries load
    before = _peak_mb()
    row = measure("", "", method, 0, x, y)
    after = _peak_mb()
    kept = {name: row[name] for name in ("method", "n", "d", "seconds", "nmi", "k")}
    return kept | {"peak_mb": f"{after - before:.0f}", "data_mb": f"{x.nbytes / 2**20:.0f}"}


def costs(output: Path, methods: list[str], n: int) -> None:
    """Measure what is not in the table of costs yet."""
    done = {(row["method"], int(row["n"])) for row in rows_of(output)}
    for method in methods:
        if (method, n) not in done:
            command = [sys.executable, "-m", "benchmarks.clustering", "cost", "--methods", method, "--samples", str(n)]
            subprocess.run([*command, "--costs", str(output)], check=True)  # noqa: S603  (no input from outside)


def main() -> None:
    """Measure quality on a half of the data sets, or costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "costs", "cost"))
    parser.add_argument("--half", choices=tuple(HALVES), default="development")
    parser.add_argument("--output", type=Path, default=RESULTS / "clustering.csv", help="Table of all measurements.")
    parser.add_argument("--costs", type=Path, default=RESULTS / "clustering_costs.csv", help="Table of costs.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], help="These data sets.")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=tuple(METHODS))
    parser.add_argument("--samples", type=int, default=1_000_000, help="Number of samples for time and memory.")
    parser.add_argument("--cache", type=Path, default=Path("runs/clustering_sets"), help="Folder of the embeddings.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.command == "run":
        run(arguments.output, arguments.half, arguments.seeds, arguments.only, arguments.methods, arguments.cache)
    elif arguments.command == "costs":
        costs(arguments.costs, arguments.methods, arguments.samples)
    else:
        append_row(arguments.costs, COSTS, cost(arguments.methods[0], arguments.samples))


if __name__ == "__main__":
    main()
