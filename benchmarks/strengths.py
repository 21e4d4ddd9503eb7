"""How strong each baseline's penalty may be before it costs accuracy on validation data: results/strengths.csv.

    python benchmarks/strengths.py --root runs/strengths

Every decade of a method's search space on the colored digits, which need no download, at half their epochs. The choice
is the largest strength whose validation accuracy is within one point of BASE's: a penalty should bite as hard as it can
without harm where nothing has shifted. Test sets are not looked at. Finished runs are skipped.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from math import log10
from pathlib import Path

import yaml

from codid_lightning.cli.main import main as codid
from codid_lightning.training.runs import RESULT, read_result

DATASET, EPOCHS = "colored_digits", 25
TOLERANCE = 0.01
KEY = "model.init_args.strength"
SCORES = ("val/acc", "val/worst_acc")
METHODS = sorted(path.stem for path in Path("configs/baselines").glob("*.yaml"))


def decades(method: str) -> list[float]:
    """The powers of ten in a method's search space."""
    space = yaml.safe_load(Path(f"configs/baselines/{method}.yaml").read_text())["space"][KEY]
    return [10.0**e for e in range(round(log10(space["low"])), round(log10(space["high"])) + 1)]


def run(directory: Path, dataset: str, method: str, strength: float, epochs: int) -> dict[str, float]:
    """Metrics of one run, trained unless its result is there already; nothing if it diverged."""
    if not (directory / RESULT).is_file():
        overlay = () if method == "base" else ("-c", f"configs/baselines/{method}.yaml")
        settings = {
            "run_dir": directory,
            "resume": "true",
            KEY: strength,
            "trainer.max_epochs": epochs,
            "trainer.enable_progress_bar": "false",
            "trainer.logger": "false",
        }
        arguments = [f"--{key}={value}" for key, value in settings.items()]
        if codid(["fit", "-c", f"configs/{dataset}/base.yaml", *overlay, *arguments]):
            return {}
    metrics: dict[str, float] = read_result(directory)["metrics"]
    return metrics


def sweep(root: Path, methods: Sequence[str], epochs: int) -> Iterator[tuple[str, str, float, list[float]]]:
    """Data set, method, strength and validation scores of every run."""
    strengths = {"base": [0.0]} | {method: decades(method) for method in methods}
    for method, strength in ((method, strength) for method, grid in strengths.items() for strength in grid):
        metrics = run(root / DATASET / f"{method}-{strength:g}", DATASET, method, strength, epochs)
        yield DATASET, method, strength, [metrics.get(score, float("nan")) for score in SCORES]


def choose(rows: list[tuple[str, str, float, list[float]]]) -> dict[str, float]:
    """The largest harmless strength of each method, or its smallest if all do harm."""
    accuracy: dict[tuple[str, float], list[float]] = {}
    for _, method, strength, (acc, *_) in rows:
        accuracy.setdefault((method, strength), []).append(acc)
    means = {key: sum(values) / len(values) for key, values in accuracy.items()}
    enough = means["base", 0.0] - TOLERANCE
    chosen = {method: strength for (method, strength), mean in sorted(means.items()) if mean >= enough}
    return {method: chosen.get(method, min(s for m, s in means if m == method)) for method, _ in means}


def main() -> int:
    """Run what is missing, write the scores, print the choice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("runs/strengths"), help="folder for the runs")
    parser.add_argument("--output", type=Path, default=Path("results/strengths.csv"))
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS, help="these methods, beside BASE")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    options = parser.parse_args()
    rows = list(sweep(options.root, options.only, options.epochs))
    chosen = choose(rows)
    options.output.parent.mkdir(exist_ok=True)
    with options.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["dataset", "method", "strength", *(s.replace("/", "_") for s in SCORES), "chosen"])
        for dataset, method, strength, scores in rows:
            writer.writerow(
                [dataset, method, f"{strength:g}", *(f"{s:.4f}" for s in scores), chosen[method] == strength]
            )
    print("\n".join(f"{method}: {strength:g}" for method, strength in chosen.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
