"""What DPGMM costs in training, and how its moves are judged there: CPU time, and log Hastings ratios.

    OMP_NUM_THREADS=1 CODID_DATA_ROOT=/path/to/data python -m benchmarks.dpgmm_costs --output results/dpgmm_costs
    python -m benchmarks.dpgmm_costs --picture docs/img/nine_modes.png

The first writes results/dpgmm_costs.json and .md (what is in the .json is not measured again), the second draws the
nine-mode toy being clustered. z1 of a trained encoder needs $CODID_DATA_ROOT and is left out without it.
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

from benchmarks.provenance import header
from codid_lightning.clustering import DPGMM, ModesPerValue
from codid_lightning.clustering.features import QuadraticFeatures
from codid_lightning.clustering.mixture import MapEM
from codid_lightning.clustering.niw import empirical_prior
from codid_lightning.methods.baselines import Base
from datamodules.colored import CMNIST
from datamodules.toy import ToyNineModes

STARTS = (1, 2, 4, 8, 16, 32, 64)


class Problem(NamedTuple):
    """A data set."""

    name: str
    x: np.ndarray


class Measured(NamedTuple):
    """Everything the benchmark measures, as kept in the .json."""

    costs: dict[str, float]
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
    """z1 under each value of a_1, from BASE trained on 10000 images of CMNIST."""
    seed_everything(0)
    data = CMNIST(root=root, samples_per_mode=2200)
    model = Base(data.input_shape, data.attribute_sizes, backbone="mlp", latent_dim=128)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    Trainer(max_epochs=epochs, accelerator="cpu", enable_model_summary=False, **quiet).fit(model, data)
    model.eval()
    with torch.no_grad():
        parts = [(model(b["x"])[:, 0], b["a"][:, 0]) for b in data.encode_dataloader()]
    z, a = (torch.cat(columns).numpy() for columns in zip(*parts, strict=True))
    for value in np.unique(a):
        yield Problem(f"z1 of BASE on CMNIST, a1 = {value}", z[a == value])


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU time of the process and the result of some work."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


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
    """The tables: costs, and log Hastings ratios."""
    lines = [*header("What DPGMM costs in training"), "", "One thread, CPU time.", ""]
    lines += ["| cost | measured | required |", "|---|---|---|"]
    lines += [f"| {name} | {value:.2f} | {REQUIRED[name]} |" for name, value in measured.costs.items()]
    lines += [
        "",
        "Log Hastings ratios on z1 of a trained encoder, of one round of proposals from K0 clusters: 5 %, 50 % and",
        "95 % quantiles and the share above 0.",
        "",
        "| data | proposals | K0 | number | log H | above 0 |",
        "|---|---|---|---|---|---|",
    ]
    for row in measured.moves:
        quantiles = " / ".join(f"{q:.0f}" for q in row["quantiles"])
        cells = [row["data"], row["kind"], row["k0"], row["proposals"], quantiles, f"{row['above']:.2f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
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
    parser.add_argument("--output", type=Path, default=Path("results/dpgmm_costs"), help="Place without the suffix.")
    parser.add_argument("--picture", type=Path, help="Draw the nine-mode toy being clustered and stop.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.picture is not None:
        picture(arguments.picture)
        return
    kept = arguments.output.with_suffix(".json")
    measured = Measured(**json.loads(kept.read_text())) if kept.is_file() else Measured(costs(), [])
    root = os.environ.get("CODID_DATA_ROOT")
    if root is not None and not measured.moves:
        measured.moves.extend(row for problem in encoded(root, epochs=10) for row in ratios(problem))
    kept.write_text(json.dumps(measured._asdict(), indent=1) + "\n")
    kept.with_suffix(".md").write_text(markdown(measured))
    print(markdown(measured))


if __name__ == "__main__":
    main()
