"""What all tests share: the table of faults at the end."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

FAULTS = "tests/faults/"


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Undo what a test leaves in the process.

    Lightning's launchers write environment variables that the next run reads. A trainer whose fit raises keeps its
    process group, and then later tests would count as one rank of several.
    """
    before = dict(os.environ)
    yield
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized():
        distributed.destroy_process_group()
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the faults that were tried and how many of them were survived."""
    tried: Counter[str] = Counter()
    survived: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if FAULTS in report.nodeid and report.when == "call":
                fault = report.nodeid.split("::")[1].split("[")[0].removeprefix("test_").replace("_", " ")
                tried[fault] += 1
                survived[fault] += outcome == "passed"
    if not tried:
        return
    terminalreporter.section("faults: tried, survived")
    for fault, count in [*sorted(tried.items()), ("all", tried.total())]:
        found = survived.total() if fault == "all" else survived[fault]
        terminalreporter.write_line(f"{count:6d} {found:6d}  {fault}")
