"""Change one operator, number, argument or call at a time, and see whether a fast test notices: results/mutation.md.

    pip install -e '.[dev,mutation]'
    python benchmarks/mutation.py --per_room 65 --seed 0   # goes on where it was stopped
    python benchmarks/mutation.py --again                  # the changes that no test had noticed, once more
    python benchmarks/mutation.py --report                 # results/mutation.md from results/mutation.csv

Rooms are the losses, clustering, the CoDID step and the heads. Changes are those of mutmut (benchmarks/mutants.py says
which), drawn at random from all of a room's files. First each test is run once, and its lines and seconds are kept.
Then a change is tried in a copy of the repository by the tests that run its line, quick ones first, until one fails.
The hashes of weights in tests/golden are not among the tests. A finished row is on disk at once. The column `reason`
is filled in by hand for changes that are left; one that begins with `equivalent` says that no test can notice it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
import pytest

from benchmarks.mutants import Change, module_of
from benchmarks.provenance import header, revision
from benchmarks.rows import append_row, rows_of

ROOT = Path(__file__).parents[1]
OURS = ("codid_lightning", "datamodules", "benchmarks", "configs", "tests")
LOADED = ("torch", "lightning", "torchmetrics", "torchvision", "jsonargparse", "hypothesis")
LOADED += ("sklearn.mixture", "sklearn.utils.estimator_checks", "scipy.special", "pandas", "matplotlib.pyplot")
FIELDS = ("room", "file", "number", "line", "change", "outcome", "noticed_by", "revision", "reason")
OPTIONS = ("-q", "-p", "no:cacheprovider", "-o", "addopts=", "-m", "not slow", "-W", "ignore", "--hypothesis-seed=0")
MEMORY = 6 << 30  # bytes a test of a change may take


class Room(NamedTuple):
    """Files to change, and the fast tests that are to notice it."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


def _tests(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


CODID, CLUSTERING = "codid_lightning/methods/codid", "codid_lightning/clustering"
OF_CLUSTERING = _tests("clustering", "niw mixture moves per_value dpgmm degenerate scikit_learn harmonizer")
OF_STEP = _tests(
    "codid",
    "losses equations weights halves steps meta_gradient fast heads several_attributes predictions schedule variants "
    "statistics kept selection",
)
OF_STEP += _tests("methods", "sources experts propensity prior cells own_parts mode_checks")
OF_STEP += ("tests/baselines/test_penalties.py", "tests/faults/test_numerics.py")
OF_HEADS = ("slots", "discriminator", "conditional")
STEP_FILES = ("module", "target", "parts/alignments", "parts/weights", "parts/splits")
ROOMS = {
    "losses": Room(("codid_lightning/methods/losses.py",), OF_STEP),
    "clustering": Room(
        tuple(str(file.relative_to(ROOT)) for file in sorted((ROOT / CLUSTERING).glob("[a-z]*.py"))), OF_CLUSTERING
    ),
    "step": Room(tuple(f"{CODID}/{name}.py" for name in STEP_FILES), OF_STEP),
    "heads": Room(
        tuple(f"codid_lightning/nn/{name}.py" for name in ("slots", "discriminator", "conditional")), OF_STEP
    ),
}


class Run(NamedTuple):
    """How long a test takes, and the lines of our files that it runs: by itself, and in fixtures it may share."""

    test: str
    seconds: float
    lines: dict[str, list[int]]
    shared: dict[str, list[int]]


class Recorder:
    """A pytest plugin that notes what each passing test runs, in files of the package.

    Args:
        folder: The copy of the repository.
        into: A file for one line of JSON per test.
    """

    def __init__(self, folder: Path, into: Path) -> None:
        self.prefix, self.into = f"{folder}{os.sep}", into
        self.found: dict[str, set[int]] = {}
        self.setup: dict[str, set[int]] = {}
        self.failed = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Note what fixtures run, which other tests of the file may share."""
        self.found, self.failed = self.setup, False
        sys.settrace(self._entered)
        try:
            return (yield)
        finally:
            self.found = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Write down a test that has passed."""
        before = time.process_time()
        result = yield
        sys.settrace(None)
        if not self.failed:
            lines, shared = ({name: sorted(own) for name, own in found.items()} for found in (self.found, self.setup))
            with self.into.open("a") as file:
                file.write(json.dumps(Run(item.nodeid, time.process_time() - before, lines, shared)) + "\n")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a failure or a skip."""
        self.failed |= not report.passed

    def _entered(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(self.prefix) or not name.startswith("codid_lightning", len(self.prefix)):
            return None
        lines = self.found.setdefault(name[len(self.prefix) :], set())

        def line(frame: FrameType, event: str, argument: object) -> Any:
            lines.add(frame.f_lineno)
            return line

        lines.add(frame.f_lineno)
        return line


class Chosen:
    """A pytest plugin that runs these tests alone, in this order, each for three times as long as it needs.

    Args:
        seconds: CPU seconds by test.
    """

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self.seconds = seconds
        self.rank = {test: i for i, test in enumerate(seconds)}

    def pytest_sessionstart(self) -> None:
        """End the process if it hangs while it imports, or waits for something."""
        signal.setitimer(signal.ITIMER_PROF, 60)
        signal.setitimer(signal.ITIMER_REAL, 1200)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep and sort."""
        items[:] = sorted((i for i in items if i.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """End the process if a test takes far longer than it should."""
        signal.setitimer(signal.ITIMER_PROF, 10 + 3 * self.seconds[item.nodeid])


def in_fork(copy: Path, tests: Sequence[str], plugin: object) -> tuple[str, str]:
    """Become pytest in the copy, in a fork of this process, which has all libraries: how it ends, and what fails."""
    said = copy / "said.txt"
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        sink = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.chdir(copy)
        sys.path[:0] = [str(copy)]
        os.environ["PYTHONPATH"] = str(copy)
        for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
            del sys.modules[name]
        os._exit(int(pytest.main([*OPTIONS, "-x", *tests], plugins=[plugin])))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "timeout", ""
    if os.WEXITSTATUS(status) == 0:
        return "survived", ""
    failed = [line for line in said.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "killed", failed[0].split(" - ")[0].split(maxsplit=1)[1] if failed else "import"


def runs_of(tests: Sequence[str], copy: Path, kept: Path) -> list[Run]:
    """What each test of these files runs, found out once and kept."""
    kept.mkdir(parents=True, exist_ok=True)
    found = []
    for test in tests:
        into = kept / f"{test.replace('/', '.')}.jsonl"
        if not into.is_file():
            part = into.with_suffix(".part")
            part.unlink(missing_ok=True)
            outcome = in_fork(copy, [test], Recorder(copy, part))
            print(test, *outcome, flush=True)
            assert part.is_file(), (copy / "said.txt").read_text()
            part.rename(into)
        found += [Run(*json.loads(line)) for line in into.read_text().splitlines()]
    return found


def chosen(change: Change, lines: set[int], runs: Sequence[Run], seconds: float) -> dict[str, float]:
    """The tests that run a change, quick ones first and those whose fixtures run it last, for so many CPU seconds."""

    def within(of: Mapping[str, list[int]]) -> bool:
        return not lines.isdisjoint(of.get(change.file, ()))

    own = sorted((run for run in runs if within(run.lines)), key=lambda run: run.seconds)
    shared = sorted((r for r in runs if within(r.shared) and not within(r.lines)), key=lambda run: run.seconds)
    kept, spent = {}, 0.0
    for run in (*own, *shared):
        spent += run.seconds
        if kept and spent > seconds:
            break
        kept[run.test] = run.seconds
    return kept


def try_change(change: Change, runs: Sequence[Run], copy: Path, seconds: float) -> tuple[str, str]:
    """Make a change in the copy, test it, and undo it."""
    file = copy / change.file
    before, module = file.read_text(), module_of(file, change.file)
    tests = chosen(change, module.lines_run(change), runs, seconds)
    if not tests:
        return "survived", "no test runs it"
    file.write_text(module.with_change(change.number))
    try:
        return in_fork(copy, list(dict.fromkeys(test.split("::")[0] for test in tests)), Chosen(tests))
    finally:
        file.write_text(before)


def drawn(names: Sequence[str], count: int, seed: int, root: Path) -> list[tuple[str, Change]]:
    """Changes at random, of each room in turn, so that all rooms have as many whenever it is stopped."""
    rooms = []
    for name in names:
        every = [change for file in ROOMS[name].files for change in module_of(root / file, file).changes]
        found = random.Random(f"{name} {seed}").sample(every, min(count, len(every)))
        rooms.append([(name, change) for change in found])
    return [found for together in zip_longest(*rooms) for found in together if found is not None]


def report(path: Path) -> list[str]:
    """How many changes of each room are noticed, and those that are not."""
    lines = ["| room | changes | noticed | equivalent | noticed of the others, % |", "|---|---|---|---|---|"]
    rows = list(rows_of(path))
    for name in (*ROOMS, "all"):
        here = [row for row in rows if name in (row["room"], "all")]
        noticed = sum(row["outcome"] != "survived" for row in here)
        same = sum(_equivalent(row) for row in here)
        share = 100 * noticed / max(1, len(here) - same)
        lines.append(f"| {name} | {len(here)} | {noticed} | {same} | {share:.1f} |")
    lines += ["", "Not noticed:", "", "| file | line | change | reason |", "|---|---|---|---|"]
    for row in sorted((row for row in rows if row["outcome"] == "survived"), key=lambda row: not _equivalent(row)):
        change = row["change"].replace("|", "\\|")
        lines.append(f"| {row['file']} | {row['line']} | `{change}` | {row['reason'] or 'not looked at'} |")
    return lines


def _equivalent(row: Mapping[str, str]) -> bool:
    return row["outcome"] == "survived" and row["reason"].startswith("equivalent")


def main() -> None:
    """Try what has not been tried; every row is on disk as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per_room", type=int, default=65, help="changes to try in each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", choices=list(ROOMS), default=list(ROOMS))
    parser.add_argument("--seconds", type=float, default=60, help="of CPU for the tests of one change")
    parser.add_argument("--again", action="store_true", help="try the changes that survived once more")
    parser.add_argument("--report", action="store_true", help="only write the report")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "mutation.csv")
    parser.add_argument("--kept", type=Path, help="folder for what each test runs (default: by revision, temporary)")
    options = parser.parse_args()
    options.output = options.output.absolute()
    if not options.report:
        _load()
        with tempfile.TemporaryDirectory() as place:
            copy = copy_repository(Path(place))
            kept = options.kept or Path(tempfile.gettempdir()) / f"mutation-{revision()}"
            try_all(options, copy, kept)
    title = "Which changes of the code the tests notice"
    options.output.with_suffix(".md").write_text("\n".join([*header(title), "", *report(options.output), ""]))
    print(*report(options.output), sep="\n")


def try_all(options: argparse.Namespace, copy: Path, kept: Path) -> None:
    """Try each change that has no row yet."""
    rows = list(rows_of(options.output))
    todo = drawn(options.rooms, options.per_room, options.seed, copy)
    if options.again:
        survived = {key(row) for row in rows if row["outcome"] == "survived" and not _equivalent(row)}
        todo = [(name, change) for name, change in todo if key(change._asdict()) in survived]
    else:
        known = {key(row) for row in rows}
        todo = [(name, change) for name, change in todo if key(change._asdict()) not in known]
    for i, (name, change) in enumerate(todo):
        outcome, noticed_by = try_change(change, runs_of(ROOMS[name].tests, copy, kept), copy, options.seconds)
        row = {"room": name, **change._asdict(), "outcome": outcome, "noticed_by": noticed_by, "reason": ""}
        row = {field: row.get(field, revision()) for field in FIELDS}
        if options.again:
            replace_row(options.output, row)
        else:
            append_row(options.output, FIELDS, row)
        print(f"{i + 1}/{len(todo)}", *row.values(), flush=True)


def key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells one change from another, also after lines have moved."""
    return tuple(str(row[name]) for name in ("file", "number", "change"))


def replace_row(path: Path, row: Mapping[str, Any]) -> None:
    """Write the file anew with another outcome of a change; what was said of one that survives again is kept."""
    rows = [
        {**row, "reason": old["reason"] if row["outcome"] == "survived" else ""} if key(old) == key(row) else old
        for old in rows_of(path)
    ]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def copy_repository(folder: Path) -> Path:
    """Copy what the tests need."""
    for name in (*OURS, "docs", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def _load() -> None:
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    for module in LOADED:
        import_module(module)


if __name__ == "__main__":
    main()
