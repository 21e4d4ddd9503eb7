"""Experts within a_2: flags, the modes they give, and the sign test that says whether anything is hidden."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from codid_lightning import CoDID
from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.methods.codid.parts.experts import judge
from codid_lightning.methods.codid.parts.prior import PriorInLogits
from codid_lightning.methods.codid.parts.sources import Experts
from datamodules.base import AttributeDataModule, AttributeDataset
from tests.methods.planted import Planted, make, trainer


def table(n=3000, p=0.9, values=2, spread=0.7, seed=0):
    """Rows of two values of a_1 with one mode for each value of a_2, which prefers it with probability p.

    Modes stand on a circle. Neighbours have different values of a_1, so that the rare one looks like a common one of
    the other value. a_2 shows in a column of its own.
    """
    rng = np.random.default_rng(seed)
    a1, a2 = rng.integers(2, size=n), rng.integers(values, size=n)
    likely = rng.random(n) < p
    mode = np.where(likely, a2, (a2 + rng.integers(1, values, size=n)) % values)
    angle = 2 * np.pi * mode / values + np.pi * a1 * (0.75 if values == 2 else 1)
    place = 2 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    x = np.concatenate(
        [place + rng.normal(scale=spread, size=(n, 2)), 3 * a2[:, None], rng.normal(size=(n, 2))], axis=1
    )
    return [torch.from_numpy(column) for column in (x, a1, mode, a2)]


def test_flags_find_rare_modes():
    x, a1, mode, a2 = table()
    judged = judge(x, a1, a2)
    rare = mode != a2
    assert judged.flagged[rare].double().mean() > 0.7
    assert judged.flagged[~rare].double().mean() < 0.1
    assert judged.hidden
    for value in (0, 1):
        own = a1 == value
        assert adjusted_rand_score(mode[own], judged.preferred[own]) > 0.6


def test_with_two_values_a_flagged_sample_belongs_to_the_other_one():
    x, a1, _, a2 = table(n=600)
    judged = judge(x, a1, a2)
    assert torch.equal(judged.preferred != a2, judged.flagged)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_sign_test_tells_hidden_correlation_from_hard_samples(seed):
    x, a1, _, a2 = table(seed=seed)
    assert judge(x, a1, a2).area < 0.45
    x, a1, _, a2 = table(p=0.5, seed=seed)  # modes that overlap, independent of a_2
    judged = judge(x, a1, a2)
    assert judged.flagged.any()
    assert judged.area > 0.55
    assert not judged.hidden


def test_a_flagged_sample_of_many_values_goes_to_the_one_that_is_surest():
    x, a1, mode, a2 = table(n=6000, values=3, spread=0.6)
    judged = judge(x, a1, a2)
    sure = judged.flagged & (mode != a2)
    assert sure.sum() > 100
    assert (judged.preferred[sure] == mode[sure]).double().mean() > 0.9


def test_a_value_without_a_rival_is_never_flagged():
    x, a1, _, a2 = table(n=600)
    a1 = torch.where(a2 == 1, 1, a1)
    judged = judge(x, a1, a2)
    assert not judged.flagged[a2 == 1].any()
    few = torch.where((a1 == 0).cumsum(0) <= 3, a1, 1)  # three samples cannot be learnt
    assert not judge(x, few, a2).flagged.any()
    assert judge(x, few, a2).area is None


# ------------------------------------------------------------------------------------------------------ as a source


class Corners(AttributeDataModule):
    """The table as a data module."""

    attribute_names = ("side", "site")
    mode_sizes = (None, None)
    test_names = ("test",)
    test_attributes = (0,)
    input_shape = (5,)
    value_names = (("0", "1"), ("0", "1"))

    def __init__(self, p: float, **kwargs: Any) -> None:
        super().__init__(**{"batch_size": 100, **kwargs})
        self.p = p

    def build(self) -> dict[str, AttributeDataset]:
        drawn = {name: table(n=1500, p=self.p, seed=seed) for seed, name in enumerate(("train", "val", "test"))}
        return {name: AttributeDataset(x.float(), torch.stack([a1, a2], 1)) for name, (x, a1, _, a2) in drawn.items()}


def fitted(data, source, epochs=3):
    discovery = ModeDiscovery(start=1, every=1, source=source)
    parts = {"mode_loss": PriorInLogits(), "alignment": None, "splits": None, "reconstruction": 0.0}
    model = make(CoDID, data, max_clusters=4, discovery=discovery, **parts)
    trainer(epochs).fit(model, data)
    return model


def test_hidden_modes_become_clusters_and_stay():
    data = Corners(p=0.9)
    model = fitted(data, Experts())
    train = data.datasets["train"]
    judged = judge(train.x, train.a[:, 0], train.a[:, 1])
    assert torch.equal(model.target_list[0].labels.long(), train.a[:, 0] * 4 + judged.preferred)
    assert [entry["kind"] for entry in model.discovery.history] == ["fit"]


def test_where_nothing_is_hidden_every_value_is_one_cluster():
    data = Corners(p=0.5)
    assert fitted(data, Experts(), 2).discovery.history[0]["counts"] == [1, 1]
    assert fitted(data, Experts(sign_test=False), 2).discovery.history[0]["counts"] == [2, 2]


def test_series_are_judged_by_their_spectrum():
    model = make(CoDID, Planted())
    t = torch.arange(16) / 16
    x = torch.stack([torch.sin(2 * torch.pi * (3 * t + shift)) for shift in (0.0, 0.3)])[:, None]
    content = Experts().content(model, x)
    assert content.shape == (2, 9)
    torch.testing.assert_close(content[0], content[1])  # whatever the phase
    images = torch.rand(2, 3, 4, 4)
    assert torch.equal(Experts().content(model, images), images.flatten(1))
