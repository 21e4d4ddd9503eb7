"""`codid figure`: draw the paper's figures from run directories."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from codid_lightning.analysis import figures
from codid_lightning.analysis.figures.results import FigureError
from codid_lightning.analysis.figures.style import save
from codid_lightning.cli.arguments import FIGURES, FORMATS, figure_parser
from codid_lightning.training.config_files import packaged_configs
from codid_lightning.training.runs import writable


def main(args: list[str]) -> int:
    """Draw one figure and write it."""
    options = figure_parser().parse_args(packaged_configs(args))
    output, entry = Path(options.output), FIGURES[options.name]
    if output.suffix not in FORMATS:
        raise FigureError(f"--output is {output}; it should end in one of {', '.join(FORMATS)}.")
    if options.value is not None and not entry.takes_value:
        raise FigureError(f"{options.name} takes no --value.")
    chosen: dict[str, Any] = {"value": options.value} if entry.takes_value else {}
    figure = _drawing(entry.draw)([Path(run) for run in options.runs], **chosen)
    with writable(output, "--output"):
        print(f"The figure is in {save(figure, output)}.")
    return 0


def _drawing(name: str) -> Callable[..., Figure]:
    """The function that draws a figure, such as `toy.decision_boundaries`."""
    module, _, function = name.partition(".")
    draw: Callable[..., Figure] = getattr(import_module(f"{figures.__name__}.{module}"), function)
    return draw
