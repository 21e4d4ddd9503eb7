"""Figures that a dashboard shows during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from codid_lightning.analysis.figures.embedding import Groups, embed, scatter
from codid_lightning.analysis.figures.style import COLORS, figure_style, new_figure


def embedding(z: np.ndarray, labelings: Mapping[str, np.ndarray]) -> Figure:
    """t-SNE of representations (n, d), a panel for each way to label them (n,)."""
    points = embed(z)
    with figure_style():
        figure, axes = new_figure(1, len(labelings), 2.6, 2.6)
        for panel, (title, labels) in zip(axes[0], labelings.items(), strict=True):
            scatter(panel, points, Groups.flat(labels, {int(label): str(label) for label in np.unique(labels)}))
            panel.set_title(title)
    return figure


def histograms(values: Mapping[str, np.ndarray], columns: int = 4, bins: int = 30) -> Figure:
    """A panel for each set of values, all on the same scale."""
    rows = -(-len(values) // columns)
    largest = max((float(v.max()) for v in values.values() if len(v)), default=1.0)
    smallest = min((float(v.min()) for v in values.values() if len(v)), default=0.0)
    with figure_style():
        figure, axes = new_figure(max(1, rows), columns, 1.6, 1.1, sharex=True)
        for panel in axes.flat[len(values) :]:
            panel.set_visible(False)
        for panel, (name, value) in zip(axes.flat, values.items(), strict=False):
            panel.hist(value, bins=bins, range=(smallest, largest), color=COLORS[0])
            panel.set_title(name, fontsize=6)
            panel.set_yticks([])
    return figure


def confusion(counts: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """Confusion matrix: true values in rows, predicted values in columns."""
    shares = counts / counts.sum(1, keepdims=True).clip(1)
    with figure_style():
        figure, ((axes,),) = new_figure(1, 1, 1.6 + 0.3 * len(names), 1.4 + 0.3 * len(names))
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (i, j), share in np.ndenumerate(shares):
            axes.text(j, i, int(counts[i, j]), ha="center", va="center", color="white" if share > 0.5 else "black")
        ticks = range(len(names))
        axes.set(xticks=ticks, yticks=ticks, xticklabels=names, yticklabels=names)
        axes.set(xlabel="predicted", ylabel="true", title=title)
    return figure
