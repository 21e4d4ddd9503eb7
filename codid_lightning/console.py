"""What the command line prints: help, tables, and nothing of the machinery below."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from textwrap import fill

from rich import box
from rich.table import Table

from codid_lightning.explain import OPTIONS, dataset_names, method_names

TRAINER_COMMANDS = {
    "fit": "train, test, and leave a run directory",
    "validate": "metrics on validation data",
    "test": "metrics on the test sets",
    "predict": "predictions and representations as files",
}
COMMANDS = {
    "demo": "train on the toy data, print a table, draw decision boundaries",
    "data": "describe a data set and draw samples",
    "prepare": "build Canine-BG from ImageNet and Places",
    "evaluate": "compute every metric of one run",
    "report": "turn run directories into the paper's tables",
    "figure": "draw a figure of the paper from a run",
    "audit": "does my data hide correlations, and is my model hurt by them?",
    "benchmark": "run a matrix of data sets, methods, seeds and groups",
    "tune": "search hyperparameters on validation data",
}

# Advice that does not apply here: batches are indexed whole and sharded without padding, losses are logged per
# epoch, metrics are the same on all ranks, callbacks come from the command line and not from the checkpoint.
_NEEDLESS_WARNINGS = (
    r".*does not have many workers",
    r".*smaller than the logging interval",
    r".*LeafSpec.* is deprecated",
    r".*callbacks used to create the checkpoint",
    r".*Checkpoint directory .* exists and is not empty",
    r".*it is recommended to use `Trainer\(devices=1",
    r".*recommended to use `self.log\(.*sync_dist=True",
)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back Lightning's notes about itself; its warnings about the user's run pass."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        with warnings.catch_warnings():
            for message in _NEEDLESS_WARNINGS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def overview() -> str:
    """All commands, a line each."""
    lines = [f"  {name:<10} {text}" for name, text in {**TRAINER_COMMANDS, **COMMANDS}.items()]
    usage = "codid COMMAND [-c CONFIG ...] [--key value ...]"
    return "\n".join([f"usage: {usage}", "", *lines, "", "`codid COMMAND --help` explains its arguments."])


def trainer_help(command: str) -> str:
    """What matters about `fit`, `validate`, `test` and `predict` on one screen."""
    keys = {
        **{f"--{name}": text for name, text in OPTIONS.items()},
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
    """Metrics of splits and attributes: a row per split, a column per metric, in the numbers of `result.json`."""
    rows: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        split, *attribute, metric = name.split("/")
        position = int(attribute[0].removeprefix("a")) - 1 if attribute else 0
        rows.setdefault(split, {})[f"{attribute_names[position]} {metric}"] = value
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    table = Table("", *columns, box=box.SIMPLE_HEAD)
    for split, row in rows.items():
        table.add_row(split, *(f"{row[column]:.4f}" if column in row else "-" for column in columns))
    return table


def _paragraph(title: str, text: str) -> str:
    return fill(text, 110, initial_indent=title, subsequent_indent=" " * len(title))
