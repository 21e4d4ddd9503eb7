"""Which view of the inputs shows hidden modes without an autoencoder? And what are soft offsets from it worth?

    python -m benchmarks.views --root data --output results/views.md

A view gives features z. Classifiers of a_2 on z within each value of a_1, which did not see the sample, give the log-
odds of a_2. *Modes found*: the area under the ROC curve with which these separate modes that prefer one value of a_2
from those that prefer the other, within each cell of (a_1, a_2), where a_2 itself is of no help; 50 is chance. True
modes are read to score only. *Tests*: accuracy of a small network whose logits of a_1 = v get log p(a_2 | z, a_1 = v)
added in training (soft offsets, no clusters), beside the same network with nothing (`none`) and with log p(a_2 | a_1
= v) (`constant`).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from benchmarks.provenance import header
from codid_lightning.methods.codid.parts.experts import judge
from codid_lightning.methods.codid.parts.propensity import principal_components
from datamodules.base import Batch
from datamodules.colored import CMNIST, ColoredDigits
from datamodules.correlated import CorrelatedDataModule
from datamodules.glyphs import ColoredGlyphs
from datamodules.toy import Toy, ToyNineModes

Array = NDArray[np.float64]
TESTS = ("test1", "test2", "test3")
DIRECTIONS = 5  # that are removed around each sample's neighbours
NEIGHBOURS = 10
ROUNDS = 2  # of a network and its propensity in turns
BATCH = 64


def every(data: CorrelatedDataModule, split: str) -> Batch:
    """All samples of a split."""
    return data.datasets[split][torch.arange(len(data.datasets[split]))]


def log_odds(z: Tensor, batch: Batch) -> Tensor:
    """Log-odds (N, A) of a_2 = 1 given z under every value of a_1, by classifiers that did not see the sample."""
    x, a = principal_components(z.double().numpy()), batch["a"].numpy()
    x = Nystroem(gamma=1.0, n_components=min(300, len(x)), random_state=0).fit_transform(x)
    found = np.zeros((len(x), a[:, 0].max() + 1))
    for value in range(found.shape[1]):
        own = np.flatnonzero(a[:, 0] == value)
        for learn, predict in StratifiedKFold(3, shuffle=True, random_state=0).split(own, a[own, 1]):
            classifier = LogisticRegression(max_iter=300).fit(x[own[learn]], a[own[learn], 1])
            rest = np.flatnonzero(a[:, 0] != value)
            found[own[predict], value] = classifier.decision_function(x[own[predict]])
            found[rest, value] += classifier.decision_function(x[rest]) / 3
    return torch.from_numpy(found).float().clamp(-5, 5)


def modes_found(scores: Tensor, batch: Batch) -> float:
    """Area under the ROC curve of scores (N,), in %, within cells of (a_1, a_2)."""
    a1, a2, mode = batch["a"][:, 0], batch["a"][:, 1], batch["mode"][:, 0]
    prefers = torch.stack([a2[mode == m].double().mean() for m in range(int(mode.max()) + 1)]) > 0.5
    areas = []
    for value in a1.unique():
        for other in (0, 1):
            here = (a1 == value) & (a2 == other)
            truth = prefers[mode[here]].numpy()
            if 0 < truth.sum() < len(truth):
                areas.append(float(roc_auc_score(truth, scores[here].numpy())))
    return 100 * statistics.fmean(areas)


# --------------------------------------------------------------------------------------------------------------- views


def inputs(batch: Batch, steps: int) -> Tensor:
    """The inputs, which show a_2."""
    return batch["x"].flatten(1)


def centred(batch: Batch, steps: int) -> Tensor:
    """Inputs less their mean under each value of a_2."""
    x, a2 = batch["x"].flatten(1).clone(), batch["a"][:, 1]
    for value in (0, 1):
        x[a2 == value] -= x[a2 == value].mean(0)
    return x


def without_neighbours(batch: Batch, steps: int) -> Tensor:
    """Principal components without the directions in which neighbours with other values of a_2 differ most."""
    x = principal_components(centred(batch, steps).double().numpy())
    a2, differences = batch["a"][:, 1].numpy(), []
    for value in (0, 1):
        here, there = np.flatnonzero(a2 == value), np.flatnonzero(a2 != value)
        _, nearest = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(x[there]).kneighbors(x[here])
        differences.append((x[here] - x[there][nearest].mean(1)) * (1 if value else -1))
    _, _, directions = np.linalg.svd(np.concatenate(differences), full_matrices=False)
    removed = directions[:DIRECTIONS]
    return torch.from_numpy(x - x @ removed.T @ removed)


def contrastive(batch: Batch, steps: int) -> Tensor:
    """Features that tell which of two randomly masked inputs belong together; no labels."""
    x = batch["x"].flatten(1)
    net = nn.Sequential(nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Linear(256, 64))
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(steps):
        some = x[torch.randint(len(x), (2 * BATCH,))]
        one, two = (F.normalize(net(some * (torch.rand_like(some) > 0.4)), dim=1) for _ in range(2))
        loss = F.cross_entropy(one @ two.T / 0.2, torch.arange(len(some)))
        adam.zero_grad()
        loss.backward()
        adam.step()
    with torch.no_grad():
        found: Tensor = net(x)
    return found


def network_features(batch: Batch, steps: int) -> Tensor:
    """Hidden units of a network of a_1 with soft offsets, first of cells and then of its own features, in turns."""
    offsets = constant(batch)
    for _ in range(ROUNDS):
        net = trained(batch, offsets, steps)
        with torch.no_grad():
            z: Tensor = net[:-1](batch["x"].flatten(1))
        offsets = soft(log_odds(z, batch), batch["a"][:, 1])
    return z


def grey(batch: Batch, steps: int) -> Tensor:
    """What does not show a_2, known here: the picture without its color, or the toys' first axis."""
    x = batch["x"]
    return x.sum(1).flatten(1) if x.ndim > 2 else x[:, :1]


VIEWS: dict[str, Callable[[Batch, int], Tensor]] = {
    "inputs": inputs,
    "inputs, centred within a_2": centred,
    "without directions of neighbours": without_neighbours,
    "features of a network with soft offsets, in turns": network_features,
    "contrastive features": contrastive,
    "without what shows a_2 (not available)": grey,
}


# ------------------------------------------------------------------------------------------------------------- offsets


def constant(batch: Batch) -> Tensor:
    """Logarithm of p(a_2 | a_1 = v) at each sample's a_2, (N, A)."""
    a = batch["a"]
    share = torch.stack([a[a[:, 0] == v, 1].float().mean() for v in range(int(a[:, 0].max()) + 1)])
    return torch.where(a[:, 1:] == 1, share, 1 - share).log()


def soft(odds: Tensor, a2: Tensor) -> Tensor:
    """Logarithm of p(a_2 | z, a_1 = v) at each sample's a_2, (N, A), of log-odds (N, A)."""
    return torch.where(a2[:, None] == 1, F.logsigmoid(odds), F.logsigmoid(-odds))


def trained(batch: Batch, offsets: Tensor, steps: int) -> nn.Sequential:
    """A network of a_1 with offsets (N, A) in the logits; learning rate falling to zero from 40 %."""
    x, a1 = batch["x"].flatten(1), batch["a"][:, 0]
    hidden = [
        nn.Linear(x.shape[1], 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Linear(256, 64),
        nn.BatchNorm1d(64),
        nn.ReLU(),
    ]
    net = nn.Sequential(*hidden, nn.Linear(64, offsets.shape[1]))
    adam = torch.optim.Adam(net.parameters(), 1e-3)
    for step in range(steps):
        adam.param_groups[0]["lr"] = 1e-3 * min(1.0, (1 - step / steps) / 0.6)
        some = torch.randint(len(x), (BATCH,))
        adam.zero_grad()
        F.cross_entropy(net(x[some]) + offsets[some], a1[some]).backward()
        adam.step()
    return net.eval()


def tested(net: nn.Sequential, data: CorrelatedDataModule) -> list[float]:
    """Accuracy of a_1 on the tests, in %."""
    with torch.no_grad():
        batches = [every(data, test) for test in TESTS]
        return [100 * float((net(b["x"].flatten(1)).argmax(1) == b["a"][:, 0]).double().mean()) for b in batches]


def rows(data: CorrelatedDataModule, steps: int) -> dict[str, list[float]]:
    """Area and test accuracies of every view."""
    torch.manual_seed(data.seed)
    batch = every(data, "train")
    a2 = batch["a"][:, 1]
    found = {"none": [float("nan"), *tested(trained(batch, torch.zeros_like(constant(batch)), steps), data)]}
    found["constant"] = [float("nan"), *tested(trained(batch, constant(batch), steps), data)]
    for name, view in VIEWS.items():
        odds = log_odds(view(batch, steps), batch)
        own = odds.gather(1, batch["a"][:, :1])[:, 0]
        found[name] = [modes_found(own, batch), *tested(trained(batch, soft(odds, a2), steps), data)]
    judged = judge(batch["x"].flatten(1), batch["a"][:, 0], a2)
    found["experts within a_2 (clusters)"] = [modes_found(judged.preferred.double(), batch)]
    return found


def main() -> None:
    """Measure, and write a table for each data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="Folder with MNIST.")
    parser.add_argument("--only", nargs="+", choices=("cmnist", "glyphs", "colored_digits", "toy", "toy_nine_modes"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    parser.add_argument("--samples_per_mode", type=int, default=1000, help="Of CMNIST, glyphs and toys.")
    parser.add_argument("--steps", type=int, default=600, help="Of every network.")
    parser.add_argument("--output", type=Path, default=Path("views.md"))
    options = parser.parse_args()
    size = {"samples_per_mode": options.samples_per_mode}
    make: dict[str, Callable[[], CorrelatedDataModule]] = {
        "cmnist": lambda: CMNIST(root=str(options.root), **size),
        "glyphs": lambda: ColoredGlyphs(**size),
        "colored_digits": lambda: ColoredDigits(val_fraction=0.2),
        "toy": lambda: Toy(**size),
        "toy_nine_modes": lambda: ToyNineModes(**size),
    }
    lines = [*header("Views without an autoencoder"), ""]
    for name in options.only or make:
        found: dict[str, list[list[float]]] = {}
        for seed in options.seeds:
            data = make[name]()
            data.seed = seed
            data.prepare_data()
            data.setup()
            for view, numbers in rows(data, options.steps).items():
                found.setdefault(view, []).append(numbers)
        lines += [f"## {data.title}, {len(data.datasets['train'])} training samples, {len(options.seeds)} seeds", ""]
        lines += ["| offsets from | modes found | test 1 | test 2 | test 3 |", "|---|---|---|---|---|"]
        for view, runs in found.items():
            means = [statistics.fmean(column) for column in zip(*runs, strict=True)]
            cells = ["" if mean != mean else f"{mean:.1f}" for mean in means] + [""] * (4 - len(means))
            lines.append(f"| {view} | {' | '.join(cells)} |")
        lines.append("")
        options.output.write_text("\n".join(lines))
        print("\n".join(lines))


if __name__ == "__main__":
    main()
