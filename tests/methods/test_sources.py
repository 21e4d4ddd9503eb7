"""Mode sources: the features in which modes are looked for, and when."""

from __future__ import annotations

import pytest
import torch

from codid_lightning import CoDID
from codid_lightning.clustering import DPGMM, ModesPerValue
from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.methods.codid.parts.decoding import DecodedSamples
from codid_lightning.methods.codid.parts.gate import SwapScores
from codid_lightning.methods.codid.parts.prior import PriorInLogits
from codid_lightning.methods.codid.parts.sources import ContentPropensity
from tests.codid.test_resume import differences
from tests.methods.planted import Planted, make, trainer

# ------------------------------------------------------------------------------------------------ content propensity


def content_model(data, **changes):
    discovery = ModeDiscovery(start=1, every=2, until=3, n_clusters=2, source=ContentPropensity())
    parts = {"mode_loss": PriorInLogits(), "alignment": None, "splits": None, "reconstruction": 0.0}
    settings = {"max_clusters": 4, "discovery": discovery, "decoding": DecodedSamples(epochs=1), **parts, **changes}
    return make(CoDID, data, **settings)


@pytest.fixture
def small():
    return Planted(samples=120)


@pytest.fixture
def accepting(monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", True)


def test_log_odds_are_those_of_the_network_under_the_samples_own_value(small, accepting):
    model = content_model(small)
    trainer(2).fit(model, small)
    source, model = ContentPropensity(), model.eval()
    x, a = small.datasets["train"].x, small.datasets["train"].a
    with torch.no_grad():
        logs = source.content(model, x)
        z = model(x)[:, 0]
        joint = model.mode_loss.content(model, model.target_list[0], z).log_joint.exp()  # one cluster per value
    own = joint[torch.arange(len(a)), a[:, 0]]
    assert logs.shape == (len(a), 4)
    torch.testing.assert_close(source.features(logs, a, 0), (own[:, 1:] / own[:, :1]).log())
    assert source.features(logs, a, 1).unique().numel() == 1  # only content of the first attribute is known
    three = torch.randn(len(a), 6)
    odds = source.features(three, a, 0)
    torch.testing.assert_close(odds.sum(1), torch.zeros(len(a)))
    torch.testing.assert_close(odds.diff(dim=1), three.view(-1, 2, 3)[torch.arange(len(a)), a[:, 0]].diff(dim=1))


def test_every_value_is_one_cluster_until_the_network_knows_content(small, accepting):
    model = content_model(small)
    trainer(4).fit(model, small)
    found = [(entry["epoch"], entry["kind"], entry["counts"]) for entry in model.discovery.history]
    assert found[0] == (1, "fit", [1, 1])
    assert [entry[:2] for entry in found[1:]] == [(3, "fit")]
    target = model.target_list[0]
    assert found[1][2] == target.active.sum(1).tolist()


def test_modes_are_those_of_the_log_odds(small, accepting):
    before = content_model(small)
    trainer(3).fit(before, small)
    after = content_model(small)
    trainer(4).fit(after, small)
    a = small.datasets["train"].a
    with torch.no_grad():
        logs = before.discovery.source.content(before.eval(), small.datasets["train"].x)
    expected = ModesPerValue(DPGMM(), [2, 2], 4, search=True).fit(ContentPropensity().features(logs, a, 0), a[:, 0])
    assert torch.equal(after.target_list[0].labels.long(), expected.labels)


def test_searched_modes_share_the_probability_of_their_value(small, accepting):
    model = content_model(small, discovery=ModeDiscovery(start=1, every=2, source=ContentPropensity(), n_clusters=3))
    run = trainer(3)
    run.fit(model, small)
    target, z = model.target_list[0], torch.randn(20, 8)
    before = target.mode_predictor(z, target.active.flatten()).exp().view(20, 2, 4).sum(2)
    a = small.datasets["train"].a
    clusters = ModesPerValue(DPGMM(), [3, 3], 4).fit(torch.randn(len(a), 1), a[:, 0])
    found = clusters.with_means_in(torch.randn(len(a), 8)).as_parts_of(target.active)
    with torch.no_grad():
        model.adopt(target, found, torch.randn(len(a), 8))
    log_probs = target.mode_predictor(z, target.active.flatten())
    torch.testing.assert_close(log_probs.exp().view(20, 2, 4).sum(2), before)
    sizes = found.labels.bincount(minlength=8).view(2, 4).float()
    expected = before[:, :, None] * sizes / sizes.sum(1, keepdim=True)
    torch.testing.assert_close(log_probs.exp().view(20, 2, 4), expected)


def test_without_the_autoencoder_every_value_stays_one_cluster(small, monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", False)
    model = content_model(small)
    trainer(4).fit(model, small)
    assert [entry["counts"] for entry in model.discovery.history] == [[1, 1]]


@pytest.mark.parametrize("half", [2, 3])  # before the search, and at its beginning
def test_resumed_runs_end_alike(half, small, accepting, tmp_path):
    whole, resumed, run = content_model(small), content_model(small), trainer(half)
    trainer(4).fit(whole, small)
    run.fit(content_model(small), small)
    run.save_checkpoint(tmp_path / "half.ckpt")
    trainer(4).fit(resumed, small, ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert not differences(whole.state_dict(), resumed.state_dict())
