"""Four scalings of series: accuracy of BASE on UCI-HAR with each of them.

    python -m benchmarks.scalings --data data --source hapt --output results/scalings.md

Group 0 is the test set. Finished runs are skipped. Both accuracies are printed; nothing is chosen here.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from benchmarks.provenance import header
from codid_lightning.cli.main import main as codid
from codid_lightning.training.runs import RESULT, read_result
from datamodules.scaling import ScalingKind

SCORES = {"val/acc": "validation", "val/worst_acc": "validation, worst cell", "test/acc": "test"}
SHORT = {"trainer.max_epochs": 12, "model.init_args.decay_from": 0.4}
QUIET = {"trainer.enable_progress_bar": "false", "trainer.logger": "false", "resume": "true"}


def trained(directory: Path, values: dict[str, object]) -> dict[str, float]:
    """Metrics of a run, trained unless its result is there already."""
    if not (directory / RESULT).is_file():
        settings = {**SHORT, **QUIET, **values, "run_dir": directory}
        if codid(["fit", "-c", "configs/uci_har/base.yaml", *(f"--{k}={v}" for k, v in settings.items())]):
            raise SystemExit(f"The run in {directory} failed.")
    metrics: dict[str, float] = read_result(directory)["metrics"]
    return metrics


def table(found: dict[str, list[dict[str, float]]]) -> Iterator[str]:
    """A row per scaling: mean and standard deviation over seeds, in percent."""
    yield "| `data.scaling` | runs | " + " | ".join(SCORES.values()) + " |"
    yield "|---|---|" + "---|" * len(SCORES)
    for kind, runs in found.items():
        cells = [score([100 * run[name] for run in runs]) for name in SCORES]
        yield f"| `{kind}` | {len(runs)} | " + " | ".join(cells) + " |"


def score(values: Sequence[float]) -> str:
    """Mean, spread and every seed's value."""
    spread = f" ±{statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread} ({', '.join(f'{value:.1f}' for value in values)})"


def main() -> int:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--source", choices=["uci_har", "hapt"], default="uci_har", help="which files of it")
    parser.add_argument("--root", type=Path, default=Path("runs/scalings"), help="folder for the runs")
    parser.add_argument("--output", type=Path, default=Path("results/scalings.md"))
    parser.add_argument("--epochs", type=int, default=SHORT["trainer.max_epochs"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in get_args(ScalingKind)}
    for seed in options.seeds:
        for kind, runs in found.items():
            values = {
                "seed_everything": seed,
                "trainer.max_epochs": options.epochs,
                "data.scaling": kind,
                "data.root": options.data,
                "data.source": options.source,
            }
            runs.append(trained(options.root / f"{kind}-{seed}", values))
    explanation = (
        f"Accuracy of the activity in %, BASE, {options.epochs} epochs (data.source: {options.source}), "
        "group 0 as test set: mean, standard deviation and the single seeds. Validation windows are of the training "
        "users. No setting was chosen by this table."
    )
    options.output.write_text(
        "\n".join([*header("Scalings of series on UCI-HAR"), "", explanation, "", *table(found), ""])
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
