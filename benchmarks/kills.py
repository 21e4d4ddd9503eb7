"""Kill a short CoDID run again and again, and see whether it ends as if nothing had happened.

    python benchmarks/kills.py --kills 100

Runs are killed (SIGKILL) up to four times each: at any time, while a checkpoint is written, or inside a refinement;
every other run with loader processes. Their directory is on another filesystem than temporary files. After each kill
`last.ckpt` must be readable; each run, resumed to its end, must equal an undisturbed one bit for bit and leave no
temporary file.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.faults.victims import (
    CODID,
    Ended,
    Victim,
    assert_same_end,
    last_checkpoint,
    leftovers,
    load,
    other_filesystem,
    run,
    strike,
)

# Functions to be killed in, with the number of calls one of which is hit: of a whole run, so that late ones may be
# missed by a resumed run, which then ends before its kill.
WRITING = {"write_record": 400, "posix.fsync": 6, "posix.replace": 6}
REFINING = {"ModeDiscovery.encode": 4, "ModesPerValue.fit": 1, "ModesPerValue.refine": 3, "Target.adopt": 4}
MOMENTS = {"any time": {}, "while a checkpoint is written": WRITING, "in a refinement": REFINING}
KILLS_OF_A_RUN = 4


def attempt(command: list[object], folder: Path, moment: str, seconds: float, dice: random.Random) -> Ended:
    """Start or resume a run and kill it; one that ends before is just that."""
    functions = MOMENTS[moment]
    if functions:
        function = dice.choice(list(functions))
        return run(command, folder, partial(strike, function, dice.randint(1, functions[function])))
    victim = Victim(command, folder)
    victim.process.join(dice.uniform(0, seconds))
    victim.send(signal.SIGKILL)
    return victim.wait()


@dataclass
class Tally:
    """What happened so far."""

    seed: int
    other_filesystem: bool
    kills: Counter[str] = field(default_factory=Counter)
    checkpoints: int = 0
    torn: list[str] = field(default_factory=list)
    left_by_kills: int = 0
    left_at_end: int = 0
    finished: int = 0
    different: list[str] = field(default_factory=list)

    def look(self, folder: Path, moment: str) -> None:
        """Count what a kill left."""
        self.kills[moment] += 1
        self.left_by_kills += len(leftovers(folder))
        whole = last_checkpoint(folder / "run")
        if whole.exists():
            self.checkpoints += 1
            try:
                load(whole)
            except Exception as error:
                self.torn.append(f"{folder.name}: {error}")

    def compare(self, folder: Path, undisturbed: Path) -> None:
        """Count how a run ended."""
        self.finished += 1
        self.left_at_end += len(leftovers(folder))
        try:
            assert_same_end(folder / "run", undisturbed)
        except AssertionError as error:
            self.different.append(f"{folder.name}: {str(error).splitlines()[0]}")

    def __str__(self) -> str:
        where = "another filesystem than" if self.other_filesystem else "the same filesystem as"
        counts = {
            **{f"killed {moment}": self.kills[moment] for moment in MOMENTS},
            "kills that left a checkpoint": self.checkpoints,
            "unreadable checkpoints": len(self.torn),
            "temporary files left by kills": self.left_by_kills,
            "of them left when the runs had ended": self.left_at_end,
            "runs that ended otherwise than an undisturbed one": len(self.different),
        }
        title = (
            f"{self.kills.total()} kills of {self.finished} runs (seed {self.seed}), kept on {where} temporary files."
        )
        table = [f"| {name} | {count} |" for name, count in counts.items()]
        return "\n".join([title, "", "| | |", "|---|---|", *table, *self.torn, *self.different]) + "\n"


def main() -> None:
    """Kill, resume, compare; the report is written after each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, default=other_filesystem(), help="where runs are kept")
    parser.add_argument("--output", type=Path, default=Path("results/kills.md"))
    arguments = parser.parse_args()
    dice = random.Random(arguments.seed)
    arguments.root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.root) as place:
        root = Path(place)
        tally = Tally(arguments.seed, root.stat().st_dev != Path(tempfile.gettempdir()).stat().st_dev)
        run(["--version"], root)  # the server of processes imports everything first
        undisturbed = run(["fit", *CODID, "--run_dir", "run"], root)
        assert undisturbed.code == 0, undisturbed.said
        while tally.kills.total() < arguments.kills:
            folder = root / f"run{tally.finished}"
            folder.mkdir()
            workers = 2 * (tally.finished % 2)
            command = ["fit", *CODID, "--data.init_args.num_workers", workers, "--run_dir", "run", "--resume", "true"]
            for _ in range(min(KILLS_OF_A_RUN, arguments.kills - tally.kills.total())):
                moment = dice.choice(list(MOMENTS))
                ended = attempt(command, folder, moment, undisturbed.seconds, dice)
                if ended.code == 0:
                    break
                assert ended.code == -signal.SIGKILL, ended.said
                tally.look(folder, moment)
            else:
                ended = run(command, folder)
                assert ended.code == 0, ended.said
            tally.compare(folder, root / "run")
            arguments.output.write_text(str(tally))
            print(f"{tally.kills.total()} kills of {tally.finished} runs", *tally.torn, *tally.different, flush=True)
    print(tally)
    sys.exit(bool(tally.torn or tally.left_at_end or tally.different))


if __name__ == "__main__":
    main()
