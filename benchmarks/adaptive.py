"""What adaptation gains: accuracy of trained runs before and after 200 unlabelled samples of each test set.

    codid benchmark -c benchmarks/adaptive.yaml
    python -m benchmarks.adaptive runs/adaptive --output results/adaptive.md

Labels of a_1 are read only to score. The unlabelled samples are drawn `DRAWS` times; a run's number is the mean. What
has been measured stays in the JSON file beside the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.provenance import header
from codid_lightning.analysis.tables.names import dataset_title, method_order, method_title
from codid_lightning.analysis.tables.scores import Run, load_runs
from codid_lightning.methods.codid.module import CoDID
from codid_lightning.methods.codid.parts.prior import PriorInLogits
from codid_lightning.training import LoadedRun, load
from datamodules.base import AttributeDataset

DRAWS = 5
CHUNK = 1000  # samples that are encoded at once


@torch.no_grad()
def accuracy(model: CoDID, data: AttributeDataset) -> float:
    """Accuracy of a_1 under what the model believes of the place of use."""
    right = 0
    for index in torch.arange(len(data)).split(CHUNK):
        batch = data[index]
        right += int((model.attribute_logits(model(batch["x"]), batch["a"])[0].argmax(1) == batch["a"][:, 0]).sum())
    return right / len(data)


def adapted(run: LoadedRun, samples: int) -> dict[str, dict[str, Any]]:
    """For each test set: accuracy with pi uniform, and adapted; beliefs that were chosen; readings of the dial."""
    model = run.model
    if not isinstance(model, CoDID) or not isinstance(model.mode_loss, PriorInLogits):
        return {}
    found: dict[str, dict[str, Any]] = {}
    for name in run.data.test_names:
        data = run.data.datasets[name]
        model.adaptation = None
        entry: dict[str, Any] = {"uniform": accuracy(model, data), "adapted": [], "chosen": [], "dial": []}
        for draw in range(DRAWS):
            some = torch.randperm(len(data), generator=torch.Generator().manual_seed(draw))[:samples]
            batch = data[some]
            adaptation = model.adapt(batch["x"], batch["a"][:, 1:])
            entry["adapted"].append(accuracy(model, data))
            entry["chosen"].append(adaptation.belief.kind)
            entry["dial"].append(None if adaptation.dial is None else list(adaptation.dial))
        found[name] = entry
    return found


def measure(runs: Sequence[Run], samples: int, kept: dict[str, Any], file: Path) -> dict[str, Any]:
    """Numbers of every run by its directory's name; each is on disk as soon as it is known."""
    for run in runs:
        key = f"{run.dataset}/{run.method}/{run.directory.name}"
        if key not in kept:
            plain = {n: v for n, v in run.metrics.items() if n.startswith(("test", "gate/")) and n.count("/") == 1}
            facts = {"dataset": run.dataset, "method": run.method, "seed": run.seed, "group": run.group}
            kept[key] = {**facts, "metrics": plain, "adapted": adapted(load(run.directory), samples)}
            file.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
            print(f"measured {key}", flush=True)
    return {key: kept[key] for key in sorted(kept)}


def table(measured: dict[str, Any]) -> list[str]:
    """Lines of a Markdown table: a row per data set and method."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for entry in measured.values():
        rows[entry["dataset"], entry["method"]].append(entry)
    lines = [
        "| data set | method | runs | tests 1 / 2 / 3, nothing known | with unlabelled samples | gate | chosen |",
        "|---|---|---|---|---|---|---|",
    ]
    for (dataset, method), entries in sorted(rows.items(), key=lambda row: (row[0][0], method_order(row[0][1]))):
        tests = sorted(name.partition("/")[0] for name in entries[0]["metrics"] if name.endswith("/acc"))
        plain = " / ".join(_score([100 * e["metrics"][f"{t}/acc"] for e in entries]) for t in tests)
        after, chosen = "", ""
        if all(e["adapted"] for e in entries):
            means = [[100 * statistics.fmean(e["adapted"][t]["adapted"]) for e in entries] for t in tests]
            after = " / ".join(map(_score, means))
            counts = [Counter(kind for e in entries for kind in e["adapted"][t]["chosen"]) for t in tests]
            chosen = " / ".join(", ".join(f"{kind} {n}" for kind, n in count.most_common()) for count in counts)
        gates = [e["metrics"]["gate/accepted"] for e in entries if "gate/accepted" in e["metrics"]]
        gate = f"{sum(gates):.0f} of {len(gates)}" if gates else ""
        titles = (dataset_title(dataset), method_title(method))
        lines.append(f"| {titles[0]} | {titles[1]} | {len(entries)} | {plain} | {after} | {gate} | {chosen} |")
    return lines


def _score(values: Sequence[float]) -> str:
    spread = f" ±{statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="Folder of the benchmark's runs.")
    parser.add_argument("--output", type=Path, default=Path("adaptive.md"))
    parser.add_argument("--samples", type=int, default=200, help="Unlabelled samples of each test set.")
    options = parser.parse_args()
    file = options.output.with_suffix(".json")
    kept = json.loads(file.read_text()) if file.is_file() else {}
    runs, complaints = load_runs([options.runs])
    for complaint in complaints:
        print(complaint)
    lines = table(measure(runs, options.samples, kept, file))
    explanation = (
        f"Accuracy of a_1 in %, mean and standard deviation over runs (seeds, and held-out groups where a data set has "
        f"them). With unlabelled samples: after adaptation to {options.samples} of them, the mean over {DRAWS} draws. "
        "Gate: runs in which the autoencoder was accepted. Chosen: what adaptation chose, over runs and draws."
    )
    options.output.write_text("\n".join([*header("Adaptation"), "", explanation, "", *lines, ""]))


if __name__ == "__main__":
    main()
