"""Information between labels, in bits, and tests of their independence.

All estimates are computed from counts: they are exact for the empirical distribution of the given samples. All are sums
of joint entropies; scikit-learn has no conditional information or entropy.
"""

from dataclasses import dataclass

import torch
from scipy.stats import chi2_contingency
from torch import Tensor

from codid_lightning.metrics.base import SampleMetric
from codid_lightning.metrics.multiple_tests import holm
from codid_lightning.metrics.permutation import shuffle_within


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
    """`H(x | given)`: the information in `x` that `given` does not contain."""
    return max(0.0, entropy(x, given) - entropy(given))


def variation_of_information(x: Tensor, y: Tensor) -> float:
    """`H(x | y) + H(y | x)`: the distance of two partitions."""
    return conditional_entropy(x, y) + conditional_entropy(y, x)


def mutual_information(x: Tensor, y: Tensor) -> float:
    """`I(x; y)`."""
    return max(0.0, entropy(x) + entropy(y) - entropy(x, y))


def conditional_information(x: Tensor, y: Tensor, given: Tensor) -> float:
    """`I(x; y | given)`; for (modes, a_2, clusters) it is the paper's within-cluster correlation."""
    return max(0.0, entropy(x, given) + entropy(y, given) - entropy(x, y, given) - entropy(given))


def normalized_information(x: Tensor, y: Tensor) -> float:
    """`2 I(x; y) / (H(x) + H(y))`; 0 for two constants, where scikit-learn gives 1."""
    total = entropy(x) + entropy(y)
    return 2 * mutual_information(x, y) / total if total > 0 else 0.0


@dataclass(frozen=True)
class IndependenceTest:
    """Pearson's chi-squared test of two labels within one group."""

    group: int
    statistic: float
    p_value: float
    min_expected: float  # smallest expected count; below about 5 the chi-squared approximation is unreliable


def chi_squared_tests(x: Tensor, y: Tensor, groups: Tensor) -> list[IndependenceTest]:
    """Test of independence of `x` and `y` within each group; groups in which one of them is constant are left out."""
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


def dependent_share(x: Tensor, y: Tensor, groups: Tensor, *, level: float = 0.05) -> float:
    """Share of the groups in which a chi-squared test, Holm-adjusted, rejects independence of `x` and `y`."""
    adjusted = holm([test.p_value for test in chi_squared_tests(x, y, groups)])
    return sum(p < level for p in adjusted) / len(groups.unique())


def information_null(x: Tensor, y: Tensor, given: Tensor, draws: int = 200, seed: int = 0) -> Tensor:
    """`I(x; y | given)` after `y` is permuted within every value of `given`, `draws` times.

    Estimated information of independent labels is above zero by chance; this is its distribution.
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
