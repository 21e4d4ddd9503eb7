"""Figures that need only the results of runs: cost, learning curves, robustness, sensitivity."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from codid_lightning.analysis.figures.style import (
    COLORS,
    HIGHLIGHT,
    figure_style,
    line_style,
    new_figure,
    shared_legend,
)
from codid_lightning.analysis.tables.names import dataset_title, method_order
from codid_lightning.analysis.tables.scores import Run, load_runs, one_setting_each, titles
from codid_lightning.errors import RunError

CURVES = {  # all of the training set
    "modes/acc": "Clustering accuracy (training)",
    "modes/ari": "Clustering ARI (training)",
    "modes/nmi": "Clustering NMI (training)",
}
A1_LOSS = "train/attribute_a1"
DECADES = 50  # ratio of largest to smallest setting from which the scale is logarithmic


class FigureError(RunError):
    """The figure needs something that the runs do not have; the message says what."""


def read_runs(paths: Sequence[Path], one_setting: bool = False) -> list[Run]:
    """The runs below `paths`, all of one data set, sorted by method.

    Args:
        paths: Run directories, or folders above them.
        one_setting: Keep only the runs of each method's most frequent config, because the figure shows their mean.
    """
    runs, complaints = load_runs(paths)
    if not runs:
        raise FigureError("no runs to draw: " + "; ".join(complaints))
    datasets = sorted({run.dataset for run in runs})
    if len(datasets) > 1:
        raise FigureError(f"the figure is of one data set, the runs are of {', '.join(datasets)}")
    if one_setting:
        runs, _ = one_setting_each(runs)
    return sorted(runs, key=lambda run: (method_order(run.method), run.seed))


def complexity(paths: Sequence[Path]) -> Figure:
    """Number of parameters and training duration per method, mean over runs with the range of the durations."""
    runs = read_runs(paths, one_setting=True)
    methods = list(dict.fromkeys(run.method for run in runs))
    with figure_style():
        figure, axes = new_figure(1, 2, 3.2, 0.7 + 0.2 * len(methods), sharey=True)
        of = {m: [run for run in runs if run.method == m] for m in methods}
        parameters = [np.mean([run.parameters for run in of[m]]) / 1e6 for m in methods]
        minutes = [np.array([run.seconds for run in of[m]]) / 60 for m in methods]
        colors = [COLORS[0] if m == HIGHLIGHT else "0.65" for m in methods]
        named = [titles(runs)[m] for m in methods]
        axes[0, 0].barh(named, parameters, color=colors)
        axes[0, 0].set(xlabel="Parameters (millions)")
        means = np.array([m.mean() for m in minutes])
        spread = [means - [m.min() for m in minutes], np.array([m.max() for m in minutes]) - means]
        axes[0, 1].barh(named, means, xerr=spread, color=colors, error_kw={"linewidth": 0.8})
        axes[0, 1].set(xlabel="Training duration (minutes)")
        axes[0, 0].invert_yaxis()
        figure.suptitle(dataset_title(runs[0].dataset))
    return figure


def learning_curves(paths: Sequence[Path]) -> Figure:
    """Clustering scores and the loss of a_1 on training data over epochs: one line per method, averaged over seeds."""
    runs = read_runs(paths, one_setting=True)
    wanted = {**CURVES, A1_LOSS: "Prediction loss of $a_1$ (training)"}
    curves = {name: _curves(runs, name) for name in wanted}
    drawn = [name for name in wanted if curves[name]]
    if not drawn:
        raise FigureError("none of the runs has a metrics.csv with " + ", ".join(wanted))
    methods = list(dict.fromkeys(run.method for run in runs))
    with figure_style():
        figure, axes = new_figure(1, len(drawn), 2.2, 2.0)
        for panel, name in zip(axes[0], drawn, strict=True):
            for method, curve in curves[name].items():
                style = line_style(methods.index(method)) | {"markevery": max(1, len(curve) // 8)}
                panel.plot(curve.index + 1, curve.to_numpy(), label=titles(runs)[method], **style)
            panel.set(xlabel="Epoch", title=wanted[name])
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        shared_legend(figure, axes[0])
    return figure


def _curves(runs: Sequence[Run], name: str) -> dict[str, "pd.Series[float]"]:
    """Mean over the runs of each method, by epoch."""
    found: dict[str, list[pd.Series[float]]] = {}
    for run in runs:
        logs = sorted(run.directory.rglob("metrics.csv"))
        log = pd.read_csv(logs[-1]) if logs else pd.DataFrame()
        if name in log:
            found.setdefault(run.method, []).append(log.dropna(subset=[name]).groupby("epoch")[name].last())
    return {method: pd.concat(parts, axis=1).sort_index().mean(axis=1) for method, parts in found.items()}


def robustness(paths: Sequence[Path]) -> Figure:
    """Accuracy on every test set against the correlation strength and against the noise level."""
    runs = read_runs(paths)
    sweeps = {"data.init_args.correlation": "Correlation strength", "data.init_args.noise": "Noise level σ"}
    varied = {key: title for key, title in sweeps.items() if _is_varied(runs, key)}
    if not varied:
        raise FigureError("robustness needs runs that differ in data.init_args.correlation or data.init_args.noise")
    tests = sorted(
        {m.split("/")[0] for run in runs for m in run.metrics if m.startswith("test") and m.endswith("/acc")}
    )
    methods = list(dict.fromkeys(run.method for run in runs))
    with figure_style():
        figure, axes = new_figure(len(varied), len(tests), 2.1, 1.8, sharey=True)
        for row, (key, title) in zip(axes, varied.items(), strict=True):
            chosen = _most_common(runs, [other for other in sweeps if other != key])
            for panel, test in zip(row, tests, strict=True):
                _lines(panel, chosen, key, f"{test}/acc", methods)
                panel.set(xlabel=title, title=test.replace("test", "Test "))
            row[0].set_ylabel("Accuracy")
        shared_legend(figure, axes[0])
    return figure


def sensitivity(paths: Sequence[Path], metric: str | None = None) -> Figure:
    """Accuracy on the most shifted test set against every hyperparameter of the model that the runs vary."""
    runs = read_runs(paths)
    metric = metric or ("test3/acc" if any("test3/acc" in run.metrics for run in runs) else "test/acc")
    keys = sorted({key for run in runs for key in run.config if key.startswith("model.init_args.")})
    varied = [key for key in keys if _is_varied(runs, key)]
    sweeps = {key: _most_common(runs, [k for k in varied if k != key]) for key in varied}
    varied = [key for key in varied if _is_varied(sweeps[key], key)]
    if not varied:
        raise FigureError("sensitivity needs runs that differ in an argument of the model, in one at a time")
    methods = list(dict.fromkeys(run.method for run in runs))
    with figure_style():
        figure, axes = new_figure(1, len(varied), 1.9, 1.8, sharey=True)
        for panel, key in zip(axes[0], varied, strict=True):
            _lines(panel, sweeps[key], key, metric, methods)
            panel.set_xlabel(key.removeprefix("model.init_args.").removeprefix("clusterer."))
        axes[0, 0].set_ylabel(f"Accuracy, {metric.split('/')[0].replace('test', 'test ')}")
        shared_legend(figure, axes[0])
    return figure


def _is_varied(runs: Sequence[Run], key: str) -> bool:
    """Whether runs of the same method differ in this key of the config."""
    values: dict[str, set[str]] = {}
    for run in runs:
        values.setdefault(run.method, set()).add(str(run.config.get(key)))
    return any(len(of_method) > 1 for of_method in values.values())


def _most_common(runs: Sequence[Run], keys: Sequence[str]) -> list[Run]:
    """The runs in which all of `keys` have their most frequent value: a sweep varies one key at a time."""
    usual = {key: pd.Series([str(run.config.get(key)) for run in runs]).mode()[0] for key in keys}
    return [run for run in runs if all(str(run.config.get(key)) == value for key, value in usual.items())]


def _lines(panel: Axes, runs: Sequence[Run], key: str, metric: str, methods: Sequence[str]) -> None:
    """Mean ± standard deviation over seeds against one entry of the config, one line per method.

    A method has the same style in every panel. Settings over several decades have a logarithmic scale.
    """
    points = [(r.method, r.config[key], r.metrics[metric]) for r in runs if metric in r.metrics and key in r.config]
    table = pd.DataFrame(points, columns=["method", "setting", "value"])
    if not pd.api.types.is_numeric_dtype(table["setting"]):
        table["setting"] = table["setting"].astype(str)
    elif len(table) and table["setting"].min() > 0 and table["setting"].max() >= DECADES * table["setting"].min():
        panel.set_xscale("log")
    named = titles(runs)
    for method, part in table.groupby("method", sort=False):
        summary = part.groupby("setting")["value"].agg(["mean", "std"])
        x, mean, std = summary.index.to_numpy(), summary["mean"].to_numpy(), summary["std"].fillna(0).to_numpy()
        style = line_style(methods.index(str(method)))
        panel.plot(x, mean, label=named[str(method)], **style)
        panel.fill_between(x, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)
