"""All methods on the toy data, the colored digits and CMNIST: the runs behind results/methods.md.

    python benchmarks/methods.py strengths --root runs/strengths     # validation accuracy over a grid of strengths
    python benchmarks/methods.py table --root runs/methods           # the table's runs, then
    codid report runs/methods --output results/methods.md

Finished runs are skipped, so both can be stopped and started again. Everything runs in one process, one run at a time.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from pathlib import Path

from codid_lightning.cli import main as codid
from codid_lightning.runs import RESULT, read_result

BASELINES = sorted(path.stem for path in Path("configs/baselines").glob("*.yaml"))
EPOCHS = {"toy": 20, "colored_digits": 50, "cmnist": 10}
STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
SWEPT = ("toy", "colored_digits")  # at half their epochs


def run(directory: Path, dataset: str, method: str, seed: int, *overrides: str) -> dict[str, float]:
    """Metrics of one run, trained unless its result is there already; nothing if it diverged."""
    if not (directory / RESULT).is_file():
        overlay = () if method == "base" else ("-c", f"configs/baselines/{method}.yaml")
        settings = {
            "seed_everything": seed,
            "data.seed": seed,
            "run_dir": directory,
            "resume": "true",
            "trainer.max_epochs": EPOCHS[dataset],
            "trainer.enable_progress_bar": "false",
            "trainer.logger": "false",
        }
        arguments = [f"--{key}={value}" for key, value in settings.items()]
        if codid(["fit", "-c", f"configs/{dataset}/base.yaml", *overlay, *arguments, *overrides]):
            return {}
    metrics: dict[str, float] = read_result(directory)["metrics"]
    return metrics


def sweep(root: Path, output: Path) -> None:
    """Validation accuracy of every method at every strength; test sets are not looked at."""
    rows = []
    grid = [("base", 0.0), *itertools.product(BASELINES, STRENGTHS)]
    for (method, strength), dataset in itertools.product(grid, SWEPT):
        changed = (f"--model.strength={strength}", f"--trainer.max_epochs={EPOCHS[dataset] // 2}")
        metrics = run(root / dataset / f"{method}-{strength:g}", dataset, method, 0, *changed)
        rows.append((dataset, method, strength, f"{metrics.get('val/acc', float('nan')):.4f}"))
    with output.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("dataset", "method", "strength", "val_acc"), *rows])


def table(root: Path, seeds: int, data_root: str) -> None:
    """One run per data set, method and seed."""
    for dataset, seed, method in itertools.product(EPOCHS, range(seeds), ["base", *BASELINES]):
        place = [f"--data.root={data_root}"] if dataset == "cmnist" else []
        run(root / dataset / method / f"seed{seed}", dataset, method, seed, *place)


def main() -> int:
    """Parse and run one of the two tasks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=("strengths", "table"))
    parser.add_argument("--root", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--output", type=Path, default=Path("results/methods_strengths.csv"), help="of the sweep")
    parser.add_argument("--seeds", type=int, default=2, help="of the table")
    parser.add_argument("--data_root", default="data", help="folder that holds MNIST")
    options = parser.parse_args()
    if options.task == "strengths":
        sweep(options.root, options.output)
    else:
        table(options.root, options.seeds, options.data_root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
