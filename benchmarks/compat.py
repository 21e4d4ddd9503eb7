"""Run the fast tests with the oldest and the newest dependencies that our bounds allow, for each Python.

    make compat

Each environment is built by uv in `.compat/`, which needs a package index and 8 GB: torch comes with its CUDA packages.
A Python that is not installed is left out, with a message. Fast tests are all that are not marked slow, without
`tests/faults`, whose processes are killed and run again. After the tests each environment trains BASE and CoDID on Toy
with the same seed, so that one can see whether results depend on versions. Everything goes to
`results/compatibility.md`; environments that were not run keep what an earlier run measured (`.json` beside it).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".compat"
TABLE = ROOT / "results" / "compatibility.md"
FAST = "-m 'not slow' --ignore=tests/faults tests"
PYTHONS = ("3.11", "3.12", "3.13")
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
ENVIRONMENTS = [f"{python}-{age}" for python in PYTHONS for age in RESOLUTIONS]
METHODS = {"base": "BASE", "codid": "CoDID"}  # trained after the tests
SHOWN = (
    *("torch", "torchvision", "lightning", "torchmetrics", "jsonargparse", "numpy", "scipy", "scikit-learn", "pandas"),
    *("matplotlib", "pillow", "jinja2", "rich", "filelock", "wandb", "optuna", "pyarrow", "ray", "transformers"),
)


def uv(*arguments: str | Path) -> str:
    """What uv printed. It never downloads a Python."""
    command = [sys.executable, "-m", "uv", *map(str, arguments)]
    environment = {**os.environ, "UV_PYTHON_DOWNLOADS": "never"}
    return subprocess.check_output(command, env=environment, text=True, cwd=FOLDER)  # noqa: S603


def build(name: str) -> Path:
    """Make an environment of this Python and age; its interpreter. Raises where the Python is not installed."""
    version, age = name.split("-")
    folder = FOLDER / name
    python = folder / "bin" / "python"
    if not python.exists():
        uv("venv", "--python", version, folder)
    uv(
        *(
            "pip",
            "install",
            "--quiet",
            "--python",
            python,
            "--resolution",
            RESOLUTIONS[age],
            "--editable",
            f"{ROOT}[dev]",
        )
    )
    return python


def versions(python: Path) -> dict[str, str]:
    """Installed versions by package, and the Python's own."""
    listed = json.loads(uv("pip", "list", "--format=json", "--python", python))
    own = subprocess.check_output([str(python), "-c", "import platform; print(platform.python_version())"], text=True)  # noqa: S603
    return {entry["name"].lower(): entry["version"] for entry in listed} | {"python": own.strip()}


def environment(python: Path) -> dict[str, str]:
    """One thread, and this interpreter's programs first: tests call `codid`."""
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}


def run(python: Path, arguments: list[str], workers: int) -> tuple[str, float]:
    """The last line of pytest, and its seconds."""
    command = [str(python), "-m", "pytest", "-q", "-n", str(workers), "--dist", "loadfile", "-p", "no:cacheprovider"]
    started = time.perf_counter()
    done = subprocess.run(  # noqa: S603
        [*command, *arguments], cwd=ROOT, env=environment(python), capture_output=True, text=True, check=False
    )
    (FOLDER / f"{python.parents[1].name}.log").write_text(done.stdout + done.stderr)
    line = (done.stdout.strip().splitlines() or ["no output"])[-1]
    return re.sub(r" in [\d.]+s.*|,? \d+ warnings?|=+ ?", "", line).strip(), time.perf_counter() - started


def train(python: Path, method: str, *options: str) -> list[float]:
    """Accuracy of one training on the three tests of Toy, in percent."""
    folder = FOLDER / "runs" / python.parents[1].name
    command = [str(python), "-m", "codid_lightning", "fit", "-c", f"configs/toy/{method}.yaml", "--seed_everything=0"]
    command += [f"--run_dir={folder / method}", "--resume=true", *options]
    subprocess.run(command, cwd=ROOT, env=environment(python), check=True, capture_output=True)  # noqa: S603
    found: dict[str, Any] = json.loads((folder / method / "result.json").read_text())
    return [100 * found["metrics"][f"test{number}/acc"] for number in (1, 2, 3)]


def table(rows: dict[str, dict[str, str]]) -> str:
    """The page: one column an environment."""
    keys = ["tests", *(f"Toy, {title}" for title in METHODS.values()), "python", *SHOWN]
    lines = ["| | " + " | ".join(rows) + " |", "|---|" + "---|" * len(rows)]
    lines += [f"| {key} | " + " | ".join(row.get(key, "-") for row in rows.values()) + " |" for key in keys]
    said = (
        "Written by `make compat`. The oldest versions are the lower bounds in `pyproject.toml`, the newest what the "
    )
    said += f"package index offered on the day. Tests: `pytest {FAST}`. Toy: accuracy of one training with seed 0 on "
    said += "tests 1, 2 and 3."
    return "\n".join(["# Oldest and newest dependencies", "", said, "", *lines]) + "\n"


def main() -> None:
    """Build, test, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", metavar="ENVIRONMENT", help=f"of {', '.join(ENVIRONMENTS)}; default: all")
    parser.add_argument("--tests", default=FAST, help="arguments of pytest")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest")
    options = parser.parse_args()
    if unknown := set(options.only) - set(ENVIRONMENTS):
        parser.error(f"no environment is called {', '.join(sorted(unknown))}; there are {', '.join(ENVIRONMENTS)}")
    FOLDER.mkdir(exist_ok=True)
    kept = TABLE.with_suffix(".json")
    rows: dict[str, dict[str, str]] = json.loads(kept.read_text()) if kept.exists() else {}
    for name in options.only or ENVIRONMENTS:
        version = name.split("-")[0]
        try:
            uv("python", "find", version)
        except subprocess.CalledProcessError:
            print(f"{name}: left out, Python {version} is not installed")
            continue
        python = build(name)
        outcome, seconds = run(python, shlex.split(options.tests), options.workers)
        print(f"{name}: {outcome} ({seconds:.0f} s)", flush=True)
        installed = versions(python)
        rows[name] = {"tests": outcome, **{package: installed.get(package, "-") for package in ("python", *SHOWN)}}
        for method, title in METHODS.items():
            rows[name][f"Toy, {title}"] = " / ".join(f"{value:.1f}" for value in train(python, method))
        rows = {key: rows[key] for key in ENVIRONMENTS if key in rows}
        kept.write_text(json.dumps(rows, indent=1) + "\n")
        TABLE.write_text(table(rows))


if __name__ == "__main__":
    main()
