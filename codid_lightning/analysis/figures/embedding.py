"""Scatter plots of embeddings: t-SNE, groups with colours and markers, numbered centroids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from codid_lightning.analysis.figures.style import COLORS, MARKERS, hide_scales, shades, value_colors


def embed(z: np.ndarray, start: np.ndarray | None = None, seed: int = 0) -> np.ndarray:
    """t-SNE of representations (n, d) in the plane, (n, 2).

    Args:
        z: Representations.
        start: Coordinates to start from, for example those of the same samples an epoch earlier.
        seed: Seed of the randomness.
    """
    z = np.asarray(z, dtype=np.float32)
    if z.shape[1] > 50:
        z = PCA(min(50, *z.shape), random_state=seed).fit_transform(z)
    # t-SNE expects a start much smaller than what it returns.
    init: Any = "pca" if start is None else (1e-4 * start / start.std()).astype(np.float32)
    perplexity = min(30.0, max(2.0, (len(z) - 1) / 4))
    found: np.ndarray = TSNE(perplexity=perplexity, init=init, random_state=seed).fit_transform(z)
    return found


@dataclass(frozen=True)
class Groups:
    """Labels of points with a name, a colour and a marker for each."""

    labels: np.ndarray  # (n,)
    names: dict[int, str]
    colors: dict[int, Any]
    markers: dict[int, str]

    @classmethod
    def flat(cls, labels: np.ndarray, names: dict[int, str], first_color: int = 0) -> "Groups":
        """One colour and one marker per name; a name that is a colour is drawn in it."""
        ids = list(names)
        return cls(
            labels,
            names,
            dict(zip(ids, value_colors(list(names.values()), first_color), strict=True)),
            {g: MARKERS[i % len(MARKERS)] for i, g in enumerate(ids)},
        )

    @classmethod
    def nested(cls, labels: np.ndarray, names: dict[int, str], parent: dict[int, int]) -> "Groups":
        """Groups with parents: a colour per parent, and a shade of it and a marker per group."""
        colors, markers = {}, {}
        for i, above in enumerate(sorted(set(parent.values()))):
            below = [g for g in names if parent[g] == above]
            for j, (group, shade) in enumerate(zip(below, shades(COLORS[i % len(COLORS)], len(below)), strict=True)):
                colors[group], markers[group] = shade, MARKERS[j % len(MARKERS)]
        return cls(labels, names, colors, markers)

    def legend(self) -> list[Line2D]:
        """A handle for each name."""
        return [
            Line2D([], [], linestyle="", marker=self.markers[g], color=self.colors[g], label=name)
            for g, name in self.names.items()
        ]


def scatter(axes: Axes, points: np.ndarray, groups: Groups, size: float = 6, **options: Any) -> None:
    """Draw all points, each group with its colour and marker."""
    for group in groups.names:
        inside = groups.labels == group
        if inside.any():
            style: dict[str, Any] = {"edgecolors": "white", "linewidths": 0.2} | options
            style |= {"color": groups.colors[group], "marker": groups.markers[group], "alpha": 0.75}
            axes.scatter(points[inside, 0], points[inside, 1], s=size, **style)
    hide_scales(axes)
    axes.margins(0.1)


def mark_centroids(axes: Axes, points: np.ndarray, labels: np.ndarray, names: dict[int, str]) -> None:
    """Draw a diamond with the name of each cluster at its median."""
    for group, name in names.items():
        inside = labels == group
        if inside.any():
            x, y = np.median(points[inside], axis=0)
            style: dict[str, Any] = {"facecolor": "white", "edgecolor": "black", "linewidths": 0.7, "alpha": 0.8}
            axes.scatter(x, y, s=55, marker="D", zorder=4, **style)
            text = axes.annotate(name, (x, y), ha="center", va="center", fontsize=4.5, zorder=5)
            text.set_path_effects([withStroke(linewidth=1, foreground="white")])


def evenly(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of the items, first and last included, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]
