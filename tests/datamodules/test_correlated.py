import math

import pytest
import torch
from scipy.stats import binom, multinomial

from datamodules.base import DataError
from datamodules.correlated import CorrelatedDataModule, anticorrelated, correlation_matrix, hidden_correlation

P = ((0.2, 0.7, 0.1, 0.5, 0.3), (0.8, 0.3, 0.9, 0.5, 0.7))


class Numbered(CorrelatedDataModule):
    """Samples are numbers of their own, so that every move of a sample can be traced; test numbers are negative."""

    input_shape = (3,)
    attribute_names = ("a1", "a2")
    value_names = (("0", "1"), ("0", "1"))
    modes_per_value = (3, 2)
    p_a2_given_mode = P
    sizes = (900, 1000, 1100, 1200, 1000)

    def load(self, train):
        modes = torch.repeat_interleave(torch.tensor(self.sizes))
        number = torch.arange(1, len(modes) + 1)
        return (number if train else -number), modes

    def render(self, raw, a2, generator):
        return torch.stack([raw.float(), a2.float(), torch.rand(len(raw), generator=generator)], 1)


@pytest.fixture(scope="module")
def data():
    module = Numbered(seed=3)
    module.setup()
    return module


def counts(dataset):
    table = torch.zeros(2, 5, dtype=torch.long)
    table.index_put_((dataset.a[:, 1], dataset.mode[:, 0]), torch.tensor(1), accumulate=True)
    return table


@pytest.mark.parametrize(("split", "p"), [("train", P), ("val", P), ("test1", P), ("test2", None), ("test3", "1-P")])
def test_colors_follow_p_within_binomial_error(data, split, p):
    expected = {None: torch.full((2, 5), 0.5), "1-P": 1 - torch.tensor(P)}.get(p)
    expected = torch.tensor(P) if expected is None else expected
    table = counts(data.datasets[split])
    for mode in range(5):
        n, k = int(table[:, mode].sum()), int(table[0, mode])
        low, high = binom.interval(1 - 1e-4, n, float(expected[0, mode]))
        assert low <= k <= high


@pytest.mark.parametrize(("split", "size"), [("train", 810), ("val", 90), ("test1", 900), ("test3", 900)])
def test_modes_are_equally_frequent(data, split, size):
    assert data.datasets[split].mode[:, 0].bincount().tolist() == [size] * 5


def test_no_sample_is_in_two_of_train_val_and_test(data):
    numbers = {name: set(data.datasets[name].x[:, 0].tolist()) for name in ("train", "val", "test1")}
    assert len(numbers["train"] | numbers["val"] | numbers["test1"]) == sum(map(len, numbers.values()))
    assert all(n > 0 for n in numbers["train"] | numbers["val"])
    assert all(n < 0 for n in numbers["test1"])


def test_tests_show_the_same_samples_and_noise_under_other_colors(data):
    first, second, third = (data.datasets[name] for name in ("test1", "test2", "test3"))
    for other in (second, third):
        assert torch.equal(first.x[:, [0, 2]], other.x[:, [0, 2]])
        assert torch.equal(first.mode, other.mode)
        assert not torch.equal(first.a[:, 1], other.a[:, 1])


def test_attribute_is_the_parent_of_the_mode(data):
    train = data.datasets["train"]
    assert torch.equal(train.a[:, 0], (train.mode[:, 0] >= 3).long())
    assert (train.mode[:, 1] == -1).all()


def test_same_seed_same_data_other_seed_other_data(data):
    again, other = Numbered(seed=3), Numbered(seed=4)
    torch.manual_seed(99)  # the global seed must not matter
    again.setup()
    other.setup()
    for name, split in data.datasets.items():
        assert torch.equal(split.x, again.datasets[name].x)
        assert torch.equal(split.a, again.datasets[name].a)
    assert not torch.equal(data.datasets["train"].x[:, 0], other.datasets["train"].x[:, 0])


def test_samples_per_mode_limits_training_only():
    module = Numbered(samples_per_mode=100, val_fraction=0.25)
    module.setup()
    assert [len(module.datasets[name]) for name in ("train", "val", "test1")] == [375, 125, 4500]
    with pytest.raises(DataError, match="samples_per_mode is 901"):
        Numbered(samples_per_mode=901).setup()


def test_three_values_follow_p():
    class Three(Numbered):
        value_names = (("0", "1"), ("0", "1", "2"))
        p_a2_given_mode = ((0.1, 0.2, 0.6, 0.3, 0.3), (0.2, 0.3, 0.2, 0.3, 0.3), (0.7, 0.5, 0.2, 0.4, 0.4))

    module = Three()
    module.setup()
    for split, p in (("train", module.p), ("test3", (1 - module.p) / 2)):
        dataset = module.datasets[split]
        for mode in range(5):
            seen = dataset.a[dataset.mode[:, 0] == mode, 1].bincount(minlength=3)
            spread = multinomial.cov(int(seen.sum()), p[:, mode].numpy()).diagonal() ** 0.5
            assert ((seen - seen.sum() * p[:, mode]).abs().numpy() < 4 * spread).all()


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_correlation_interpolates_p_towards_uniform(strength):
    p = correlation_matrix(P, 5, strength)
    assert torch.allclose(p, strength * torch.tensor(P, dtype=torch.float64) + (1 - strength) / 2)
    assert torch.allclose(p.sum(0), torch.ones(5, dtype=torch.float64))


def test_hidden_correlation_in_closed_form():
    def entropy(q):
        return -sum(x * math.log(x) for x in (q, 1 - q))

    p = correlation_matrix(((0.1, 0.9, 0.4), (0.9, 0.1, 0.6)), 3)
    # Two modes under value 0 (weight 2/3): H(1/2) - H(0.1); one mode under value 1: nothing hidden.
    assert hidden_correlation(p, (2, 1)) == pytest.approx(2 / 3 * (math.log(2) - entropy(0.1)))
    assert Numbered(correlation=0.0).hidden_correlation == pytest.approx(0.0)
    assert Numbered(correlation=1.0).hidden_correlation > Numbered(correlation=0.5).hidden_correlation > 0


def test_anticorrelated_has_columns_of_probabilities():
    assert torch.allclose(anticorrelated(torch.rand(4, 3).softmax(0)).sum(0), torch.ones(3))


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (((0.1, 0.9), (0.8, 0.1)), "must be probabilities"),
        (((1.2, 0.9), (-0.2, 0.1)), "must be probabilities"),
        (((0.1, 0.9, 0.5), (0.9, 0.1, 0.5)), "one column per mode"),
    ],
)
def test_wrong_p_raises(matrix, message):
    with pytest.raises(DataError, match=message):
        correlation_matrix(matrix, 2)


@pytest.mark.parametrize("strength", [-0.1, 1.1])
def test_wrong_strength_raises(strength):
    with pytest.raises(DataError, match="correlation"):
        Numbered(correlation=strength)
