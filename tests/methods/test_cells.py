"""Methods over cells, against plain loops over the samples of each cell."""

from __future__ import annotations

import math

import pytest
import torch
from lightning import Trainer, seed_everything

from codid_lightning import Base, CoDID, TrueModes
from codid_lightning.clustering import DPGMM, ModesPerValue
from codid_lightning.experiments.matrix import method_configs
from codid_lightning.methods.codid.parts.gate import SwapScores
from codid_lightning.methods.codid.parts.mode_losses import EqualCells, WorstCells, cells_of
from codid_lightning.training import resolve
from datamodules.toy import Toy, ToyFourAttributes
from tests.codid.test_resume import differences
from tests.methods import recipes
from tests.methods.planted import Planted
from tests.methods.planted import make as planted
from tests.methods.planted import trainer as planted_trainer

LOSSES = [EqualCells(), WorstCells()]


def make(mode_loss, data, over="clusters", latent_dim=4, lr=1e-3, **discovery):
    seed_everything(0, verbose=False)
    facts = {k: getattr(data, k) for k in ("input_shape", "attribute_sizes", "test_names", "test_attributes")}
    settings = recipes.cells(mode_loss, over, **{"start": 1, **discovery})
    return CoDID(**facts, **settings, latent_dim=latent_dim, lr=lr)


def table_of(model):
    """Counts and weights of the cells."""
    return model.target_list[0].cells


def fit(model, data, epochs=3, **kwargs):
    quiet = {f"enable_{part}": False for part in ("checkpointing", "progress_bar", "model_summary")}
    run = Trainer(accelerator="cpu", logger=False, max_epochs=epochs, limit_val_batches=0, **quiet)
    run.fit(model, data, **kwargs)
    return run


def small_toy():
    return Toy(samples_per_mode=40, batch_size=36)


def with_cells(mode_loss, sizes=(2, 3), counts=None):
    """CoDID over cells of values, (a_1, a_2) being cell 3 a_1 + a_2, with so many training samples in each."""
    model = CoDID(input_shape=(4,), attribute_sizes=sizes, latent_dim=3, **recipes.cells(mode_loss, over="values"))
    table_of(model).counts = torch.tensor(counts)
    return model


def test_balanced_cells_count_equally():
    model = with_cells(EqualCells(), counts=[1, 2, 0, 4, 1, 0])
    cells = torch.tensor([0, 1, 1, 3, 3, 3, 3, 4])  # the whole training set as one batch
    losses = torch.rand(8)
    mean_of_cells = [losses[cells == c].mean().item() for c in (0, 1, 3, 4)]
    found = model.mode_loss.cell_loss(table_of(model), losses, cells).item()
    assert found == pytest.approx(sum(mean_of_cells) / 4, rel=1e-5)


def test_worst_cells_equal_exponentiated_gradient_by_hand():
    model = with_cells(WorstCells(lr=0.5), counts=[1, 2, 0, 4, 1, 0])
    table_of(model).importance = torch.tensor([0.25, 0.25, 0, 0.25, 0.25, 0])
    expected = {0: 0.25, 1: 0.25, 3: 0.25, 4: 0.25}
    for cells in ([0, 1, 1, 3], [3, 3, 3, 1]):  # cell 4 never comes, 0 only once
        losses = torch.rand(4) * 3
        means = {c: losses[torch.tensor(cells) == c].mean().item() for c in set(cells)}
        grown = {c: q * math.exp(0.5 * means.get(c, 0.0)) for c, q in expected.items()}
        expected = {c: q / sum(grown.values()) for c, q in grown.items()}
        found = model.mode_loss.cell_loss(table_of(model), losses, torch.tensor(cells)).item()
        assert found == pytest.approx(sum(expected[c] * mean for c, mean in means.items()), rel=1e-5)
    assert table_of(model).importance.tolist() == pytest.approx([expected.get(c, 0.0) for c in range(6)], rel=1e-5)


def test_cells_number_all_combinations_of_several_attributes():
    model = with_cells(EqualCells(), sizes=(2, 3, 4), counts=[0] * 24)
    every = torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(4))
    assert cells_of(model.target_list[0], every, torch.arange(24)).tolist() == list(range(24))


@pytest.mark.parametrize("mode_loss", LOSSES, ids=str)
@pytest.mark.parametrize("over", ["clusters", "values"])
def test_trains_and_counts_the_cells_of_its_clusters(mode_loss, over):
    data = small_toy()
    model = make(mode_loss, data, over)
    run = fit(model, data)
    a, labels, table = data.datasets["train"].a, model.target_list[0].labels, table_of(model)
    groups = labels if over == "clusters" else a[:, 0]
    assert len(groups) == len(a) == table.counts.sum()
    for slot, value in {(int(s), int(v)) for s, v in zip(groups, a[:, 1], strict=True)}:
        assert table.counts[slot * 2 + value] == ((groups == slot) & (a[:, 1] == value)).sum()
    assert all(torch.isfinite(v) for v in run.callback_metrics.values())
    if mode_loss.weighted:
        assert table.importance.sum().item() == pytest.approx(1)
        assert (table.importance[table.counts == 0] == 0).all()


@pytest.mark.parametrize("mode_loss", LOSSES, ids=str)
def test_resumed_run_equals_an_uninterrupted_one(mode_loss, tmp_path):
    whole = make(mode_loss, small_toy())
    fit(whole, small_toy())
    fit(make(mode_loss, small_toy()), small_toy(), epochs=2).save_checkpoint(tmp_path / "half.ckpt")
    resumed = make(mode_loss, small_toy())
    fit(resumed, small_toy(), ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    for key, value in whole.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, resumed.state_dict()[key]), key


@pytest.mark.parametrize("mode_loss", LOSSES, ids=str)
def test_several_other_attributes(mode_loss):
    data = ToyFourAttributes(samples=300, batch_size=64)
    run = fit(make(mode_loss, data), data, epochs=2)
    assert all(torch.isfinite(v) for v in run.callback_metrics.values())


@pytest.mark.parametrize("dataset", ["cmnist", "uci_har", "mfd"])
def test_configs_keep_the_data_sets_own_settings(dataset):
    methods = {"cell_balanced": EqualCells, "group_dro": WorstCells, "balanced_modes": EqualCells}
    for name, mode_loss in methods.items():
        files = method_configs(dataset, name)
        config = resolve([part for file in files for part in ("-c", file)])["model"]
        codid = resolve(["-c", *method_configs(dataset, "codid")])["model"]
        assert config["class_path"] == codid["class_path"]
        found, expected = config["init_args"], codid["init_args"]
        assert found["mode_loss"]["class_path"].endswith(f".{mode_loss.__name__}")
        assert found["alignment"] is found["splits"] is None
        assert found["backbone"] == expected["backbone"]
        for key in ("n_clusters", "start", "every", "until"):
            assert found["discovery"]["init_args"][key] == expected["discovery"]["init_args"][key]


def modes_made_balanced(data, epochs=4):
    model = planted(CoDID, data, latent_dim=4, **recipes.balanced_modes())
    planted_trainer(epochs).fit(model, data)
    return model


def test_without_the_autoencoder_modes_are_those_of_cell_balanced(monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", False)
    data = Planted(samples=120)
    plain = planted(CoDID, data, latent_dim=4, **recipes.cells(EqualCells()))
    planted_trainer(4).fit(plain, data)
    own = modes_made_balanced(data).state_dict()
    for key, value in plain.state_dict().items():
        assert not differences(value, own[key]), key


def test_modes_by_propensity_are_balanced(monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", True)
    data = Planted(samples=120)
    model = modes_made_balanced(data)
    a = data.datasets["train"].a
    content = model.discovery.source.content(model, data.datasets["train"].x)
    features = model.discovery.source.features(content, a, 0)
    expected = ModesPerValue(DPGMM(), [2, 2], 4, search=True).fit(features, a[:, 0])
    assert torch.equal(model.target_list[0].labels, expected.labels)
    counts = table_of(model).counts
    assert counts.sum() == len(a)
    assert counts.tolist() == (expected.labels * 2 + a[:, 1]).bincount(minlength=len(counts)).tolist()


@pytest.mark.parametrize("half", [1, 3])  # before the gate, and with modes in use
def test_resumed_modes_by_propensity_equal_uninterrupted_ones(half, tmp_path, monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", True)
    data = Planted(samples=120)
    whole = modes_made_balanced(data)
    run = planted_trainer(half)
    run.fit(planted(CoDID, data, latent_dim=4, **recipes.balanced_modes()), data)
    run.save_checkpoint(tmp_path / "half.ckpt")
    resumed = planted(CoDID, data, latent_dim=4, **recipes.balanced_modes())
    planted_trainer(4).fit(resumed, data, ckpt_path=tmp_path / "half.ckpt", weights_only=True)
    assert not differences(whole.state_dict(), resumed.state_dict())
    assert torch.equal(table_of(whole).counts, table_of(resumed).counts)


@torch.no_grad()
def worst_cell(model, data):
    """Accuracy in the worst cell of a true mode and a value of a_2, on unseen data."""
    batch = data.datasets["test2"][torch.arange(len(data.datasets["test2"]))]
    right = model.eval().predictors[0](model(batch["x"])[:, 0]).argmax(1) == batch["a"][:, 0]
    cells = batch["mode"][:, 0] * 2 + batch["a"][:, 1]
    return min(right[cells == c].float().mean().item() for c in cells.unique())


@pytest.mark.slow
def test_cells_of_true_modes_raise_the_worst_one():
    data = Toy(samples_per_mode=300, batch_size=64, noise=0.2)
    data.setup()
    learning = {"latent_dim": 16, "lr": 3e-3}
    seed_everything(0, verbose=False)
    base = Base(data.input_shape, data.attribute_sizes, data.test_names, data.test_attributes, **learning)
    fit(base, data, epochs=40)
    for mode_loss in LOSSES:
        known = {"clusterer": TrueModes(), "n_clusters": 3, "start": 0, "every": None}
        model = make(mode_loss, data, **known, **learning)
        fit(model, data, epochs=40)
        assert worst_cell(model, data) > worst_cell(base, data) + 0.1
