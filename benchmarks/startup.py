"""What starting costs: help, mistakes and the way to the first batch, by CPU time of whole processes.

    python benchmarks/startup.py > results/startup.txt

Every command takes its turn in each repeat, and so do the two processes that they are compared with:
`python -c "import rich, yaml"` for what needs no torch, `python -c "import lightning"` for `codid fit` up to its first
batch. Printed are medians over repeats of the ratio within a repeat, so that they hold on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning import Callback

ROOT = Path(__file__).parents[1]
CODID = (sys.executable, "-c", "import sys; from codid_lightning.cli import main; sys.exit(main())")
LIGHT = {
    "codid --help": ("--help",),
    "codid fitt": ("fitt",),
    "codid report --help": ("report", "--help"),
    "codid report runs --ouput x.md": ("report", "runs", "--ouput", "x.md"),
    "codid figure --help": ("figure", "--help"),
}
FITS = {"codid fit, BASE on Toy": "base", "codid fit, CoDID on Toy": "codid"}


class FirstBatch(Callback):
    """Ends the process as the first batch begins."""

    def on_train_batch_start(self, *args: Any) -> None:
        """End at once, without what follows a training."""
        os._exit(0)


def cpu_seconds(command: Sequence[str]) -> float:
    """CPU seconds of a process and its children."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")])}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, cwd=ROOT, env=environment, check=False)  # noqa: S603
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def measured(imports: str, commands: dict[str, Sequence[str]], repeats: int) -> None:
    """Print the CPU seconds of commands and their ratio to those of a process that only imports."""
    floor: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(repeats):
        floor.append(cpu_seconds([sys.executable, "-c", f"import {imports}"]))
        for name, command in commands.items():
            seconds[name].append(cpu_seconds([*CODID, *command]))
    print(f"{f'import {imports}':<32} {statistics.median(floor):7.3f} s")
    for name, found in seconds.items():
        ratio = statistics.median(s / f for s, f in zip(found, floor, strict=True))
        print(f"{name:<32} {statistics.median(found):7.3f} s   {ratio:.2f} x", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=21, help="of commands that load no torch")
    parser.add_argument("--fits", type=int, default=7, help="repeats of trainings")
    options = parser.parse_args()
    measured("rich, yaml", LIGHT, options.repeats)
    with tempfile.TemporaryDirectory() as folder:
        common = ("--trainer.callbacks=startup.FirstBatch", f"--trainer.default_root_dir={folder}")
        fits = {name: ("fit", "-c", f"configs/toy/{config}.yaml", *common) for name, config in FITS.items()}
        measured("lightning", fits, options.fits)


if __name__ == "__main__":
    main()
