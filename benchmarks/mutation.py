"""Change one operator, number, argument or call at a time, and see whether a fast test notices: results/mutation.md.

    pip install mutmut                                     # not among the tools of developers
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
import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
import pytest

from benchmarks.mutants import Change, module_of
from benchmarks.provenance import header, revision
from benchmarks.rows import append_row, rows_of

ROOT = Path(__file__).parents[1]
OURS = ("codid_lightning", "datamodules", "benchmarks", "configs", "tests")
FIELDS = ("room", "file", "number", "line", "change", "outcome", "noticed_by", "revision", "reason")
OPTIONS = ["-q", "-s", "-W", "ignore", "-m", "not slow", "-o", "addopts=", "--hypothesis-seed=0"]
OPTIONS += ["-p", "no:cacheprovider", "-p", "no:faulthandler"]
MEMORY = 6 << 30  # bytes a test of a change may take
LONG = 8  # CPU seconds of tests that are left out


class Room(NamedTuple):
    """Files to change, and the fast tests that are to notice it."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


def _tests(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names.split())


CODID, CLUSTERING = "codid_lightning/methods/codid", "codid_lightning/clustering"
OF_CLUSTERING = _tests("clustering", "niw mixture moves per_value dpgmm degenerate harmonizer")
OF_LOSSES = _tests("codid", "losses halves equations")
OF_STEP = _tests(
    "codid",
    "losses halves weights steps meta_gradient fast heads several_attributes kept equations predictions schedule "
    "statistics",
)
OF_STEP += (*_tests("methods", "prior counterfactual"), "tests/test_paper_settings.py")
OF_HEADS = ("slots", "discriminator", "conditional")
STEP_FILES = ("module", "target", "parts/alignments", "parts/weights", "parts/splits")
ROOMS = {
    "losses": Room(("codid_lightning/methods/losses.py",), OF_LOSSES),
    "clustering": Room(
        tuple(str(file.relative_to(ROOT)) for file in sorted((ROOT / CLUSTERING).glob("[a-z]*.py"))), OF_CLUSTERING
    ),
    "step": Room(tuple(f"{CODID}/{name}.py" for name in STEP_FILES), OF_STEP),
    "heads": Room(tuple(f"codid_lightning/nn/{name}.py" for name in OF_HEADS), OF_STEP),
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
        """Write down a test that has passed, unless it takes long."""
        signal.signal(signal.SIGPROF, _too_long)
        signal.setitimer(signal.ITIMER_PROF, LONG)
        before = time.process_time()
        result = yield
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
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


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError("This test takes too long for a change to be tried by it.")


class Chosen:
    """A pytest plugin that runs these tests alone, in this order, until one fails or takes far longer than it should.

    Args:
        seconds: CPU seconds by test.
        said: A file for the test that fails.
    """

    def __init__(self, seconds: Mapping[str, float], said: Path) -> None:
        self.seconds, self.said = seconds, said
        self.rank = {test: i for i, test in enumerate(seconds)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep and sort."""
        items[:] = sorted((i for i in items if i.nodeid in self.rank), key=lambda item: self.rank[item.nodeid])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """End the process if the test hangs."""
        signal.setitimer(signal.ITIMER_PROF, 5 + 3 * self.seconds[item.nodeid])
        signal.setitimer(signal.ITIMER_REAL, 900)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say which test fails."""
        if report.failed:
            self.said.write_text(report.nodeid)
            os._exit(1)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Say that a file cannot even be imported."""
        if report.failed:
            self.said.write_text("import")
            os._exit(1)


class Tries:
    """A pytest plugin in whose place of the loop over tests changes are tried, each in a fork that has all imported.

    Args:
        copy: The copy of the repository.
        options: Of the command line.
    """

    def __init__(self, copy: Path, options: argparse.Namespace) -> None:
        self.copy, self.options = copy, options
        self.said = copy / "said.txt"
        self.items: dict[str, pytest.Item] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of running all tests."""
        self.items = {item.nodeid: item for item in session.items}
        try_all(self.options, self)
        return True

    def runs(self, tests: Sequence[str]) -> list[Run]:
        """What each test of these files runs, found out once and kept."""
        kept: Path = self.options.kept
        kept.mkdir(parents=True, exist_ok=True)
        found = []
        for test in tests:
            into = kept / f"{test.replace('/', '.')}.jsonl"
            if not into.is_file():
                part = into.with_suffix(".part")
                part.write_text("")
                names = [name for name in self.items if name.startswith(f"{test}::")]
                print(test, len(names), self.in_fork(partial(self.run, names, Recorder(self.copy, part))), flush=True)
                part.rename(into)
            found += [Run(*json.loads(line)) for line in into.read_text().splitlines()]
        return [run for run in found if run.test in self.items]

    def try_change(self, change: Change, tests: dict[str, float]) -> tuple[str, str]:
        """Make a change, test it, and undo it."""
        if not tests:
            return "survived", "no test runs it"
        file = self.copy / change.file
        before, module = file.read_text(), module_of(file, change.file)
        code, name = module.with_change(change.number), module.function_of(change)
        chosen = Chosen(tests, self.said)

        def body() -> None:
            if name and put_code(str(file), name, before, code):
                self.run(list(tests), chosen)
            else:
                file.write_text(code)
                anew(list(dict.fromkeys(test.split("::")[0] for test in tests)), chosen)

        try:
            return self.in_fork(body)
        finally:
            file.write_text(before)

    def run(self, names: Sequence[str], plugin: object) -> None:
        """Run these tests here."""
        items = [self.items[name] for name in names]
        items[0].config.pluginmanager.register(plugin)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)

    def in_fork(self, body: Callable[[], None]) -> tuple[str, str]:
        """How a fork of this process ends, and what it says."""
        self.said.write_text("")
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            sink = os.open(os.devnull, os.O_WRONLY)
            os.dup2(sink, 1)
            os.dup2(sink, 2)
            try:
                body()
            except BaseException:
                os._exit(2)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return "timeout", ""
        outcomes = {0: "survived", 1: "killed"}
        return outcomes.get(os.WEXITSTATUS(status), "error"), self.said.read_text()


def put_code(file: str, name: str, before: str, after: str) -> bool:
    """Give the functions of a file with this qualified name their new code; whether that was possible."""
    old, new = (_codes(compile(code, file, "exec"), name) for code in (before, after))
    if len(old) != len(new):
        return False
    changed = {one.co_firstlineno: other for one, other in zip(old, new, strict=True) if one != other}
    functions = [
        found
        for found in gc.get_objects()
        if isinstance(found, FunctionType)
        and found.__code__.co_filename == file
        and found.__code__.co_qualname == name
        and found.__code__.co_firstlineno in changed
    ]
    try:
        for function in functions:
            function.__code__ = changed[function.__code__.co_firstlineno]
    except ValueError:  # it uses other variables of an outer function
        return False
    return bool(functions)


def _codes(code: CodeType, name: str) -> list[CodeType]:
    inside = [found for part in code.co_consts if isinstance(part, CodeType) for found in _codes(part, name)]
    return [code, *inside] if code.co_qualname == name else inside


def anew(tests: list[str], chosen: Chosen) -> None:
    """Import all of ours anew, and run the tests."""
    signal.setitimer(signal.ITIMER_PROF, 60)
    for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
        del sys.modules[name]
    os._exit(int(pytest.main([*OPTIONS, *tests], plugins=[chosen])))


def chosen_tests(change: Change, lines: set[int], runs: Sequence[Run], seconds: float) -> dict[str, float]:
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
    parser.add_argument("--seconds", type=float, default=6, help="of CPU for the tests of one change")
    parser.add_argument("--cpu", type=float, default=float("inf"), help="CPU seconds after which no change is begun")
    parser.add_argument("--again", action="store_true", help="try the changes that survived once more")
    parser.add_argument("--report", action="store_true", help="only write the report")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "mutation.csv")
    parser.add_argument("--kept", type=Path, help="folder for what each test runs (default: by revision, temporary)")
    options = parser.parse_args()
    options.output, options.revision = options.output.absolute(), revision()
    if not options.report:
        options.kept = (options.kept or Path(tempfile.gettempdir()) / f"mutation-{options.revision}").absolute()
        with tempfile.TemporaryDirectory() as place:
            start(copy_repository(Path(place)), options)
    title = "Which changes of the code the tests notice"
    options.output.with_suffix(".md").write_text("\n".join([*header(title), "", *report(options.output), ""]))
    print(*report(options.output), sep="\n")


def start(copy: Path, options: argparse.Namespace) -> None:
    """Collect the tests of the copy, and try the changes in place of running them."""
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(copy)}
    os.chdir(copy)
    sys.path[:0] = [str(copy)]
    for name in [name for name in sys.modules if name.split(".")[0] in OURS]:
        del sys.modules[name]
    tests = dict.fromkeys(test for room in options.rooms for test in ROOMS[room].tests)
    code = pytest.main([*OPTIONS, *tests], plugins=[Tries(copy, options)])
    assert code == pytest.ExitCode.OK, code


def try_all(options: argparse.Namespace, tries: Tries) -> None:
    """Try each change that has no row yet."""
    rows = list(rows_of(options.output))
    todo = drawn(options.rooms, options.per_room, options.seed, tries.copy)
    if options.again:
        survived = {key(row) for row in rows if row["outcome"] == "survived" and not _equivalent(row)}
        todo = [(name, change) for name, change in todo if key(change._asdict()) in survived]
    else:
        known = {key(row) for row in rows}
        todo = [(name, change) for name, change in todo if key(change._asdict()) not in known]
    runs = {name: tries.runs(ROOMS[name].tests) for name in options.rooms}
    for i, (name, change) in enumerate(todo):
        if spent() > options.cpu:
            break
        lines = module_of(tries.copy / change.file, change.file).lines_run(change)
        tests = chosen_tests(change, lines, runs[name], options.seconds)
        outcome, noticed_by = tries.try_change(change, tests)
        row = {"room": name, **change._asdict(), "outcome": outcome, "noticed_by": noticed_by, "reason": ""}
        row = {field: row.get(field, options.revision) for field in FIELDS}
        if options.again:
            replace_row(options.output, row)
        else:
            append_row(options.output, FIELDS, row)
        print(f"{i + 1}/{len(todo)}", *row.values(), flush=True)


def spent() -> float:
    """CPU seconds of this process and of the forks that have ended."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in parts)


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


if __name__ == "__main__":
    main()
