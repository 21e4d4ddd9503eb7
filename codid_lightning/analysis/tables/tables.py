"""The paper's tables, filled from runs."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from codid_lightning.analysis.comparison import MIN_PAIRS, paired_p_value
from codid_lightning.analysis.paper import paper_numbers
from codid_lightning.analysis.tables.cells import Comparison, Gain, Row, Table, TableCell, interval, places
from codid_lightning.analysis.tables.names import OURS, dataset_title, method_needs, method_title
from codid_lightning.analysis.tables.overall import overall_tables
from codid_lightning.analysis.tables.scores import Run, Score, recorded_needs, score, titles
from codid_lightning.analysis.tables.specs import CHOICES, Column, TableSpec, table_specs
from codid_lightning.metrics.multiple_tests import holm


def build_tables(
    runs: Sequence[Run],
    datasets: Collection[str] | None = None,
    *,
    metrics: Sequence[str] | None = None,
    reference: str = OURS,
    intervals: bool = False,
) -> list[Table]:
    """All tables with at least one score.

    Args:
        runs: The runs to fill the tables with.
        datasets: Data sets to show; default: those of the runs.
        metrics: Scores of a test to show; default: all that the runs have.
        reference: The method that the others are compared with.
        intervals: Show bootstrap intervals in place of standard deviations.
    """
    shown = {run.dataset for run in runs} if datasets is None else set(datasets)
    tables = []
    for spec in table_specs(runs, shown, metrics, reference):
        table = _fill(spec, runs, shown, reference, intervals)
        if any(cell.ours for row in table.rows if row.method in (spec.needs or spec.methods) for cell in row.cells):
            tables.append(table)
    return tables + overall_tables(runs, shown, metrics, reference)


def not_shown(runs: Sequence[Run], tables: Sequence[Table]) -> list[str]:
    """A message for every method and data set of which no table shows a number, with the metrics of its runs."""
    scored = {(c.column.dataset, row.method) for table in tables for row in table.rows for c in row.cells if c.ours}
    left = {(run.dataset, run.method): sorted(run.metrics) for run in runs if (run.dataset, run.method) not in scored}
    return [
        f"{method} on {dataset}: no table has a column for its metrics ({', '.join(metrics) or 'there are none'})"
        for (dataset, method), metrics in left.items()
    ]


def _fill(spec: TableSpec, runs: Sequence[Run], shown: Collection[str], reference: str, intervals: bool) -> Table:
    columns = tuple(column for column in spec.columns if column.dataset in shown)
    absent = dict.fromkeys(dataset_title(c.dataset) for c in spec.columns if c.dataset not in shown)
    cells = [_column(column, spec.methods, runs, intervals) for column in columns]
    champion = spec.methods.index(reference) if reference in spec.methods else None
    if champion is not None:
        cells = _compared(cells, champion)
    named, unknown = titles(runs), " " * len(spec.design)
    recorded = recorded_needs(runs)
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
    gains = tuple(_gain(column, spec.methods, c, reference) for column, c in zip(columns, cells, strict=True))
    return Table(
        spec.name,
        spec.title,
        columns,
        rows,
        gains if spec.gain else (),
        spec.design,
        absent_titles,
        (named.get(reference) or method_title(reference)) if any(c.comparison for own in cells for c in own) else "",
        intervals=intervals,
    )


def _column(column: Column, methods: Sequence[str], runs: Sequence[Run], intervals: bool) -> list[TableCell]:
    """The cells of one column, with the ranks of the two best."""
    scores = [score(runs, column.dataset, method, column.metric) for method in methods]
    printed = [paper_numbers().get((column.dataset, method, column.metric)) for method in methods]
    shown = [interval(s) if intervals and s else None for s in scores]
    filled = [TableCell(column, *numbers) for numbers in zip(scores, printed, places(column, scores), strict=True)]
    return [replace(cell, interval=found) for cell, found in zip(filled, shown, strict=True)]


def _compared(columns: Sequence[Sequence[TableCell]], champion: int) -> list[list[TableCell]]:
    """Each column's cells compared with that of the champion; Holm's correction is over all tests of all columns."""
    found: dict[tuple[int, int], int] = {}
    p_values: dict[tuple[int, int], float] = {}
    for i, cells in enumerate(columns):
        reference = cells[champion].ours
        for j, cell in enumerate(cells):
            if not (isinstance(cell.ours, Score) and isinstance(reference, Score)) or j == champion:
                continue
            pairs = reference.pairs(cell.ours)
            if cell.column.better is not None:
                found[i, j] = len(pairs)
            if cell.column.better is not None and len(pairs) >= MIN_PAIRS:
                p_values[i, j] = paired_p_value(*zip(*pairs, strict=True))
    adjusted = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return [
        [
            replace(cell, comparison=Comparison(found[i, j], adjusted.get((i, j)))) if (i, j) in found else cell
            for j, cell in enumerate(cells)
        ]
        for i, cells in enumerate(columns)
    ]


def _gain(column: Column, methods: Sequence[str], cells: Sequence[TableCell], reference: str) -> Gain:
    """The reference minus the best of the others, for our scores and for the paper's."""
    ours = {m: cell.ours.mean for m, cell in zip(methods, cells, strict=True) if cell.ours}
    paper = {m: cell.paper.mean for m, cell in zip(methods, cells, strict=True) if cell.paper}
    return Gain(column, _lead(column, ours, reference), _lead(column, paper, reference))


def _lead(column: Column, means: dict[str, float], reference: str) -> float | None:
    others = [mean for method, mean in means.items() if method != reference]
    if reference not in means or not others:
        return None
    return means[reference] - max(others, key=column.merit)
