"""Every metric of one trained run, from its checkpoint and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

from codid_lightning import metrics, runs
from codid_lightning.callbacks.checkpoint import AtomicCheckpointIO
from codid_lightning.cli import CLI
from codid_lightning.codid import CoDID
from codid_lightning.metrics.information import joint_labels
from codid_lightning.module import DisentanglementModule
from codid_lightning.runs import RunError
from codid_lightning.targets import Target
from datamodules.base import AttributeDataModule, AttributeDataset

SMALLEST_GROUP = 10  # below, the accuracy of a group is mostly chance


@dataclass(frozen=True)
class LoadedRun:
    """A trained model in evaluation mode, its data, and where it came from."""

    model: DisentanglementModule
    data: AttributeDataModule
    checkpoint: Path
    settings: Mapping[str, Any]  # the resolved config

    @property
    def directory(self) -> Path | None:
        """The run's directory, if the checkpoint lies in one."""
        return runs.run_of(self.checkpoint)

    @property
    def name(self) -> str:
        """Method and data set."""
        method = self.settings.get("method") or type(self.model).__name__
        return f"{method} on {self.settings.get('dataset') or type(self.data).__name__}"


@dataclass(frozen=True)
class Encoded:
    """A split as a model sees it."""

    z: Tensor  # (N, Q, d)
    a: Tensor  # (N, Q)
    mode: Tensor  # (N, Q), -1 where unknown
    predicted: Tensor  # (N, Q)

    def others(self, q: int) -> Tensor:
        """One label (N,) per combination of the attributes other than `q`."""
        return joint_labels(*(self.a[:, j] for j in range(self.a.shape[1]) if j != q))


class _Loader(CLI):
    """Builds what `codid test` would run, and runs nothing."""

    def test(self, **_: Any) -> None:
        """Leave model and data for the caller."""


def load_run(arguments: Sequence[str]) -> LoadedRun:
    """The run in a directory, or the one described by `-c CONFIG --ckpt_path CHECKPOINT`.

    Args:
        arguments: A run directory or command line arguments as `codid test` takes them; further arguments override
            the config, for example `--data.init_args.root`.
    """
    arguments = list(arguments)
    if arguments and Path(arguments[0]).is_dir():
        arguments[:1] = ["--ckpt_path", str(_selected_checkpoint(Path(arguments[0])))]
    loader = _Loader.run(["test", *arguments, "--trainer.enable_progress_bar", "false"])
    if loader.settings.ckpt_path is None:
        raise RunError("name a run directory, or give --ckpt_path with the checkpoint to look at.")
    path = Path(loader.settings.ckpt_path)
    model: Any = loader.model
    data: Any = loader.datamodule
    state = AtomicCheckpointIO().load_checkpoint(path, map_location="cpu")
    model.on_load_checkpoint(state)
    model.load_state_dict(state["state_dict"])
    if (names := state.get(type(data).__qualname__)) is not None:
        data.load_state_dict(names)
    data.prepare_data()
    data.setup()
    device = loader.trainer.strategy.root_device
    return LoadedRun(model.eval().to(device), data, path, loader.config_dump)


def load_data(path: Path) -> AttributeDataModule:
    """The data of a run directory or of a config, with its splits built."""
    config = path / runs.CONFIG if path.is_dir() else path
    if not config.is_file():
        raise RunError(f"{path} is neither a run directory nor a config.")
    data: Any = _Loader.run(["test", "-c", str(config), "--trainer.enable_progress_bar", "false"]).datamodule
    data.prepare_data()
    data.setup()
    return data  # type: ignore[no-any-return]


def _selected_checkpoint(run: Path) -> Path:
    """The checkpoint that was tested: the best one where the run selected by validation, else the last."""
    folder = run / runs.CHECKPOINTS
    best, last = folder / "best.ckpt", folder / runs.LAST
    selected = best if (run / runs.CONFIG).is_file() and runs.read_config(run).get("selection") != "last" else last
    if not selected.is_file():
        raise RunError(f"{run} has no checkpoint {selected.relative_to(run)}: the run has not finished an epoch.")
    return selected


@torch.no_grad()
def encode(model: DisentanglementModule, data: AttributeDataset, batch_size: int = 1024) -> Encoded:
    """Representations and predictions of a whole split, on the CPU."""
    z, predicted = [], []
    for index in torch.arange(len(data)).split(batch_size):
        part = model(data[index]["x"].to(model.device))
        z.append(part.float().cpu())
        logits = (predictor(part[:, q]) for q, predictor in enumerate(model.predictors))
        predicted.append(torch.stack([logit.argmax(1) for logit in logits], dim=1).cpu())
    return Encoded(torch.cat(z), data.a, data.mode, torch.cat(predicted))


def evaluate(run: LoadedRun) -> dict[str, float]:
    """All metrics of a run by name, on its test sets and, for clusters, on its training set."""
    train = encode(run.model, run.data.datasets["train"])
    tests = {name: encode(run.model, run.data.datasets[name]) for name in run.data.test_names}
    found: dict[str, float] = {}
    for name, test in tests.items():
        found |= prediction_scores(name, test, run.data)
        found |= leakage_scores(name, train, test)
    uncorrelated = "test2" if "test2" in tests else run.data.test_names[0]
    found |= disentanglement_scores(train, tests[uncorrelated], run.data.test_attributes)
    if isinstance(run.model, CoDID):
        for target in run.model.target_list:
            if target.moded and target.ready:
                found |= cluster_scores(run.model, target, train)
    return found


def prediction_scores(name: str, test: Encoded, data: AttributeDataModule) -> dict[str, float]:
    """Accuracy and macro F1 of every attribute, and the worst groups of the first."""
    scores = {}
    for q in data.test_attributes:
        prefix = f"{name}/" if q == 0 else f"{name}/a{q + 1}/"
        size, predicted, true = data.attribute_sizes[q], test.predicted[:, q], test.a[:, q]
        scores[f"{prefix}acc"] = float(multiclass_accuracy(predicted, true, size, average="micro"))
        scores[f"{prefix}f1"] = float(multiclass_f1_score(predicted, true, size, average="macro"))
    predicted, true = test.predicted[:, 0], test.a[:, 0]
    groups = {"worst_group_acc": joint_labels(true, test.others(0))}
    if (test.mode[:, 0] >= 0).all():
        groups["worst_mode_acc"] = joint_labels(test.mode[:, 0], test.others(0))
    for metric, group in groups.items():
        worst = metrics.worst_group_accuracy(predicted, true, group, min_samples=SMALLEST_GROUP)
        scores[f"{name}/{metric}"] = worst
    return scores


def leakage_scores(name: str, train: Encoded, test: Encoded) -> dict[str, float]:
    """How far test from training representations, and what a linear probe reads out of z_1."""
    z1 = test.z[:, 0]
    is_test = torch.arange(len(train.z) + len(z1)) >= len(train.z)
    scores = {
        f"{name}/a_distance": metrics.a_distance(torch.cat([train.z[:, 0], z1]), is_test),
        f"{name}/leakage_a2": metrics.probe_accuracy(z1, test.others(0)),
    }
    if (test.mode[:, 0] >= 0).all():
        scores[f"{name}/leakage_mode"] = metrics.probe_accuracy(z1, test.mode[:, 0])
    return scores


def disentanglement_scores(train: Encoded, test: Encoded, attributes: Sequence[int]) -> dict[str, float]:
    """MI and DCI-I of an uncorrelated test set: what z_1 knows of the others, and what each z_q lacks of its own."""
    z1, rest = test.z[:, 0], test.z[:, 1:].flatten(1)
    scores = {
        "disentanglement/mi": metrics.probe_information(z1, test.others(0)),
        "disentanglement/mi_knn": metrics.neighbour_information(z1, rest),
    }
    held_out = torch.arange(len(train.z) + len(z1)) >= len(train.z)
    for q in attributes:
        z, labels = torch.cat([train.z[:, q], test.z[:, q]]), torch.cat([train.a[:, q], test.a[:, q]])
        name = "disentanglement/dci_i" if q == 0 else f"disentanglement/dci_i_a{q + 1}"
        scores[name] = metrics.informativeness_error(z, labels, held_out)
    return scores


def cluster_scores(model: CoDID, target: Target, train: Encoded) -> dict[str, float]:
    """Discovered against true modes of one target on the training set."""
    q = target.attribute
    clusters, modes, others = target.labels.cpu().long(), train.mode[:, q], train.others(q)
    scores = metrics.mode_scores(clusters, modes, train.a[:, q], others)
    scores["modes/silhouette"] = metrics.silhouette(train.z[:, q], clusters)
    if (modes >= 0).all():
        scores |= {
            "modes/vi": metrics.variation_of_information(modes, clusters),
            "modes/h_mode_given_cluster": metrics.conditional_entropy(modes, clusters),
            "modes/h_cluster_given_mode": metrics.conditional_entropy(clusters, modes),
            "modes/dependent_share": metrics.dependent_share(modes, others, clusters),
        }
        if model.split_by == "subcluster_net":
            halves = subcluster_halves(target, train)
            scores["modes/subcluster_acc"] = metrics.subcluster_accuracy(halves, modes, clusters)
    prefix = "modes/" if q == 0 else f"modes/a{q + 1}/"
    return {name.replace("modes/", prefix): score for name, score in scores.items()}


@torch.no_grad()
def subcluster_halves(target: Target, train: Encoded) -> Tensor:
    """The half (N,) of its cluster that the subclustering net gives each training sample."""
    z, values = train.z[:, target.attribute], train.a[:, target.attribute]
    device = target.labels.device
    parts = zip(z.split(4096), values.split(4096), target.labels.split(4096), strict=True)
    return torch.cat([target.halves(z.to(device), a.to(device), c).argmax(1).cpu() for z, a, c in parts])


def record(run: LoadedRun, scores: Mapping[str, float]) -> Path | None:
    """Add scores to the run's `result.json`; None where the checkpoint belongs to no run with a result."""
    if run.directory is None or not (run.directory / runs.RESULT).is_file():
        return None
    before = runs.read_result(run.directory)
    result = runs.Result(**{**before, "metrics": {**before["metrics"], **scores}})
    return result.write(run.directory)
