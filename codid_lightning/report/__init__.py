"""From the results of runs to the paper's tables."""

from codid_lightning.report.runs import Run, Score, load_runs, score
from codid_lightning.report.tables import Table, build_tables

__all__ = ["Run", "Score", "Table", "build_tables", "load_runs", "score"]
