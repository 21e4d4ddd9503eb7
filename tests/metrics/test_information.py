import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency
from sklearn.metrics import mutual_info_score

from codid_lightning.metrics import conditional_entropy, conditional_information, entropy, mutual_information
from codid_lightning.metrics.information import (
    chi_squared_tests,
    dependent_share,
    holm,
    information_null,
    normalized_information,
    variation_of_information,
)

triples = st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=60)


@given(triples)
@settings(max_examples=200, deadline=None)
def test_information_equals_sklearn(samples):
    x, y, given_labels = torch.tensor(samples).unbind(1)
    bits = 1 / np.log(2)
    assert mutual_information(x, y) == pytest.approx(mutual_info_score(x, y) * bits, abs=1e-9)
    within = [
        (given_labels == g).double().mean() * mutual_info_score(x[given_labels == g], y[given_labels == g]) * bits
        for g in given_labels.unique()
    ]
    assert conditional_information(x, y, given_labels) == pytest.approx(float(sum(within)), abs=1e-9)


@given(triples)
@settings(max_examples=100, deadline=None)
def test_entropies_add_up(samples):
    x, y, w = torch.tensor(samples).unbind(1)
    assert entropy(x, y) == pytest.approx(entropy(y) + conditional_entropy(x, y), abs=1e-9)
    assert mutual_information(x, y) == pytest.approx(entropy(x) - conditional_entropy(x, y), abs=1e-9)
    # Variation of Information is a metric on partitions
    assert variation_of_information(x, x) == pytest.approx(0, abs=1e-9)
    assert variation_of_information(x, y) == pytest.approx(variation_of_information(y, x), abs=1e-9)
    longer_way = variation_of_information(x, w) + variation_of_information(w, y)
    assert variation_of_information(x, y) <= longer_way + 1e-9


def test_known_values():
    coin = torch.tensor([0, 1, 0, 1])
    other = torch.tensor([0, 0, 1, 1])
    assert entropy(coin) == 1
    assert entropy(coin, other) == 2
    assert mutual_information(coin, other) == 0
    assert conditional_information(coin, other, given=coin ^ other) == 1  # exclusive or: dependent once it is known
    assert normalized_information(coin, coin) == 1
    assert normalized_information(torch.zeros(4), torch.ones(4)) == 0


def test_chi_squared_within_groups_equals_scipy_and_skips_constant_groups():
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(3).repeat_interleave(100)
    x = torch.randint(2, (300,), generator=generator)
    y = torch.randint(3, (300,), generator=generator)
    y[groups == 2] = 1
    tests = chi_squared_tests(x, y, groups)
    assert [test.group for test in tests] == [0, 1]
    for test in tests:
        inside = groups == test.group
        table = np.zeros((2, 3))
        np.add.at(table, (x[inside].numpy(), y[inside].numpy()), 1)
        reference = chi2_contingency(table, correction=False)
        assert (test.statistic, test.p_value) == pytest.approx((reference.statistic, reference.pvalue))
        assert test.min_expected == pytest.approx(reference.expected_freq.min())


def test_dependent_share_counts_all_groups():
    groups = torch.arange(4).repeat_interleave(50)
    x = torch.arange(200) % 2
    y = x.clone()
    y[groups == 1] = torch.arange(50) // 25  # independent of x
    y[groups == 2] = 0
    assert dependent_share(x, y, groups) == 2 / 4


def holm_by_definition(p_values):
    """A hypothesis falls at level q if it and all smaller p-values pass their Bonferroni bound."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(p_values))
    for i, position in enumerate(order):
        adjusted[position] = min(1, max((len(order) - j) * p_values[order[j]] for j in range(i + 1)))
    return adjusted


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_equals_its_definition(p_values):
    assert holm(p_values) == pytest.approx(holm_by_definition(np.array(p_values)))


def test_holm_textbook_case():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_null_of_conditional_information():
    generator = torch.Generator().manual_seed(0)
    given_labels = torch.randint(2, (2000,), generator=generator)
    x = given_labels * 3 + torch.randint(3, (2000,), generator=generator)
    noise = (torch.rand(2000, generator=generator) < 0.3 + 0.4 * given_labels).long()
    null = information_null(x, noise, given_labels, draws=300)
    # 2 N ln2 I follows chi-squared with (3 - 1) (2 - 1) degrees of freedom in each of the two groups
    assert (null.mean() * 2 * 2000 * np.log(2)).item() == pytest.approx(4, rel=0.15)
    assert conditional_information(x, noise, given_labels) < null.max()
    hidden = torch.where(torch.rand(2000, generator=generator) < 0.3, x % 2, noise)
    assert conditional_information(x, hidden, given_labels) > null.max()


def test_null_keeps_the_marginals_of_every_group():
    given_labels = torch.tensor([0] * 5 + [1] * 5)
    x = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 3, 3])
    constant_within_groups = given_labels.clone()
    assert information_null(x, constant_within_groups, given_labels, draws=20).max() == pytest.approx(0, abs=1e-12)
