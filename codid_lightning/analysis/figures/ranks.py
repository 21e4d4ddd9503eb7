"""Average ranks of methods over data sets: a critical-difference diagram."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from codid_lightning.analysis.comparison import Ranking
from codid_lightning.analysis.figures.results import FigureError
from codid_lightning.analysis.figures.style import COLORS, HIGHLIGHT, figure_style, new_figure
from codid_lightning.analysis.tables.names import dataset_title, method_title
from codid_lightning.analysis.tables.overall import blocks
from codid_lightning.analysis.tables.scores import load_runs, one_setting_each, titles

ROW, AXIS = 0.16, 0.42  # inches: one method or bar, and the scale with what is above it


def average_ranks(paths: Sequence[Path], value: str | None = None) -> Figure:
    """Methods on a scale of their average rank, the best at the left; a bar joins those that do not differ.

    The bars are of Wilcoxon's signed-rank tests of all pairs with Holm's correction.

    Args:
        paths: Run directories, or folders above them.
        value: The score of the test sets, such as `worst_group_acc`; default: accuracy.
    """
    metric = value or "acc"
    runs, complaints = load_runs(paths)
    if not runs:
        raise FigureError("no runs to draw: " + "; ".join(complaints))
    runs, _ = one_setting_each(runs)
    try:
        found = blocks(runs, {run.dataset for run in runs}, [metric])
    except KeyError as error:
        raise FigureError(f"--value is {metric}, which is no score of the tables") from error
    if not found:
        raise FigureError(f"ranks need two methods with {metric} on the same two data sets or more")
    block, order = found[0], found[0].ranking()
    half = (len(order.methods) + 1) // 2
    height = AXIS + ROW * (half + len(order.alike) + 1)
    with figure_style():
        figure, axes = new_figure(1, 1, 5.5, height)
        named = titles(runs)
        _draw(axes[0, 0], order, {m: named.get(m) or method_title(m) for m in order.methods}, height)
        figure.suptitle(f"{block.label}, average rank on {_listed([c.dataset for c in block.columns])}", fontsize=8)
        figure.supxlabel(_tests(order), fontsize=7)
    return figure


def _listed(datasets: Sequence[str]) -> str:
    names = [dataset_title(dataset) for dataset in datasets]
    return ", ".join(names) if len(names) <= 4 else f"{len(names)} data sets"


def _tests(order: Ranking) -> str:
    friedman = "" if order.friedman is None else f"Friedman's test: p = {order.friedman:.2g}. "
    if not order.can_differ:
        return (
            f"{friedman}{order.datasets} data sets are too few for a significant difference of any two of "
            f"{len(order.methods)} methods (Wilcoxon, Holm)."
        )
    return f"{friedman}A bar joins methods that do not differ (Wilcoxon, Holm, 5 %)."


def _draw(panel: Axes, order: Ranking, names: dict[str, str], height: float) -> None:
    """Scale at the top, bars below it, methods in rows at both sides. The unit of y is an inch."""
    count = len(order.methods)
    bars = ROW * (len(order.alike) + 0.5)
    half = (count + 1) // 2
    panel.set(xlim=(0.4, count + 0.6), ylim=(-(height - AXIS), 0))
    panel.xaxis.tick_top()
    panel.set_xticks(range(1, count + 1))
    panel.set_yticks([])
    for side in ("left", "bottom"):
        panel.spines[side].set_visible(False)
    panel.spines["top"].set(visible=True, bounds=(1, count))
    for position, (method, rank) in enumerate(zip(order.methods, order.ranks, strict=True)):
        left = position < half
        row = position if left else count - 1 - position
        y, edge = -bars - ROW * (row + 0.5), 0.85 if left else count + 0.15
        color = COLORS[0] if method == HIGHLIGHT else "0.25"
        panel.plot([rank, rank, edge], [0, y, y], color=color, linewidth=0.8)
        text = f"{names[method]}  {rank:.2f}" if left else f"{rank:.2f}  {names[method]}"
        panel.text(edge, y, f" {text} ", ha="right" if left else "left", va="center", fontsize=7, color=color)
    for number, (first, last) in enumerate(order.alike):
        ends = order.ranks[first] - 0.06, order.ranks[last] + 0.06
        y = -ROW * (number + 0.7)
        panel.plot(ends, [y, y], color="0.0", linewidth=3, solid_capstyle="butt")
