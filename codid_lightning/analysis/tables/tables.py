"""The paper's tables, filled from runs."""

import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from scipy.stats import ttest_rel

from codid_lightning.analysis.paper import Printed, paper_numbers
from codid_lightning.analysis.tables.names import OURS, TRUTH, dataset_title, method_needs, method_title
from codid_lightning.analysis.tables.scores import Run, Score, score, titles
from codid_lightning.analysis.tables.specs import CHOICES, Column, TableSpec, table_specs

SIGNIFICANCE = 0.05


@dataclass(frozen=True)
class TableCell:
    """Our score and the paper's number for one method and column."""

    column: Column
    ours: Score | None
    paper: Printed | None
    rank: int | None = None  # 1 best, 2 runner-up among our scores
    beaten: bool = False  # whether CoDID is significantly better


@dataclass(frozen=True)
class Row:
    """One method: what it must know, and its ticks in the ablation table (`choices`)."""

    method: str
    title: str
    cells: tuple[TableCell, ...]
    choices: str = ""
    needs: str = ""


@dataclass(frozen=True)
class Gain:
    """CoDID minus the best other method in one column; None if one of them has no number."""

    column: Column
    ours: float | None
    paper: float | None


@dataclass(frozen=True)
class Table:
    """One table, ready to be printed in any format."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    gains: tuple[Gain, ...]
    design: tuple[str, ...]
    absent: tuple[str, ...]  # titles of data sets and methods without any number

    @property
    def note(self) -> str:
        """How many cells have no run, and which data sets and methods have none at all."""
        cells = [cell for row in self.rows if row.method != TRUTH for cell in row.cells]
        text = f"{sum(cell.ours is None for cell in cells)} of {len(cells)} cells have no run."
        return text + (f" No runs at all of {', '.join(self.absent)}." if self.absent else "")


def build_tables(runs: Sequence[Run], datasets: Collection[str] | None = None) -> list[Table]:
    """All tables with at least one score.

    Args:
        runs: The runs to fill the tables with.
        datasets: Data sets to show; default: those of the runs.
    """
    shown = {run.dataset for run in runs} if datasets is None else set(datasets)
    tables = []
    for spec in table_specs(runs, shown):
        table = _fill(spec, runs, shown)
        if any(cell.ours for row in table.rows if row.method in (spec.needs or spec.methods) for cell in row.cells):
            tables.append(table)
    return tables


def not_shown(runs: Sequence[Run], tables: Sequence[Table]) -> list[str]:
    """A message for every method and data set of which no table shows a number, with the metrics of its runs."""
    scored = {(c.column.dataset, row.method) for table in tables for row in table.rows for c in row.cells if c.ours}
    left = {(run.dataset, run.method): sorted(run.metrics) for run in runs if (run.dataset, run.method) not in scored}
    return [
        f"{method} on {dataset}: no table has a column for its metrics ({', '.join(metrics) or 'there are none'})"
        for (dataset, method), metrics in left.items()
    ]


def _fill(spec: TableSpec, runs: Sequence[Run], shown: Collection[str]) -> Table:
    columns = tuple(column for column in spec.columns if column.dataset in shown)
    absent = dict.fromkeys(dataset_title(c.dataset) for c in spec.columns if c.dataset not in shown)
    cells = [_column(column, spec.methods, runs) for column in columns]
    named, unknown = titles(runs), " " * len(spec.design)
    recorded = {run.method: run.config.get("needs") for run in runs}
    rows = tuple(
        Row(
            method,
            named.get(method) or method_title(method),
            tuple(column[i] for column in cells),
            CHOICES.get(method, unknown) if spec.design else "",
            method_needs(method, recorded.get(method)),
        )
        for i, method in enumerate(spec.methods)
    )
    empty = [row for row in rows if not any(cell.ours or cell.paper for cell in row.cells)]
    rows = tuple(row for row in rows if row not in empty)
    absent_titles = (*absent, *(row.title for row in empty))
    gains = tuple(_gain(column, spec.methods, c) for column, c in zip(columns, cells, strict=True))
    return Table(spec.name, spec.title, columns, rows, gains if spec.gain else (), spec.design, absent_titles)


def _column(column: Column, methods: Sequence[str], runs: Sequence[Run]) -> list[TableCell]:
    """The cells of one column, with the ranks of the two best and a mark where CoDID is significantly better."""
    scores = [score(runs, column.dataset, method, column.metric) for method in methods]
    printed = [paper_numbers().get((column.dataset, method, column.metric)) for method in methods]
    merits = sorted({column.merit(s.mean) for s in scores if s}, reverse=True)
    champion = scores[methods.index(OURS)] if OURS in methods else None
    cells = []
    for ours, paper in zip(scores, printed, strict=True):
        place = merits.index(column.merit(ours.mean)) + 1 if ours and column.better and len(merits) > 1 else None
        beaten = significantly_better(champion, ours, column) if champion and ours and champion is not ours else False
        cells.append(TableCell(column, ours, paper, place if place in (1, 2) else None, beaten))
    return cells


def significantly_better(champion: Score, other: Score, column: Column) -> bool:
    """One-sided paired t-test at 95 % over the seeds that both have."""
    seeds = sorted(set(champion.by_seed) & set(other.by_seed))
    if column.better is None or len(seeds) < 2:
        return False
    ours, theirs = ([s.by_seed[seed] for seed in seeds] for s in (champion, other))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal differences have no variance; the p-value is right
        p = ttest_rel(ours, theirs, alternative="less" if column.better == "low" else "greater").pvalue
    return bool(p < SIGNIFICANCE)


def _gain(column: Column, methods: Sequence[str], cells: Sequence[TableCell]) -> Gain:
    """CoDID minus the best of the others, for our scores and for the paper's."""
    ours = {m: cell.ours.mean for m, cell in zip(methods, cells, strict=True) if cell.ours}
    paper = {m: cell.paper.mean for m, cell in zip(methods, cells, strict=True) if cell.paper}
    return Gain(column, _lead(column, ours), _lead(column, paper))


def _lead(column: Column, means: dict[str, float]) -> float | None:
    others = [mean for method, mean in means.items() if method != OURS]
    if OURS not in means or not others:
        return None
    return means[OURS] - max(others, key=column.merit)
