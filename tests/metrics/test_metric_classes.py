"""The torchmetrics classes give on two ranks what their functions give on all samples."""

import pytest
import torch
from ranks import Case, values_on_two_ranks

from codid_lightning import metrics


def cases() -> list[Case]:
    generator = torch.Generator().manual_seed(0)
    n = 211  # odd: the ranks hold different numbers of samples

    def labels(high: int) -> torch.Tensor:
        return torch.randint(high, (n,), generator=generator)

    values, others, guesses = labels(2), labels(3), labels(2)
    modes, clusters = values * 3 + labels(3), values * 4 + labels(4)
    z = torch.randn(n, 4, generator=generator) + modes[:, None]
    return [
        (metrics.ClusterAccuracy, {}, (clusters, modes)),
        (metrics.SubclusterAccuracy, {}, (guesses, modes, clusters)),
        (metrics.ModeScores, {}, (clusters, modes, values, others)),
        (metrics.Silhouette, {"max_samples": 150}, (z, clusters)),
        (metrics.MutualInformation, {}, (clusters, others)),
        (metrics.ConditionalInformation, {}, (modes, others, clusters)),
        (metrics.ConditionalEntropy, {}, (modes, clusters)),
        (metrics.VariationOfInformation, {}, (modes, clusters)),
        (metrics.DependentShare, {"level": 0.3}, (modes, others, clusters)),
        (metrics.WorstGroupAccuracy, {"min_samples": 5}, (guesses, values, others)),
        (metrics.ProbeAccuracy, {"seed": 3}, (z, modes)),
        (metrics.ProbeInformation, {"hidden": 8}, (z, others)),
        (metrics.NeighbourInformation, {"neighbours": 4}, (z[:, :2], z[:, 2:])),
        (metrics.InformativenessError, {}, (z, values, torch.arange(n) % 3 == 0)),
        (metrics.ADistance, {}, (z, values == 1)),
    ]


def test_every_class_is_covered():
    classes = {c for c in vars(metrics).values() if isinstance(c, type) and issubclass(c, metrics.SampleMetric)}
    assert classes - {metrics.SampleMetric} == {metric_class for metric_class, _, _ in cases()}


@pytest.mark.slow
def test_two_ranks_equal_the_function_on_all_samples(tmp_path):
    on_ranks = values_on_two_ranks(cases, tmp_path)
    for (metric_class, options, samples), value in zip(cases(), on_ranks, strict=True):
        expected = metric_class.function(*samples, **options)
        assert value == pytest.approx(expected, abs=1e-6), metric_class.__name__


def test_reset_forgets_and_wrong_arguments_are_refused():
    metric = metrics.ClusterAccuracy()
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 0]))
    metric.reset()
    metric.update(torch.tensor([0, 1]), torch.tensor([1, 0]))
    assert metric.compute() == 1
    with pytest.raises(TypeError, match="clusters, modes"):
        metric.update(torch.tensor([0]))
    with pytest.raises(TypeError, match="no option levle"):
        metrics.DependentShare(levle=0.1)
