"""Run the fast tests with the oldest and the newest versions of all dependencies that our bounds allow.

    make compat

Each environment is built by uv in `.compat/`, which needs a package index and 8 GB: torch comes with its CUDA packages.
Fast tests are all that are not marked slow, without `tests/faults`, whose processes are killed and run again. Versions
and counts go to `results/compatibility.md`.
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

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".compat"
TABLE = ROOT / "results" / "compatibility.md"
FAST = "-m 'not slow' --ignore=tests/faults tests"
RESOLUTIONS = {"oldest": "lowest-direct", "newest": "highest"}
SHOWN = (
    *("torch", "torchvision", "lightning", "torchmetrics", "jsonargparse", "numpy", "scipy", "scikit-learn", "pandas"),
    *("matplotlib", "pillow", "jinja2", "rich", "filelock", "wandb", "optuna", "pyarrow"),
)


def build(name: str) -> Path:
    """Make an environment with this kind of versions; its interpreter."""
    folder, uv = FOLDER / name, [sys.executable, "-m", "uv"]
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.check_call([*uv, "venv", "--python", sys.executable, str(folder)])  # noqa: S603
    install = [*uv, "pip", "install", "--quiet", "--python", str(python), "--resolution", RESOLUTIONS[name]]
    subprocess.check_call([*install, "--editable", f"{ROOT}[dev]"])  # noqa: S603
    return python


def versions(python: Path) -> dict[str, str]:
    """Installed versions by package."""
    listed = subprocess.check_output([sys.executable, "-m", "uv", "pip", "list", "--format=json", "--python", python])  # noqa: S603
    return {entry["name"].lower(): entry["version"] for entry in json.loads(listed)}


def run(python: Path, arguments: list[str], workers: int) -> tuple[str, float]:
    """The last line of pytest, and its seconds."""
    command = [str(python), "-m", "pytest", "-q", "-n", str(workers), "--dist", "loadfile", "-p", "no:cacheprovider"]
    started = time.perf_counter()
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"  # tests call `codid`
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}
    done = subprocess.run(  # noqa: S603
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    (FOLDER / f"{python.parents[1].name}.log").write_text(done.stdout + done.stderr)
    line = (done.stdout.strip().splitlines() or ["no output"])[-1]
    return re.sub(r" in [\d.]+s.*| warnings?,?|=+ ?", "", line).strip(), time.perf_counter() - started


def main() -> None:
    """Build, test, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", choices=[*RESOLUTIONS, []], help="one of the environments; default: both")
    parser.add_argument("--tests", default=FAST, help="arguments of pytest")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    rows = {}
    for name in options.only or RESOLUTIONS:
        python = build(name)
        outcome, seconds = run(python, shlex.split(options.tests), options.workers)
        print(f"{name}: {outcome} ({seconds:.0f} s)")
        rows[name] = {"tests": outcome, **{package: versions(python).get(package, "-") for package in SHOWN}}
    lines = ["| | " + " | ".join(rows) + " |", "|---|" + "---|" * len(rows)]
    lines += [f"| {key} | " + " | ".join(row[key] for row in rows.values()) + " |" for key in ("tests", *SHOWN)]
    command = f"Written by `make compat` on {time.strftime('%Y-%m-%d')} with Python {sys.version.split()[0]}. "
    command += f"Tests: `pytest {options.tests}`. The oldest versions are the lower bounds in `pyproject.toml`."
    TABLE.write_text("\n".join(["# Oldest and newest dependencies", "", command, "", *lines]) + "\n")


if __name__ == "__main__":
    main()
