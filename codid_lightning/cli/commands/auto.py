"""`codid auto`: from a table to a model that does not rely on a shortcut, and predictions of it."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from pathlib import Path

from rich.console import Console

from codid_lightning.analysis.auto import AutoModel, auto
from codid_lightning.analysis.pages.auto_page import as_dict, auto_page, claims
from codid_lightning.cli.commands.benchmark import duration
from codid_lightning.cli.table_options import read_table_samples, table_parser
from codid_lightning.errors import RunError
from codid_lightning.training.runs import write_output
from datamodules.tables import read_table

UNITS = {"s": 1, "m": 60, "h": 3600}


def main(args: list[str]) -> int:
    """Search, or predict."""
    options = _parser().parse_args(args)
    return _predict(options) if options.model else _search(options)


def _parser() -> argparse.ArgumentParser:
    parser = table_parser("auto")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--budget", default="20m")
    parser.add_argument("--output", type=Path)
    return parser


def _search(options: argparse.Namespace) -> int:
    samples = read_table_samples(options)
    folder, console = options.output or Path("auto"), Console()

    def report(title: str, number: int, total: int, left: float | None) -> None:
        rest = "" if left is None else f", about {duration(left)} left"
        console.print(f"[{number + 1}/{total}] {title}{rest}", markup=False, highlight=False)

    result = auto(samples, folder, seconds(options.budget), options.seed, report)
    result.model.save(folder)
    command = ["codid", "auto", "--model", str(folder), "--table", "new.csv", "--output", "predictions.csv"]
    page = folder / "auto.html"
    write_output(page, auto_page(result, folder, shlex.join(command)), "--output")
    write_output(folder / "auto.json", json.dumps(as_dict(result), indent=1) + "\n", "--output")
    for claim in claims(result):
        print(f"\n{claim.claim}\n{claim.reason}")
    print(f"\nThe page is {page}. Predict new rows with `{shlex.join(command)}`.")
    return 0


def _predict(options: argparse.Namespace) -> int:
    output = options.output or Path("predictions.csv")
    table = read_table(options.table, "--table")
    found = AutoModel.load(options.model).predict(table["x"] if "x" in table and table["x"].ndim == 2 else table)
    write_output(output, found.to_csv(index_label="row"), "--output")
    print(f"{len(found)} predictions are in {output}.")
    return 0


def seconds(text: str) -> float:
    """Seconds of a time such as 20m."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not found:
        raise RunError(f"--budget is {text}; it should be a time such as 90s, 20m or 1h.")
    return float(found[1]) * UNITS[found[2] or "s"]
