"""Figures of the data of trained runs: training against test representations, signals of modes, samples."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from codid_lightning import metrics
from codid_lightning.analysis.evaluation import Encoded, encode, load_data, load_run
from codid_lightning.analysis.figures.embedding import Groups, embed, scatter
from codid_lightning.analysis.figures.evolution import position
from codid_lightning.analysis.figures.results import FigureError, read_runs
from codid_lightning.analysis.figures.samples import samples as random_samples
from codid_lightning.analysis.figures.style import COLORS, MARKERS, figure_style, new_figure
from codid_lightning.analysis.modes import Modes, discover
from codid_lightning.analysis.tables.scores import titles
from codid_lightning.metrics.base import subsample
from datamodules.base import AttributeDataModule

PER_SPLIT = 500  # samples of each split in `shift`
SIGNALS = 20  # windows of each mode in `signals`
MAX_MODES = 6  # modes in `signals`


def shift(paths: Sequence[Path]) -> Figure:
    """z_1 of training and test samples with the silhouette of the modes and the A-distance, a panel per run.

    The test set is the one shifted most. A colour is a value of a_1, its shades and markers are the modes; test
    samples have a black edge.
    """
    runs = read_runs(paths)
    named, most = titles(runs), 0
    with figure_style():
        columns = min(3, len(runs))
        figure, axes = new_figure(-(-len(runs) // columns), columns, 2.5, 2.4)
        for panel, run in zip(axes.flat, runs, strict=False):
            loaded = load_run([str(run.directory)])
            splits = [
                encode(loaded.model, loaded.data.datasets[name]) for name in ("train", loaded.data.test_names[-1])
            ]
            modes = discover(loaded.model, splits[0])
            panel.set_title(f"{named[run.method]} ({_draw_shift(panel, splits, modes)})")
            most = max(most, *Counter(mode // modes.slots for mode in modes.ids).values())
        for panel in axes.flat[len(runs) :]:
            panel.set_axis_off()
        figure.legend(handles=_shift_legend(loaded.data, most), loc="outside lower center", ncols=3)
    return figure


def _draw_shift(panel: Axes, splits: Sequence[Encoded], modes: Modes) -> str:
    """Draw both splits; return silhouette and A-distance as text."""
    train, test = (split.z[:, 0] for split in splits)
    labels = [modes.labels, modes.of(test, splits[1].a[:, 0])]
    parts = [subsample(PER_SPLIT, 0, z, c) for z, c in zip((train, test), labels, strict=True)]
    points = embed(torch.cat([z for z, _ in parts]).numpy())
    start = 0
    for (z, clusters), edge in zip(parts, ("white", "black"), strict=True):
        names = dict.fromkeys(modes.ids, "")
        groups = Groups.nested(clusters.numpy(), names, {m: m // modes.slots for m in names})
        style = {"edgecolors": edge, "linewidths": 0.2 if edge == "white" else 0.6}
        scatter(panel, points[start : start + len(z)], groups, 10, **style)
        start += len(z)
    is_test = torch.arange(len(train) + len(test)) >= len(train)
    distance = metrics.a_distance(torch.cat([train, test]), is_test)
    return f"Sil. = {metrics.silhouette(train, modes.labels):.3f}, $d_A$ = {distance:.2f}"


def _shift_legend(data: AttributeDataModule, modes: int) -> list[Line2D]:
    """Colours of values, edges of splits, and the markers of the modes of a value, whose largest number is `modes`."""

    def dot(label: str, color: str, edge: str, marker: str = "o") -> Line2D:
        style = {"linestyle": "", "marker": marker, "markersize": 6, "color": color, "markeredgecolor": edge}
        return Line2D([], [], label=label, **style)  # type: ignore[arg-type]

    def marker_label(number: int) -> str:
        same = range(number + 1, modes + 1, len(MARKERS))  # markers repeat
        return f"mode {', '.join(map(str, same))}"

    values = [
        dot(f"{data.attribute_names[0]}: {v}", COLORS[i % len(COLORS)], "white")
        for i, v in enumerate(data.value_names[0])
    ]
    splits = [dot("training", "0.75", "white"), dot(data.test_names[-1], "0.75", "black")]
    return [*values, *splits, *(dot(marker_label(i), "0.45", "white", m) for i, m in enumerate(MARKERS[:modes]))]


def signals(paths: Sequence[Path], value: str | None = None) -> Figure:
    """Signals of the discovered modes of one activity: random training windows and the one nearest to the centroid."""
    run = read_runs(paths)[0]
    loaded = load_run([str(run.directory)])
    if len(loaded.data.input_shape) != 2:
        raise FigureError(f"{run.dataset} has no signals; its samples are of shape {tuple(loaded.data.input_shape)}.")
    train = loaded.data.datasets["train"]
    modes = discover(loaded.model, encode(loaded.model, train))
    counts = torch.tensor(modes.ids).div(modes.slots, rounding_mode="floor").bincount()
    names = loaded.data.value_names[0]
    chosen = position(value, names, default=int(counts.argmax()))
    shown = [m for m in modes.ids if m // modes.slots == chosen]
    shown = sorted(shown, key=lambda m: -int((modes.labels == m).sum()))[:MAX_MODES]
    with figure_style():
        channels = loaded.data.input_shape[0]
        figure, axes = new_figure(channels, len(shown), 1.5, 0.9 + 0.6 / channels, sharex=True, sharey="row")
        for column, mode in zip(axes.T, shown, strict=True):
            inside = (modes.labels == mode).nonzero().flatten()
            typical = train.inputs(modes.nearest(mode, 1))[0]
            _draw_signals(column, train.inputs(subsample(SIGNALS, 0, inside)[0]), typical)
            column[0].set_title(f"{modes.title(mode, names)} (n = {len(inside)})")
            column[-1].set_xlabel("Time step")
        for channel, panel in enumerate(axes[:, 0]):
            panel.set_ylabel(f"Channel {channel + 1}")
        kinds = {"random windows": "0.7", "nearest to the centroid": COLORS[0]}
        handles = [Line2D([], [], color=color, label=label) for label, color in kinds.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
        figure.suptitle(f"{titles([run])[run.method]}: modes of {loaded.data.attribute_names[0]} = {names[chosen]}")
    return figure


def _draw_signals(column: Sequence[Axes], x: Tensor, typical: Tensor) -> None:
    """Draw windows (n, C, T) in grey and one (C, T) in colour. A mean would cancel signals with different phases."""
    for channel, panel in enumerate(column):
        panel.plot(x[:, channel].T.numpy(), color="0.7", linewidth=0.4, alpha=0.6)
        panel.plot(typical[channel].numpy(), color=COLORS[0], linewidth=0.9)


def samples(paths: Sequence[Path]) -> Figure:
    """Samples of the data of a run or a config: for images a grid, a row per mode (or per value of a_1)."""
    with figure_style():
        return random_samples(load_data(paths[0]))
