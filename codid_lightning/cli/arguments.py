"""What commands accept, and their help: nothing here loads torch, so that help and misspelt options answer at once.

Commands on a trained run take all arguments of `codid test`; of these, LightningCLI has the parser. `benchmark`, `tune`
and `prepare` take the arguments of classes and explain them with the classes' own documentation.
"""

from __future__ import annotations

import difflib
from argparse import ArgumentError, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from codid_lightning.errors import RunError

FORMATS = (".png", ".pdf", ".svg")  # of figures
METRICS = ("acc", "f1", "worst_group_acc", "class_balanced_acc", "adjusted_acc", "auroc", "ece")  # of tables
ANY = "runs of one data set"
SNAPSHOTS = "runs of CoDID or its variants with -c configs/callbacks/snapshots.yaml"
MODES = f"{SNAPSHOTS}, on data with known modes"


class Entry(NamedTuple):
    """A figure: what draws it, what it shows and which runs it needs."""

    draw: str  # module and function in `analysis.figures`
    shows: str
    needs: str
    takes_value: bool = False


FIGURES = {
    "boundaries": Entry("toy.decision_boundaries", "decision boundaries on toy data with accuracies", "toy runs"),
    "weights": Entry("training.weight_patterns", "weight patterns: same-mode share against weight divergence", MODES),
    "subclustering": Entry("training.subclustering", "subclustering accuracy of S and DPGMM over iterations", MODES),
    "subclusters": Entry("training.subclusters", "t-SNE of the halves of a cluster chosen for splitting", MODES),
    "evolution": Entry(
        "evolution.evolution", "z1 over epochs by a2, mode and cluster", f"one of the {SNAPSHOTS}", True
    ),
    "iterations": Entry(
        "evolution.iterations",
        "z1 and clusters over iterations, merges and splits written in",
        f"one of the {SNAPSHOTS}",
    ),
    "complexity": Entry("results.complexity", "parameters and training duration per method", ANY),
    "curves": Entry("results.learning_curves", "clustering metrics and loss of a1 over epochs per method", ANY),
    "shift": Entry("representations.shift", "t-SNE of train and test z1 with silhouette and A-distance", ANY),
    "signals": Entry(
        "representations.signals", "signals of the discovered modes of one a1", "a run on time series", True
    ),
    "ranks": Entry(
        "ranks.average_ranks",
        "average ranks over data sets; a bar joins methods that do not differ",
        "runs of two methods or more on two data sets or more",
        True,
    ),
    "robustness": Entry(
        "results.robustness",
        "accuracy against correlation strength and noise",
        "runs that vary data.init_args.correlation or data.init_args.noise",
    ),
    "sensitivity": Entry(
        "results.sensitivity", "accuracy against hyperparameters", "runs that vary arguments of the model"
    ),
    "samples": Entry(
        "representations.samples",
        "samples of the data: a grid of images, traces of series, points",
        "a run, or a config",
    ),
}

USAGES = {
    "verify": """usage: codid verify RUN_DIRECTORY [--tolerance NUMBER] [--key value ...]

Tests the checkpoint of a run again, and compares every test metric with the run's result.json. Compares data, config
and code with the checksums there. The exit code is 1 if a metric, the data or the config differs. Code may differ: the
metrics show whether it matters.

  --tolerance    how much a metric may differ; default 1e-06. Another number of threads or another device changes
                 the last digits of the logits, and seldom a prediction.
  --key value    any argument of `codid test`, for example --data.init_args.root""",
    "adapt": """usage: codid adapt RUN --data TEST_SET|FILE|CONFIG [--samples N] [--output FILE] [--key value ...]

Adapts a model with `model.mode_loss: PriorInLogits` to a place of use. From unlabelled samples of it, the command
estimates how modes of the first attribute and the other attributes correlate there, prints and draws what changed, and
writes adaptation.json beside the checkpoint. Labels of the first attribute are never read.
`codid test` and `codid predict` use the result with `--adapted true`, or `--adapted FILE`.

  --data            a test set of the run, such as test3; a table or arrays of your own (.csv, .tsv, .parquet, .npz); or
                    a data config (.yaml)
  --split           the test set of a data config, where it has several
  --samples         use a random part of so many samples; default: all, but at most 5000
  --seed            of this part; default: 0
  --predict_others  true: predict the other attributes, even where they are given
  --output          the JSON file; the figure lies beside it as .png; default: adaptation.json at the checkpoint
  --key value       any argument of `codid test`, for example --data.root""",
    "repair": """usage: codid repair RUN_DIRECTORY [--output FILE.ckpt] [--key value ...]
       codid repair -c CONFIG ... --ckpt_path CHECKPOINT [--output FILE.ckpt] [--key value ...]

Fits the last layer of the first attribute again, to validation samples with equally many in every cell (a_1, a_2), as
DFR does (Kirichenko et al., ICLR 2023), and prints the accuracy of every cell before and after. Each sample is judged
by a layer that was fitted without it. Test data are not read. The checkpoint with the new layer lies beside the run's
own; `codid test` and `codid predict` take it as --ckpt_path.

  --output       the checkpoint; default: repaired.ckpt beside the run's own
  --key value    any argument of `codid test`, for example --data.root""",
    "audit": """usage: codid audit --table FILE|FOLDER --target COLUMN --other COLUMN ... [--predictions FILE] [...]
       codid audit RUN_DIRECTORY [--output FILE] [--key value ...]
       codid audit -c CONFIG ... --ckpt_path CHECKPOINT [--output FILE] [--key value ...]

With --table, for any data and anybody's predictions: tests whether target and other attributes are correlated, plainly
or within a value of the target, whether inputs show the attributes, and in which cells predictions are worse. With a
run: a page about the model of that run and its data.

  --table         .csv, .tsv, .parquet; .npz with inputs `x` and labels; or a folder with metadata.csv and pictures
  --target        the column to predict
  --other         columns that a model should not rely on: site, device, person, batch, color
  --predictions   a table with a column `prediction`, a row for each row of the data, or with a column `row`
  --prediction_column  its name, if another
  --features      embeddings of the rows (.npy or a table), instead of the table's columns
  --group         the column of the person or device that a row is from: rows of one group count as dependent
  --split         a column that says `train` or the name of a test set
  --exclude       columns that are no inputs
  --fail-on       shortcut, hurt, leak, duplicates: exit code 3 if it is found
  --seed          of permutations and samples; default: 0
  --output        the page, with --table also .json; default: audit.html in the run's directory, or here
  --key value     with a run: any argument of `codid test`, for example --data.root""",
    "auto": """usage: codid auto --table FILE --target COLUMN --other COLUMN ... [--budget 20m] [--output FOLDER]
       codid auto --model FOLDER --table NEW_FILE [--output predictions.csv]

Audits the table, tries plain models and models against shortcuts, chooses one on rows that it was not trained on, and
judges it on test rows. The folder then holds the page auto.html, auto.json and the model. With
--model, predicts new rows.

  --table         .csv, .tsv, .parquet, or .npz with inputs `x` (rows, inputs) and labels
  --target        the column to predict
  --other         columns that the model should not rely on: site, device, person, batch
  --features      embeddings of the rows (.npy or a table), instead of the table's columns
  --group         the column of the person or device that a row is from
  --split         a column that says `train` or the name of a test set; default: one in five rows is a test row
  --exclude       columns that are no inputs
  --budget        time after which no candidate begins: 90s, 20m, 1h; default: 20m. Ctrl-C ends the search, too
  --seed          default: 0
  --output        the folder; default: auto. The same command goes on with an interrupted search""",
    "export": """usage: codid export RUN_DIRECTORY [--output FILE.pt2] [--key value ...]

Writes a trained model as a program of torch.export, which needs PyTorch and nothing of this package. It takes
raw inputs (rows, ...) and the numbers of the other attributes' values (rows, attributes - 1), and gives
probabilities of the first attribute. `codid.json` in the file has names of inputs, attributes and values. The file
is read back and compared with the model on test samples.

  --output       default: model.pt2 in the run's directory
  --key value    any argument of `codid test`, for example --data.root or --adapted""",
    "evaluate": """usage: codid evaluate RUN_DIRECTORY [--partition FILE] [--key value ...]
       codid evaluate -c CONFIG ... --ckpt_path CHECKPOINT [--partition FILE] [--key value ...]

Computes accuracy, worst groups, leakage, MI, DCI-I, A-distance and cluster scores of a trained run, prints them and
adds them to the run's result.json, from which `codid report` makes tables.

  --partition    write instead the run's cells of the validation samples (its mode of the first attribute, and the value
                 of the second) to this .npz file, which other runs take as data.partition
  --key value    any argument of `codid test`, for example --data.root""",
    "data": """usage: codid data summary -c CONFIG [--data.key value ...] [--output FILE]
       codid data summary --data CLASS [--data.key value ...] [--output FILE]

Prints shapes, the samples of every attribute value and mode in each split, I(a1; a2) and, where modes are known, the
hidden correlation I(m1; a2 | a1), and draws samples. Downloads what is missing, as `codid fit` would.

  -c CONFIG       any config with a data section, for example configs/colored_digits/codid.yaml
  --data CLASS    a data set by name, for example ColoredDigits
  --data.KEY      an argument of the data set, for example --data.root; all: codid fit --data.help ColoredDigits
  --output FILE   where the picture goes (png, pdf, svg); default: <data set>-samples.png""",
}


class Parser(ArgumentParser):
    """A parser that raises an `ArgumentError`, which names the nearest option, instead of ending the process."""

    def __init__(self, command: str, description: str | None = None, add_help: bool = True) -> None:
        super().__init__(
            prog=f"codid {command}",
            description=description,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=add_help,
        )

    def error(self, message: str) -> NoReturn:
        """Raise instead of exit."""
        unknown = message.partition("unrecognized arguments: ")[2].split()
        if unknown and unknown[0].startswith("-"):
            option = unknown[0].partition("=")[0]
            close = difflib.get_close_matches(option, self._option_string_actions, n=1)
            message = f"There is no option `{option}`."
            message += f" Did you mean `{close[0]}`?" if close else f" `{self.prog} --help` lists all."
        raise ArgumentError(None, message)


def report_parser() -> Parser:
    """The arguments of `codid report`."""
    parser = Parser("report", "Make the paper's tables from run directories.")
    parser.add_argument("runs", nargs="+", help="run directories, or folders above them")
    parser.add_argument(
        "--output",
        help="file to write: .md (Markdown), .tex (LaTeX), .csv, .html (with figures) or .json (all results); default: "
        "the terminal",
    )
    parser.add_argument("--datasets", nargs="+", help="data sets to show; default: those with runs")
    parser.add_argument(
        "--metrics",
        nargs="+",
        choices=METRICS,
        metavar="METRIC",
        help=f"scores of test sets to show, of {', '.join(METRICS)}; default: all that the runs have",
    )
    parser.add_argument("--reference", help="method that the others are compared with; default: codid")
    parser.add_argument("--intervals", action="store_true", help="bootstrap intervals in place of standard deviations")
    return parser


def demo_parser() -> Parser:
    """The arguments of `codid demo`."""
    description = (
        "Train a plain network and CoDID on colored digits, and show how they do where the colors are\nothers."
    )
    parser = Parser("demo", description)
    output = Path("runs/demo")
    parser.add_argument("--output", type=Path, default=output, help=f"folder for runs and report; default: {output}")
    return parser


def figure_parser() -> Parser:
    """The arguments of `codid figure`; its help is `figure_usage`."""
    parser = Parser("figure", add_help=False)
    parser.add_argument("name", choices=list(FIGURES))
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--output", required=True)
    parser.add_argument("--value")
    return parser


def figure_usage() -> str:
    """The help text: all figures and the runs that they need."""
    lines = [f"  {name:<14} {e.shows}\n{'':<17}needs: {e.needs}" for name, e in FIGURES.items()]
    return "\n".join(
        [
            "usage: codid figure NAME RUN [RUN ...] --output FILE [--value VALUE]",
            "",
            "Draws a figure of the paper from run directories, or folders above them, and writes it to FILE",
            f"({', '.join(FORMATS)}). --value names the value of a1 that `evolution` and `signals` show, and the score",
            "that `ranks` shows.",
            "",
            *lines,
        ]
    )


PARSERS: dict[str, Callable[[], Parser]] = {"report": report_parser, "demo": demo_parser, "figure": figure_parser}


def help_of(command: str, args: Sequence[str]) -> str | None:
    """The help of a command if its arguments ask for it; None if they do not, or if only the command itself has it."""
    asks = bool({"-h", "--help"} & set(args))
    if command == "data":
        return USAGES[command] if asks or list(args) in ([], ["summary"]) else None
    if command in USAGES or command == "figure":
        text = figure_usage() if command == "figure" else USAGES[command]
        return text if not args or args[0] in ("-h", "--help") else None
    return PARSERS[command]().format_help() if asks and command in PARSERS else None


def check(command: str, args: Sequence[str]) -> None:
    """Raise an `ArgumentError` if a command does not accept its arguments, as far as that is known without torch."""
    if command in PARSERS:
        PARSERS[command]().parse_args(args)


def without_path(arguments: list[str], name: str) -> tuple[list[str], Path | None]:
    """The arguments without an option of the command that LightningCLI does not have, and the file it names."""
    others, value = without_option(arguments, name, "the name of a file")
    return others, None if value is None else Path(value)


def without_option(arguments: list[str], name: str, what: str = "a value") -> tuple[list[str], str | None]:
    """The arguments without an option of the command that LightningCLI does not have, and its value."""
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            return arguments[:i] + arguments[i + 1 :], argument.partition("=")[2]
        if argument == name:
            if i + 1 == len(arguments):
                raise RunError(f"{name} needs {what}.")
            return arguments[:i] + arguments[i + 2 :], arguments[i + 1]
    return arguments, None
