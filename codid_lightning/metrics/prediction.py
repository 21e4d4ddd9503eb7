"""Scores of predictions beside accuracy and macro F1: of the values of an attribute, and of groups of samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, multiclass_calibration_error

from codid_lightning.metrics.groups import MIN_GROUP_SIZE, adjusted_accuracy, group_accuracies, worst_group_accuracy
from codid_lightning.metrics.information import joint_labels


def class_balanced_accuracy(predictions: Tensor, targets: Tensor) -> float:
    """Mean over the values that occur of the accuracy under each value; scikit-learn's balanced accuracy."""
    accuracies = [accuracy for accuracy, _ in group_accuracies(predictions, targets, targets).values()]
    return sum(accuracies) / len(accuracies) if accuracies else math.nan


def auroc(probabilities: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve of each value against all others, averaged over the values that occur.

    torchmetrics averages over all values, and counts 0 for one that does not occur. It is NaN if a single value occurs.

    Args:
        probabilities: `(N, values)`.
        targets: `(N,)` true values.
    """
    values = targets.unique().tolist()
    if len(values) < 2 or not probabilities.isfinite().all():
        return math.nan
    areas = [float(binary_auroc(probabilities[:, v], (targets == v).long(), validate_args=False)) for v in values]
    return sum(areas) / len(areas)


def calibration_error(probabilities: Tensor, targets: Tensor, *, bins: int = 15) -> float:
    """Expected calibration error (Guo et al. 2017): confidence against accuracy in equally wide bins of confidence."""
    if not len(targets) or not probabilities.isfinite().all():
        return math.nan
    size = probabilities.shape[1]
    return float(multiclass_calibration_error(probabilities, targets, size, bins, validate_args=False))


def value_scores(logits: Tensor, targets: Tensor) -> dict[str, float]:
    """`class_balanced_acc`, `auroc` and `ece` of one attribute; those that are not a number are left out.

    Args:
        logits: `(N, values)`.
        targets: `(N,)` true values.
    """
    probabilities = logits.to(torch.promote_types(logits.dtype, torch.float)).softmax(1)
    return _finite(
        class_balanced_acc=class_balanced_accuracy(logits.argmax(1), targets),
        auroc=auroc(probabilities, targets),
        ece=calibration_error(probabilities, targets),
    )


def group_scores(predictions: Tensor, attributes: Tensor, training: Tensor | None) -> dict[str, float]:
    """`worst_group_acc` and `adjusted_acc` of the first attribute; those that are not a number are left out.

    A group is one combination of all attributes.

    Args:
        predictions: Predicted values of the first attribute, `(N,)`.
        attributes: `(N, Q)` of the test samples.
        training: Attributes `(M, Q)` of the training samples; None if they are not known.
    """
    together = attributes if training is None else torch.cat([attributes, training.to(attributes.device)])
    groups = joint_labels(*together.T)
    own, others = groups[: len(attributes)], groups[len(attributes) :]
    targets = attributes[:, 0]
    return _finite(
        worst_group_acc=worst_group_accuracy(predictions, targets, own, min_samples=MIN_GROUP_SIZE),
        adjusted_acc=adjusted_accuracy(predictions, targets, own, others),
    )


def _finite(**scores: float) -> dict[str, float]:
    return {name: value for name, value in scores.items() if math.isfinite(value)}
