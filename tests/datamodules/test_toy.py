import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.metrics import mutual_info_score

from datamodules import Toy, ToyFourAttributes, ToyNineModes
from datamodules.toy import joint_distribution, solve_couplings, toy_informations


def built(data):
    data.setup()
    return data


@pytest.mark.parametrize(("cls", "noise"), [(Toy, 0.15), (ToyNineModes, 0.02)])
def test_modes_lie_where_the_paper_puts_them(cls, noise):
    data = built(cls())
    for split in data.datasets.values():
        centers = torch.stack([torch.tensor(data.positions)[split.mode[:, 0]], split.a[:, 1].float()], 1)
        error = split.x - centers
        assert error.std(0).tolist() == pytest.approx([noise] * 2, rel=0.1)
        assert error.mean(0).abs().max() < 5 * noise / len(split) ** 0.5
        value = torch.repeat_interleave(torch.tensor(data.modes_per_value))[split.mode[:, 0]]
        assert torch.equal(value, split.a[:, 0])


@pytest.mark.parametrize("cls", [Toy, ToyNineModes])
def test_second_attribute_follows_p_of_the_split(cls):
    data = built(cls())
    p = torch.tensor(data.p_a2_given_mode)
    for name, expected in {"train": p, "test1": p, "test2": torch.full_like(p, 0.5), "test3": 1 - p}.items():
        split = data.datasets[name]
        for mode in range(p.shape[1]):
            own = split.a[split.mode[:, 0] == mode, 1]
            low, high = binom.interval(1 - 1e-5, len(own), float(expected[0, mode]))
            assert low <= int((own == 0).sum()) <= high


def test_correlation_of_toy_is_hidden_in_its_modes():
    joint = Toy().p / 6  # (a2, mode)
    by_value = joint.reshape(2, 2, 3)  # a2, a1, modes of the value
    assert by_value.sum(2).flatten().tolist() == pytest.approx([0.25] * 4)
    assert (by_value / by_value.sum((0, 2), keepdim=True)).amax() > 0.29  # of 1/3: nearly one a2 per mode


def test_case_study_has_the_papers_numbers():
    data = ToyNineModes()
    assert data.modes_per_value == (2, 3, 4)
    assert data.positions == (0, 2, 4, 6, 8, 1, 3, 5, 7)
    assert data.p[0].tolist() == pytest.approx([0.8, 0.2, 0.8, 0.1, 0.6, 0.3, 0.8, 0.2, 0.7])


def test_couplings_give_the_papers_informations():
    found = toy_informations(joint_distribution(solve_couplings(ToyFourAttributes.informations)))
    assert found == pytest.approx([0.07, 0.13, 0.14, 0.36, 0.28], abs=1e-6)


def test_samples_of_four_attributes_have_the_papers_informations():
    data = built(ToyFourAttributes(samples=60_000))
    split = data.datasets["train"]
    a, m = split.a.numpy(), split.mode.numpy()

    def given(x, y, value):
        return sum((value == v).mean() * mutual_info_score(x[value == v], y[value == v]) for v in (0, 1))

    found = [
        mutual_info_score(a[:, 1], a[:, 3]),
        mutual_info_score(a[:, 2], a[:, 3]),
        given(m[:, 0], a[:, 1], a[:, 0]),
        given(m[:, 0], a[:, 3], a[:, 0]),
        given(m[:, 1], a[:, 2], a[:, 1]),
    ]
    assert found == pytest.approx([0.07, 0.13, 0.14, 0.36, 0.28], abs=0.01)
    assert np.array_equal(m[:, :2] // 3, a[:, :2])
    assert (m[:, 2:] == -1).all()


def test_four_attributes_are_independent_in_test2_and_turned_round_in_test3():
    data = built(ToyFourAttributes(samples=40_000))
    signs = {}
    for name in ("test1", "test2", "test3"):
        a = data.datasets[name].a.double()
        signs[name] = torch.corrcoef(a.T)[2, 3]  # a_3 and a_4 are coupled by the modes of a_1 and a_2
    assert signs["test1"] > 0.2
    assert abs(signs["test2"]) < 0.03
    assert signs["test3"] < -0.2


def test_no_cell_of_four_attributes_is_unheard_of_in_training():
    couplings = solve_couplings(ToyFourAttributes.informations)
    train, reversed_ = joint_distribution(couplings), joint_distribution(-couplings)
    assert train.min() > 1e-5
    # Samples of training that are worth one of test3 when they are weighted by how much likelier they are there.
    assert (reversed_**2 / train).sum() < 1200


def test_same_seed_same_points():
    for cls in (Toy, ToyNineModes, ToyFourAttributes):
        one, again, other = built(cls()), built(cls()), built(cls(seed=1))
        assert torch.equal(one.datasets["train"].x, again.datasets["train"].x)
        assert not torch.equal(one.datasets["train"].x, other.datasets["train"].x)
