"""DPGMM beside scikit-learn's mixtures, the number of clusters unknown: quality and CPU time, in one process.

    OMP_NUM_THREADS=1 CODID_DATA_ROOT=/path/to/data python benchmarks/clustering.py --output results/clustering
    python benchmarks/clustering.py --picture docs/img/nine_modes.png

The first writes results/clustering.json and .md (data sets already in the .json are not run again: remove it to measure
afresh), the second draws the nine-mode toy being clustered. Every data set is clustered by the same `DPGMM()`.
UMAP-MNIST and the encoder's z1 need $CODID_DATA_ROOT and are left out without it. CPU times are compared as ratios:
they were taken side by side, so that the load of the machine cancels.
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

from codid_lightning.clustering import DPGMM, ModesPerValue
from codid_lightning.clustering.features import QuadraticFeatures
from codid_lightning.clustering.mixture import MapEM
from codid_lightning.clustering.niw import empirical_prior
from codid_lightning.methods.baselines import Base
from codid_lightning.metrics import adjusted_rand_index, cluster_accuracy, normalized_mutual_information
from datamodules.colored import CMNIST
from datamodules.toy import ToyNineModes

SEEDS = (0, 1, 2)
STARTS = (1, 2, 4, 8, 16, 32, 64)


class Problem(NamedTuple):
    """A data set with true classes, and the mixture of scikit-learn to compare with."""

    name: str
    x: np.ndarray
    y: np.ndarray
    reference: str | None = None  # covariance type of BayesianGaussianMixture(50)
    starts: tuple[int, ...] = (1,)


class Measured(NamedTuple):
    """Everything the benchmark measures, as kept in the .json."""

    costs: dict[str, float]
    rows: list[dict[str, Any]]
    moves: list[dict[str, Any]]


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
    """z1 under each value of a_1, from BASE trained on 10000 images of CMNIST; classes are the modes."""
    seed_everything(0)
    data = CMNIST(root=root, samples_per_mode=2200)
    model = Base(data.input_shape, data.attribute_sizes, backbone="mlp", latent_dim=128)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    Trainer(max_epochs=epochs, accelerator="cpu", enable_model_summary=False, **quiet).fit(model, data)
    model.eval()
    with torch.no_grad():
        parts = [(model(b["x"])[:, 0], b["a"][:, 0], b["mode"][:, 0]) for b in data.encode_dataloader()]
    z, a, mode = (torch.cat(columns).numpy() for columns in zip(*parts, strict=True))
    for value in np.unique(a):
        yield Problem(f"z1 of BASE on CMNIST, a1 = {value}", z[a == value], mode[a == value], "diag")


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
        if not quick:
            archive = np.load(Path(root) / "umap-mnist" / "embeddings.npz")
            yield Problem("UMAP-MNIST", archive["x"], archive["y"].astype(int), "full", (1, 30))
        yield from encoded(root, epochs=2 if quick else 10)


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


def ratios(problem: Problem) -> Iterator[dict[str, Any]]:
    """Log Hastings ratios of the first proposals from ever more clusters: splits should turn from good to bad."""
    for start in STARTS:
        for kind in ("split", "merge"):
            model = DPGMM(n_clusters=start, max_rounds=0).fit(problem.x)
            model.refine(problem.x, move=kind)
            found = np.array([p.log_hastings for p in model.moves_ if np.isfinite(p.log_hastings)])
            if len(found):
                quantiles = np.quantile(found, [0.05, 0.5, 0.95]).tolist()
                row = {"data": problem.name, "kind": kind, "k0": start, "proposals": len(found)}
                yield row | {"quantiles": quantiles, "above": float((found > 0).mean())}


def compare(problem: Problem) -> Iterator[dict[str, Any]]:
    """Rows of one data set: DPGMM from every start and seed, and scikit-learn's mixture."""
    classes = len(np.unique(problem.y))
    base = {"data": problem.name, "n": len(problem.x), "d": problem.x.shape[1], "classes": classes}
    for start in problem.starts:
        for seed in SEEDS:
            model = DPGMM(n_clusters=start, seed=seed)
            seconds, _ = cpu_seconds(lambda model=model: model.fit(problem.x))
            found = scores(model.labels_, problem.y)
            yield base | {"method": f"DPGMM, K0 = {start}", "seed": seed, "seconds": seconds} | found
    if problem.reference is not None:
        rival = BayesianGaussianMixture(
            n_components=min(50, len(problem.x) // 4), covariance_type=problem.reference, random_state=0
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


def costs() -> dict[str, float]:
    """What single steps cost."""
    return {
        REFINE: refine_seconds(),
        EM_DIAG: em_ratio(35_000, 128, 20, "diag"),
        EM_FULL: em_ratio(70_000, 10, 50, "full"),
    }


def markdown(measured: Measured) -> str:
    """The tables: quality and time as means over seeds, log Hastings ratios, costs."""
    rows, moves = measured.rows, measured.moves
    lines = [
        "# Clustering with an unknown number of clusters",
        "",
        "Made by `python benchmarks/clustering.py --output results/clustering` (one thread, CPU time, side by side in",
        "one process). Every data set by the same `DPGMM()`; means over seeds 0 to 2, K as each seed found it. Time",
        "ratio: CPU time over that of scikit-learn's mixture on the same data.",
        "",
        "| data | N x d | classes | method | NMI | ARI | ACC | K | CPU s | time ratio |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for data, method in dict.fromkeys((row["data"], row["method"]) for row in rows):
        group = [row for row in rows if (row["data"], row["method"]) == (data, method)]
        rival = next(row["seconds"] for row in rows if row["data"] == data and row["method"].startswith("Bayes"))
        mean = {key: float(np.mean([row[key] for row in group])) for key in ("nmi", "ari", "acc", "seconds")}
        quality = " | ".join(f"{mean[key]:.3f}" for key in ("nmi", "ari", "acc"))
        found = ", ".join(str(row["k"]) for row in group)
        cells = [data, f"{group[0]['n']} x {group[0]['d']}", group[0]["classes"], method, quality, found]
        lines.append(
            "| " + " | ".join(map(str, [*cells, f"{mean['seconds']:.2f}", f"{mean['seconds'] / rival:.3f}"])) + " |"
        )
    lines += [
        "",
        "Log Hastings ratios on z1 of a trained encoder, of one round of proposals from K0 clusters: 5 %, 50 % and",
        "95 % quantiles and the share above 0.",
        "",
        "| data | proposals | K0 | number | log H | above 0 |",
        "|---|---|---|---|---|---|",
    ]
    for row in moves:
        quantiles = " / ".join(f"{q:.0f}" for q in row["quantiles"])
        cells = [row["data"], row["kind"], row["k0"], row["proposals"], quantiles, f"{row['above']:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += ["", "| cost | measured | required |", "|---|---|---|"]
    lines += [f"| {name} | {value:.2f} | {REQUIRED[name]} |" for name, value in measured.costs.items()]
    return "\n".join(lines) + "\n"


REFINE = "one `refine` on 2 x 13500 x 128 with 10 clusters, CPU s"
EM_DIAG = "one EM iteration over its two matrix products, diag, 35000 x 128, K = 20"
EM_FULL = "one EM iteration over its two matrix products, full, 70000 x 10, K = 50"
REQUIRED = {REFINE: "<= 0.15", EM_DIAG: "<= 3", EM_FULL: "<= 3"}


def picture(path: Path) -> None:
    """The nine-mode toy clustered along x_1 (x_2 is a_2): all at once, and by moves under each value of a_1."""
    points, mode = nine_modes()
    x, value = points[:, :1], np.repeat(np.arange(3), ToyNineModes.modes_per_value)[mode]
    stages = (("start", DPGMM(max_rounds=0)), ("fine", DPGMM(100, max_rounds=0)), ("merged, DPGMM().fit", DPGMM()))
    shown = [(f"{name}: K = {model.fit(x).n_clusters_}", model.labels_) for name, model in stages]
    modes = ModesPerValue(DPGMM(), n_clusters=[1, 1, 1], max_clusters=8)
    tensor, values = torch.from_numpy(x), torch.from_numpy(value)
    found = modes.fit(tensor, values)
    for t in range(20):
        former, found = found, modes.refine(tensor, values, "merge" if t % 2 else "split")
        if not torch.equal(former.active, found.active):
            counts = " + ".join(map(str, found.active.sum(1).tolist()))
            shown.append((f"under each a_1, from 1 + 1 + 1 clusters, round {t + 1}: {counts}", found.labels.numpy()))
    figure, axes = plt.subplots(len(shown), 1, figsize=(7, 0.9 * len(shown)), sharex=True, layout="constrained")
    for axis, (title, labels) in zip(axes, shown, strict=True):
        _, colour = np.unique(labels, return_inverse=True)
        axis.scatter(*points.T, c=colour % 10, cmap="tab10", vmin=0, vmax=9, s=2, linewidths=0)
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
    parser.add_argument("--only", nargs="+", help="These data sets, and not what single steps cost.")
    parser.add_argument("--picture", type=Path, help="Draw the nine-mode toy being clustered and stop.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.picture is not None:
        picture(arguments.picture)
        return
    kept = arguments.output.with_suffix(".json") if arguments.output is not None else None
    done: dict[str, Any] = json.loads(kept.read_text()) if kept is not None and kept.is_file() else {}
    measured = Measured(**done) if done else Measured({} if arguments.only else costs(), [], [])
    for problem in problems(os.environ.get("CODID_DATA_ROOT"), arguments.quick):
        wanted = arguments.only is None or problem.name in arguments.only
        if wanted and all(row["data"] != problem.name for row in measured.rows):
            measured.rows.extend(compare(problem))
            measured.moves.extend(ratios(problem) if problem.name.startswith("z1") else ())
            print(measured.rows[-1], flush=True)
            if kept is not None:
                kept.write_text(json.dumps(measured._asdict(), indent=1) + "\n")
    table = markdown(measured)
    print(table)
    if kept is not None:
        kept.with_suffix(".md").write_text(table)


if __name__ == "__main__":
    main()
