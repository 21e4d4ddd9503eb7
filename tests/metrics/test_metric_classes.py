"""The torchmetrics classes give on two ranks what their functions give on all samples, and what others compute."""

from itertools import cycle, islice

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.stats import entropy
from sklearn.metrics import mutual_info_score
from sklearn.metrics.cluster import contingency_matrix

from codid_lightning import metrics
from tests.metrics.ranks import Case, values, values_on_two_ranks


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
    public = [getattr(metrics, name) for name in metrics.__all__]
    classes = {c for c in public if isinstance(c, type) and issubclass(c, metrics.SampleMetric)}
    assert classes - {metrics.SampleMetric} == {metric_class for metric_class, _, _ in cases()}


def cell_case() -> Case:
    generator = torch.Generator().manual_seed(1)
    attributes = torch.stack([torch.randint(size, (211,), generator=generator) for size in (2, 3, 4)], dim=1)
    return metrics.CellAccuracy, {"attribute_sizes": (2, 3, 4)}, (attributes[:, 2] % 2, attributes)


def matched_share(clusters, modes):
    counts = contingency_matrix(modes, clusters)
    return counts[linear_sum_assignment(counts, maximize=True)].sum() / counts.sum()


def within(score, x, y, groups):
    """A score of two labels within each group, weighted by its size."""
    return sum((groups == g).mean() * score(x[groups == g], y[groups == g]) for g in np.unique(groups))


def missing_bits(x, y):
    """The entropy of x that remains if y is given."""
    return entropy(contingency_matrix(x, y).ravel(), base=2) - entropy(np.unique(y, return_counts=True)[1], base=2)


REFERENCES = {
    metrics.ClusterAccuracy: matched_share,
    metrics.SubclusterAccuracy: lambda halves, modes, clusters: np.mean(
        [matched_share(halves[clusters == c], modes[clusters == c]) for c in np.unique(clusters)]
    ),
    metrics.MutualInformation: lambda x, y: mutual_info_score(x, y) / np.log(2),
    metrics.ConditionalInformation: lambda *labels: within(mutual_info_score, *labels) / np.log(2),
    metrics.ConditionalEntropy: missing_bits,
    metrics.VariationOfInformation: lambda x, y: missing_bits(x, y) + missing_bits(y, x),
    metrics.WorstGroupAccuracy: lambda guesses, values, groups: min(
        (guesses == values)[groups == g].mean() for g in np.unique(groups)
    ),
}


def random_cases() -> list[Case]:
    """A thousand sets of labels, few and many, for each of these metrics in turn."""
    generator = np.random.default_rng(0)
    made = []
    for metric_class in islice(cycle(REFERENCES), 1000):
        n = int(generator.integers(2, 120))
        columns = [generator.integers(1 + generator.integers(5), size=n) for _ in metric_class().input_names]
        made.append((metric_class, {}, tuple(map(torch.from_numpy, columns))))
    return made


def all_cases() -> list[Case]:
    return [*random_cases(), *cases(), cell_case()]


def check_references(found):
    for (metric_class, _, samples), value in zip(random_cases(), found, strict=True):
        expected = REFERENCES[metric_class](*(tensor.numpy() for tensor in samples))
        assert value == pytest.approx(expected, rel=1e-7, abs=1e-7), metric_class.__name__


def test_a_thousand_cases_equal_scikit_learn_and_scipy():
    check_references(values(random_cases))


@pytest.mark.slow
def test_a_thousand_cases_on_two_ranks_equal_scikit_learn_and_scipy(on_ranks):
    check_references(on_ranks[:1000])


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory):
    return values_on_two_ranks(all_cases, tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
def test_two_ranks_equal_the_function_on_all_samples(on_ranks):
    for (metric_class, options, samples), value in zip(cases(), on_ranks[1000:-1], strict=True):
        expected = metric_class.function(*samples, **options)
        assert value == pytest.approx(expected, rel=1e-7, abs=1e-7), metric_class.__name__


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


def cell_accuracy(cells: dict[tuple[int, int], tuple[int, int]], sizes: tuple[int, int]) -> dict[str, float]:
    """`CellAccuracy` of two attributes, given (right, samples) of each cell."""
    metric = metrics.CellAccuracy(sizes)
    for (value, other), (right, count) in cells.items():
        predictions = torch.tensor([value] * right + [1 - value] * (count - right))
        metric.update(predictions, torch.tensor([[value, other]] * count))
    return {name: float(value) for name, value in metric.compute().items()}


def test_small_cells_of_a_value_are_pooled():
    cells = {(0, 0): (18, 20), (0, 1): (2, 6), (0, 2): (1, 5), (0, 3): (3, 3), (1, 0): (30, 40), (1, 1): (15, 20)}
    found = cell_accuracy(cells, (2, 4))
    pooled = (2 + 1 + 3) / (6 + 5 + 3)  # also the third: it is small, although the pool is large enough without it
    assert found["worst_acc"] == pytest.approx(pooled)
    assert found["balanced_acc"] == pytest.approx((18 / 20 + pooled + 30 / 40 + 15 / 20) / 4)


def test_a_pool_that_is_too_small_takes_the_next_smallest_cell():
    cells = {(0, 0): (50, 50), (0, 1): (10, 12), (0, 2): (0, 4), (1, 0): (9, 10), (1, 1): (8, 10)}
    found = cell_accuracy(cells, (2, 3))
    assert found["worst_acc"] == pytest.approx(10 / 16)
    assert found["balanced_acc"] == pytest.approx((50 / 50 + 10 / 16 + 9 / 10 + 8 / 10) / 4)


def test_a_value_with_few_samples_is_one_cell():
    found = cell_accuracy({(0, 0): (20, 20), (0, 1): (19, 20), (1, 0): (1, 3), (1, 1): (1, 1)}, (2, 2))
    assert found == {"worst_acc": pytest.approx(2 / 4), "balanced_acc": pytest.approx((1 + 19 / 20 + 2 / 4) / 3)}


def test_reset_removes_samples_and_wrong_arguments_raise():
    metric = metrics.ClusterAccuracy()
    metric.update(torch.tensor([0, 1]), torch.tensor([0, 0]))
    metric.reset()
    metric.update(torch.tensor([0, 1]), torch.tensor([1, 0]))
    assert metric.compute() == 1
    with pytest.raises(TypeError, match="clusters, modes"):
        metric.update(torch.tensor([0]))
    with pytest.raises(TypeError, match="no option levle"):
        metrics.DependentShare(levle=0.1)
