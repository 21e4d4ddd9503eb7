"""Every metric of one trained run, from its checkpoint and data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

from codid_lightning import metrics
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.codid.parts.splits import LearnedSplits
from codid_lightning.methods.codid.target import Target
from codid_lightning.methods.hardware import like_parameters
from codid_lightning.metrics.groups import MIN_GROUP_SIZE
from codid_lightning.metrics.information import joint_labels
from codid_lightning.training import runs
from codid_lightning.training.loading import LoadedRun as LoadedRun
from codid_lightning.training.loading import load_data as load_data
from codid_lightning.training.loading import load_run as load_run
from datamodules.base import AttributeDataModule, AttributeDataset, Batch


@dataclass(frozen=True)
class Encoded:
    """A split as a model sees it."""

    z: Tensor  # (N, Q, d)
    a: Tensor  # (N, Q)
    mode: Tensor  # (N, Q), -1 where unknown
    logits: Tensor  # (N, Q, values), -inf beyond the values of an attribute

    @property
    def predicted(self) -> Tensor:
        """Predicted values (N, Q)."""
        return self.logits.argmax(2)

    def others(self, q: int) -> Tensor:
        """One label (N,) per combination of the attributes other than `q`."""
        return joint_labels(*(self.a[:, j] for j in range(self.a.shape[1]) if j != q))


@torch.no_grad()
def encode(model: DisentanglementModule, data: AttributeDataset, batch_size: int = 1024) -> Encoded:
    """Representations and predictions of a whole split, on the CPU."""
    z, logits, width = [], [], max(model.attribute_sizes)
    for index in torch.arange(len(data)).split(batch_size):
        batch = data[index]
        x, a = like_parameters(batch["x"], model), batch["a"].to(model.device)
        part = model.represent(Batch(x=x, a=a, mode=batch["mode"], index=batch["index"]))
        z.append(part.float().cpu())
        of_batch = model.attribute_logits(part, batch["a"].to(model.device))
        padded = [pad(own, (0, width - own.shape[1]), value=-torch.inf) for own in of_batch]
        logits.append(torch.stack(padded, dim=1).cpu())
    return Encoded(torch.cat(z), data.a, data.mode, torch.cat(logits))


def evaluate(run: LoadedRun) -> dict[str, float]:
    """All metrics of a run by name, on its test sets and, for clusters, on its training set."""
    train = encode(run.model, run.data.datasets["train"])
    tests = {name: encode(run.model, run.data.datasets[name]) for name in run.data.test_names}
    found: dict[str, float] = {}
    for name, test in tests.items():
        found |= prediction_scores(name, test, run.data, train.a)
        found |= leakage_scores(name, train, test)
    uncorrelated = "test2" if "test2" in tests else run.data.test_names[0]
    found |= disentanglement_scores(train, tests[uncorrelated], run.data.test_attributes)
    for target in run.model.mode_targets():
        if target.ready:
            found |= cluster_scores(run.model, target, train)
    return found


def prediction_scores(
    name: str, test: Encoded, data: AttributeDataModule, training: Tensor | None = None
) -> dict[str, float]:
    """The scores of a test for every attribute, and the worst mode of the first.

    Args:
        name: Name of the test set.
        test: The test set as the model sees it.
        data: The data, for the values of its attributes.
        training: Attributes (M, Q) of the training samples, for `adjusted_acc`.
    """
    scores = {}
    for q in data.test_attributes:
        prefix = f"{name}/" if q == 0 else f"{name}/a{q + 1}/"
        size, predicted, true = data.attribute_sizes[q], test.predicted[:, q], test.a[:, q]
        scores[f"{prefix}acc"] = float(multiclass_accuracy(predicted, true, size, average="micro"))
        scores[f"{prefix}f1"] = float(multiclass_f1_score(predicted, true, size, average="macro"))
        of_values = metrics.value_scores(test.logits[:, q, :size], true)
        scores |= {f"{prefix}{metric}": score for metric, score in of_values.items()}
    predicted = test.predicted[:, 0]
    groups = metrics.group_scores(predicted, test.a, training)
    if (test.mode[:, 0] >= 0).all():
        cells = joint_labels(test.mode[:, 0], test.others(0))
        smallest = {"min_samples": MIN_GROUP_SIZE}
        groups["worst_mode_acc"] = metrics.worst_group_accuracy(predicted, test.a[:, 0], cells, **smallest)
    return scores | {f"{name}/{metric}": score for metric, score in groups.items()}


def leakage_scores(name: str, train: Encoded, test: Encoded) -> dict[str, float]:
    """A-distance of z_1 between training and test data, and accuracy of linear probes on z_1."""
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
    """MI (of z_1 and the other attributes) and DCI-I (of z_q and its own attribute) of an uncorrelated test set."""
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


def cluster_scores(model: DisentanglementModule, target: Target, train: Encoded) -> dict[str, float]:
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
        splits: LearnedSplits | None = getattr(model, "splits", None)
        if splits is not None:
            device = target.labels.device
            z, values = train.z[:, q].to(device), train.a[:, q].to(device)
            halves = splits.subcluster_probs(target, z, values).argmax(1).cpu()
            scores["modes/subcluster_acc"] = metrics.subcluster_accuracy(halves, modes, clusters)
    prefix = "modes/" if q == 0 else f"modes/a{q + 1}/"
    return {name.replace("modes/", prefix): score for name, score in scores.items()}


def record(run: LoadedRun, scores: Mapping[str, float]) -> Path | None:
    """Add scores to the run's `result.json`; None for adapted models, and for checkpoints of no run with a result."""
    if run.settings.get("adapted") or run.directory is None or not (run.directory / runs.RESULT).is_file():
        return None
    before = runs.read_result(run.directory)
    result = runs.Result(**{**before, "metrics": {**before["metrics"], **scores}})
    return result.write(run.directory)
