"""From the results of runs to the paper's tables."""

from codid_lightning.analysis.tables.cells import Table
from codid_lightning.analysis.tables.origins import marked
from codid_lightning.analysis.tables.scores import Run, Score, load_runs, one_setting_each, read_run, score
from codid_lightning.analysis.tables.tables import build_tables, not_shown

__all__ = [
    "Run",
    "Score",
    "Table",
    "build_tables",
    "load_runs",
    "marked",
    "not_shown",
    "one_setting_each",
    "read_run",
    "score",
]
