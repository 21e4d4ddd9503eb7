"""Figures of z_1 over epochs, drawn from the snapshots of a training."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from codid_lightning.analysis.figures.embedding import Groups, embed, evenly, mark_centroids, scatter
from codid_lightning.analysis.figures.results import FigureError
from codid_lightning.analysis.figures.style import figure_style, new_figure
from codid_lightning.analysis.figures.training import MAX_POINTS, histories, other_labels
from codid_lightning.training.callbacks.snapshots import Snapshot

COLUMNS = 5
LINES = 6  # largest number of moves written below a panel


def evolution(paths: Sequence[Path], value: str | None = None) -> Figure:
    """z_1 over epochs under one value of a_1, coloured by a_2, mode and cluster, with the clusters' centroids."""
    method, snapshots = _single(paths)
    names = snapshots[0].names["values"][0]
    chosen = position(value, names, default=len(names) - 1)
    kept = [_under(s, chosen) for s in evenly(snapshots, COLUMNS)]
    attribute = snapshots[0].names["attributes"][0]
    return _draw(kept, f"{method}: $z_1$ under {attribute} = {names[chosen]}")


def iterations(paths: Sequence[Path]) -> Figure:
    """z_1 at clustering iterations under all values of a_1, with the accepted merges and splits written in."""
    method, snapshots = _single(paths)
    changed = [s for s in snapshots[:-1] if s.kind == "fit" or any(m["accepted"] for m in s.moves)]
    return _draw(evenly([*changed, snapshots[-1]], COLUMNS), f"{method}: $z_1$ and its clusters", True)


def position(value: str | None, names: Sequence[str], default: int) -> int:
    """The index of the value that `--value` names."""
    if value is not None and value not in names:
        raise FigureError(f"--value is {value}; there are {', '.join(names)}.")
    return default if value is None else list(names).index(value)


def _single(paths: Sequence[Path]) -> tuple[str, list[Snapshot]]:
    """The title of the method and the snapshots of the only run."""
    runs = histories(paths, modes=False)
    if sum(map(len, runs.values())) > 1:
        raise FigureError("This figure is of one run; name its directory alone.")
    ((method, (snapshots,)),) = runs.items()
    return method, snapshots


def _under(s: Snapshot, value: int) -> Snapshot:
    """The samples of one value."""
    inside = s.a[:, s.attribute] == value
    names = ("z", "a", "mode", "before", "cluster", "half", "mixture_cluster", "mixture_half")
    return Snapshot(**(vars(s) | {name: getattr(s, name)[inside] for name in names}))


def _draw(snapshots: Sequence[Snapshot], title: str, moves: bool = False) -> Figure:
    """Rows: other attributes, mode where known, cluster; a column per snapshot; the same samples throughout."""
    rows: dict[str, Callable[[Snapshot], Groups]] = {"$a_2$": _by_other}
    if (snapshots[0].mode >= 0).all():
        rows["mode $m_1$"] = _by_mode
    rows["cluster $c_1$"] = _by_cluster
    with figure_style():
        figure, axes = new_figure(len(rows), len(snapshots), 1.6, 1.5)
        points = None
        for column, s in enumerate(snapshots):
            points = embed(s.z[:MAX_POINTS], points)
            for panel, groups_of in zip(axes[:, column], rows.values(), strict=True):
                groups = groups_of(s)
                shown = Groups(groups.labels[: len(points)], groups.names, groups.colors, groups.markers)
                scatter(panel, points, shown, size=5)
            mark_centroids(axes[-1, column], points, shown.labels, groups.names)
            axes[0, column].set_title(f"Epoch {s.epoch}")
            if moves:
                axes[-1, column].set_xlabel(_in_words(s), fontsize=6)
        for panel, name in zip(axes[:, 0], rows, strict=True):
            panel.set_ylabel(name)
        for panel, groups_of in zip(axes[:-1, -1], rows.values(), strict=False):
            handles = groups_of(snapshots[-1]).legend()
            place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "ncols": 1 + len(handles) // 6}
            panel.legend(handles=handles, handletextpad=0.1, columnspacing=0.6, **place)
        figure.suptitle(title)
    return figure


def _by_other(s: Snapshot) -> Groups:
    labels, names = other_labels(s)
    return Groups.flat(labels, dict(enumerate(names)), first_color=3)


def _by_mode(s: Snapshot) -> Groups:
    titles = s.names["modes"]
    parents = _parents(s, s.mode)
    return Groups.nested(s.mode, {m: titles[m] if titles else f"{v}-{m}" for m, v in parents.items()}, parents)


def _by_cluster(s: Snapshot) -> Groups:
    parents = _parents(s, s.cluster)
    return Groups.nested(s.cluster, {c: f"{v}-{c % s.max_clusters}" for c, v in parents.items()}, parents)


def _parents(s: Snapshot, labels: np.ndarray) -> dict[int, int]:
    """The attribute value of each label; samples without a cluster are left out."""
    return {int(g): int(s.a[labels == g, s.attribute][0]) for g in np.unique(labels) if g >= 0}


def _in_words(s: Snapshot) -> str:
    """The accepted moves, as `merge value-(k,l)`."""
    if s.kind == "fit":
        return "first clustering"
    made = [f"{m['kind']} {m['value']}-({','.join(map(str, m['slots']))})" for m in s.moves if m["accepted"]]
    return "\n".join([*made[:LINES], *([f"and {len(made) - LINES} more"] if len(made) > LINES else [])])
