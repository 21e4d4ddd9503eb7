"""What the terms of the subclustering net's loss change in the splits it proposes, on CMNIST.

    python -m benchmarks.splits --root data --output results/subclustering.md

S moves no other network. So one run trains several copies of it, all from the same start, each with its own loss, and
at every split all copies propose for the same clusters; the first one's proposals count. A second run per seed averages
the logits of merged clusters in the mode predictor instead of keeping their probability. What has been measured stays
in the JSON file beside the table.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from lightning import seed_everything
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.provenance import header
from codid_lightning import CoDID
from codid_lightning.clustering import Clustering
from codid_lightning.methods.codid.discovery import Due, Encoded, ModeDiscovery
from codid_lightning.methods.codid.parts.base import OptimizerSettings
from codid_lightning.methods.codid.parts.mode_losses import PredictModes
from codid_lightning.methods.codid.parts.splits import LearnedSplits
from codid_lightning.methods.codid.parts.weights import LearnedWeights
from codid_lightning.methods.codid.target import Target, View
from codid_lightning.methods.losses import binary_divergence, gaussian_divergence, isotropic_loss, weight_alignment_loss
from codid_lightning.nn.slots import carry_over
from codid_lightning.training import build
from datamodules import CMNIST

FORMS = {
    "printed": "L_wa over clusters, then pairs; weights relative to their cluster's mean",
    "all_pairs": "L_wa over all pairs, i = j among them",
    "raw_weights": "weights as the sigmoid gives them",
    "both": "all pairs, and weights as the sigmoid gives them",
    "isotropic": "without L_wa",
    "labels_before": "as the first, but halves of the clusters before expectation maximisation",
}
COPIES = [form for form in FORMS if form != "labels_before"]  # that one is the first net, asked in another way


def raw_divergence(weights: Tensor, together: Tensor, others: Tensor) -> Tensor:
    """`summary_divergence` of weights at the level they have."""
    together, others = together.to(weights), others.to(weights)
    count = together @ others
    mean = (weights * together) @ others / count.clamp_min(1)
    variance = ((weights.square() * together) @ others / count.clamp_min(1) - mean.square()).clamp_min(0) + 1e-4
    rows, columns = (
        (mean[..., :, None, :], variance[..., :, None, :]),
        (mean[..., None, :, :], variance[..., None, :, :]),
    )
    share = count / count.sum(-1, keepdim=True).clamp_min(1)
    return (gaussian_divergence(*rows, *columns) * share[..., :, None, :]).sum(-1)


def all_pairs_loss(first_half: Tensor, divergence: Tensor, together: Tensor) -> Tensor:
    """`weight_alignment_loss` with every pair counted once, so that a cluster counts by its size squared."""
    apart = binary_divergence(first_half[..., :, None], first_half[..., None, :])
    return (apart / (divergence + 0.05) * together).sum() / together.sum().clamp_min(1)


@dataclass(frozen=True)
class BothDivergences(LearnedWeights):
    """Weights whose summaries are compared at both levels."""

    @torch.no_grad()
    def divergence(self, target: Target, view: View, pair_losses: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Divergence of relative weights, mask of pairs, and divergence of raw weights."""
        found, together = super().divergence(target, view, pair_losses)
        raw = raw_divergence(
            self.weight_grid(target, view, pair_losses), together, target.compared(view).table.pad(view.others)
        )
        return found, together, raw


@dataclass(frozen=True)
class SplitsOfAllForms(LearnedSplits):
    """S, and copies of it with other losses."""

    def heads(self, target: Target) -> dict[str, nn.Module]:
        """The copies start from the same weights."""
        found = super().heads(target)
        return found | {f"subcluster_{form}": copy.deepcopy(net) for net in found.values() for form in COPIES[1:]}

    def nets(self, target: Target) -> dict[str, Any]:
        """By form."""
        return {form: getattr(target, f"subcluster_{'net' if form == COPIES[0] else form}") for form in COPIES}

    def slot_tables(self, target: Target) -> list[nn.Parameter]:
        """Rows of all."""
        return [row for net in self.nets(target).values() for row in (net.out_weight, net.out_bias)]

    def optimizers(self, codid: CoDID) -> dict[str, OptimizerSettings]:
        """One for all: Adam treats every parameter by itself."""
        networks = [net for target in codid.mode_targets() for net in self.nets(target).values()]
        return {"subcluster": OptimizerSettings(networks, codid.lr)}

    def step(self, codid: CoDID, views: list[View]) -> None:
        """One update of every copy."""
        for target, view in zip(codid.target_list, views, strict=True):
            if not target.moded:
                continue
            own, centres = view.own.detach(), target.update_subcluster_means(view)[view.slot]
            summaries: Any = codid.alignment.weight_divergence(target, view)  # type: ignore[union-attr]
            relative, together, raw = summaries
            for form, net in self.nets(target).items():
                probs = net(own, view.table, view.slot)
                loss = isotropic_loss(probs, own, centres)
                if form != "isotropic":
                    of_pairs = all_pairs_loss if form in ("all_pairs", "both") else weight_alignment_loss
                    divergence = raw if form in ("raw_weights", "both") else relative
                    halves = target.compared(view).table.pad(probs[:, 0])
                    loss = loss + self.weight_alignment * of_pairs(halves, divergence, together)
                codid.minimise(codid.optimizer("subcluster"), loss, parameters=net, reduce=False)

    @torch.no_grad()
    def proposals(self, target: Target, z: Tensor, values: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Of every form."""
        for form, net in self.nets(target).items():
            parts = zip(z.split(4096), values.split(4096), strict=True)
            yield form, torch.cat([net.in_all_slots(*part) for part in parts])
        yield "labels_before", self.subcluster_probs(target, z, values)


@dataclass(eq=False)
class ComparingDiscovery(ModeDiscovery):
    """Asks all forms at every split, for the same clusters, and keeps their log Hastings ratios."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.compared: list[dict[str, Any]] = []

    def decide(self, module: CoDID, target: Target, due: Due, encoded: Encoded) -> Clustering:
        """The first form's proposals count."""
        if due == "split":
            own, values = encoded.z[:, target.attribute], encoded.a[:, target.attribute]
            entry: dict[str, Any] = {"epoch": module.current_epoch}
            splits: Any = module.splits
            halves = {}
            for form, proposed in splits.proposals(target, own, values):
                with torch.random.fork_rng():
                    moves = copy.deepcopy(self.modes_of(target)).refine(own, values, due, proposed).moves
                entry[form] = [(move.log_hastings, move.accepted) for move in moves]
                if proposed.ndim == 3:
                    own_slot = target.labels.long() % target.slots
                    halves[form] = proposed[torch.arange(len(own_slot)), own_slot, 0] > 0.5
            entry["agreement"] = {
                form: agreement(halves[COPIES[0]], half, target.labels) for form, half in halves.items()
            }
            self.compared.append(entry)
        return super().decide(module, target, due, encoded)


@dataclass(frozen=True)
class AveragedMerges(PredictModes):
    """A merged cluster gets the mean of its parts' logits, and so less than the sum of their probabilities."""

    def clusters_changed(self, target: Target, found: Clustering, z: Tensor, optimizers: Iterable[Optimizer]) -> None:
        """Rows are inherited, and halved for the children of a split."""
        carry_over(self.slot_tables(target), found.inherit.to(z.device), optimizers)
        with torch.no_grad():
            target.mode_predictor.bias += found.share.to(z.device).log().flatten()


def agreement(one: Tensor, other: Tensor, labels: Tensor) -> float:
    """Share of samples that are in the same half; which one is called first does not matter."""
    same, sizes = torch.zeros(int(labels.max()) + 1), labels.long().bincount()
    same.index_add_(0, labels.long(), (one == other).float())
    return float(torch.maximum(same, sizes - same).sum() / sizes.sum())


class SomeCMNIST(CMNIST):
    """CMNIST of the first training images.

    Args:
        images: How many; null takes all.
    """

    def __init__(self, images: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.images = images

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Images and modes."""
        x, modes = super().load(train)
        return (x[: self.images], modes[: self.images]) if train else (x, modes)


def measured(seed: int, averaged: bool, options: argparse.Namespace) -> dict[str, Any]:
    """The forms' proposals at every split of a run, and how many merges it accepted."""
    settings: dict[str, Any] = {
        "seed_everything": seed, "trainer.max_epochs": options.epochs, "trainer.accelerator": "cpu",
        "trainer.enable_progress_bar": False, "trainer.enable_checkpointing": False,
        "data.class_path": "benchmarks.splits.SomeCMNIST", "data.init_args.root": str(options.root),
        "data.init_args.images": options.images,
        "model.discovery.init_args.start": options.start, "model.discovery.init_args.every": options.every,
    }  # fmt: skip
    if options.n_clusters is not None:
        settings["model.discovery.init_args.n_clusters"] = options.n_clusters
    run = build("configs/cmnist/codid.yaml", settings, record=False)
    as_configured: Any = run.module
    alignment = as_configured.alignment
    seed_everything(seed, verbose=False)
    module = CoDID(
        **{name: value for name, value in as_configured.hparams.items() if not name.startswith("_")},
        discovery=ComparingDiscovery(**arguments(as_configured.discovery)),
        splits=SplitsOfAllForms(**arguments(as_configured.splits)),
        alignment=replace(alignment, weights=BothDivergences(**arguments(alignment.weights))),
        mode_loss=(AveragedMerges if averaged else PredictModes)(**arguments(as_configured.mode_loss)),
    )
    run.trainer.fit(module, datamodule=run.data)
    discovery: Any = module.discovery
    merges = [entry["scores"]["modes/accepted"] for entry in discovery.history if entry["kind"] == "merge"]
    return {"seed": seed, "averaged": averaged, "splits": discovery.compared, "merges": int(sum(merges))}


def arguments(part: Any) -> dict[str, Any]:
    """Those that a part was made with."""
    return {field.name: getattr(part, field.name) for field in fields(part)}


def rows(found: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Of the table of splits."""
    yield "| seed | merges | epoch | form | median log Hastings ratio | all | accepted | same halves as the first |"
    yield "|---|---|---|---|---|---|---|---|"
    for run in found:
        for entry in run["splits"]:
            for form in FORMS:
                ratios = [ratio for ratio, _ in entry[form]]
                median = f"{statistics.median(ratios):.0f}" if ratios else "-"
                every = " ".join(f"{ratio:.0f}" for ratio in ratios)
                accepted = sum(yes for _, yes in entry[form])
                same = f"{100 * entry['agreement'][form]:.1f} %" if form in entry["agreement"] else "-"
                start = f"| {run['seed']} | {'averaged' if run['averaged'] else 'kept'} | {entry['epoch']} | `{form}` "
                yield f"{start}| {median} | {every} | {accepted} | {same} |"


def main() -> None:
    """Train, and write the table after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="Folder with MNIST.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--start", type=int, default=5, help="Epoch of the first clustering.")
    parser.add_argument("--every", type=int, default=2, help="Epochs between refinements.")
    parser.add_argument("--n_clusters", type=int, help="Clusters to begin with; those of the config by default.")
    parser.add_argument("--images", type=int, help="Training images; all by default.")
    parser.add_argument("--output", type=Path, default=Path("subclustering.md"))
    options = parser.parse_args()
    number = "all" if options.images is None else f"the first {options.images}"
    lines = [
        *header("What the terms of the subclustering net's loss change in its splits"), "",
        f"CMNIST, {number} training images, {options.epochs} epochs, first clustering after {options.start}, refined "
        f"every {options.every}. The forms:", "", *(f"- `{form}`: {what}" for form, what in FORMS.items()), "",
    ]  # fmt: skip
    file = options.output.with_suffix(".json")
    kept: list[dict[str, Any]] = json.loads(file.read_text()) if file.is_file() else []
    for seed in options.seeds:
        for averaged in (False, True):
            of_seed = {run["averaged"]: run for run in kept if run["seed"] == seed}
            if averaged not in of_seed and (not averaged or of_seed[False]["merges"]):
                kept.append(measured(seed, averaged, options))
                file.write_text(json.dumps(kept, indent=1) + "\n")
    merges = [f"Seed {run['seed']}: {run['merges']} merges were accepted." for run in kept if not run["averaged"]]
    options.output.write_text("\n".join([*lines, *rows(kept), "", *merges, ""]))
    print("\n".join(merges))


if __name__ == "__main__":
    main()
