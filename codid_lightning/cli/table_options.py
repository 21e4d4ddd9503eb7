"""Options of commands that read your own table, `codid audit` and `codid auto`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from codid_lightning.errors import RunError

if TYPE_CHECKING:
    from codid_lightning.analysis.data_audit.samples import Samples


def table_parser(command: str) -> argparse.ArgumentParser:
    """A parser with the options that `read_table_samples` needs, and `--seed`."""
    parser = argparse.ArgumentParser(prog=f"codid {command}", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--target")
    parser.add_argument("--other", nargs="+")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--group")
    parser.add_argument("--split")
    parser.add_argument("--exclude", nargs="+", default=[])
    parser.add_argument("--seed", type=int, default=0)
    return parser


def read_table_samples(options: argparse.Namespace) -> Samples:
    """The samples that the options name; what was noticed in them is printed."""
    from codid_lightning.analysis.data_audit.reading import read_samples

    for name, example in (("target", "diagnosis"), ("other", "site")):
        if not getattr(options, name):
            raise RunError(f"--{name} is missing. Name its column, for example `--{name} {example}`.")
    samples = read_samples(
        options.table,
        options.target,
        options.other,
        features=options.features,
        group=options.group,
        split=options.split,
        exclude=options.exclude,
    )
    for note in samples.notes:
        print(note)
    return samples
