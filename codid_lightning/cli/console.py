"""Help and tables that the command line prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

TRAINER_COMMANDS = {
    "fit": "train, test, and leave a run directory",
    "validate": "metrics on validation data",
    "test": "metrics on the test sets",
    "predict": "predictions and representations as files",
}
COMMANDS = {
    "demo": "train on colored digits, and show what CoDID-A does when the colors change",
    "data": "describe a data set and draw samples",
    "prepare": "build Canine-BG from ImageNet and Places",
    "evaluate": "compute every metric of one run",
    "verify": "test a finished run again, and compare with its result",
    "report": "turn run directories into the paper's tables",
    "figure": "draw a figure of the paper from a run",
    "adapt": "adapt a trained CoDID to a place of use, from unlabelled samples",
    "repair": "fit the last layer of a run again, to balanced validation data",
    "audit": "find shortcuts in data, and cells where a model is hurt by them",
    "export": "write a trained model as a file that needs PyTorch only",
    "auto": "train a model on a table that does not rely on shortcuts",
    "benchmark": "run a matrix of data sets, methods, seeds and groups",
    "tune": "search hyperparameters on validation data",
}


def overview() -> str:
    """All commands, one line each."""
    lines = [f"  {name:<10} {text}" for name, text in {**TRAINER_COMMANDS, **COMMANDS}.items()]
    usage = "codid COMMAND [-c CONFIG ...] [--key value ...]"
    return "\n".join([f"usage: {usage}", "", *lines, "", "`codid COMMAND --help` explains its arguments."])


def trainer_help(command: str) -> str:
    """The most used arguments of `fit`, `validate`, `test` and `predict` on one screen."""
    from codid_lightning.training.config import KEYS
    from codid_lightning.training.registry import dataset_names, method_names

    keys = {
        **{f"--{name}": text for name, text in KEYS.items()},
        "--data.KEY": f"an argument of the data set; all: codid {command} --data.help Toy",
        "--model.KEY": f"an argument of the method; all: codid {command} --model.help Base",
        "--trainer.KEY": f"an argument of Lightning's Trainer; all: codid {command} --trainer.help",
        "--print_config": "the resolved config; --print_config=skip_default leaves out defaults",
    }
    return "\n".join(
        [
            f"usage: codid {command} -c CONFIG [-c OVERLAY ...] [--key value ...]",
            "",
            f"{TRAINER_COMMANDS[command].capitalize()}.",
            "",
            *(_paragraph(f"  {key:<18}", text) for key, text in keys.items()),
            "",
            _paragraph("data sets:  ", ", ".join(dataset_names())),
            _paragraph("methods:    ", ", ".join(method_names())),
        ]
    )


def metrics_table(metrics: Mapping[str, float], attribute_names: Sequence[str]) -> Table:
    """A table of metrics named as in `result.json`: a row per split and attribute, a column per metric."""
    from rich import box
    from rich.table import Table

    rows: dict[tuple[str, int], dict[str, float]] = {}
    for name, value in metrics.items():
        split, *attribute, metric = name.split("/")
        position = int(attribute[0].removeprefix("a")) - 1 if attribute else 0
        rows.setdefault((split, position), {})[metric] = value
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    table = Table("", "", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), min_width=6)  # long names take several lines
    for (split, position), row in rows.items():
        numbers = (f"{row[column]:.4f}" if column in row else "-" for column in columns)
        table.add_row(split, attribute_names[position], *numbers)
    return table


def _paragraph(title: str, text: str) -> str:
    return fill(text, 110, initial_indent=title, subsequent_indent=" " * len(title))
