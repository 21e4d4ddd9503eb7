"""Metrics. Each is a function of all samples and a torchmetrics class that collects batches and calls it.

They complete torchmetrics, which has accuracy and macro F1. Information is measured in bits.

Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codid_lightning.metrics.base import SampleMetric
    from codid_lightning.metrics.clustering import (
        ClusterAccuracy,
        ModeScores,
        Silhouette,
        SubclusterAccuracy,
        adjusted_rand_index,
        cluster_accuracy,
        mode_scores,
        normalized_mutual_information,
        silhouette,
        subcluster_accuracy,
    )
    from codid_lightning.metrics.disentanglement import (
        InformativenessError,
        NeighbourInformation,
        informativeness_error,
        neighbour_information,
    )
    from codid_lightning.metrics.groups import (
        CellAccuracy,
        WorstGroupAccuracy,
        adjusted_accuracy,
        group_accuracies,
        worst_group_accuracy,
    )
    from codid_lightning.metrics.information import (
        ConditionalEntropy,
        ConditionalInformation,
        DependentShare,
        MutualInformation,
        VariationOfInformation,
        chi_squared_tests,
        conditional_entropy,
        conditional_information,
        dependent_share,
        entropy,
        information_null,
        mutual_information,
        normalized_information,
        variation_of_information,
    )
    from codid_lightning.metrics.multiple_tests import holm
    from codid_lightning.metrics.prediction import (
        auroc,
        calibration_error,
        class_balanced_accuracy,
        group_scores,
        value_scores,
    )
    from codid_lightning.metrics.probes import (
        ProbeAccuracy,
        ProbeInformation,
        held_out_log_probs,
        probe_accuracy,
        probe_information,
    )
    from codid_lightning.metrics.shift import ADistance, a_distance

__all__ = [
    "ADistance",
    "CellAccuracy",
    "ClusterAccuracy",
    "ConditionalEntropy",
    "ConditionalInformation",
    "DependentShare",
    "InformativenessError",
    "ModeScores",
    "MutualInformation",
    "NeighbourInformation",
    "ProbeAccuracy",
    "ProbeInformation",
    "SampleMetric",
    "Silhouette",
    "SubclusterAccuracy",
    "VariationOfInformation",
    "WorstGroupAccuracy",
    "a_distance",
    "adjusted_accuracy",
    "adjusted_rand_index",
    "auroc",
    "calibration_error",
    "chi_squared_tests",
    "class_balanced_accuracy",
    "cluster_accuracy",
    "conditional_entropy",
    "conditional_information",
    "dependent_share",
    "entropy",
    "group_accuracies",
    "group_scores",
    "held_out_log_probs",
    "holm",
    "information_null",
    "informativeness_error",
    "mode_scores",
    "mutual_information",
    "neighbour_information",
    "normalized_information",
    "normalized_mutual_information",
    "probe_accuracy",
    "probe_information",
    "silhouette",
    "subcluster_accuracy",
    "value_scores",
    "variation_of_information",
    "worst_group_accuracy",
]

_HOMES = {
    "SampleMetric": "base",
    **dict.fromkeys(
        (
            "ClusterAccuracy",
            "ModeScores",
            "Silhouette",
            "SubclusterAccuracy",
            "adjusted_rand_index",
            "cluster_accuracy",
            "mode_scores",
            "normalized_mutual_information",
            "silhouette",
            "subcluster_accuracy",
        ),
        "clustering",
    ),
    **dict.fromkeys(
        ("InformativenessError", "NeighbourInformation", "informativeness_error", "neighbour_information"),
        "disentanglement",
    ),
    **dict.fromkeys(
        ("CellAccuracy", "WorstGroupAccuracy", "adjusted_accuracy", "group_accuracies", "worst_group_accuracy"),
        "groups",
    ),
    **dict.fromkeys(
        (
            "ConditionalEntropy",
            "ConditionalInformation",
            "DependentShare",
            "MutualInformation",
            "VariationOfInformation",
            "chi_squared_tests",
            "conditional_entropy",
            "conditional_information",
            "dependent_share",
            "entropy",
            "information_null",
            "mutual_information",
            "normalized_information",
            "variation_of_information",
        ),
        "information",
    ),
    **dict.fromkeys(
        ("auroc", "calibration_error", "class_balanced_accuracy", "group_scores", "value_scores"),
        "prediction",
    ),
    **dict.fromkeys(
        ("ProbeAccuracy", "ProbeInformation", "held_out_log_probs", "probe_accuracy", "probe_information"), "probes"
    ),
    **dict.fromkeys(("ADistance", "a_distance"), "shift"),
    "holm": "multiple_tests",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
