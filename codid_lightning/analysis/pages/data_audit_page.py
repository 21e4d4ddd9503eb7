"""The audit of data and predictions as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from codid_lightning.analysis.data_audit.model import DIAL, MIN_MODE, Cell, ModelVerdict
from codid_lightning.analysis.data_audit.report import DataAudit, cell_name, kind_name, p_text
from codid_lightning.analysis.data_audit.samples import Attribute, Samples
from codid_lightning.analysis.pages.exemplars import exemplars
from codid_lightning.analysis.pages.page import PageCell, PageTable, Picture, render, row

Array = NDArray[Any]

STRIP = 6  # samples of a mode that are shown under each value of an attribute
DISTINGUISHING = 5  # columns named for each mode
WORST = 10  # cells listed at least
MOST_MODES = 6  # modes shown unfolded
WIDTH, HEIGHT = 600, 200  # of the curve, in its own units
WORDS = {"red": "problem", "amber": "unclear", "green": "fine"}


class Heat(NamedTuple):
    """A field of a heat map."""

    text: str
    detail: str  # below the text
    percent: int  # strength of the color, 0 to 100
    marked: bool = False


class HeatMap(NamedTuple):
    """Fields by kind of row and value of an attribute."""

    title: str
    corner: str
    head: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Heat]]]
    note: str


class ModeView(NamedTuple):
    """A mode: how often it occurs with each value of an attribute, and what distinguishes it."""

    title: str
    text: str
    columns: Sequence[str]
    strips: Sequence[Picture]


class Curve(NamedTuple):
    """Accuracy over the correlation of target and attribute."""

    attribute: str
    percents: Sequence[float]
    points: str  # of an SVG polyline
    grid: Sequence[tuple[float, int]]  # height and percent of a line
    note: str


def data_audit_page(audit: DataAudit, commands: Sequence[tuple[str, str]] = ()) -> str:
    """The whole page.

    Args:
        audit: What was found.
        commands: What to do next: a reason and a command each.
    """
    views = list(_modes(audit)) if audit.data.hides == "yes" else []
    return render(
        "data_audit.html.j2",
        title=f"Audit of {audit.samples.name}",
        facts=_facts(audit),
        claims=audit.claims(),
        words=WORDS,
        commands=commands,
        attributes=_attributes(audit),
        maps=[_map(audit, q) for q in range(len(audit.samples.others))],
        modes=views[:MOST_MODES],
        folded=views[MOST_MODES:],
        cells=_cells(audit),
        curves=list(_curves(audit)),
        dial=DIAL,
        width=WIDTH,
        height=HEIGHT,
        notes=audit.samples.notes,
        rare=audit.rare_cells(),
    )


def _facts(audit: DataAudit) -> str:
    s = audit.samples
    shape = f"{s.x.shape[1]} inputs" if s.x.ndim == 2 else f"inputs of shape {tuple(s.x.shape[1:])}"
    groups = "" if s.groups is None else f", {len(np.unique(s.groups))} groups"
    looked = (
        "" if audit.data.rows == len(s) else f" Tests of inputs looked at {audit.data.rows} rows of the training part."
    )
    others = ", ".join(other.name for other in s.others)
    return f"{len(s)} rows{groups}, {shape}; target {s.target.name}; other attributes: {others}.{looked}"


def _attributes(audit: DataAudit) -> PageTable:
    rows = []
    for f in audit.data.attributes:
        hidden = "cannot be tested" if f.hidden is None else f"{f.hidden.information:.2f}, {p_text(f.hidden_p)}"
        readable = "too rare" if f.readable is None else f"{f.readable.information:.2f}, {p_text(f.readable.p_value)}"
        rows.append(
            row(
                f.name,
                PageCell(f.threat, f.threat == "yes"),
                PageCell(f"{f.plain.information:.2f}, {p_text(f.plain_p)}", f.correlated),
                PageCell(hidden, f.hides == "yes"),
                readable,
                f"{f.plain.available:.2f}",
            )
        )
    head = ("attribute", "a shortcut", "plain correlation", "hidden correlation", "inputs show it", "at most")
    note = (
        "Bits, with p-values; those of correlations are corrected by Holm's method over all correlations on this page. "
        "Plain: target and attribute. Hidden: kinds of rows under one value of the target and the attribute, effects "
        "of the attribute on the inputs being accounted for as a shift and a scale of every column. A shortcut needs a "
        "correlation, and inputs that show the attribute."
    )
    return PageTable(head, rows, note)


def _map(audit: DataAudit, q: int) -> HeatMap:
    """Counts or accuracies by value of the target, and by mode where modes matter."""
    s, other = audit.samples, audit.samples.others[q]
    if audit.model is not None:
        return accuracy_map(s, audit.model, q, f"Accuracy by {s.target.name} and {other.name}")
    counts = np.zeros((len(s.target.values), len(other.values)), dtype=int)
    np.add.at(counts, (s.target.labels, other.labels), 1)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    rows = []
    for value, own, parts in zip(s.target.values, counts.tolist(), shares.tolist(), strict=True):
        fields = [Heat(str(n), f"{100 * p:.0f} %", round(70 * p)) for n, p in zip(own, parts, strict=True)]
        rows.append((f"{s.target.name} {value}", fields))
    note = "Rows in each cell, and their share of the line."
    return HeatMap(f"Rows by {s.target.name} and {other.name}", s.target.name, _heads(other), rows, note)


def accuracy_map(s: Samples, model: ModelVerdict, q: int, title: str) -> HeatMap:
    """Accuracy by value or mode of the target and value of another attribute, on the first test set."""
    other, cells = s.others[q], [cell for cell in model.cells if cell.attribute == q]
    test = sorted({cell.test for cell in cells})[0]
    cells = [cell for cell in cells if cell.test == test]
    found = {(cell.value, cell.mode, cell.other): cell for cell in cells}
    rows = []
    for value, mode in sorted({(cell.value, cell.mode) for cell in cells}):
        fields = [found.get((value, mode, o)) for o in range(len(other.values))]
        first = next(cell for cell in fields if cell is not None)
        rows.append((kind_name(first, s), [_field(cell) for cell in fields]))
    note = (
        "Accuracy, number of rows, and 95 % interval. The redder, the lower. ▼: significantly lower than with the "
        f"other values of {other.name} on the same line."
    )
    where = "" if test == "data" else f" on {test}"
    return HeatMap(f"{title}{where}", s.target.name, _heads(other), rows, note)


def _heads(other: Attribute) -> list[str]:
    return [f"{other.name} {value}" for value in other.values]


def _field(cell: Cell | None) -> Heat:
    if cell is None:
        return Heat("–", "no rows", 0)
    low, high = cell.interval
    detail = f"n = {cell.count}, [{100 * low:.0f}, {100 * high:.0f}]"
    return Heat(f"{100 * cell.accuracy:.1f} %", detail, round(80 * (1 - cell.accuracy)), cell.hurt)


def _cells(audit: DataAudit) -> PageTable | None:
    if audit.model is None:
        return None
    cells = audit.model.cells
    shown = cells[: max(WORST, sum(cell.hurt for cell in cells))]
    rows = [
        row(
            cell_name(cell, audit.samples),
            "" if cell.test == "data" else cell.test,
            PageCell(f"{100 * cell.accuracy:.1f} %", cell.hurt),
            "–" if np.isnan(cell.rest) else f"{100 * cell.rest:.1f} %",
            str(cell.count),
            "–" if cell.training < 0 else str(cell.training),
            PageCell(p_text(cell.p_value), cell.hurt),
        )
        for cell in shown
    ]
    unit = "Fisher's exact test" if audit.samples.groups is None else "Welch's test of the accuracies of groups"
    note = f"The worst of {len(cells)} cells. Otherwise: with other values of the attribute. {unit}, one-sided, Holm."
    return PageTable(("cell", "test set", "accuracy", "otherwise", "rows", "training rows", "p"), rows, note)


# ------------------------------------------------------------------------------------------------------------- modes


def _modes(audit: DataAudit) -> Iterator[ModeView]:
    """Modes that are large enough, those first that correlate most with the attribute."""
    s, modes = audit.samples, audit.data.modes
    tested = [(f, other) for f, other in zip(audit.data.attributes, s.others, strict=True) if f.hides == "yes"]
    other = min(tested, key=lambda pair: pair[0].hidden_p)[1]
    ranked = []
    for value in range(len(s.target.values)):
        known = (s.target.labels == value) & (modes >= 0)
        for mode in np.unique(modes[known]).tolist():
            inside, outside = known & (modes == mode), known & (modes != mode)
            if inside.sum() >= MIN_MODE:
                shares = [_shares(other, rows) for rows in (inside, outside)]
                size = float(np.abs(shares[0] - shares[1]).sum() * inside.sum())
                ranked.append((size, value, mode, inside, outside, shares))
    for _, value, mode, inside, outside, (own, rest) in sorted(ranked, key=lambda entry: -entry[0]):
        yield ModeView(
            f"{s.target.name} {s.target.values[value]}, mode {mode + 1}",
            f"{int(inside.sum())} rows. {_mix(other, own)}; in other modes of this value {_mix(other, rest)}.",
            _distinguishing(audit, inside, outside),
            list(_strips(audit, inside, other)),
        )


def _shares(other: Attribute, rows: Array) -> Array:
    """How often each value occurs among some rows."""
    shares: Array = np.bincount(other.labels[rows], minlength=len(other.values)) / max(rows.sum(), 1)
    return shares


def _mix(other: Attribute, shares: Array, most: int = 4) -> str:
    top = np.sort(np.argsort(-shares, kind="stable")[:most])
    return ", ".join(f"{other.name} {other.values[o]} {100 * shares[o]:.0f} %" for o in top)


def _distinguishing(audit: DataAudit, inside: Array, outside: Array) -> list[str]:
    """Columns with the largest standardised difference from the other modes of the value."""
    x = audit.samples.x
    if x.ndim != 2 or not outside.any():
        return []
    spread = np.sqrt((x[inside].var(0) + x[outside].var(0)) / 2)
    difference = (x[inside].mean(0) - x[outside].mean(0)) / np.where(spread > 0, spread, np.inf)
    names = audit.samples.columns or tuple(f"input {i + 1}" for i in range(x.shape[1]))
    best = np.argsort(-np.abs(difference))[:DISTINGUISHING]
    return [
        f"{names[i]}: {x[inside, i].mean():.3g}, otherwise {x[outside, i].mean():.3g} "
        f"({difference[i]:+.1f} standard deviations)"
        for i in best
    ]


def _strips(audit: DataAudit, inside: Array, other: Attribute) -> Iterator[Picture]:
    if audit.samples.x.ndim < 3:
        return
    for o, name in enumerate(other.values):
        rows = np.flatnonzero(inside & (other.labels == o))[:STRIP]
        if len(rows):
            yield exemplars(torch.from_numpy(audit.samples.x[rows]).float(), f"{other.name} {name}")


# ------------------------------------------------------------------------------------------------------------- curve


def _curves(audit: DataAudit) -> Iterator[Curve]:
    if audit.model is None:
        return
    for simulation in audit.model.simulations:
        low = min(0.05 * np.floor(20 * min(simulation.accuracy)), 0.9)
        heights = [HEIGHT * (1 - (accuracy - low) / (1 - low)) for accuracy in simulation.accuracy]
        steps = [WIDTH * i / (len(DIAL) - 1) for i in range(len(DIAL))]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(steps, heights, strict=True))
        ticks = np.linspace(low, 1, 3)
        grid = [(float(HEIGHT * (1 - (t - low) / (1 - low))), round(100 * t)) for t in ticks]
        note = "Cells of the judged rows are re-weighted; accuracy within a cell is taken to stay as it is."
        if simulation.missing > 0.001:
            share = f"{100 * simulation.missing:.0f} %"
            note += f" At the right end, cells without rows have {share} of the weight: they are left out."
        name = audit.samples.others[simulation.attribute].name
        yield Curve(name, [round(100 * a, 1) for a in simulation.accuracy], points, grid, note)
