"""Methods over all data sets: interquartile mean, average rank, and which of them do not differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from codid_lightning.analysis.comparison import MIN_PAIRS, Ranking, bootstrap_interval, interquartile_mean, ranking
from codid_lightning.analysis.tables.cells import Row, Summary, Table, TableCell, places
from codid_lightning.analysis.tables.names import OURS, dataset_title, method_needs, method_order, method_title
from codid_lightning.analysis.tables.scores import Run, Score, recorded_needs, score, titles
from codid_lightning.analysis.tables.specs import Column, accuracy_columns


@dataclass(frozen=True)
class Block:
    """Scores of one metric for all of some methods on all of some data sets."""

    label: str
    columns: tuple[Column, ...]  # one per data set
    scores: Mapping[str, tuple[Score, ...]]  # by method, one per data set
    left_out: tuple[str, ...]  # methods without a score on one of the data sets

    def ranking(self) -> Ranking:
        """The methods by their average rank."""
        sign = -1 if self.columns[0].better == "low" else 1
        return ranking({method: [sign * s.mean for s in scores] for method, scores in self.scores.items()})


def blocks(
    runs: Sequence[Run], datasets: Collection[str], metrics: Sequence[str] | None = None, reference: str = OURS
) -> list[Block]:
    """A block per metric, where at least two methods share at least two data sets.

    The data sets are those with a score of the reference, or all with a score if it has none. A method without a score
    on one of them is left out: a mean over other data sets could not be compared.

    Args:
        runs: The runs.
        datasets: Data sets to use.
        metrics: Scores of a test; default: all that the runs have.
        reference: The method whose data sets are used.
    """
    methods = sorted({run.method for run in runs if run.dataset in datasets}, key=method_order)
    columns = sorted(accuracy_columns(runs, datasets, metrics), key=lambda column: column.label)
    found = []
    for label, of_metric in groupby(columns, key=lambda column: column.label):
        scores = {c: {m: s for m in methods if (s := score(runs, c.dataset, m, c.metric))} for c in of_metric}
        own = [c for c, by_method in scores.items() if reference in by_method]
        used = own or [c for c, by_method in scores.items() if by_method]
        complete = {m: tuple(scores[c][m] for c in used) for m in methods if all(m in scores[c] for c in used)}
        if len(used) > 1 and len(complete) > 1:
            others = tuple(m for m in methods if m not in complete and any(m in scores[c] for c in used))
            found.append(Block(label, tuple(used), complete, others))
    order = list(dict.fromkeys(column.label for column in accuracy_columns(runs, datasets, metrics)))
    return sorted(found, key=lambda block: order.index(block.label))


def overall_tables(
    runs: Sequence[Run], datasets: Collection[str], metrics: Sequence[str] | None, reference: str
) -> list[Table]:
    """One table, or none where no two methods share two data sets."""
    found = blocks(runs, datasets, metrics, reference)
    if not found:
        return []
    shown = {method for block in found for method in block.scores}
    methods = sorted(shown, key=lambda method: (method == OURS, method_order(method)))
    columns = [column for block in found for column in _columns(block)]
    cells = [cells for block in found for cells in _cells(block, methods)]
    named, recorded = titles(runs), recorded_needs(runs)
    rows = tuple(
        Row(
            method,
            named.get(method) or method_title(method),
            tuple(column[i] for column in cells),
            needs=method_needs(method, recorded.get(method)),
        )
        for i, method in enumerate(methods)
    )
    remark = " ".join(dict.fromkeys(sentence for block in found for sentence in _remarks(block, named) if sentence))
    return [Table("overall", "Over all data sets", tuple(columns), rows, (), (), (), remark=remark)]


def _columns(block: Block) -> tuple[Column, Column]:
    first = block.columns[0]
    metric = first.metric.split("/")[1]
    mean = replace(first, dataset="", metric=f"{metric}/iqm", heading=block.label, label="IQM")
    return mean, Column("", f"{metric}/rank", block.label, "Av. rank", 1, 2, "low")


def _cells(block: Block, methods: Sequence[str]) -> list[list[TableCell]]:
    """The cells of both columns of a block."""
    order = block.ranking()
    ranks = dict(zip(order.methods, order.ranks, strict=True))
    summaries: list[list[Summary | None]] = [
        [_iqm(block.scores[m]) if m in block.scores else None for m in methods],
        [Summary(ranks[m], order.datasets) if m in block.scores else None for m in methods],
    ]
    return [
        [
            TableCell(column, own, rank=place, interval=own.interval if own else None)
            for own, place in zip(of_column, places(column, of_column), strict=True)
        ]
        for column, of_column in zip(_columns(block), summaries, strict=True)
    ]


def _iqm(scores: Sequence[Score]) -> Summary:
    strata = [list(score.repetitions.values()) for score in scores]
    values = np.array([value for stratum in strata for value in stratum])
    interval = bootstrap_interval(strata, interquartile_mean) if len(values) >= MIN_PAIRS else None
    code, data = any(score.other_code for score in scores), any(score.other_data for score in scores)
    return Summary(float(interquartile_mean(values)), len(values), interval, other_code=code, other_data=data)


def _remarks(block: Block, named: Mapping[str, str]) -> list[str]:
    """What the numbers are, and what they leave out."""
    over = ", ".join(dataset_title(column.dataset) for column in block.columns)
    p = block.ranking().friedman
    left = ", ".join(named.get(method, method) for method in block.left_out)
    return [
        "IQM: interquartile mean of all seeds, or held-out groups where there are more, their number in brackets, with "
        "a 95 % bootstrap interval (drawn within data sets). Av. rank: over data sets, their number in brackets.",
        f"{block.label}: {over}." + ("" if p is None else f" Friedman's test: p = {p:.2g}."),
        f"Not on all of them: {left}." * bool(left),
    ]
