"""`codid fit`, `validate`, `test` and `predict`: what LightningCLI's commands do, and what they print."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from codid_lightning.cli.console import metrics_table, trainer_help
from codid_lightning.cli.lightning_cli import CodidCLI
from codid_lightning.training import Run, runs, stages


def main(command: str, args: list[str]) -> int:
    """Build the run and run the command."""
    if "-h" in args or "--help" in args:
        print(trainer_help(command))
        return 0
    arguments = ["--help" if argument == "--trainer.help" else argument for argument in args]
    run = CodidCLI(arguments, record=command == "fit").built
    {"fit": _fit, "validate": _validate, "test": _test, "predict": _predict}[command](run)
    return 0


def _fit(run: Run) -> None:
    """Train, test the selected epoch, write the result."""
    result = stages.fit(run)
    _show(run, result.metrics, run.data.test_names)
    if run.directory is not None:
        _say(run, f"The result is in {run.directory / runs.RESULT}.")


def _validate(run: Run) -> None:
    """Print metrics on validation data."""
    _show(run, stages.validate(run), ["val"])


def _test(run: Run) -> None:
    """Print metrics on the test sets."""
    _show(run, stages.test(run), run.data.test_names)


def _predict(run: Run) -> None:
    """Write predictions."""
    _say(run, f"Predictions are in {stages.predict(run)}.")


def _show(run: Run, metrics: dict[str, float], splits: Sequence[str]) -> None:
    shown = {name: value for name, value in metrics.items() if name.split("/")[0] in splits}
    if run.trainer.is_global_zero:
        Console().print(metrics_table(shown, run.data.attribute_names))


def _say(run: Run, line: str) -> None:
    if run.trainer.is_global_zero:
        print(line)
