"""What tables consist of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from codid_lightning.analysis.comparison import LEVEL, MIN_PAIRS, bootstrap_interval
from codid_lightning.analysis.paper import Printed
from codid_lightning.analysis.tables.names import TRUTH
from codid_lightning.analysis.tables.scores import Score
from codid_lightning.analysis.tables.specs import Column


@dataclass(frozen=True)
class Summary:
    """One number of the runs of a method on several data sets, in place of a `Score`."""

    mean: float
    seeds: int  # what it is a mean of: runs or data sets
    interval: tuple[float, float] | None = None
    other_code: bool = False
    other_data: bool = False
    std: None = None
    all_seeds: int = 0
    partial: bool = False


@dataclass(frozen=True)
class Comparison:
    """A method against the reference in one column: a two-sided paired t-test."""

    pairs: int
    p_value: float | None = None  # Holm-adjusted over the table; None with fewer than `MIN_PAIRS` pairs

    @property
    def differs(self) -> bool:
        """Whether the difference is significant."""
        return self.p_value is not None and self.p_value < LEVEL


@dataclass(frozen=True)
class TableCell:
    """Our score and the paper's number for one method and column."""

    column: Column
    ours: Score | Summary | None
    paper: Printed | None = None
    rank: int | None = None  # 1 best, 2 runner-up among our scores
    comparison: Comparison | None = None  # with the reference, if both have a score
    interval: tuple[float, float] | None = None  # shown in place of the standard deviation


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
    """The reference minus the best other method in one column; None if one of them has no number."""

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
    reference: str = ""  # title of the method that the others are compared with, if it has a score here
    remark: str = ""
    intervals: bool = False  # whether cells show intervals in place of standard deviations

    @property
    def note(self) -> str:
        """How many cells have no run or no test, and which data sets and methods have no run at all."""
        cells = [cell for row in self.rows if row.method != TRUTH for cell in row.cells]
        compared = [cell.comparison for cell in cells if cell.comparison]
        untested = sum(comparison.p_value is None for comparison in compared)
        parts = [
            f"{sum(cell.ours is None for cell in cells)} of {len(cells)} cells have no run.",
            f"No runs at all of {', '.join(self.absent)}." * bool(self.absent),
            f"{untested} of {len(compared)} comparisons with {self.reference} are not tested, for fewer than "
            f"{MIN_PAIRS} pairs." * bool(untested),
            self.remark,
        ]
        return " ".join(part for part in parts if part)


def places(column: Column, scores: Sequence[Score | Summary | None]) -> list[int | None]:
    """1 for the best of a column as it is printed, 2 for the runner-up, None for others; ties share a place."""
    merits = sorted({column.merit(s.mean) for s in scores if s}, reverse=True)
    ranked = column.better is not None and len(merits) > 1
    best = merits[:2] if ranked else []
    merit = [column.merit(s.mean) if s else None for s in scores]
    return [best.index(m) + 1 if m is not None and m in best else None for m in merit]


def interval(found: Score) -> tuple[float, float] | None:
    """Bootstrap interval of a mean over its repetitions; None for fewer than `MIN_PAIRS`."""
    values = list(found.repetitions.values())
    return bootstrap_interval([values]) if len(values) >= MIN_PAIRS else None
