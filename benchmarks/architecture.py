"""How the package is put together: rooms and their imports, lines, start-up time, and the walk of a training step.

    python benchmarks/architecture.py                     # print all figures
    python benchmarks/architecture.py --tree ../before    # of another checkout
    python benchmarks/architecture.py --write             # draw the graph of rooms into docs/architecture.md

A hop is a call from a function in one file of the package to a function in another file.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = "codid_lightning"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- rooms: written by benchmarks/architecture.py -->", "<!-- end of rooms -->"


def room_of(module: str) -> str | None:
    """The room of a module: the first name below the package, or `datamodules`."""
    parts = module.split(".")
    if parts[0] == PACKAGE:
        return parts[1] if len(parts) > 1 else None
    return parts[0] if parts[0] == "datamodules" else None


def imports_of(file: Path) -> set[str]:
    """Modules that a file imports, also inside functions and for type checkers only."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" if node.module == PACKAGE else node.module for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def rooms(tree: Path = ROOT) -> dict[str, set[str]]:
    """Which rooms each room imports."""
    graph: dict[str, set[str]] = {}
    for file in sorted([*(tree / PACKAGE).rglob("*.py"), *(tree / "datamodules").rglob("*.py")]):
        here = room_of(".".join(file.relative_to(tree).with_suffix("").parts))
        if here is None or here.startswith("__"):
            continue
        known = {room for module in imports_of(file) if (room := room_of(module)) is not None}
        graph.setdefault(here, set()).update(known - {here})
    return {room: {other for other in others if other in graph} for room, others in graph.items()}


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Groups of rooms that import each other, directly or through others."""

    def reached(room: str) -> set[str]:
        found: set[str] = set()
        waiting = [room]
        while waiting:
            new = graph.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    within = {room: reached(room) for room in graph}
    groups = {frozenset(r for r in graph if r in within[room] and room in within[r]) for room in graph}
    return [set(group) for group in groups if len(group) > 1]


def lines(tree: Path = ROOT) -> Counter[str]:
    """Lines of source by room."""
    count: Counter[str] = Counter()
    for file in [*(tree / PACKAGE).rglob("*.py"), *(tree / "datamodules").rglob("*.py")]:
        room = room_of(".".join(file.relative_to(tree).with_suffix("").parts)) or "(top)"
        count[room] += len(file.read_text().splitlines())
    return count


def mermaid(graph: dict[str, set[str]]) -> str:
    """The graph of rooms as text that GitHub and Sphinx draw; an arrow points to what is imported."""
    arrows = [f"    {room} --> {other}" for room, others in sorted(graph.items()) for other in sorted(others)]
    return "\n".join(["```mermaid", "graph TD", *arrows, "```"])


def write() -> None:
    """Replace the graph in the page."""
    page = PAGE.read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    PAGE.write_text(pattern.sub(f"{BEGIN}\n{mermaid(rooms())}\n{END}", page))


def import_seconds(statement: str, tree: Path, repeats: int) -> float:
    """Seconds of CPU that a statement takes in a fresh process, the best of some."""
    program = f"import time; t = time.process_time(); {statement}; print(time.process_time() - t)"
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    found = [subprocess.check_output(command, text=True, cwd=tree, env=environment) for _ in range(repeats)]  # noqa: S603
    return min(map(float, found))


class Hops:
    """Counts calls that go from one file of the package to another."""

    def __init__(self) -> None:
        self.count = 0
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Look at one call."""
        if event != "call" or not self._ours(frame.f_code.co_filename) or frame.f_code.co_name.startswith("<"):
            return
        caller = frame.f_back
        while caller is not None and not self._ours(caller.f_code.co_filename):
            caller = caller.f_back
        self.files.add(frame.f_code.co_filename)
        self.count += caller is not None and caller.f_code.co_filename != frame.f_code.co_filename

    @staticmethod
    def _ours(file: str) -> bool:
        return f"/{PACKAGE}/" in file


def step_hops() -> tuple[int, int]:
    """Hops and files of one step of `benchmarks/step.py`: CoDID at the paper's CMNIST setting, with ten clusters."""
    import torch

    step: Any = import_module("step")
    a = torch.stack([torch.randint(size, (step.BATCH,)) for size in step.SIZES], dim=1)
    module = step.clustered(step.attached(step.CoDID(step.SHAPE, step.SIZES, backbone="mlp")), a, 10)
    x, index = torch.rand(step.BATCH, *step.SHAPE), torch.arange(step.BATCH)
    batch = step.Batch(x=x, a=a, mode=torch.full_like(a, -1), index=index)
    module.training_step(batch, 0)
    hops = Hops()
    sys.setprofile(hops)
    module.training_step(batch, 1)
    sys.setprofile(None)
    return hops.count, len(hops.files)


def main() -> None:
    """Print the figures, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to measure")
    parser.add_argument("--write", action="store_true", help="draw the graph of rooms into docs/architecture.md")
    parser.add_argument("--repeats", type=int, default=3, help="of measured imports")
    options = parser.parse_args()
    if options.write:
        write()
        return
    tree = options.tree.resolve()
    graph, total = rooms(tree), lines(tree)
    for room, others in sorted(graph.items()):
        print(f"{room} imports {', '.join(sorted(others)) or 'no other room'}")
    print(f"rooms in a cycle: {sum(map(len, cycles(graph)))}")
    print(f"lines: {', '.join(f'{room} {n}' for room, n in total.most_common())}; in all {total.total()}")
    sys.path[:0] = [str(tree), str(tree / "benchmarks")]
    hops, files = step_hops()
    print(f"one training step: {hops} hops between {files} files")
    floor = "import torch, sklearn"
    base = import_seconds(floor, tree, options.repeats)
    for statement in ("import codid_lightning", "from codid_lightning.clustering import DPGMM"):
        seconds = import_seconds(statement, tree, options.repeats)
        print(f"{statement}: {seconds:.2f} s of CPU, {seconds / base:.2f} x `{floor}`")


if __name__ == "__main__":
    main()
