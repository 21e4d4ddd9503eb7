"""How the clusters follow the true modes from one refinement to the next, in runs whose true modes are known.

    codid benchmark -c benchmarks/parts.yaml
    python -m benchmarks.refinements runs/parts --output results/parts_refinements.md

A row is one refinement: mean over the runs of a method, one for each seed. The true modes only score.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from pathlib import Path

from benchmarks.provenance import header
from codid_lightning.analysis.tables.names import dataset_title, method_order, method_title
from codid_lightning.analysis.tables.scores import Run, load_runs

COLUMNS = {
    "modes/acc": "ACC",
    "modes/ari": "ARI",
    "modes/nmi": "NMI(c; m)",
    "modes/nmi_a2": "NMI(c; a_2)",
    "modes/nmi_given_a2": "NMI(c; m given a_2)",
    "modes/count": "clusters",
    "modes/proposed": "proposed",
    "modes/accepted": "accepted",
}
SPREAD = {"modes/acc", "modes/nmi", "modes/nmi_a2"}  # columns with a standard deviation over seeds


def refinements(run: Run) -> dict[int, dict[str, float]]:
    """Scores of the modes after each refinement, by epoch. Every epoch logs them; a refinement changes them."""
    found: dict[int, dict[str, float]] = {}
    for file in sorted((run.directory / "logs").glob("*/metrics.csv")):
        with file.open() as text:
            for row in csv.DictReader(text):
                if row.get("modes/acc"):
                    found.setdefault(int(row["epoch"]), {c: float(row[c] or "nan") for c in COLUMNS if c in row})
    if not found:
        return {}
    every = int(next(value for key, value in run.config.items() if ".discovery." in key and key.endswith(".every")))
    first = min(found)
    return {epoch: scores for epoch, scores in sorted(found.items()) if (epoch - first) % every == 0}


def cell(values: list[float], column: str) -> str:
    """Mean over seeds and, for the main columns, the standard deviation."""
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return "–"
    digits = 1 if column in ("modes/count", "modes/proposed", "modes/accepted") else 2
    spread = f" ±{statistics.stdev(values):.2f}" if column in SPREAD and len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def table(runs: list[Run]) -> list[str]:
    """Rows of one method on one data set."""
    by_epoch: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for epoch, scores in refinements(run).items():
            for column, value in scores.items():
                by_epoch[epoch][column].append(value)
    lines = ["| epoch | " + " | ".join(COLUMNS.values()) + " |", "|---" * (1 + len(COLUMNS)) + "|"]
    for epoch, columns in sorted(by_epoch.items()):
        lines.append(f"| {epoch} | " + " | ".join(cell(columns[c], c) for c in COLUMNS) + " |")
    return lines


def main() -> None:
    """Read the runs, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="folder of finished runs")
    parser.add_argument("--output", type=Path, required=True, help="Markdown file")
    options = parser.parse_args()
    runs, complaints = load_runs([options.runs])
    print(*complaints, sep="\n")
    groups: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        if refinements(run):
            groups[run.dataset, run.method].append(run)
    if not groups:
        raise SystemExit(f"{options.runs} holds no finished run that discovers modes and knows the true ones.")
    lines = header("Modes after each refinement")
    lines += [
        "",
        "Means over seeds, ± standard deviation. Epoch: the epoch at whose end clusters were found or refined.",
    ]
    for (dataset, method), members in sorted(groups.items(), key=lambda item: (item[0][0], method_order(item[0][1]))):
        seeds = ", ".join(str(run.seed) for run in sorted(members, key=lambda run: run.seed))
        title = members[0].title or method_title(method)
        lines += ["", f"## {dataset_title(dataset)}, {title} (seeds {seeds})", "", *table(members)]
    options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
