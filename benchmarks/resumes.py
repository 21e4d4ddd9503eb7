"""Stop a short CoDID run at random points, resume it, and see whether it ends as if nothing had happened.

    python benchmarks/resumes.py --points 50

For one and two ranks, with no and with two loader processes each, runs are asked to stop (SIGTERM, to one of the
ranks) at different points: inside a batch, a refinement or a validation, or at the end of an epoch. Each is resumed
once, to its end. Parameters, optimizers, clusters with their history, the result and every row of the logs must then
equal those of an undisturbed run bit for bit.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from codid_lightning import CoDID
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.training.callbacks.stopping import StopOnSignal
from tests.faults.victims import CODID, assert_same_end, logged, other_filesystem, run, run_ranks

EPOCHS, BATCHES, SAMPLES = 4, 14, 16  # of the runs: epochs (pre-training, first clusters, split, merge), batches, size
COMMAND = ["fit", *CODID, "--trainer.max_epochs", EPOCHS, "--run_dir", "run"]
# Methods a stop comes in, called on every rank once in such an event, and how often they are called in a run.
EVENTS: dict[str, tuple[type, str, int]] = {
    "in a batch": (CoDID, "inform", EPOCHS * BATCHES),
    "in a refinement": (ModeDiscovery, "discover", EPOCHS - 1),
    "in a validation": (DisentanglementModule, "on_validation_epoch_end", EPOCHS),
    "at the end of an epoch": (StopOnSignal, "on_train_epoch_end", EPOCHS - 1),  # not the last: nothing to stop
}
POINTS = [(event, nth) for event, (_, _, calls) in EVENTS.items() for nth in range(1, calls + 1)]


def stop_in(owner: type, method: str, nth: int) -> None:
    """Have this process ask itself to stop as it enters a method the nth time."""
    original, calls = getattr(owner, method), count(1)

    def watched(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == nth:
            signal.raise_signal(signal.SIGTERM)
        return original(*args, **kwargs)

    setattr(owner, method, watched)


@dataclass
class Tally:
    """What happened with some ranks and loader processes."""

    ranks: int
    workers: int
    stops: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)

    @property
    def command(self) -> list[object]:
        """The run."""
        size = SAMPLES // self.ranks
        return [*COMMAND, "--data.init_args.num_workers", self.workers, "--data.init_args.batch_size", size]

    def undisturbed(self, folder: Path) -> Path:
        """A run to compare with."""
        for ended in run_ranks(self.command, folder, [None] * self.ranks):
            assert ended.code == 0, ended.said
        return folder / "run"

    def point(self, event: str, nth: int, rank: int, folder: Path, undisturbed: Path) -> None:
        """Stop a run, resume it and compare its end."""
        owner, method, _ = EVENTS[event]
        firsts = [partial(stop_in, owner, method, nth) if r == rank else None for r in range(self.ranks)]
        for ended in run_ranks(self.command, folder, firsts):
            assert ended.code == 128 + signal.SIGTERM, f"{event} {nth}: {ended.said}"
        for ended in run_ranks([*self.command, "--resume", "true"], folder, [None] * self.ranks):
            assert ended.code == 0, f"{event} {nth}: {ended.said}"
        self.stops[event] += 1
        try:
            assert_same_end(folder / "run", undisturbed)
            assert logged(folder / "run") == logged(undisturbed), "logs"
        except AssertionError as error:
            place = f"{self.ranks} ranks, {self.workers} loaders, {event} {nth}"
            self.different.append(f"{place}: {str(error).splitlines()[0]}")


def report(tallies: list[Tally], seed: int) -> str:
    """How many runs were stopped where, and how many of them ended otherwise."""
    names = ["ranks", "loaders", *EVENTS, "points", "ended otherwise"]
    rows = [
        [t.ranks, t.workers, *(t.stops[event] for event in EVENTS), t.stops.total(), len(t.different)] for t in tallies
    ]
    table = [f"| {' | '.join(map(str, row))} |" for row in [names, ["---"] * len(names), *rows]]
    total = sum(t.stops.total() for t in tallies)
    title = f"{total} runs of {EPOCHS} epochs with {BATCHES} batches, each stopped at another point of it and resumed"
    return "\n".join([f"{title} (seed {seed}).", "", *table, *(d for t in tallies for d in t.different)]) + "\n"


def main() -> None:
    """Stop, resume, compare; the report is written after each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--points", type=int, default=50, help=f"of each combination, {len(POINTS)} at most")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, default=other_filesystem(), help="where runs are kept")
    parser.add_argument("--output", type=Path, default=Path("results/resumes.md"))
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    tallies: list[Tally] = []
    began = time.monotonic()
    arguments.root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.root) as place:
        root = Path(place)
        run(["--version"], root)  # the server of processes imports everything first
        for ranks, workers in product(arguments.ranks, arguments.workers):
            tallies.append(tally := Tally(ranks, workers))
            (whole := root / f"{ranks}-{workers}").mkdir()
            undisturbed = tally.undisturbed(whole)
            for event, nth in dice.sample(POINTS, min(arguments.points, len(POINTS))):
                (folder := whole / "stopped").mkdir()
                tally.point(event, nth, dice.randrange(ranks), folder, undisturbed)
                shutil.rmtree(folder)
                arguments.output.write_text(report(tallies, arguments.seed))
                progress = f"{tally.stops.total()} of {arguments.points} points, {time.monotonic() - began:.0f} s"
                print(f"{ranks} ranks, {workers} loaders: {progress}", *tally.different, flush=True)
    print(report(tallies, arguments.seed))
    sys.exit(any(tally.different for tally in tallies))


if __name__ == "__main__":
    main()
