"""A figure of samples: a grid of images, traces of series, or points."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from torch import Tensor

from codid_lightning.analysis.figures.style import (
    MARKERS,
    hide_scales,
    line_style,
    new_figure,
    shared_legend,
    value_colors,
)
from codid_lightning.analysis.summary import mode_names
from datamodules.base import AttributeDataModule, AttributeDataset, seeded_generator

_IMAGES = 8  # per row and split
_TRACES = 3  # training samples per value
_POINTS = 2000


def samples(data: AttributeDataModule, seed: int = 0) -> Figure:
    """Random samples of the training set and of the last test set, after scaling and noise."""
    draw = {3: _images, 2: _traces}.get(len(data.input_shape), _points)
    return draw(data, seeded_generator(seed))


def _shown_splits(data: AttributeDataModule) -> list[str]:
    return [split for split in ("train", data.test_names[-1]) if split in data.datasets]


def _images(data: AttributeDataModule, generator: torch.Generator) -> Figure:
    """A row of images per mode, or per value where modes are unknown; a panel per split."""
    moded = data.mode_sizes[0] is not None
    rows = mode_names(data, 0) if moded else data.value_names[0]
    splits = _shown_splits(data)
    figure, axes = new_figure(1, len(splits), 3.6, max(1.5, 0.45 * len(rows)))
    for axis, split in zip(axes[0], splits, strict=True):
        dataset = data.datasets[split]
        labels = (dataset.mode if moded else dataset.a)[:, 0]
        lines = [_line(dataset, _some(labels == row, _IMAGES, generator), data.input_shape) for row in range(len(rows))]
        axis.imshow(np.concatenate(lines), interpolation="nearest", cmap="gray")
        hide_scales(axis)
        axis.set_title(split)
        if split == splits[0]:
            height = data.input_shape[1] + _gap(data.input_shape[1])
            axis.set_yticks([height * (row + 0.5) for row in range(len(rows))], rows)
            axis.tick_params(left=False)
    return figure


def _line(dataset: AttributeDataset, chosen: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Images side by side on white, (H + gap, n (W + gap), 3)."""
    channels, height, width = shape
    gap = _gap(height)
    tiles = torch.ones(_IMAGES, 3, height + gap, width + gap)
    if len(chosen):
        x = dataset[chosen]["x"]
        x = x[:, :3] if channels >= 3 else x[:, :1].expand(-1, 3, -1, -1)
        if x.min() < 0 or x.max() > 1:  # scaled inputs: stretched to what can be shown
            x = (x - x.min()) / (x.max() - x.min())
        tiles[: len(chosen), :, :height, :width] = x
    return tiles.permute(2, 0, 3, 1).reshape(height + gap, -1, 3).numpy()


def _gap(height: int) -> int:
    return max(1, height // 16)


def _traces(data: AttributeDataModule, generator: torch.Generator) -> Figure:
    """A row per value of the first attribute: samples of training, then one of the test set."""
    wanted = {split: _TRACES if split == "train" else 1 for split in _shown_splits(data)}
    figure, axes = new_figure(len(data.value_names[0]), sum(wanted.values()), 1.8, 0.8, sharex=True)
    for value, (name, row) in enumerate(zip(data.value_names[0], axes, strict=True)):
        free = iter(row)
        for split, count in wanted.items():
            chosen = _some(data.datasets[split].a[:, 0] == value, count, generator)
            for index, axis in zip(chosen.tolist(), free, strict=False):  # a value may have too few
                _trace(axis, data, split, index)
        row[0].set_ylabel(name, rotation=0, ha="right", va="center")
    for axis in axes[-1]:
        axis.set_xlabel("Time step", fontsize=6)
    figure.supylabel(data.attribute_names[0], fontsize=8)
    shared_legend(figure, list(axes.flat))
    return figure


def _trace(axis: Axes, data: AttributeDataModule, split: str, index: int) -> None:
    sample = data.datasets[split][[index]]
    for i, channel in enumerate(sample["x"][0]):
        style = line_style(i) | {"marker": "", "linewidth": 0.6, "label": f"Channel {i + 1}"}
        axis.plot(channel.numpy(), **style)
    label = int(sample["a"][0, 1])
    other = data.value_names[1][label] if label >= 0 else "?"
    axis.set_title(f"{split}: {data.attribute_names[1]} {other}", fontsize=6, pad=2)
    axis.tick_params(labelsize=5)


def _points(data: AttributeDataModule, generator: torch.Generator) -> Figure:
    """Points in the plane, or on two principal axes: the first attribute by colour, the second by shape."""
    splits = _shown_splits(data)
    figure, axes = new_figure(1, len(splits), 2.8, 2.2, sharex=True, sharey=True)
    parts = {}
    for split in splits:
        dataset = data.datasets[split]
        parts[split] = dataset[_some(dataset.a[:, 0] >= -1, _POINTS, generator)]
    plane = _plane(parts[splits[0]]["x"].flatten(1).numpy())
    colors = value_colors([*data.value_names[0], "?"])  # the last for unlabelled samples, -1
    inputs = ("$x_1$", "$x_2$") if int(np.prod(data.input_shape)) <= 2 else ("Principal axis 1", "Principal axis 2")
    for axis, split in zip(axes[0], splits, strict=True):
        a, at = parts[split]["a"], plane(parts[split]["x"].flatten(1).numpy())
        for first, second in a[:, :2].unique(dim=0).tolist():
            own = ((a[:, 0] == first) & (a[:, 1] == second)).numpy()
            names = [data.value_names[q][v] if v >= 0 else "?" for q, v in ((0, first), (1, second))]
            label = ", ".join(f"{data.attribute_names[q]} {name}" for q, name in enumerate(names))
            style = {"color": colors[first], "marker": MARKERS[second % len(MARKERS)]}
            axis.scatter(*at[own].T, s=4, linewidths=0, label=label, **style)
        axis.set(title=split, xlabel=inputs[0])
    axes[0, 0].set_ylabel(inputs[1])
    if len(handles := axes[0, 0].get_legend_handles_labels()[0]) <= 12:
        figure.legend(handles=handles, loc="outside right center", markerscale=2)
    return figure


def _plane(x: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """A function that projects points (N, d) to the plane."""
    if x.shape[1] > 2:
        transform: Callable[[np.ndarray], np.ndarray] = PCA(2).fit(x).transform
        return transform
    return lambda points: np.pad(points, ((0, 0), (0, 2 - x.shape[1])))


def _some(wanted: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """At most `count` random indices where `wanted` holds, in increasing order."""
    found = wanted.nonzero().flatten()
    return found[torch.randperm(len(found), generator=generator)[:count]].sort().values
