import multiprocessing
import resource
import warnings

import numpy as np
import pytest
import torch

import datamodules
from datamodules.base import DataError, split_indices
from datamodules.grouped import GroupedDataModule, MissingDataError, Windows, archive, collect, cut, resample
from tests import fakes


class Numbered(GroupedDataModule):
    """Six users; a window's first channel is constant at a number of its own, the second is user-dependent."""

    input_shape = (2, 4)
    attribute_names = ("activity", "user")
    value_names = (("x", "y"), tuple("abcdef"))
    groups = 3
    folder = "numbered"
    placement = "nothing at all"
    reads = 0

    def locate(self):
        if not self.path.is_dir():
            raise self.missing()
        return self.path

    def load(self):
        type(self).reads += 1
        a2 = torch.arange(6).repeat_interleave(50)
        x = torch.arange(300.0)[:, None, None].expand(300, 2, 4).clone()
        x[:, 1] = 10.0 ** a2[:, None]
        return Windows(x, torch.arange(300) % 2, a2, torch.arange(300), torch.zeros(300, dtype=torch.long))


class Slow(Numbered):
    key = 0

    def cache_key(self):
        return "slow", self.key


def built(cls=Numbered, **arguments):
    module = cls(**arguments)
    module.setup()
    return module


@pytest.mark.parametrize("group", [0, 1, 2])
def test_every_group_is_tested_once_on_users_never_trained_on(group):
    module = built(test_group=group)
    train, val, test = (set(module.datasets[name].a[:, 1].tolist()) for name in ("train", "val", "test"))
    assert test == {2 * group, 2 * group + 1}
    assert not (train | val) & test
    assert train | val | test == set(range(6))
    assert [len(module.datasets[name]) for name in ("train", "val", "test")] == [160, 40, 100]


def test_all_windows_are_used_once_and_the_seed_draws_validation():
    module, again, other = built(scaling="standard"), built(scaling="standard"), built(scaling="standard", seed=1)
    numbers = torch.cat([module.datasets[name].x[:, 0, 0] for name in ("train", "val", "test")])
    assert len(numbers.unique()) == 300
    assert torch.equal(module.datasets["val"].x, again.datasets["val"].x)
    assert not torch.equal(module.datasets["val"].x, other.datasets["val"].x)


def rows(module, split):
    """The rows of a split among all windows: what the first channel was before it was scaled."""
    scaled = module.datasets[split].x[:, 0, 0]
    return (scaled * module.scaling.spread[0] + module.scaling.center[0]).round().long()


@pytest.mark.parametrize("split", ["blocks", "recordings", "random"])
@pytest.mark.parametrize("group", [0, 1, 2])
def test_minmax_is_fitted_on_training_windows_only(group, split):
    module = built(test_group=group, val_split=split)
    x = Numbered(root="").load().x
    known = x[rows(module, "train")]
    low, high = known.amin((0, 2)), known.amax((0, 2))
    for part in ("train", "val", "test"):
        expected = 2 * (x[rows(module, part)] - low[:, None]) / (high - low)[:, None] - 1
        assert torch.allclose(module.datasets[part].x, expected, rtol=1e-4, atol=1e-6)
    assert torch.allclose(module.datasets["train"].x.amin((0, 2)), torch.tensor(-1.0))
    assert torch.allclose(module.datasets["train"].x.amax((0, 2)), torch.tensor(1.0))


@pytest.mark.parametrize("scaling", ["minmax", "standard", "log", "window"])
def test_validation_and_test_windows_do_not_change_training(scaling):
    class Loud(Numbered):
        def load(self):
            windows = super().load()
            windows.x[elsewhere] *= -1000
            return windows

    first = built(scaling="standard")
    elsewhere = torch.cat([rows(first, "val"), rows(first, "test")])
    inputs = [built(cls, scaling=scaling).datasets["train"].x for cls in (Numbered, Loud)]
    assert torch.equal(*inputs)


def test_the_random_split_is_that_of_the_paper():
    module = built(scaling="standard", val_split="random")
    train, val = split_indices(200, 0.2, 0)
    assert torch.equal(rows(module, "train"), 100 + train)
    assert torch.equal(rows(module, "val"), 100 + val)


@pytest.mark.parametrize("scaling", ["minmax", "standard", "log", "window"])
def test_the_model_knows_the_shape_of_scaled_windows(scaling):
    module = Numbered(scaling=scaling)
    known = module.facts["input_shape"]
    module.setup()
    assert module.datasets["test"][[0]]["x"].shape == (1, *known)
    assert known == ((3, 4) if scaling == "window" else (2, 4))


def test_invalid_windows_neither_scale_nor_stay():
    class Broken(Numbered):
        def load(self):
            windows = super().load()
            windows.x[150, 0, 2] = torch.inf
            windows.x[151, 1, 0] = torch.nan
            return windows

    with pytest.raises(DataError, match="hold NaN or infinity"):
        built(Broken)
    dropped = built(Broken, on_bad_values="drop")
    assert sum(len(d) for d in dropped.datasets.values()) == 298
    assert dropped.datasets["train"].x.abs().max() <= 1
    imputed = built(Broken, on_bad_values="impute")
    assert sum(len(d) for d in imputed.datasets.values()) == 300
    assert all(torch.isfinite(d.x).all() for d in imputed.datasets.values())


def test_all_windows_invalid_is_a_clear_error():
    class Broken(Numbered):
        def load(self):
            windows = super().load()
            return windows._replace(x=windows.x * torch.nan)

    with pytest.raises(DataError, match="No training sample"):
        built(Broken, on_bad_values="drop")


def test_constant_channel_stays_finite():
    class Flat(Numbered):
        def load(self):
            windows = super().load()
            windows.x[:, 1] = 7.0
            return windows

    assert (built(Flat).datasets["train"].x[:, 1] == 0).all()


def test_activity_that_no_training_user_does_raises():
    class Rare(Numbered):
        def load(self):
            windows = super().load()
            return windows._replace(a1=(windows.a2 == 0).long())

    with pytest.raises(DataError, match="no training sample has activity = y"):
        built(Rare, test_group=0)
    assert built(Rare, test_group=1)


def test_labels_outside_of_the_header_raise():
    class Strange(Numbered):
        def load(self):
            windows = super().load()
            return windows._replace(a1=windows.a1 + 1)

    with pytest.raises(DataError, match=r"activity labels 1\.\.2, expected 0\.\.1"):
        built(Strange)


def test_windows_of_another_length_raise():
    class Short(Numbered):
        def load(self):
            windows = super().load()
            return windows._replace(x=windows.x[:, :, :3])

    with pytest.raises(DataError, match=r"shape \(2, 3\), expected \(2, 4\)"):
        built(Short)


@pytest.mark.parametrize("group", [-1, 3])
def test_group_out_of_range_raises(group):
    with pytest.raises(DataError, match="groups 0 to 2"):
        Numbered(test_group=group)


def test_missing_files_say_what_to_place_where(tmp_path):
    with pytest.raises(MissingDataError, match=r"needs nothing at all in .*numbered"):
        Numbered(root=str(tmp_path), download=False).prepare_data()
    with pytest.raises(MissingDataError, match="needs nothing at all"):
        Numbered(root=str(tmp_path)).prepare_data()  # nothing to download from
    assert not list(tmp_path.iterdir())


def test_slow_files_are_read_once(tmp_path, monkeypatch):
    (tmp_path / "numbered").mkdir()
    monkeypatch.setattr(Slow, "reads", 0)
    modules = [Slow(root=str(tmp_path), test_group=group) for group in (0, 1)]
    for module in modules:
        module.prepare_data()
        module.setup()
    assert Slow.reads == 1
    assert torch.equal(modules[1].datasets["train"].x, built(test_group=1).datasets["train"].x)
    monkeypatch.setattr(Slow, "key", 1)  # other files or arguments: read again
    Slow(root=str(tmp_path)).prepare_data()
    assert Slow.reads == 2


def test_damaged_cache_is_a_clear_error(tmp_path):
    (tmp_path / "numbered").mkdir()
    module = Slow(root=str(tmp_path))
    module.prepare_data()
    cache = next((tmp_path / "numbered").glob("windows-*.npz"))
    cache.write_bytes(cache.read_bytes()[:100])
    with pytest.raises(DataError, match="delete it"):
        module.setup()


def prepare_on_a_full_disk(root, answer):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # what a quota does
    module = Slow(root=root)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        module.prepare_data()
    module.setup()
    answer.send(([str(w.message) for w in caught], len(module.datasets["train"])))


def test_cache_that_finds_no_room_is_done_without(tmp_path):
    (tmp_path / "numbered").mkdir()
    context = multiprocessing.get_context("fork")
    answer, question = context.Pipe(duplex=False)
    process = context.Process(target=prepare_on_a_full_disk, args=(str(tmp_path), question))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    warned, samples = answer.recv()
    assert samples == len(built(test_group=0).datasets["train"])
    assert [message for message in warned if "Cannot write the cache" in message and str(tmp_path) in message]
    assert not list((tmp_path / "numbered").iterdir())


def test_cut_slides_over_whole_windows_only():
    series = np.arange(20.0).reshape(10, 2)
    windows, starts = cut(series, 4, 3)
    assert windows.shape == (3, 2, 4)
    assert windows[1, 0].tolist() == [6, 8, 10, 12]
    assert starts.tolist() == [0, 3, 6]
    assert [part.shape for part in cut(series, 11, 3)] == [(0, 2, 11), (0,)]


def test_collect_joins_labels_with_their_windows(tmp_path):
    parts = [
        (np.zeros((2, 1, 3)), np.array([0, 2]), 0, 5),
        (np.zeros((0, 1, 3)), np.empty(0, dtype=np.int64), 1, 1),
        (np.ones((1, 1, 3)), np.array([7]), 2, 4),
    ]
    windows = collect(parts, tmp_path)
    assert windows.x[:, 0, 0].tolist() == [0, 0, 1]
    assert windows.a1.tolist() == [0, 0, 2]
    assert windows.a2.tolist() == [5, 5, 4]
    assert windows.recording.tolist() == [0, 0, 1]
    assert windows.start.tolist() == [0, 2, 7]
    with pytest.raises(DataError, match="no complete window"):
        collect([parts[1]], tmp_path)


@pytest.mark.parametrize("rate", [50, 100, 150, 200])
def test_resampling_keeps_slow_movements_at_any_rate(rate):
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 10, 10 * rate))
    series = np.stack([np.sin(2 * np.pi * 2 * times), np.full_like(times, 9.8)], axis=1)
    ((first, result),) = resample(times, series, 50)
    assert first == times[0]
    grid = times[0] + np.arange(len(result)) / 50
    inner = slice(10, -10)
    assert len(result) == pytest.approx(500, abs=5)
    assert np.abs(result[inner, 0] - np.sin(2 * np.pi * 2 * grid[inner])).mean() < 0.03
    assert np.allclose(result[:, 1], 9.8, atol=1e-2)  # no dip at the ends


def test_resampling_removes_what_the_new_rate_cannot_show():
    times = np.arange(0, 10, 1 / 200)
    fast = np.sin(2 * np.pi * 60 * times)[:, None]  # would fold to 10 Hz
    ((_, result),) = resample(times, fast, 50)
    assert np.abs(result[10:-10]).max() < 0.05


def test_resampling_divides_at_gaps_and_leaves_invalid_rows_out():
    times = np.concatenate([np.arange(0, 4, 0.02), np.arange(60, 63, 0.02), np.arange(10, 12, 0.02)])
    series = np.ones((len(times), 3))
    series[20, 1] = np.nan
    series[30, 0] = np.inf
    starts, stretches = zip(*resample(times, series, 50), strict=True)
    assert starts == (0, 60, 10)
    assert [round(len(s) / 50) for s in stretches] == [4, 3, 2]
    assert all(np.allclose(s, 1) for s in stretches)
    assert resample(times[:1], series[:1], 50) == []


def test_archive_is_found_unpacked_and_packed(tmp_path):
    assert archive(tmp_path, "data", "inside.txt") is None
    (tmp_path / "data.zip").write_bytes(b"PK not really")
    with pytest.raises(DataError, match="not a sound zip"):
        archive(tmp_path, "data", "inside.txt")
    (tmp_path / "data.zip").unlink()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "inside.txt").write_text("x")
    assert archive(tmp_path, "data", "inside.txt") == tmp_path / "data"


@pytest.mark.parametrize("name", ["UCIHAR", "RealWorld", "HHAR", "MFD", "CWRU"])
def test_bad_values_in_any_data_set_raise_or_are_dropped(name, tmp_path, monkeypatch):
    fakes.FAKES[{"UCIHAR": "uci_har"}.get(name, name.lower())](tmp_path)
    cls = getattr(datamodules, name)
    good = cls(root=str(tmp_path)).load()
    monkeypatch.setattr(cls, "cache_key", lambda self: None)
    for count in (1, max(2, len(good.x) // 100), len(good.x)):
        spoilt = good.x.clone()
        spoilt[torch.randperm(len(good.x))[:count], 0, 7] = torch.nan
        monkeypatch.setattr(cls, "load", lambda self, x=spoilt: good._replace(x=x))
        if count == len(good.x):
            with pytest.raises(DataError, match="No training sample is free of NaN"):
                built(cls, root=str(tmp_path), on_bad_values="drop")
            continue
        with pytest.raises(DataError, match=rf"{name}: \d+ of \d+ samples .* hold NaN or infinity .*{tmp_path}"):
            built(cls, root=str(tmp_path))
        dropped = built(cls, root=str(tmp_path), on_bad_values="drop", val_split="random")
        assert sum(map(len, dropped.datasets.values())) == len(good.x) - count
