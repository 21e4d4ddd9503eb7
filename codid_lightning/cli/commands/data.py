"""`codid data summary`: describe a data set with tables and a figure of samples."""

from __future__ import annotations

import argparse
import math
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


def main(args: list[str]) -> int:
    """Build the data, print tables, draw samples."""
    command, *arguments = args
    if command != "summary":
        raise argparse.ArgumentError(None, f"`codid data` has one command, `summary`, not `{command}`.")
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
