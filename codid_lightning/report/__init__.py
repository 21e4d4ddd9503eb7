"""From the results of runs to the paper's tables."""

from codid_lightning.report.scores import Run, Score, load_runs, one_setting_each, read_run, score
from codid_lightning.report.tables import Table, build_tables

__all__ = ["Run", "Score", "Table", "build_tables", "load_runs", "one_setting_each", "read_run", "score"]
