"""Change one operator, number or call of the code at a time, and see whether a fast test notices: results/mutation.csv.

    python benchmarks/mutation.py --per_room 80 --seed 0
    python benchmarks/mutation.py --again          # the changes that no test had noticed, once more

Rooms are the losses, clustering, the CoDID step and the heads. A change is drawn at random from all of a room's files
and tried in a copy of the repository, by the fast tests of that room without the hashes of weights in tests/golden,
until one fails. Finished rows are kept. results/mutation.md says why the changes that are left cannot be noticed.
"""

from __future__ import annotations

import argparse
import ast
import csv
import os
import random
import resource
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.rows import append_row, rows_of

ROOT = Path(__file__).parents[1]
COPIED = ("codid_lightning", "datamodules", "configs", "tests", "benchmarks", "pyproject.toml")
LOADED = ("torch", "lightning", "torchmetrics", "torchvision", "jsonargparse", "hypothesis", "pytest")
LOADED += ("sklearn.mixture", "sklearn.utils.estimator_checks", "scipy.special", "pandas", "matplotlib.pyplot")
FIELDS = ("room", "file", "number", "line", "change", "outcome", "noticed_by")


class Room(NamedTuple):
    """Files to change, and the fast tests that are to notice it, quick ones first."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


CODID, CLUSTERING = "codid_lightning/methods/codid", "codid_lightning/clustering"
CLUSTERING_TESTS = ("niw", "mixture", "moves", "per_value", "dpgmm", "degenerate", "scikit_learn")
STEP_TESTS = tuple(
    f"tests/codid/test_{name}.py"
    for name in ("losses", "weights", "halves", "steps", "meta_gradient", "fast", "heads", "several_attributes")
)
OTHER_STEP_TESTS = (
    *tuple(
        f"tests/{name}.py"
        for name in ("codid/test_predictions", "codid/test_schedule", "codid/test_variants", "codid/test_statistics")
    ),
    "tests/faults/test_numerics.py",
)
ROOMS = {
    "losses": Room(("codid_lightning/methods/losses.py",), (*STEP_TESTS[:6], "tests/baselines/test_penalties.py")),
    "clustering": Room(
        tuple(str(file.relative_to(ROOT)) for file in sorted((ROOT / CLUSTERING).glob("[a-z]*.py"))),
        tuple(f"tests/clustering/test_{name}.py" for name in CLUSTERING_TESTS),
    ),
    "step": Room(
        tuple(
            f"{CODID}/{name}.py" for name in ("module", "target", "parts/alignments", "parts/weights", "parts/splits")
        ),
        (*STEP_TESTS, *OTHER_STEP_TESTS),
    ),
    "heads": Room(
        tuple(f"codid_lightning/nn/{name}.py" for name in ("slots", "discriminator", "conditional")),
        ("tests/codid/test_heads.py", *STEP_TESTS),
    ),
}

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}
PAIRS = (("min", "max"), ("argmin", "argmax"), ("sum", "mean"), ("any", "all"), ("zeros", "ones"))
PAIRS += (("zeros_like", "ones_like"), ("clamp_min", "clamp_max"), ("amin", "amax"), ("log", "exp"))
NAMES = {one: other for pair in PAIRS for one, other in (pair, pair[::-1])}
NOT_CODE = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)  # messages, and what must be there


def swapped(node: ast.AST) -> Iterator[ast.AST]:
    """A node with another operator or value."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            yield ast.Compare(node.left, [SWAPS[type(op)]()], node.comparators)
        case ast.BinOp() if type(node.op) in SWAPS:
            yield ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
        case ast.AugAssign():
            yield ast.Pass()
            if type(node.op) in SWAPS:
                yield ast.AugAssign(node.target, SWAPS[type(node.op)](), node.value)
        case ast.BoolOp():
            yield ast.BoolOp(SWAPS[type(node.op)](), node.values)
        case ast.UnaryOp():
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1 if isinstance(node.value, int) or not node.value else 2 * node.value)
        case ast.Break():
            yield ast.Continue()


def without(node: ast.AST) -> Iterator[ast.AST]:
    """A node without a part: a call, an argument with a name, a condition's sense."""
    match node:
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()
        case ast.Call(func=ast.Attribute(attr="detach")):
            yield node.func.value
        case ast.Call():
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in NAMES and isinstance(node.func, ast.Attribute):
                func = ast.Attribute(node.func.value, NAMES[name], ast.Load())
                yield ast.Call(func, node.args, node.keywords)
            for i in range(len(node.keywords)):
                yield ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :])
        case ast.If(test=test) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield ast.If(ast.UnaryOp(ast.Not(), test), node.body, node.orelse)
        case ast.IfExp(test=test) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield ast.IfExp(ast.UnaryOp(ast.Not(), test), node.body, node.orelse)


class Change(NamedTuple):
    """One change of a file: its place and number among all changes, and what it makes of what."""

    file: str
    number: int
    line: int
    change: str


class Changer(ast.NodeTransformer):
    """Visits the code of a module and makes the change with a given number, if there is one.

    Args:
        file: The module.
        number: Of the change to make; -1 only lists all of them.
    """

    def __init__(self, file: str, number: int = -1) -> None:
        self.file, self.number = file, number
        self.changes: list[Change] = []

    def visit(self, node: ast.AST) -> ast.AST:
        """Change a node or what is in it; types, messages and docstrings are left alone."""
        if isinstance(node, NOT_CODE):
            return node
        for new in (*swapped(node), *without(node)):
            line: int = node.lineno  # type: ignore[attr-defined]
            self.changes.append(Change(self.file, len(self.changes), line, f"{_short(node)} -> {_short(new)}"))
            if len(self.changes) - 1 == self.number:
                return ast.copy_location(new, node)
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list", "bases"):
                self._visit_field(node, name, value)
        return node

    def _visit_field(self, node: ast.AST, name: str, value: object) -> None:
        if isinstance(value, list):
            value[:] = [self.visit(item) if isinstance(item, ast.AST) else item for item in value]
        elif isinstance(value, ast.AST):
            setattr(node, name, self.visit(value))


def _short(node: ast.AST) -> str:
    text = ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]
    return text if len(text) <= 70 else f"{text[:67]}..."


def changes_in(code: str, file: str) -> list[Change]:
    """All changes of a module's code."""
    changer = Changer(file)
    changer.visit(ast.parse(code))
    return changer.changes


def changes_of(file: str) -> list[Change]:
    """All changes of a file."""
    return changes_in((ROOT / file).read_text(), file)


def with_change(code: str, change: Change) -> str:
    """A module's code with a change."""
    tree = Changer(change.file, change.number).visit(ast.parse(code))
    return ast.unparse(ast.fix_missing_locations(tree))


def tested(room: Room, copy: Path, seconds: int) -> tuple[str, str]:
    """Whether the room's tests pass in the copy as it is, or which one fails first, in a fork of this process."""
    said = copy / "said.txt"
    child = os.fork()
    if child == 0:
        _test_here(room, copy, said, seconds)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return "timeout", ""
    if os.WEXITSTATUS(status) == 0:
        return "survived", ""
    failed = [line for line in said.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "killed", failed[0].split(" - ")[0].split(maxsplit=1)[1] if failed else "import"


def _test_here(room: Room, copy: Path, said: Path, seconds: int) -> None:
    """Become pytest in the copy, for so many seconds of CPU at most."""
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    sink = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.chdir(copy)
    sys.path[:0] = [str(copy)]
    os.environ["PYTHONPATH"] = str(copy)
    for name in [
        name for name in sys.modules if name.split(".")[0] in ("codid_lightning", "datamodules", "benchmarks")
    ]:
        del sys.modules[name]
    options = ("-x", "-q", "-p", "no:cacheprovider", "-o", "addopts=", "-m", "not slow", "-W", "ignore")
    os._exit(int(pytest.main([*options, *room.tests])))


def drawn(names: Sequence[str], count: int, seed: int) -> list[tuple[str, Change]]:
    """Changes at random, of each room in turn, so that all rooms have as many whenever it is stopped."""
    rooms = []
    for name in names:
        every = [change for file in ROOMS[name].files for change in changes_of(file)]
        chosen = random.Random(f"{name} {seed}").sample(every, min(count, len(every)))
        rooms.append([(name, change) for change in chosen])
    return [found for together in zip_longest(*rooms) for found in together if found is not None]


def report(path: Path) -> str:
    """How many changes of each room were noticed."""
    lines = ["| room | changes | noticed | % |", "|---|---|---|---|"]
    rows = list(rows_of(path))
    for name in (*ROOMS, "all"):
        here = [row for row in rows if name in (row["room"], "all")]
        noticed = sum(row["outcome"] != "survived" for row in here)
        lines.append(f"| {name} | {len(here)} | {noticed} | {100 * noticed / max(1, len(here)):.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Try what has not been tried; every row is on disk as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per_room", type=int, default=80, help="changes to try in each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rooms", nargs="+", choices=list(ROOMS), default=list(ROOMS))
    parser.add_argument("--seconds", type=int, default=150, help="of CPU for the tests of one change")
    parser.add_argument("--again", action="store_true", help="try the changes that survived once more")
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "mutation.csv")
    options = parser.parse_args()
    sys.dont_write_bytecode = True
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    for module in LOADED:
        import_module(module)
    options.output = options.output.absolute()
    rows = list(rows_of(options.output))
    if options.again:
        keep_rows(options.output, [row for row in rows if row["outcome"] != "survived"])
    known = {key(row) for row in rows_of(options.output)}
    survived = {key(row) for row in rows if row["outcome"] == "survived"}
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place)
        copy_repository(copy)
        check_unchanged(options.rooms, copy, options.seconds)
        for name, change in drawn(options.rooms, options.per_room, options.seed):
            row: dict[str, Any] = {"room": name, **change._asdict()}
            if key(row) in known or (options.again and key(row) not in survived):
                continue
            row |= try_change(change, ROOMS[name], copy, options.seconds)
            append_row(options.output, FIELDS, row)
            print(*row.values(), flush=True)
    print(report(options.output))


def check_unchanged(names: Sequence[str], copy: Path, seconds: int) -> None:
    """Raise if the tests fail without any change."""
    for name in names:
        outcome, test = tested(ROOMS[name], copy, seconds)
        assert outcome == "survived", f"{name} as it is: {outcome} {test}"


def key(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells one change from another."""
    return tuple(str(row[name]) for name in ("file", "number", "change"))


def keep_rows(path: Path, rows: list[dict[str, str]]) -> None:
    """Write the file anew with these rows."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def copy_repository(folder: Path) -> None:
    """Copy what the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)


def try_change(change: Change, room: Room, copy: Path, seconds: int) -> dict[str, str]:
    """Make a change in the copy, test it, and undo it."""
    file = copy / change.file
    before = file.read_text()
    file.write_text(with_change(before, change))
    try:
        outcome, noticed_by = tested(room, copy, seconds)
    finally:
        file.write_text(before)
    return {"outcome": outcome, "noticed_by": noticed_by}


if __name__ == "__main__":
    main()
