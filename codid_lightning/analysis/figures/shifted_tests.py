"""What shifted tests look like, and what methods make of them: the picture of `codid demo`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from codid_lightning.analysis.figures.style import COLORS, figure_style, hide_scales
from datamodules.correlated import CorrelatedDataModule

BARS = ("#A6A6A6", COLORS[5], COLORS[0])  # of the methods: grey, then two blues
PICTURES = 5  # of each mode
LOWEST = 50.0  # %, where the bars begin: what guessing one of two answers reaches


def shifted_tests(
    data: CorrelatedDataModule, title: str, tests: Sequence[str], scores: Mapping[str, Sequence[float]]
) -> Figure:
    """For each test set its pictures of every mode, and below a bar per method.

    Args:
        data: Images, set up. The tests show the same pictures under other values of the second attribute.
        title: What is written above all.
        tests: What is written above each test.
        scores: Accuracies of a_1 in %, a number per test, by method; three methods at most.
    """
    with figure_style():
        figure = Figure(figsize=(7.6, 4.6), layout="constrained")
        axes = figure.subplots(2, len(tests), height_ratios=(1.2, 1))
        for number, (text, name) in enumerate(zip(tests, data.test_names, strict=True)):
            above, below = axes[:, number]
            above.set_title(text, fontsize=9, fontweight="bold", pad=16)
            _draw_pictures(above, data, name)
            _draw_bars(below, {method: own[number] for method, own in scores.items()})
            below.tick_params(labelleft=number == 0)
        axes[1, 0].set_ylabel(f"right answers in %\n({LOWEST:.0f}: by guessing)")
        handles, labels = axes[1, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8.5)
        figure.suptitle(title, fontsize=10)
    return figure


def _draw_pictures(panel: Axes, data: CorrelatedDataModule, test: str) -> None:
    """The first pictures of every mode on white, a column per mode, with a gap between the values of a_1."""
    size = data.input_shape[1]
    edges = list(pairwise([0, *accumulate(data.modes_per_value)]))
    gap = torch.ones(3, PICTURES * size, size // 2)
    blocks: list[Tensor] = []
    for value, (first, last) in zip(data.value_names[0], edges, strict=True):
        start = sum(block.shape[2] for block in blocks)
        middles = [start + size * (mode - first + 0.5) for mode in range(first, last)]
        for mode, middle in zip(range(first, last), middles, strict=True):
            blocks.append(_column(data, test, mode))
            _write(panel, data.mode_names[mode], middle, -0.02, "top")
        _write(panel, value, sum(middles) / len(middles), 1.02, "bottom")
        blocks.append(gap)
    panel.imshow(torch.cat(blocks[:-1], dim=2).permute(1, 2, 0).numpy(), interpolation="bilinear")
    hide_scales(panel)


def _column(data: CorrelatedDataModule, test: str, mode: int) -> Tensor:
    """The first pictures of a mode, one below the other, (3, PICTURES * H, W)."""
    dataset = data.datasets[test]
    x = dataset[(dataset.mode[:, 0] == mode).nonzero()[:PICTURES, 0]]["x"]
    return torch.cat(list(1 - x.amax(1, keepdim=True) + x), dim=1)  # black becomes white, a color stays


def _write(panel: Axes, text: str, column: float, height: float, side: str) -> None:
    """Text above or below the pictures."""
    panel.text(column, height, text, transform=panel.get_xaxis_transform(), ha="center", va=side)


def _draw_bars(panel: Axes, scores: Mapping[str, float]) -> None:
    """A bar per method with its number."""
    for place, ((method, score), color) in enumerate(zip(scores.items(), BARS, strict=False)):
        panel.bar(place, score - LOWEST, 0.8, bottom=LOWEST, color=color, label=method)
        panel.text(place, max(score, LOWEST) + 0.7, f"{score:.0f}", ha="center", va="bottom", fontsize=10)
    panel.set(ylim=(LOWEST, 100), xlim=(-0.7, len(scores) - 0.3), xticks=[])
