"""Give thousands of damaged files to every reader, and see whether each ends in a result or in a message.

    python -m benchmarks.fuzz --output results/fuzz.md

Inputs are drawn by Hypothesis from a seed, so that the same command draws the same ones. Each kind runs in a process of
its own, on readers as commands call them. An input passes if the exit code is 0, 1 or 2, without a traceback, a message
names the file, no file outside of the input's folder appears, and it takes at most 60 CPU seconds and 2 GB. A flipped
bit in a checkpoint must not give a model of other weights.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from PIL import Image
from rich.progress import track

from benchmarks import fuzz_inputs
from benchmarks.provenance import header
from codid_lightning.cli.commands import report, verify
from codid_lightning.cli.errors import reported
from codid_lightning.cli.main import main as codid
from codid_lightning.training.callbacks.checkpoint import AtomicCheckpointIO
from codid_lightning.training.config import parse
from codid_lightning.training.loading import load, restore
from datamodules import CMNIST, OwnArrays, OwnImages, Toy
from datamodules.download import unpack
from datamodules.grouped import read_mat
from datamodules.partition import read_partition

SECONDS, BYTES = 60, 2 * 2**30
TOY = Path(__file__).parents[1] / "configs" / "toy" / "codid.yaml"
COUNTS = {
    "config": 450, "csv": 950, "npz": 950, "parquet": 500, "image": 450, "metadata": 250, "idx": 300, "mat": 300,
    "zip": 500, "partition": 200, "checkpoint": 800, "run directory": 350, "verified run": 20,
}  # fmt: skip


class TooLong(BaseException):
    """An input took more CPU time than it may."""


@dataclass
class Tally:
    """What happened to the inputs of one kind."""

    kind: str
    seed: int
    tried: int = 0
    accepted: int = 0
    refused: int = 0
    found: dict[str, int] = field(default_factory=dict)  # by what went wrong
    seconds: float = 0.0
    megabytes: float = 0.0  # by which the peak memory grew


@dataclass(frozen=True)
class Kind:
    """How one kind of input is drawn, and how it is used."""

    draw: SearchStrategy[Any]
    write: Callable[[Any, Path], Path]  # into a new folder; the path that a message must name
    use: Callable[[Path], Any]  # an exit code, or anything else for success
    products: str = "nothing"  # files that it may write into the folder, as a pattern


def kinds(run: Path) -> dict[str, Kind]:
    """All kinds; `run` is a finished run to damage."""
    good = yaml.safe_load((run / "config.yaml").read_text())
    result = json.loads((run / "result.json").read_text())
    files = [p.relative_to(run) for p in sorted(run.rglob("*")) if p.is_file() and not p.name.startswith(".")]
    hurt = st.tuples(
        st.sampled_from(files), st.sampled_from(["missing", "folder", "swapped", "damaged", "damaged", "wrong value"]),
        fuzz_inputs.json_files(result), fuzz_inputs.configs(good), st.lists(fuzz_inputs.DAMAGE, min_size=1, max_size=2),
        st.sampled_from(files),
    )  # fmt: skip
    model, toy = load(run), Toy(samples_per_mode=10)
    toy.setup()
    checkpoint = (run / "checkpoints" / "last.ckpt").read_bytes()
    return {
        "config": Kind(fuzz_inputs.configs(good), written("some.yaml"), lambda f: parse(["-c", str(f)])),
        "csv": Kind(fuzz_inputs.csv_files(), written("table.csv"), arrays),
        "npz": Kind(fuzz_inputs.npz_files(), written("arrays.npz"), arrays),
        "parquet": Kind(fuzz_inputs.parquet_files(), written("table.parquet"), arrays),
        "image": Kind(fuzz_inputs.images(), picture_folder, pictures),
        "metadata": Kind(fuzz_inputs.csv_files(pictures=True), metadata_folder, pictures),
        "idx": Kind(fuzz_inputs.idx_files(), idx_folder, idx),
        "mat": Kind(fuzz_inputs.mat_files(), written("97.mat"), lambda f: read_mat(f, "X097_DE_time")),
        "zip": Kind(fuzz_inputs.archives(), written("archive.zip"), lambda f: unpack(f, f.parent / "out"), "out/**/*"),
        "partition": Kind(
            st.one_of(fuzz_inputs.npz_files(), fuzz_inputs.csv_files()), written("cells.npz"),
            lambda f: read_partition(str(f), toy.datasets["val"]),
        ),
        "checkpoint": Kind(checkpoints(checkpoint), written("some.ckpt"), lambda f: restored(f, model)),
        "run directory": Kind(hurt, run_folder(run), reported_run, "report.md"),
        "verified run": Kind(hurt, run_folder(run), lambda f: verify.main([str(f)])),
    }  # fmt: skip


# --------------------------------------------------------------------------------------------- how each kind is written


def written(name: str) -> Callable[[bytes, Path], Path]:
    """Write the bytes under this name."""

    def write(content: bytes, folder: Path) -> Path:
        (folder / name).write_bytes(content)
        return folder / name

    return write


def picture_folder(content: bytes, folder: Path) -> Path:
    """A folder of pictures of which one is damaged; the picture."""
    rows = "".join(f"{'bad' if i == 5 else 'good'}.png,{'uvw'[i % 3]},{'rb'[i % 2]}\n" for i in range(12))
    (folder / "metadata.csv").write_text("path,a1,a2\n" + rows)
    Image.new("RGB", (9, 7)).save(folder / "good.png")
    (folder / "bad.png").write_bytes(content)
    return folder / "bad.png"


def metadata_folder(content: bytes, folder: Path) -> Path:
    """A folder of pictures whose table is damaged; the table."""
    Image.new("RGB", (9, 7)).save(folder / "good.png")
    return written("metadata.csv")(content, folder)


def idx_folder(content: bytes, folder: Path) -> Path:
    """MNIST's files of which one is damaged; their folder."""
    from tests.fakes import cmnist

    cmnist(folder, per_class=2)
    damaged = folder / "MNIST" / "raw" / "train-images-idx3-ubyte"
    damaged.write_bytes(content)
    return damaged.parent


def run_folder(run: Path) -> Callable[[Any, Path], Path]:
    """Write a copy of a run in which one file is missing, a folder, another file, or damaged; its path."""

    def write(drawn: Any, folder: Path) -> Path:
        file, how, result, config, damages, other = drawn
        shutil.copytree(run, folder / "some_run")
        path = folder / "some_run" / file
        content = path.read_bytes()
        path.unlink()
        if how == "folder":
            path.mkdir()
        elif how == "swapped":
            path.write_bytes((run / other).read_bytes())
        elif how == "wrong value" and file.name in ("result.json", "config.yaml"):
            path.write_bytes(result if file.name == "result.json" else config)
        elif how != "missing":
            for damage in damages:
                content = fuzz_inputs.damaged(content, damage)
            path.write_bytes(content)
        return folder / "some_run"

    return write


def checkpoints(whole: bytes) -> SearchStrategy[bytes]:
    """One flipped bit, other damage, and whole files with entries of the wrong type."""
    flips = st.integers(0, 8 * len(whole) - 1).map(lambda bit: flipped(whole, bit))
    content = torch.load(io.BytesIO(whole), weights_only=True)
    places = [(key,) for key in content] + [(k, i) for k, v in content.items() if isinstance(v, dict) for i in v]
    odd = st.sampled_from([None, 0, -1.5, "text", [], {}, [[1]], {"a": 1}, torch.zeros(7, 7, 7), "missing"])
    wrong = st.tuples(st.sampled_from(places), odd).map(lambda d: with_entry(content, *d))
    return st.one_of(flips, flips, flips, flips, wrong, fuzz_inputs.broken(whole))


def flipped(content: bytes, bit: int) -> bytes:
    """The content with another bit."""
    at = bit // 8
    return content[:at] + bytes([content[at] ^ (1 << bit % 8)]) + content[at + 1 :]


def with_entry(content: dict[str, Any], place: tuple[str, ...], value: Any) -> bytes:
    """A checkpoint with another value, or none, at one place."""
    changed = {k: dict(v) if isinstance(v, dict) else v for k, v in content.items()}
    within: dict[Any, Any] = changed if len(place) == 1 else changed[place[0]]
    within.pop(place[-1])
    if not (isinstance(value, str) and value == "missing"):
        within[place[-1]] = value
    file = io.BytesIO()
    torch.save(changed, file)
    return file.getvalue()


# ------------------------------------------------------------------------------------------------ how each kind is used


def arrays(file: Path) -> None:
    """Read a table or an archive as data of one's own."""
    OwnArrays(root=str(file.parent), file=file.name, attributes=["a1", "a2"], batch_size=4).setup()


def pictures(file: Path) -> None:
    """Read a folder of pictures."""
    data = OwnImages(root=str(file.parent), attributes=["a1", "a2"], image_size=8, batch_size=4)
    data.setup()


def idx(folder: Path) -> None:
    """Read MNIST's files."""
    data = CMNIST(root=str(folder.parents[1]), download=False)
    data.prepare_data()
    data.setup()


def restored(file: Path, run: Any) -> None:
    """Load a checkpoint into a model, as commands do; weights that differ must have been noticed."""
    before = {name: value.clone() for name, value in run.model.state_dict().items() if torch.is_tensor(value)}
    try:
        state = AtomicCheckpointIO().load_checkpoint(file, map_location="cpu")
        restore(run.model, run.data, state, file)
        after = run.model.state_dict()
        if not all(torch.equal(value, after[name]) for name, value in before.items()):
            raise AssertionError("other weights were loaded without a message")
    finally:
        run.model.load_state_dict(before, strict=False)


def reported_run(run: Path) -> int:
    """Make a report of it."""
    return report.main([str(run), "--output", str(run.parent / "report.md")])


# ----------------------------------------------------------------------------------------------------------- the oracle


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise after 60 CPU seconds, and where 2 GB more are asked for."""

    def ring(signum: int, frame: Any) -> None:
        raise TooLong

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    earlier, limit = signal.signal(signal.SIGPROF, ring), resource.getrlimit(resource.RLIMIT_AS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, limit[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, earlier)
        resource.setrlimit(resource.RLIMIT_AS, limit)


def attempt(kind: Kind, drawn: Any, root: Path, tally: Tally) -> str | None:
    """Use one input; what went wrong, if anything."""
    folder = root / "inputs" / "case"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = kind.write(drawn, folder)
    before = set(root.rglob("*"))
    said, code = io.StringIO(), 0

    def command() -> int:
        answer = kind.use(path)
        return answer if isinstance(answer, int) else 0

    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with limited():
                code = reported(command)
        except TooLong:
            return f"more than {SECONDS} s"
        except BaseException as error:
            place = next(
                f for f in reversed(traceback.extract_tb(error.__traceback__)) if "benchmarks" not in f.filename
            )
            return f"traceback: {type(error).__name__} in {Path(place.filename).name}, {place.name}"
    tally.accepted += code == 0
    tally.refused += code != 0
    if code not in (0, 1, 2):
        return f"exit code {code}"
    if code and path.name not in said.getvalue() and not any(name in said.getvalue() for name in NAMES):
        return f"no file is named: {said.getvalue()[:80]!r}"
    allowed = set(folder.glob(kind.products))
    new = [p for p in set(root.rglob("*")) - before - allowed if p.suffix != ".lock" and p != folder / "out"]
    return f"a file was written: {new[0].relative_to(root)}" if new else None


# What names the place in a config, or another file than the damaged one, which it needs.
NAMES = ("There is no", "must be", "Did you mean", "Missing:", "is not accepted", "image files are missing")


def fuzz(name: str, kind: Kind, count: int, number: int, root: Path, kept: Path | None = None) -> Tally:
    """Try this many inputs of one kind; those that failed are kept."""
    tally, peak = Tally(name, number), resource.getrusage(resource.RUSAGE_SELF)

    @seed(number)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(kind.draw)
    def each(drawn: Any) -> None:
        tally.tried += 1
        wrong = attempt(kind, drawn, root, tally)
        if wrong is not None:
            if kept is not None and wrong not in tally.found:
                folder = kept / f"{name}-{number}-{tally.tried}".replace(" ", "_")
                shutil.copytree(root / "inputs" / "case", folder, symlinks=True, dirs_exist_ok=True)
                (folder / "what").write_text(wrong)
            tally.found[wrong] = tally.found.get(wrong, 0) + 1

    each()
    used = resource.getrusage(resource.RUSAGE_SELF)
    tally.seconds = used.ru_utime + used.ru_stime - peak.ru_utime - peak.ru_stime
    tally.megabytes = (used.ru_maxrss - peak.ru_maxrss) / 1024
    return tally


def trained(folder: Path) -> Path:
    """A small finished run."""
    small = ("--data.samples_per_mode=10", "--data.batch_size=32", "--model.latent_dim=2", "--trainer.max_epochs=2")
    quick = ("--model.discovery.start=1", "--model.discovery.every=1", "--model.alignment.steps=1")
    rest = ("--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", f"--run_dir={folder / 'run'}")
    with contextlib.redirect_stdout(io.StringIO()):
        code = codid(["fit", "-c", str(TOY), *small, *quick, *rest])
    assert code == 0, code
    return folder / "run"


def in_process(name: str, kind: Kind, count: int, number: int, kept: Path | None) -> Tally:
    """`fuzz` in a process of its own, so that one that crashes ends only itself."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child() -> None:
        with tempfile.TemporaryDirectory() as folder:
            theirs.send(fuzz(name, kind, count, number, Path(folder), kept))

    process = context.Process(target=child)
    process.start()
    theirs.close()
    try:
        tally: Tally = ours.recv()
    except EOFError:
        process.join()
        tally = Tally(name, number, found={f"the process ended with {process.exitcode}": 1})
    process.join()
    return tally


def table(tallies: list[Tally]) -> list[str]:
    """What was tried and found, as Markdown."""
    rows: list[tuple[object, ...]] = [
        (t.kind, t.tried, t.accepted, t.refused, sum(t.found.values()), round(t.seconds)) for t in tallies
    ]
    numbers = zip(*(row[1:] for row in rows), strict=True)
    rows.append(("all", *(sum(int(str(n)) for n in column) for column in numbers)))
    head = ("input", "tried", "used", "refused with a message", "went wrong", "CPU seconds")
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, ["---"] * len(head), *rows)]
    found = [f"- {t.kind}: {what} ({times} times)" for t in tallies for what, times in sorted(t.found.items())]
    return [*lines, "", *found]


def main() -> int:
    """Try all kinds; the report is written after each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("only", nargs="*", help=f"kinds, of {', '.join(COUNTS)}; default: all")
    parser.add_argument("--share", type=float, default=1.0, help="of the number of inputs of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, help="folder for inputs that went wrong")
    parser.add_argument("--output", type=Path, help="the report (.md); also as .json")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    tallies: list[Tally] = []
    with tempfile.TemporaryDirectory() as folder:
        every = kinds(trained(Path(folder)))
        for name in track([n for n in every if not options.only or n in options.only], "kinds"):
            count = max(1, round(COUNTS[name] * options.share))
            tallies.append(in_process(name, every[name], count, options.seed, options.kept))
            print(json.dumps(asdict(tallies[-1])), flush=True)
            if options.output:
                text = f"At most {SECONDS} CPU seconds and {BYTES // 2**30} GB per input; seed {options.seed}."
                options.output.write_text(
                    "\n".join([*header("Damaged files"), "", text, "", *table(tallies)]).rstrip() + "\n"
                )
    return int(any(t.found for t in tallies))


if __name__ == "__main__":
    sys.exit(main())
