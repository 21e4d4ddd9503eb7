"""`codid data summary`: describe a data set with tables and a figure of samples."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from rich.console import Console

from codid_lightning.analysis.figures.samples import samples
from codid_lightning.analysis.figures.style import figure_style, save
from codid_lightning.analysis.summary import tables
from codid_lightning.training import build
from codid_lightning.training.config import parse
from codid_lightning.training.runs import writable
from datamodules.base import AttributeDataModule
from datamodules.correlated import CorrelatedDataModule

USAGE = """usage: codid data summary -c CONFIG [--data.key value ...] [--output FILE]
       codid data summary --data CLASS [--data.key value ...] [--output FILE]

Prints shapes, the samples of every attribute value and mode in each split, I(a1; a2) and, where modes are known, the
hidden correlation I(m1; a2 | a1), and draws samples. Downloads what is missing, as `codid fit` would.

  -c CONFIG       any config with a data section, for example configs/colored_digits/codid.yaml
  --data CLASS    a data set by name, for example ColoredDigits
  --data.KEY      an argument of the data set, for example --data.root; all: codid fit --data.help ColoredDigits
  --output FILE   where the picture goes (png, pdf, svg); default: <data set>-samples.png"""


def main(args: list[str] | None = None) -> int:
    """Build the data, print tables, draw samples."""
    command, *arguments = (sys.argv[2:] if args is None else args) or ["--help"]
    if command not in ("summary", "-h", "--help"):
        raise argparse.ArgumentError(None, f"`codid data` has one command, `summary`, not `{command}`.")
    if command != "summary" or not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--output", type=Path)
    options, rest = parser.parse_known_args(arguments)
    run = build(parse(["--model", "Base", *rest]), record=False)  # a config may name another method, or none
    data = run.data
    data.prepare_data()
    data.setup()
    _describe(data, Console())
    with figure_style():
        figure = samples(data)
    output = options.output or Path(f"{run.config['dataset']}-samples.png")
    with writable(output, "--output"):
        print(f"Samples are in {save(figure, output)}.")
    return 0


def _describe(data: AttributeDataModule, console: Console) -> None:
    console.print(f"{type(data).__name__}: inputs of shape {data.input_shape}", markup=False, highlight=False)
    for name, values in zip(data.attribute_names, data.value_names, strict=True):
        console.print(f"{name}: {len(values)} values", markup=False, highlight=False)
    for table in tables(data):
        console.print(table)
    if isinstance(data, CorrelatedDataModule):
        first, second = data.attribute_names[:2]
        nats = data.hidden_correlation
        console.print(
            f"By construction I({first}'s mode; {second} | {first}) is {nats / math.log(2):.4f} bits ({nats:.4f} nats) "
            "in training.",
            markup=False,
            highlight=False,
        )
