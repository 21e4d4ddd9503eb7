"""CoDID with counterfactuals: what is clustered, what the inform step sees, and CoDID where the gate rejects."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from codid_lightning import CoDID
from codid_lightning.experiments.matrix import method_configs
from codid_lightning.methods.codid.parts.gate import SwapScores
from codid_lightning.methods.codid.parts.sources import Propensity, Representation, SymmetrisedRepresentation
from codid_lightning.training import resolve
from tests.codid.test_resume import differences
from tests.methods import recipes
from tests.methods.planted import Planted, make, trainer


def plus(data, **kwargs):
    return make(CoDID, data, **recipes.codid_plus(**kwargs))


def run_to_the_end(folder, resume=None):
    data = Planted(samples=120)
    ends = ModelCheckpoint(folder, "end-{epoch}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True)
    run = trainer(4, enable_checkpointing=resume is None, callbacks=[ends] if resume is None else [])
    model = plus(data)
    run.fit(model, data, ckpt_path=resume)
    run.save_checkpoint(folder / "final.ckpt")
    checkpoint = torch.load(folder / "final.ckpt", weights_only=True)
    callbacks = {k: v for k, v in checkpoint["callbacks"].items() if k.startswith("ModeDiscovery")}
    metrics = {k: v for k, v in run.callback_metrics.items() if "autoencoder" not in k}  # of epochs long past
    kept = {name: checkpoint[name] for name in ("state_dict", "optimizer_states", "codid")}
    return {**kept, "callbacks": callbacks, "metrics": metrics, "model": model}


@pytest.fixture(scope="module")
def accepted(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SwapScores, "accepted", True)
        folder = tmp_path_factory.mktemp("run")
        return folder, run_to_the_end(folder)


@pytest.mark.parametrize("point", ["end-epoch=0", "end-epoch=1", "end-epoch=2"])
def test_resumed_runs_end_bit_for_bit_alike(point, accepted, tmp_path, monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", True)
    folder, whole = accepted
    resumed = run_to_the_end(tmp_path, folder / f"{point}.ckpt")
    assert {"train/meta", "train/mode_prediction", "gate/accepted", "modes/count"} <= whole["metrics"].keys()
    assert not differences(*({k: v for k, v in run.items() if k != "model"} for run in (whole, resumed)))


def test_a_checkpoint_needs_neither_config_nor_data(accepted):
    folder, whole = accepted
    module = CoDID.load_from_checkpoint(folder / "final.ckpt", weights_only=True).eval()
    assert module.counterfactuals.accepted
    x = torch.rand(5, *module.hparams["input_shape"])
    assert torch.equal(module(x), whole["model"].eval()(x))
    batch = {"x": x, "a": torch.zeros(5, 2, dtype=torch.long), "index": torch.arange(5)}
    assert {"probabilities", "z", "cluster"} <= module.predict_step(batch, 0).keys()


def test_modes_are_looked_for_where_the_channel_is_averaged_out(accepted):
    _, whole = accepted
    model = whole["model"].eval()
    x = torch.rand(6, *model.hparams["input_shape"])
    decoded = [model.counterfactuals.swap(x, torch.full((6, 1), v)) for v in (0, 1)]
    mean = sum(model.encoder(d)[:, 0] for d in decoded) / 2
    for source in (Propensity(), SymmetrisedRepresentation()):
        assert torch.equal(source.representations(model, x), model(x))
        torch.testing.assert_close(source.representations(model, x)[:, 0], mean)
    assert torch.equal(Representation().representations(model, x), model.encoder(x))


def test_content_is_the_autoencoders_latent_once_the_gate_has_opened(accepted):
    _, whole = accepted
    model = whole["model"].eval()
    source, swaps = model.discovery.source, model.counterfactuals
    x = torch.rand(6, *model.hparams["input_shape"])
    decoded = [swaps.swap(x, torch.full((6, 1), v)) for v in (0, 1)]
    mean = sum(swaps.autoencoder.encode(d)[0].flatten(1) for d in decoded) / 2
    torch.testing.assert_close(source.content(model, x), mean)
    assert not source.needs_refinement(model)
    assert SymmetrisedRepresentation().content(model, x) is None
    assert SymmetrisedRepresentation().needs_refinement(model)
    fresh = plus(Planted(samples=20))
    assert fresh.discovery.source.content(fresh, x) is None
    assert fresh.discovery.source.needs_refinement(fresh)


def test_clusters_of_the_latent_are_measured_in_z(accepted):
    _, whole = accepted
    model = whole["model"]
    (target,) = model.target_list
    assert target.sub_means.shape[-1] == model.hparams["latent_dim"]
    used = target.sub_means[target.active.flatten()]
    assert (used.std(dim=-1) > 0).any(), "one number for all dimensions: means of the propensity, not of z"


def test_a_rejected_run_is_codid_to_the_last_bit(monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", False)
    data = Planted(samples=120)
    model = plus(data)
    trainer(4).fit(model, data)
    codid = make(CoDID, data, **recipes.codid())
    trainer(4).fit(codid, data)
    own = model.state_dict()
    assert len(codid.target_list[0].labels) > 0
    for key, value in codid.state_dict().items():
        assert not differences(value, own[key]), key


def test_a_restart_keeps_the_autoencoder():
    """It has learnt all that it learns. Everything else starts again after the first clustering."""
    model = plus(Planted(samples=120), discovery=recipes.discovery(restart=True))
    before = {key: value.clone() for key, value in model.state_dict().items() if key.endswith("weight")}
    model._reinitialise([])
    moved = {key for key, value in before.items() if not torch.equal(value, model.state_dict()[key])}
    assert not any("autoencoder" in key for key in moved)
    assert any(key.startswith("encoder") for key in moved)
    assert any(key.startswith("predictors") for key in moved)


def test_several_other_attributes(monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", True)
    data = Planted(channels=3, second=True, samples=120)
    run = trainer(4)
    run.fit(plus(data, targets=[0, 1], moded=[0]), data)
    assert all(torch.isfinite(v) for v in run.callback_metrics.values())


def test_trained_on_real_samples_only_the_modes_differ_from_codids(monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", True)
    data = Planted(samples=120)
    ours, plain = plus(data, train_on="real"), make(CoDID, data, **recipes.codid())
    for model in (ours, plain):
        trainer(model.discovery.start).fit(model, data)
    assert ours.counterfactuals.accepted
    x = torch.rand(6, *ours.hparams["input_shape"])
    assert torch.equal(ours.eval()(x), plain.eval()(x))
    assert ours.discovery.source.content(ours, x) is not None
    assert plain.discovery.source.content(plain, x) is None


@pytest.mark.parametrize("method", ["codid_plus", "codid_modes"])
@pytest.mark.parametrize("dataset", ["cmnist", "uci_har", "mfd"])
def test_the_config_keeps_the_data_sets_own_settings(dataset, method):
    files = [part for file in method_configs(dataset, method) for part in ("-c", file)]
    config, codid = resolve(files)["model"], resolve(files[:2])["model"]
    assert config["class_path"] == codid["class_path"]
    found, expected = config["init_args"], codid["init_args"]
    assert found["decoding"] is not None
    assert found["discovery"]["init_args"]["source"]["class_path"].endswith(".Propensity")
    for arguments in (found, expected):
        del arguments["decoding"], arguments["discovery"]["init_args"]["source"]
    if method == "codid_modes":
        assert found["alignment"]["init_args"]["weights"] is found["splits"] is None
        for arguments in (found, expected):
            del arguments["alignment"]["init_args"]["weights"], arguments["splits"]
    assert found == expected
