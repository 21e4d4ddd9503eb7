"""Information between labels, in bits, and tests of their independence.

All estimates are plug-in estimates from counts: exact for the empirical distribution of the given samples.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from scipy.stats import chi2_contingency
from torch import Tensor

from codid_lightning.losses import shuffle_within
from codid_lightning.metrics.base import SampleMetric


def joint_labels(*labels: Tensor) -> Tensor:
    """One integer label per distinct combination of the given labels, numbered from 0."""
    joint = torch.zeros_like(labels[0])  # (N,)
    for label in labels:
        codes = label.unique(return_inverse=True)[1]
        joint = (joint * (codes.max() + 1) + codes).unique(return_inverse=True)[1]
    return joint


def contingency(x: Tensor, y: Tensor) -> Tensor:
    """Counts of every pair of labels, rows and columns in the order of the sorted labels."""
    x_codes, y_codes = (label.unique(return_inverse=True)[1] for label in (x, y))
    rows, columns = int(x_codes.max()) + 1, int(y_codes.max()) + 1
    return torch.bincount(x_codes * columns + y_codes, minlength=rows * columns).view(rows, columns)


def entropy(*labels: Tensor) -> float:
    """Joint entropy of labels, `H(x, y, ...)`."""
    p = torch.bincount(joint_labels(*labels)).double() / len(labels[0])
    return float(-(p * p.log2()).sum())


def conditional_entropy(x: Tensor, given: Tensor) -> float:
    """`H(x | given)`: with modes and clusters, the part of the Variation of Information one of them misses."""
    return max(0.0, entropy(x, given) - entropy(given))


def variation_of_information(x: Tensor, y: Tensor) -> float:
    """`H(x | y) + H(y | x)`: how far two partitions are apart."""
    return conditional_entropy(x, y) + conditional_entropy(y, x)


def mutual_information(x: Tensor, y: Tensor) -> float:
    """`I(x; y)`."""
    return max(0.0, entropy(x) + entropy(y) - entropy(x, y))


def conditional_information(x: Tensor, y: Tensor, given: Tensor) -> float:
    """`I(x; y | given)`; with (modes, a_2, clusters) this is the paper's within-cluster correlation."""
    return max(0.0, entropy(x, given) + entropy(y, given) - entropy(x, y, given) - entropy(given))


def normalized_information(x: Tensor, y: Tensor) -> float:
    """`2 I(x; y) / (H(x) + H(y))`; two constants share nothing and score 0."""
    total = entropy(x) + entropy(y)
    return 2 * mutual_information(x, y) / total if total > 0 else 0.0


@dataclass(frozen=True)
class IndependenceTest:
    """Pearson's chi-squared test of two labels within one group."""

    group: int
    statistic: float
    p_value: float
    min_expected: float  # below about 5 the chi-squared approximation is doubtful


def chi_squared_tests(x: Tensor, y: Tensor, groups: Tensor) -> list[IndependenceTest]:
    """Are `x` and `y` independent within each group? Groups where one of them is constant are left out."""
    tests = []
    for group in groups.unique().tolist():
        inside = groups == group
        table = contingency(x[inside], y[inside])
        if min(table.shape) > 1:
            found = chi2_contingency(table.cpu().numpy(), correction=False)
            tests.append(
                IndependenceTest(group, float(found.statistic), float(found.pvalue), float(found.expected_freq.min()))
            )
    return tests


def holm(p_values: list[float]) -> list[float]:
    """Holm's step-down adjustment: valid for any dependence between the tests."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    scaled = accumulate(((len(order) - rank) * p_values[i] for rank, i in enumerate(order)), max)
    adjusted = dict(zip(order, scaled, strict=True))
    return [min(1.0, adjusted[i]) for i in range(len(p_values))]


def dependent_share(x: Tensor, y: Tensor, groups: Tensor, *, level: float = 0.05) -> float:
    """Share of the groups in which a chi-squared test, Holm-adjusted, rejects independence of `x` and `y`."""
    adjusted = holm([test.p_value for test in chi_squared_tests(x, y, groups)])
    return sum(p < level for p in adjusted) / len(groups.unique())


def information_null(x: Tensor, y: Tensor, given: Tensor, draws: int = 200, seed: int = 0) -> Tensor:
    """`I(x; y | given)` after `y` is permuted within every value of `given`, `draws` times.

    Plug-in information is never below zero, even for independent labels: this is what it amounts to by chance.
    """
    generator = torch.Generator().manual_seed(seed)
    cells, groups, shuffled = (joint_labels(*labels).cpu() for labels in ((x, given), (given,), (y,)))
    fixed = entropy(x, given) + entropy(y, given) - entropy(given)
    null = [fixed - entropy(cells, shuffled[shuffle_within(groups, generator)]) for _ in range(draws)]
    return torch.tensor(null, dtype=torch.float64).clamp(min=0)


class MutualInformation(SampleMetric):
    """`mutual_information` over batches and ranks."""

    function = staticmethod(mutual_information)


class ConditionalInformation(SampleMetric):
    """`conditional_information` over batches and ranks."""

    function = staticmethod(conditional_information)


class ConditionalEntropy(SampleMetric):
    """`conditional_entropy` over batches and ranks."""

    function = staticmethod(conditional_entropy)


class VariationOfInformation(SampleMetric):
    """`variation_of_information` over batches and ranks."""

    function = staticmethod(variation_of_information)


class DependentShare(SampleMetric):
    """`dependent_share` over batches and ranks."""

    function = staticmethod(dependent_share)
