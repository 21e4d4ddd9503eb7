"""Compare the speed of this tree with that of another, for example of the code before a change.

    git worktree add --detach ../before REVISION
    python benchmarks/compare.py ../before step --rounds 12
    python benchmarks/compare.py ../before overhead --rounds 8 --arguments="--select --repeats 3"

Each tree runs its own `benchmarks/step.py` or `overhead.py`. Processes of the two take turns, so that both meet the
same other load. Printed are the medians over processes, their ratio, and the quartiles of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
FIGURE = re.compile(r"^(?P<name>base|inform|subcluster|discriminate|weigh \+ disentangle|codid) +(?P<value>[\d.]+) ms")
RATIO = re.compile(r"^(?P<name>codid/base|fit/loop) (?P<value>[\d.]+)$")


def measured(tree: Path, benchmark: str, arguments: list[str]) -> dict[str, float]:
    """What a tree's benchmark prints: milliseconds of parts of a step, or a ratio."""
    paths = os.pathsep.join(map(str, (tree, tree / "benchmarks")))
    done = subprocess.run(  # noqa: S603
        [sys.executable, f"benchmarks/{benchmark}.py", *arguments],
        cwd=tree, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found = [FIGURE.match(line) or RATIO.match(line) for line in done.stdout.splitlines()]
    return {match["name"]: float(match["value"]) for match in found if match}


def main() -> None:
    """Measure in turns and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of the other revision")
    parser.add_argument("benchmark", choices=("step", "overhead"))
    parser.add_argument("--arguments", type=shlex.split, default=[], help="arguments of the benchmark")
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    trees = (options.before.resolve(), HERE)
    rounds = [[measured(tree, options.benchmark, options.arguments) for tree in trees] for _ in range(options.rounds)]
    print("| | before | now | now / before | quartiles |\n|---|---|---|---|---|")
    for name in (name for name in rounds[0][1] if name in rounds[0][0]):
        before, now = (statistics.median(pair[i][name] for pair in rounds) for i in (0, 1))
        low, _, high = statistics.quantiles([pair[1][name] / pair[0][name] for pair in rounds], n=4)
        print(f"| {name} | {before:g} | {now:g} | {now / before:.3f} | {low:.3f} to {high:.3f} |")


if __name__ == "__main__":
    main()
