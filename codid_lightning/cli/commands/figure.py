"""`codid figure`: draw the paper's figures from run directories."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from jsonargparse import ArgumentParser
from matplotlib.figure import Figure

from codid_lightning.analysis.figures import evolution, representations, results, toy, training
from codid_lightning.analysis.figures.results import FigureError
from codid_lightning.analysis.figures.style import save
from codid_lightning.cli.commands import help_or_arguments
from codid_lightning.training.config_files import packaged_configs
from codid_lightning.training.runs import writable

FORMATS = (".png", ".pdf", ".svg")
ANY = "runs of one data set"
SNAPSHOTS = "runs of CoDID or its variants with -c configs/callbacks/snapshots.yaml"
MODES = f"{SNAPSHOTS}, on data with known modes"


class Entry(NamedTuple):
    """A figure: the function that draws it, what it shows and which runs it needs."""

    draw: Callable[..., Figure]
    shows: str
    needs: str
    takes_value: bool = False


FIGURES = {
    "boundaries": Entry(toy.decision_boundaries, "decision boundaries on toy data with accuracies", "toy runs"),
    "weights": Entry(training.weight_patterns, "weight patterns: same-mode share against weight divergence", MODES),
    "subclustering": Entry(training.subclustering, "subclustering accuracy of S and DPGMM over iterations", MODES),
    "subclusters": Entry(training.subclusters, "t-SNE of the halves of a cluster chosen for splitting", MODES),
    "evolution": Entry(evolution.evolution, "z1 over epochs by a2, mode and cluster", f"one of the {SNAPSHOTS}", True),
    "iterations": Entry(
        evolution.iterations, "z1 and clusters over iterations, merges and splits written in", f"one of the {SNAPSHOTS}"
    ),
    "complexity": Entry(results.complexity, "parameters and training duration per method", ANY),
    "curves": Entry(results.learning_curves, "clustering metrics and loss of a1 over epochs per method", ANY),
    "shift": Entry(representations.shift, "t-SNE of train and test z1 with silhouette and A-distance", ANY),
    "signals": Entry(
        representations.signals, "signals of the discovered modes of one a1", "a run on time series", True
    ),
    "robustness": Entry(
        results.robustness,
        "accuracy against correlation strength and noise",
        "runs that vary data.init_args.correlation or data.init_args.noise",
    ),
    "sensitivity": Entry(
        results.sensitivity, "accuracy against hyperparameters", "runs that vary arguments of the model"
    ),
    "samples": Entry(
        representations.samples, "samples of the data: a grid of images, traces of series, points", "a run, or a config"
    ),
}


def usage() -> str:
    """The help text: all figures and the runs that they need."""
    lines = [f"  {name:<14} {e.shows}\n{'':<17}needs: {e.needs}" for name, e in FIGURES.items()]
    return "\n".join(
        [
            "usage: codid figure NAME RUN [RUN ...] --output FILE [--value VALUE]",
            "",
            "Draws a figure of the paper from run directories, or folders above them, and writes it to FILE",
            f"({', '.join(FORMATS)}). --value names the value of a1 that `evolution` and `signals` show.",
            "",
            *lines,
        ]
    )


def main(args: list[str] | None = None) -> int:
    """Draw one figure and write it."""
    arguments = help_or_arguments(args, usage())
    if arguments is None:
        return 0
    parser = ArgumentParser(prog="codid figure", add_help=False, exit_on_error=False)
    parser.add_argument("name", type=str, choices=list(FIGURES))
    parser.add_argument("runs", type=str, nargs="+")
    parser.add_argument("--output", type=str, required=True)
    parser.add_argument("--value", type=str | None, default=None)
    options = parser.parse_args(packaged_configs(arguments))
    output, entry = Path(options.output), FIGURES[options.name]
    if output.suffix not in FORMATS:
        raise FigureError(f"--output is {output}; it should end in one of {', '.join(FORMATS)}.")
    if options.value is not None and not entry.takes_value:
        raise FigureError(f"{options.name} takes no --value.")
    chosen: dict[str, Any] = {"value": options.value} if entry.takes_value else {}
    figure = entry.draw([Path(run) for run in options.runs], **chosen)
    with writable(output, "--output"):
        print(f"The figure is in {save(figure, output)}.")
    return 0
