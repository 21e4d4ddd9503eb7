"""Figures of the coordination of weights and subclusters, drawn from the snapshots of a training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy.stats import binomtest

from codid_lightning import metrics
from codid_lightning.analysis.figures.embedding import Groups, embed, evenly, scatter
from codid_lightning.analysis.figures.results import FigureError, read_runs
from codid_lightning.analysis.figures.style import figure_style, hide_scales, line_style, new_figure, shared_legend
from codid_lightning.analysis.tables.scores import titles
from codid_lightning.training.callbacks.snapshots import Snapshot, read_snapshots

OVERLAY = "train with `-c configs/callbacks/snapshots.yaml`"
MAX_POINTS = 1000
FEWEST = 5  # a mode with fewer samples in a cluster is ignored


class Split(NamedTuple):
    """A cluster that was proposed for splitting."""

    snapshot: Snapshot
    cluster: int
    p_value: float  # of the correlation of its modes with the other attributes; 1 where these are constant
    accepted: bool

    @property
    def size(self) -> int:
        """Samples of the cluster in the snapshot."""
        return int((self.snapshot.before == self.cluster).sum())


def histories(paths: Sequence[Path], modes: bool) -> dict[str, list[list[Snapshot]]]:
    """The snapshots of every run, by the title of its method.

    Args:
        paths: Run directories, or folders above them.
        modes: Whether the figure needs true modes.
    """
    found: dict[str, list[list[Snapshot]]] = {}
    runs = read_runs(paths)
    named = titles(runs)
    for run in runs:
        snapshots = read_snapshots(run.directory)
        if not snapshots:
            raise FigureError(f"{run.directory} has no snapshots: {OVERLAY}.")
        if modes and (snapshots[0].mode < 0).any():
            raise FigureError(f"The true modes of {run.dataset} are not known; this figure compares with them.")
        found.setdefault(named[run.method], []).append(snapshots)
    return found


def other_labels(s: Snapshot) -> tuple[np.ndarray, list[str]]:
    """One label per combination of the attributes other than the snapshot's, and their names."""
    rest = [j for j in range(s.a.shape[1]) if j != s.attribute]
    combinations, labels = np.unique(s.a[:, rest], axis=0, return_inverse=True)
    values = s.names["values"]
    return labels.reshape(-1), [", ".join(values[j][v] for j, v in zip(rest, c, strict=True)) for c in combinations]


# ------------------------------------------------------------------------------------------------------------ weights


def weight_patterns(paths: Sequence[Path]) -> Figure:
    """Share of the pairs within clusters that have the same mode, against the divergence of their weights."""
    runs = histories(paths, modes=True)
    weighted = {m: [[s for s in run if len(s.divergence)] for run in of] for m, of in runs.items()}
    weighted = {m: of for m, of in weighted.items() if all(of)}
    if not weighted:
        raise FigureError("None of the runs learned weights; weight patterns are of codid, wo_sc and ua.")
    with figure_style():
        figure, axes = new_figure(1, len(weighted), 2.9, 2.8, sharey=True)
        for panel, (method, of) in zip(axes[0], weighted.items(), strict=True):
            for i, snapshots in enumerate(evenly(list(zip(*of, strict=False)), 3)):
                _draw_pattern(panel, i, snapshots)
            panel.set(title=method, xlabel="Weight divergence JSD$^w$", ylim=(-0.03, 1.03))
            panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2))
        axes[0, 0].set_ylabel("Share of pairs with the same mode $p^m$")
    return figure


def _draw_pattern(panel: Axes, index: int, snapshots: Sequence[Snapshot], bins: int = 10, fewest: int = 20) -> None:
    """One epoch: equal-width bins of the divergence with 95 % intervals, without bins of fewer than `fewest` pairs."""
    divergence = np.concatenate([s.divergence for s in snapshots]).astype(float)
    same = np.concatenate([s.same_mode for s in snapshots])
    edges = np.linspace(0, np.quantile(divergence, 0.99) or 1.0, bins + 1)
    place = np.digitize(divergence, edges[1:-1])
    points = []
    for b in range(bins):
        n, hits = int((place == b).sum()), int(same[place == b].sum())
        if n >= fewest:
            interval = binomtest(hits, n).proportion_ci(method="wilson")
            below, above = max(0.0, hits / n - interval.low), max(0.0, interval.high - hits / n)
            points.append(((edges[b] + edges[b + 1]) / 2, hits / n, below, above))
    x, share, low, high = zip(*points, strict=True) if points else ((),) * 4
    style = line_style(index)
    label = f"epoch {snapshots[0].epoch} (all pairs: {same.mean():.2f})"
    panel.plot(x, share, label=label, **style)
    panel.errorbar(x, share, yerr=[low, high], color=style["color"], linestyle="", elinewidth=0.7, capsize=1.5)


# -------------------------------------------------------------------------------------------------------- subclusters


def subclustering(paths: Sequence[Path]) -> Figure:
    """Accuracy of the two halves of the clusters over refinements: subclustering net against mixture."""
    runs = histories(paths, modes=True)
    with figure_style():
        figure, axes = new_figure(1, len(runs), 2.9, 2.4, sharey=True)
        for panel, (method, of) in zip(axes[0], runs.items(), strict=True):
            refined = [[s for s in run if s.before.max() >= 0] for run in of]
            net = [[(s.epoch, subcluster_score(s.half, s.mode, s.before)) for s in run] for run in refined]
            mixture = [
                [(s.epoch, subcluster_score(s.mixture_half, s.mode, s.mixture_cluster)) for s in run] for run in refined
            ]
            _draw_scores(panel, "subclustering net S", net, 0)
            _draw_scores(panel, "DPGMM", mixture, 1)
            panel.set(title=method, xlabel="Epoch")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[0, 0].set_ylabel("Subclustering accuracy")
        shared_legend(figure, axes[0])
    return figure


def subcluster_score(halves: np.ndarray, modes: np.ndarray, clusters: np.ndarray) -> float:
    """The accuracy of halves of clusters; NaN if there are no halves."""
    if halves.min() < 0:
        return float("nan")
    return metrics.subcluster_accuracy(*(torch.from_numpy(x) for x in (halves, modes, clusters)))


def _draw_scores(panel: Axes, label: str, runs: Sequence[Sequence[tuple[int, float]]], index: int) -> None:
    """Mean and range over runs that were refined at the same epochs."""
    epochs = [epoch for epoch, _ in runs[0]]
    scores = np.array([[score for _, score in run] for run in runs if [e for e, _ in run] == epochs])
    if np.isnan(scores).all():  # a variant without the net
        return
    style = line_style(index)
    panel.plot(epochs, scores.mean(0), label=label, **style)
    panel.fill_between(epochs, scores.min(0), scores.max(0), color=style["color"], alpha=0.15, linewidth=0)


def subclusters(paths: Sequence[Path]) -> Figure:
    """t-SNE of a cluster chosen for splitting: its true modes, the mixture's halves and the subclustering net's.

    Of all clusters proposed, an accepted one comes first; among equals, the one whose modes correlate most
    significantly with the other attributes, then the largest.
    """
    candidates = [split for of in histories(paths, modes=True).values() for run in of for split in _splits(run)]
    if not candidates:
        raise FigureError(
            "In these runs the subclustering net never proposed to split a cluster with several modes; train longer "
            "after pre-training, or lower model.cluster_every."
        )
    chosen = min(candidates, key=lambda split: (not split.accepted, split.p_value, -split.size))
    s = chosen.snapshot
    inside = np.flatnonzero(s.before == chosen.cluster)[:MAX_POINTS]
    labels, names = other_labels(s)
    modes, others, points = s.mode[inside], labels[inside], embed(s.z[inside])
    titles = s.names["modes"] or [str(m) for m in range(s.mode.max() + 1)]
    with figure_style():
        figure, axes = new_figure(1, 3, 2.1, 2.3)
        _draw_halves(axes[0, 0], points, modes, others, {int(m): f"mode {titles[m]}" for m in np.unique(modes)})
        axes[0, 0].set_title("True modes")
        for panel, name, half in zip(axes[0, 1:], ("DPGMM", "S net"), (s.mixture_half, s.half), strict=True):
            score = metrics.cluster_accuracy(torch.from_numpy(half[inside]), torch.from_numpy(modes))
            _draw_halves(panel, points, half[inside], others, {0: "first half", 1: "second half"})
            panel.set_title(f"{name} (Acc. = {score:.3f})")
        figure.suptitle(_split_title(chosen) + f"; filled: {names[0]}, hollow: {' or '.join(names[1:])}", fontsize=7)
    return figure


def _split_title(split: Split) -> str:
    value, number = divmod(split.cluster, split.snapshot.max_clusters)
    outcome = "accepted" if split.accepted else "rejected"
    start = f"Cluster {value}-{number}, epoch {split.snapshot.epoch}, split {outcome}; "
    if split.p_value == 1:
        return start + "$a_2$ is constant in it"
    return start + rf"$\chi^2$ test of modes and $a_2$: $p$ = {split.p_value:.2g}"


def _splits(run: Sequence[Snapshot]) -> list[Split]:
    """All proposed splits of clusters with several modes."""
    found = []
    for s in run:
        if s.kind != "split" or s.half.min() < 0:
            continue
        modes, others, before = (torch.from_numpy(x) for x in (s.mode, other_labels(s)[0], s.before))
        tests = {t.group: t.p_value for t in metrics.chi_squared_tests(modes, others, before)}
        for move in s.moves:
            cluster = move["value"] * s.max_clusters + move["slots"][0]
            if (np.bincount(s.mode[s.before == cluster]) >= FEWEST).sum() > 1:
                found.append(Split(s, cluster, tests.get(cluster, 1.0), bool(move["accepted"])))
    return found


def _draw_halves(
    panel: Axes, points: np.ndarray, labels: np.ndarray, others: np.ndarray, names: dict[int, str]
) -> None:
    """Colour and marker by label, filled or hollow by the other attribute."""
    groups = Groups.flat(labels, names)
    first = others == 0
    scatter(panel, points[first], Groups(labels[first], names, groups.colors, groups.markers), 12)
    for group in names:
        chosen = ~first & (labels == group)
        style: dict[str, Any] = {"facecolors": "none", "edgecolors": [groups.colors[group]], "linewidths": 0.8}
        panel.scatter(points[chosen, 0], points[chosen, 1], s=12, marker=groups.markers[group], **style)
    hide_scales(panel)
    handles: list[Line2D] = groups.legend()
    panel.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0), ncols=2, handletextpad=0.1)
