"""`codid export`: a trained run as one file for use elsewhere."""

from __future__ import annotations

from pathlib import Path

from codid_lightning.cli.arguments import without_path
from codid_lightning.errors import RunError
from codid_lightning.training.export import export
from codid_lightning.training.loading import load_run

FILE = "model.pt2"


def main(args: list[str]) -> int:
    """Load, write, compare."""
    arguments, output = without_path(args, "--output")
    run = load_run(arguments)
    file = output or (run.directory or Path()) / FILE
    if file.suffix != ".pt2":
        raise RunError(f"--output is {file}; it should end in .pt2.")
    difference = export(run, file)
    print(f"{run.name} is in {file}; probabilities differ from the model's by at most {difference:.1e}.")
    return 0
