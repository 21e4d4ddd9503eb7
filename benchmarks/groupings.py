"""CMNIST with digits, groups and correlations drawn at random: does CoDID-A hold on data it was not developed on?

    python -m benchmarks.groupings --root data --output results/groupings.md

Grouping k is drawn with seed k before anything is trained, and trained with seed 10. Finished runs are kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.adaptive import adapted
from benchmarks.provenance import header
from codid_lightning.training import build, fit, load
from codid_lightning.training.runs import RESULT, read_result
from datamodules.colored import CMNIST

METHODS = {"base": "configs/cmnist/base.yaml", "codid_adaptive": "configs/cmnist/codid_adaptive.yaml"}
SHORT = "configs/schedules/short.yaml"
SEED = 10


class DrawnCMNIST(CMNIST):
    """Colored MNIST of 4 to 7 random digits in two random groups, each digit with a random share of red.

    Args:
        grouping: Seed of the draw.
    """

    value_names = (("first", "second"), ("red", "blue"))

    def __init__(self, grouping: int = 0, **kwargs: Any) -> None:
        digits, first, red = draw(grouping)
        names: dict[str, Any] = {"classes": digits, "mode_names": tuple(map(str, digits))}
        names |= {"modes_per_value": (first, len(digits) - first), "p_a2_given_mode": (red, tuple(1 - p for p in red))}
        vars(self).update(names)  # before the parent reads them
        super().__init__(**kwargs)


def draw(grouping: int) -> tuple[tuple[int, ...], int, tuple[float, ...]]:
    """Digits, how many of them are in the first group, and the share of red of each; both colors lead somewhere."""
    generator = torch.Generator().manual_seed(grouping)
    count = int(torch.randint(4, 8, (1,), generator=generator))
    digits = tuple(torch.randperm(10, generator=generator)[:count].tolist())
    first = int(torch.randint(2, count - 1, (1,), generator=generator))
    while True:
        strong = 0.05 + 0.2 * torch.rand(count, generator=generator)
        red = torch.where(torch.rand(count, generator=generator) < 0.5, strong, 1 - strong)
        if 0.2 < float((red > 0.5).double().mean()) < 0.8:
            return digits, first, tuple(round(float(p), 2) for p in red)


def run(grouping: int, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """Metrics of one run, and what adaptation makes of them."""
    directory = options.runs / f"grouping{grouping}" / method
    if not (directory / RESULT).is_file():
        data: dict[str, Any] = {"data.class_path": "benchmarks.groupings.DrawnCMNIST"}
        data |= {"data.init_args.root": str(options.root), "data.init_args.grouping": grouping}
        settings = {"seed_everything": SEED, "run_dir": str(directory), "resume": True, "trainer.accelerator": "cpu"}
        epochs = {} if options.epochs is None else {"trainer.max_epochs": options.epochs}
        fit(build(METHODS[method], SHORT, data, settings, epochs))
    return {"metrics": read_result(directory)["metrics"], "adapted": adapted(load(directory), 200)}


def rows(grouping: int, found: dict[str, dict[str, Any]]) -> list[str]:
    """Lines of the table."""
    digits, first, red = draw(grouping)
    described = ", ".join(f"{digit} ({p:.2f})" for digit, p in zip(digits, red, strict=True))
    lines = []
    for method, entry in found.items():
        plain = " / ".join(f"{100 * entry['metrics'][f'test{t}/acc']:.1f}" for t in (1, 2, 3))
        after = " / ".join(f"{100 * statistics.fmean(e['adapted']):.1f}" for _, e in sorted(entry["adapted"].items()))
        gate = entry["metrics"].get("gate/accepted")
        verdict = "" if gate is None else "accepted" if gate else "rejected"
        lines.append(f"| {grouping} | {described}; first {first} | {method} | {plain} | {after} | {verdict} |")
    return lines


def main() -> None:
    """Train what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="Folder with MNIST.")
    parser.add_argument("--runs", type=Path, default=Path("runs/groupings"), help="Folder for the runs.")
    parser.add_argument("--groupings", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--epochs", type=int, help="Instead of those of the short schedule.")
    parser.add_argument("--output", type=Path, default=Path("groupings.md"))
    options = parser.parse_args()
    lines = [
        *header("Groupings drawn at random"), "",
        f"Accuracy of a_1 in %, tests 1 / 2 / 3, seed {SEED}; digits with their share of red in training; with 200 "
        "unlabelled samples: the mean over 5 draws.", "",
        "| grouping | digits | method | nothing known | with unlabelled samples | gate |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    everything = {}
    for grouping in options.groupings:
        found = {method: run(grouping, method, options) for method in METHODS}
        everything[grouping] = found
        lines += rows(grouping, found)
        print("\n".join(rows(grouping, found)), flush=True)
        options.output.write_text("\n".join([*lines, ""]))
        options.output.with_suffix(".json").write_text(json.dumps(everything, indent=1) + "\n")


if __name__ == "__main__":
    main()
