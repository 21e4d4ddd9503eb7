"""Every scaling against its formula in numpy."""

import numpy as np
import pytest
import torch

from datamodules.base import DataError
from datamodules.scaling import Scaling


@pytest.fixture
def series():
    """Two channels of a different level and size; some samples are loud, some silent."""
    rng = np.random.default_rng(0)
    loudness = 10.0 ** rng.uniform(-4, 0, (50, 1, 1))
    return (loudness * rng.normal(size=(50, 2, 30)) * [[1], [5]] + [[3], [-2]]).astype(np.float64)


def expected(kind, train, x):
    axes = {"axis": (0, 2), "keepdims": True}
    if kind == "minmax":
        low, high = train.min(**axes), train.max(**axes)
        return 2 * (x - low) / (high - low) - 1
    mean, deviation = train.mean(**axes), train.std(**axes, ddof=1)
    if kind == "standard":
        return (x - mean) / deviation
    if kind == "log":
        logs, all_logs = (np.sign(v - mean) * np.log1p(np.abs(v - mean) / (0.02 * deviation)) for v in (x, train))
        return logs / np.abs(all_logs).max(**axes)
    levels, all_levels = (np.sqrt(((v - mean) ** 2).mean((1, 2), keepdims=True)) for v in (x, train))
    channel = (np.log(levels) - np.log(all_levels).mean()) / np.log(all_levels).std(ddof=1)
    return np.concatenate([(x - mean) / levels, np.broadcast_to(channel, (len(x), 1, x.shape[2]))], 1)


@pytest.mark.parametrize("kind", ["minmax", "standard", "log", "window"])
def test_scaled_samples_are_those_of_the_formula(kind, series):
    train, x = torch.from_numpy(series[:40]), torch.from_numpy(series[40:])
    scaling = Scaling((2, 30), kind).fit(train)
    assert np.allclose(scaling(x).numpy(), expected(kind, series[:40], series[40:]))
    assert scaling(x).shape[1:] == scaling.shape
    if kind in ("minmax", "log"):
        assert scaling(train).abs().max() == pytest.approx(1)  # what a decoder with tanh can reach


@pytest.mark.parametrize("kind", ["minmax", "standard", "log", "window"])
def test_a_checkpoint_scales_as_training_did(kind, series):
    x = torch.from_numpy(series)
    fitted, restored = Scaling((2, 30), kind).fit(x), Scaling((2, 30), kind)
    restored.load_state_dict(fitted.state_dict())
    assert torch.equal(fitted(x), restored(x))


def test_checkpoints_of_earlier_versions_have_center_and_spread_alone(series):
    x = torch.from_numpy(series)
    scaling = Scaling((2, 30), "standard")
    scaling.load_state_dict({"center": torch.tensor([1.0, 2.0]), "spread": torch.tensor([2.0, 4.0])})
    assert torch.allclose(scaling(x)[:, 1], (x[:, 1] - 2) / 4)


@pytest.mark.parametrize("kind", ["minmax", "standard", "log", "window"])
def test_a_silent_sample_and_a_constant_channel_stay_finite(kind):
    x = torch.randn(20, 2, 8)
    x[:, 1], x[3] = 7.0, 0.0
    x[3, 1] = 7.0
    x[3, 0] = x[torch.arange(20) != 3, 0].mean()
    scaled = Scaling((2, 8), kind).fit(x)(x)
    assert scaled.isfinite().all()
    assert scaled.abs().max() < 100


def test_none_changes_nothing():
    x = torch.randn(5, 2, 8)
    assert torch.equal(Scaling((2, 8), "none").fit(x)(x), x)


@pytest.mark.parametrize("shape", [(4,), (3, 8, 8)])
def test_only_series_have_windows(shape):
    with pytest.raises(DataError, match=r"data\.scaling is window.*choose minmax"):
        Scaling(shape, "window")
