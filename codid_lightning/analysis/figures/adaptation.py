"""What an adaptation to a place of use changed: the dial, and how often modes occur."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codid_lightning.analysis.figures.style import COLORS, MARKERS, figure_style, new_figure
from codid_lightning.methods.codid.adaptation import Adaptation

MAX_PANELS = 4  # values of the other attributes that are shown: those that changed most


def adaptation(
    found: Adaptation,
    attributes: tuple[str, str],
    first: Sequence[str],
    others: Sequence[str],
    modes: Sequence[str],
    title: str = "",
) -> Figure:
    """The dial with 95 % intervals on the left, frequencies of modes in training and now on the right.

    Args:
        found: The adaptation.
        attributes: Names of the first attribute and of the others.
        first: Names of the values of the first attribute.
        others: Names of the joint values of the other attributes.
        modes: Names of the clusters.
        title: Stands above the figure.
    """
    shown = _most_changed(found)
    panels = (found.dial is not None) + len(shown)
    with figure_style():
        figure, axes = new_figure(1, panels, 2.6, 2.3)
        left = list(axes[0])
        if found.dial is not None:
            dial = left.pop(0)
            _draw_dial(dial, found, first)
            dial.set(title=f"Correlation with {attributes[1]}", ylabel=attributes[0])
        for i, (panel, e) in enumerate(zip(left, shown, strict=True)):
            _draw_shares(panel, found, e, modes)
            panel.set_title(f"Modes where {attributes[1]} is {others[e]}")
            if i == 0:
                panel.set_ylabel("Share")
        if left:
            left[-1].legend(loc="upper right")
        if title:
            figure.suptitle(title, fontsize=8)
    return figure


def _most_changed(found: Adaptation) -> list[int]:
    if found.clusters is None:
        return []
    change = (found.clusters.now - found.clusters.train).abs().sum(1)
    return sorted(change.argsort(descending=True)[:MAX_PANELS].tolist())


def _draw_dial(panel: Axes, found: Adaptation, names: Sequence[str]) -> None:
    gains, intervals = np.array(found.dial), np.array(found.intervals)
    places = np.arange(len(gains))
    for reference in (-1, 0, 1):
        panel.axvline(reference, color="0.8", linewidth=0.8, zorder=0)
    for i, (place, gain, (low, high)) in enumerate(zip(places, gains, intervals, strict=True)):
        color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
        panel.errorbar(gain, place, xerr=[[gain - low], [high - gain]], capsize=2.5, color=color, marker=marker)
    low, high = min(-1.0, intervals.min()), max(1.0, intervals.max())
    panel.set(xlim=(low - 0.25, high + 0.25), ylim=(len(gains) - 0.4, -0.6), yticks=places, yticklabels=names)
    panel.set_xticks([-1, 0, 1], ["-1\nreversed", "0\nnone", "1\nas in training"])


def _draw_shares(panel: Axes, found: Adaptation, e: int, modes: Sequence[str]) -> None:
    if found.clusters is None:
        return
    places, width = np.arange(len(modes)), 0.38
    train, now = found.clusters.train[e].numpy(), found.clusters.now[e].numpy()
    panel.bar(places - width / 2, train, width, label="training", color="white", edgecolor="0.4", linewidth=0.8)
    panel.bar(places + width / 2, now, width, label="now", color=COLORS[0])
    turned = max(map(len, modes)) * len(modes) > 28
    panel.set_xticks(places, modes, rotation=90 if turned else 0)
    panel.set_ylim(0, max(train.max(), now.max()) * 1.25)
