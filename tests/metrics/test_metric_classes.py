"""The torchmetrics classes give on two ranks what their functions give on all samples."""

import pytest
import torch

from codid_lightning import metrics
from tests.metrics.ranks import Case, values_on_two_ranks


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


def cell_case() -> Case:
    generator = torch.Generator().manual_seed(1)
    attributes = torch.stack([torch.randint(size, (211,), generator=generator) for size in (2, 3, 4)], dim=1)
    return metrics.CellAccuracy, {"attribute_sizes": (2, 3, 4)}, (attributes[:, 2] % 2, attributes)


def all_cases() -> list[Case]:
    return [*cases(), cell_case()]


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    return values_on_two_ranks(all_cases, tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
def test_two_ranks_equal_the_function_on_all_samples(on_ranks):
    for (metric_class, options, samples), value in zip(cases(), on_ranks[:-1], strict=True):
        expected = metric_class.function(*samples, **options)
        assert value == pytest.approx(expected, abs=1e-6), metric_class.__name__


@pytest.mark.slow
def test_accuracy_of_cells_equals_counting_and_adds_up_over_ranks(on_ranks):
    metric_class, options, (predictions, a) = cell_case()
    cells = [(a[:, 0] == v) & (a[:, q] == w) for q, size in ((1, 3), (2, 4)) for v in range(2) for w in range(size)]
    accuracies = [(predictions == a[:, 0])[cell].double().mean() for cell in cells]
    assert on_ranks[-1]["balanced_acc"] == pytest.approx(torch.stack(accuracies).mean().item())
    assert on_ranks[-1]["worst_acc"] == min(accuracies) == 0
    few = metric_class(**options, min_samples=10_000)
    few.update(predictions, a)
    assert all(value.isnan() for value in few.compute().values())


def test_clusters_take_the_place_of_the_first_attribute():
    generator = torch.Generator().manual_seed(2)
    a = torch.stack([torch.randint(size, (300,), generator=generator) for size in (2, 3)], dim=1)
    clusters = a[:, 0] * 4 + torch.randint(3, (300,), generator=generator)  # slots 3 and 7 are empty
    predictions = torch.where(clusters == 5, 1 - a[:, 0], a[:, 0])  # one cluster is always wrong
    metric = metrics.CellAccuracy((2, 3), min_samples=1, num_groups=8)
    metric.update(predictions[:100], a[:100], clusters[:100])
    metric.update(predictions[100:], a[100:], clusters[100:])
    found = {name: float(value) for name, value in metric.compute().items()}
    assert found == {"balanced_acc": pytest.approx(5 / 6), "worst_acc": 0}  # 6 clusters, each with 3 cells


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
