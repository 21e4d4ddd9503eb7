"""DPGMM beside scikit-learn's mixtures, the number of clusters unknown: quality and CPU time, in one process.

    OMP_NUM_THREADS=1 CODID_DATA_ROOT=/path/to/data python benchmarks/clustering.py --output results/clustering
    python benchmarks/clustering.py --picture docs/img/nine_modes.png

The first writes results/clustering.json and .md, the second draws the nine-mode toy being clustered. Every data set is
clustered by the same `DPGMM()`. UMAP-MNIST and the encoder's z1 need $CODID_DATA_ROOT and are left out without it. CPU
times are compared as ratios: they were taken side by side, so that the load of the machine cancels.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from lightning import Trainer, seed_everything
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.manifold import SpectralEmbedding
from sklearn.mixture import BayesianGaussianMixture

from codid_lightning.baselines import Base
from codid_lightning.clustering import DPGMM
from codid_lightning.clustering.features import QuadraticFeatures
from codid_lightning.clustering.mixture import MapEM
from codid_lightning.clustering.moves import Proposal
from codid_lightning.clustering.niw import empirical_prior
from codid_lightning.metrics import adjusted_rand_index, cluster_accuracy, normalized_mutual_information
from datamodules.colored import CMNIST
from datamodules.toy import ToyNineModes

SEEDS = (0, 1, 2)


class Problem(NamedTuple):
    """A data set with true classes, and the mixture of scikit-learn to compare with."""

    name: str
    x: np.ndarray
    y: np.ndarray
    reference: str | None = None  # covariance type of BayesianGaussianMixture(50)
    starts: tuple[int, ...] = (1,)


def separated(n: int, k: int, d: int, distance: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit Gaussians at random places, on average `distance` from each other."""
    generator = np.random.default_rng(seed)
    means = generator.normal(size=(k, d)) * distance / np.sqrt(2 * d)
    y = generator.permutation(np.arange(n) % k)
    return (means[y] + generator.normal(size=(n, d))).astype(np.float32), y


def nine_modes() -> tuple[np.ndarray, np.ndarray]:
    """Points and modes of the nine-mode toy."""
    data = ToyNineModes()
    data.setup("fit")
    batches = list(data.encode_dataloader())
    return torch.cat([b["x"] for b in batches]).numpy(), torch.cat([b["mode"][:, 0] for b in batches]).numpy()


def encoded(root: str, epochs: int) -> Iterator[Problem]:
    """z1 of the odd and the even digits, from BASE trained on 10000 images of CMNIST; classes are the digits."""
    seed_everything(0)
    data = CMNIST(root=root, samples_per_mode=1000)
    model = Base(data.input_shape, data.attribute_sizes, backbone="mlp", latent_dim=128)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    Trainer(max_epochs=epochs, accelerator="cpu", enable_model_summary=False, **quiet).fit(model, data)
    model.eval()
    with torch.no_grad():
        parts = [(model(b["x"])[:, 0], b["a"][:, 0], b["mode"][:, 0]) for b in data.encode_dataloader()]
    z, a, mode = (torch.cat(columns).numpy() for columns in zip(*parts, strict=True))
    for value in np.unique(a):
        yield Problem(f"z1 of BASE on CMNIST, a1 = {value}", z[a == value], mode[a == value], "full")


def problems(root: str | None, quick: bool) -> Iterator[Problem]:
    """All data sets, small ones first."""
    x, mode = nine_modes()
    yield Problem("nine-mode toy, x_1", x[:, :1], mode, "full")
    for k, d in ((5, 2), (9, 2), (20, 10)):
        yield Problem(f"mixture, K = {k}, {d}-d", *separated(3000, k, d, 40 if d == 2 else 15), "full", (1, 2 * k))
    digits = load_digits()
    spectral = SpectralEmbedding(10, affinity="nearest_neighbors", n_neighbors=10, random_state=0)
    yield Problem("digits, spectral 10-d", spectral.fit_transform(digits.data), digits.target, "full")
    yield Problem("digits, PCA 10-d", PCA(10, random_state=0).fit_transform(digits.data), digits.target, "full")
    for n, k in ((500, 5), (500, 20), (5000, 20), (5000, 50), (35000, 5), (35000, 20), (35000, 50)):
        if n * k <= 100_000 or not quick:
            yield Problem(f"mixture, K = {k}, 128-d, N = {n}", *separated(n, k, 128, 16), "diag", (1, 2 * k))
    if root is not None:
        yield from encoded(root, epochs=2 if quick else 10)
        archive = np.load(Path(root) / "umap-mnist" / "embeddings.npz")
        if not quick:
            yield Problem("UMAP-MNIST", archive["x"], archive["y"].astype(int), "full", (1, 30))


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU time of the process and the result of some work."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def scores(labels: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """NMI, ARI and ACC of a clustering, and its number of clusters."""
    found, truth = torch.as_tensor(labels), torch.as_tensor(y)
    measures = {"nmi": normalized_mutual_information, "ari": adjusted_rand_index, "acc": cluster_accuracy}
    return {name: float(measure(found, truth)) for name, measure in measures.items()} | {"k": len(np.unique(labels))}


def straddle(moves: tuple[Proposal, ...]) -> dict[str, float]:
    """Quartiles of the log Hastings ratios of a fit's proposals, and the share above zero."""
    ratios = np.array([p.log_hastings for p in moves if np.isfinite(p.log_hastings)] or [0.0])
    low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
    return {"h05": float(low), "h50": float(middle), "h95": float(high), "h_nearest": float(np.abs(ratios).min())}


def compare(problem: Problem) -> Iterator[dict[str, Any]]:
    """Rows of one data set: DPGMM from every start and seed, and scikit-learn's mixture."""
    classes = len(np.unique(problem.y))
    base = {"data": problem.name, "n": len(problem.x), "d": problem.x.shape[1], "classes": classes}
    for start in problem.starts:
        for seed in SEEDS:
            model = DPGMM(n_clusters=start, seed=seed)
            seconds, _ = cpu_seconds(lambda model=model: model.fit(problem.x))
            found = scores(model.labels_, problem.y) | straddle(model.moves_)
            yield base | {"method": f"DPGMM, K0 = {start}", "seed": seed, "seconds": seconds} | found
    if problem.reference is not None:
        rival = BayesianGaussianMixture(
            n_components=min(50, len(problem.x) // 4), covariance_type=problem.reference, random_state=0, max_iter=500
        )
        seconds, labels = cpu_seconds(lambda: rival.fit_predict(problem.x))
        name = f"BayesianGaussianMixture(50, {problem.reference})"
        yield base | {"method": name, "seed": 0, "seconds": seconds} | scores(labels, problem.y)


def refine_seconds() -> float:
    """CPU time of one refinement as in training: two values with 13500 samples, 128 dimensions, 10 clusters each."""
    total = 0.0
    for value in range(2):
        x, y = separated(13_500, 10, 128, 16, seed=value)
        tensor, labels = torch.from_numpy(x), torch.from_numpy(y)
        model = DPGMM(max_rounds=0).fit(tensor, initial_labels=labels)
        moved = tensor + 0.1 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0))
        total += min(cpu_seconds(lambda m=model, z=moved: m.refine(z, move="split"))[0] for _ in range(5))
    return total


def em_ratio(n: int, d: int, k: int, family: str) -> float:
    """CPU time of one EM iteration over that of its two matrix products as one large multiplication each."""
    x = torch.from_numpy(separated(n, k, d, 16)[0])
    features = QuadraticFeatures(x, family)
    clusters = features.to_moments(features.group_sums(torch.arange(n) % k, k))
    em = MapEM(features, empirical_prior(clusters, floor=1e-6), 1.0)
    left, right = torch.randn(k, features.width), torch.randn(features.width, n)
    back = torch.randn(k, n)

    def products() -> None:
        for _ in range(10):
            left @ right
            back @ right.T

    iterations = min(cpu_seconds(lambda: em.run(clusters, 10, -np.inf))[0] for _ in range(5))
    return iterations / min(cpu_seconds(products)[0] for _ in range(5))


def markdown(rows: list[dict[str, Any]], costs: dict[str, float]) -> str:
    """The table: means over seeds, CPU time relative to scikit-learn's mixture on the same data."""
    lines = [
        "# Clustering with an unknown number of clusters",
        "",
        "Made by `benchmarks/clustering.py` (one thread, CPU time, side by side in one process). Every data set by the",
        "same `DPGMM()`; mean over seeds 0 to 2, K as found by each seed. `log H`: 5 %, 50 % and 95 % quantiles of the",
        "log Hastings ratios of all proposals; `min |log H|`: the closest call.",
        "",
        "| data | N x d | classes | method | NMI | ARI | ACC | K | CPU s | time ratio | log H | min abs(log H) |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        group = [row for row in rows if (row["data"], row["method"]) == (data, method)]
        rival = [row["seconds"] for row in rows if row["data"] == data and row["method"].startswith("Bayes")]
        mean = {key: float(np.mean([row[key] for row in group])) for key in ("nmi", "ari", "acc", "seconds")}
        ratio = f"{mean['seconds'] / rival[0]:.3f}" if rival else ""
        first = group[0]
        quality = " | ".join(f"{mean[key]:.3f}" for key in ("nmi", "ari", "acc"))
        found = ", ".join(str(row["k"]) for row in group)
        ratios = nearest = ""
        if "h50" in first:
            ratios = " / ".join(f"{np.median([row[key] for row in group]):.0f}" for key in ("h05", "h50", "h95"))
            nearest = f"{min(row['h_nearest'] for row in group):.1f}"
        size = f"{first['n']} x {first['d']}"
        cells = [data, size, first["classes"], method, quality, found, f"{mean['seconds']:.2f}", ratio, ratios, nearest]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| cost | measured | required |", "|---|---|---|"]
    lines += [f"| {name} | {value:.2f} | {REQUIRED[name]} |" for name, value in costs.items()]
    return "\n".join(lines) + "\n"


REFINE = "one `refine` on 2 x 13500 x 128 with 10 clusters, CPU s"
EM_DIAG = "one EM iteration over its two matrix products, diag, 35000 x 128, K = 20"
EM_FULL = "one EM iteration over its two matrix products, full, 70000 x 10, K = 50"
REQUIRED = {REFINE: "<= 0.15", EM_DIAG: "<= 3", EM_FULL: "<= 3"}


def picture(path: Path) -> None:
    """The nine-mode toy clustered along x_1 (x_2 is a_2): rounds of splits and merges from one cluster, and `fit`."""
    points, _ = nine_modes()
    x = points[:, :1]
    model = DPGMM(max_rounds=0).fit(x)
    shown = [("start: K = 1", model.labels_)]
    for t in range(20):
        former = model.n_clusters_
        model.refine(x, move="merge" if t % 2 else "split")
        if model.n_clusters_ != former:
            shown.append((f"{'merges' if t % 2 else 'splits'}: K = {model.n_clusters_}", model.labels_))
    fitted = DPGMM().fit(x)
    shown.append((f"DPGMM().fit: K = {fitted.n_clusters_}", fitted.labels_))
    figure, axes = plt.subplots(len(shown), 1, figsize=(7, 0.85 * len(shown)), sharex=True, layout="constrained")
    for axis, (title, labels) in zip(axes, shown, strict=True):
        axis.scatter(*points.T, c=labels, cmap="tab10", vmin=0, vmax=9, s=2, linewidths=0)
        axis.set(yticks=[0, 1], ylim=(-0.4, 1.4))
        axis.set_title(title, loc="left", fontsize=8, pad=2)
    axes[-1].set_xlabel("$x_1$")
    figure.supylabel("$x_2$")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the comparison or draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="Where to write the .json and .md, without the suffix.")
    parser.add_argument("--quick", action="store_true", help="Small data sets only.")
    parser.add_argument("--picture", type=Path, help="Draw the nine-mode toy being clustered and stop.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.picture is not None:
        picture(arguments.picture)
        return
    costs = {
        REFINE: refine_seconds(),
        EM_DIAG: em_ratio(35_000, 128, 20, "diag"),
        EM_FULL: em_ratio(70_000, 10, 50, "full"),
    }
    print(costs, flush=True)
    rows: list[dict[str, Any]] = []
    for problem in problems(os.environ.get("CODID_DATA_ROOT"), arguments.quick):
        for row in compare(problem):
            rows.append(row)
            print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    print(markdown(rows, costs))
    if arguments.output is not None:
        arguments.output.with_suffix(".json").write_text(json.dumps({"costs": costs, "rows": rows}, indent=1) + "\n")
        arguments.output.with_suffix(".md").write_text(markdown(rows, costs))


if __name__ == "__main__":
    main()
