"""The paper's toy figure: the a_1 that each method predicts at every point of the plane."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, to_rgb
from matplotlib.figure import Figure

from codid_lightning.analysis.evaluation import LoadedRun, load_run
from codid_lightning.analysis.figures.results import FigureError, read_runs
from codid_lightning.analysis.figures.style import COLORS, MARKERS, figure_style, new_figure
from codid_lightning.analysis.tables.scores import Run, titles
from codid_lightning.methods.hardware import like_parameters
from datamodules.base import AttributeDataset

RESOLUTION = 240  # points of the grid along each axis
SHOWN = 600  # number of training samples in the figure
MARGIN = 0.6


def decision_boundaries(paths: Sequence[Path]) -> Figure:
    """Training samples and regions of the predicted a_1 over (x_1, x_2), a panel per method with its accuracies.

    Args:
        paths: Run directories of one data set in the plane, or folders above them; the first seed of each method
            is drawn.
    """
    first: dict[str, Run] = {}
    for run in read_runs(paths):
        first.setdefault(run.method, run)
    named = titles(first.values())
    with figure_style():
        columns = min(2, len(first))
        rows = -(-len(first) // columns)
        figure, axes = new_figure(rows, columns, 3.2, 1.75, sharex=True, sharey=True)
        for panel, run in zip(axes.flat, first.values(), strict=False):
            loaded = load_run([str(run.directory)])
            if tuple(loaded.data.input_shape) != (2,):
                raise FigureError(f"{run.dataset} does not lie in the plane: decision boundaries are drawn of toy data")
            _draw(panel, loaded)
            panel.set_title(_title(run, named[run.method], loaded.data.test_names), loc="left")
        for panel in axes.flat[len(first) :]:
            panel.set_axis_off()
        for panel in axes[-1]:
            panel.set_xlabel("$x_1$")
        for panel in axes[:, 0]:
            panel.set_ylabel("$x_2$")
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        figure.suptitle("Prediction of $a_1$, and its accuracy on test 1 / 2 / 3 in %", x=0.01, ha="left", fontsize=9)
    return figure


def _title(run: Run, method: str, tests: Sequence[str]) -> str:
    scores = (run.metrics.get(f"{test}/acc") for test in tests)
    return f"{method}:  " + " / ".join("–" if s is None else f"{100 * s:.1f}" for s in scores)


def _draw(panel: Axes, run: LoadedRun) -> None:
    """Regions in pale colours, their borders in black, samples in full colour and with a marker per value."""
    train = run.data.datasets["train"]
    low, high = train.x.amin(0).numpy() - MARGIN, train.x.amax(0).numpy() + MARGIN
    x1, x2 = np.meshgrid(*(np.linspace(a, b, RESOLUTION, dtype=np.float32) for a, b in zip(low, high, strict=True)))
    predicted = _predict(run, np.stack([x1.ravel(), x2.ravel()], axis=1)).reshape(x1.shape)
    values = run.data.value_names[0]
    pale = ListedColormap([tuple(0.25 * np.array(to_rgb(COLORS[v])) + 0.75) for v in range(len(values))])
    extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    panel.imshow(predicted, pale, origin="lower", extent=extent, aspect="auto", vmin=0, vmax=len(values) - 1)
    for value in range(len(values)):
        if 0 < (predicted == value).mean() < 1:
            panel.contour(x1, x2, predicted == value, levels=[0.5], colors="0.2", linewidths=0.8)
    _scatter(panel, train, values, run.data.attribute_names[0])


def _scatter(panel: Axes, train: AttributeDataset, values: Sequence[str], name: str) -> None:
    shown = torch.linspace(0, len(train) - 1, min(SHOWN, len(train))).long()
    x, a1 = train.x[shown], train.a[shown, 0]
    for value, text in enumerate(values):
        points = x[a1 == value]
        style: dict[str, Any] = {"color": COLORS[value], "marker": MARKERS[value], "edgecolors": "white"}
        panel.scatter(points[:, 0], points[:, 1], s=9, linewidths=0.3, label=f"{name} = {text}", **style)


@torch.no_grad()
def _predict(run: LoadedRun, x: np.ndarray) -> np.ndarray:
    """The most likely value of a_1 at each point."""
    parts = torch.from_numpy(x).split(8192)
    logits = [run.model.predictors[0](run.model(like_parameters(part, run.model))[:, 0]) for part in parts]
    predicted: np.ndarray = torch.cat(logits).argmax(1).cpu().numpy()
    return predicted
