"""CoDID with counterfactuals: what is clustered, what the inform step sees, and CoDID where the gate refuses."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from codid_lightning import CoDID, CoDIDPlus
from codid_lightning.benchmark import Resolver, method_configs
from codid_lightning.callbacks.swap_gate import SwapScores
from tests.codid.test_resume import differences
from tests.methods.planted import Planted, make, trainer

SETTINGS = {
    "pretrain_epochs": 2,
    "cluster_every": 1,
    "n_clusters": 2,
    "max_clusters": 4,
    "discriminator_steps": 2,
}


def plus(data, **kwargs):
    return make(CoDIDPlus, data, **{**SETTINGS, "autoencoder_epochs": 1, **kwargs})


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
    module = CoDIDPlus.load_from_checkpoint(folder / "final.ckpt", weights_only=True).eval()
    assert module.swapping
    x = torch.rand(5, *module.autoencoder.input_shape)
    assert torch.equal(module(x), whole["model"].eval()(x))
    batch = {"x": x, "a": torch.zeros(5, 2, dtype=torch.long), "index": torch.arange(5)}
    assert {"probabilities", "z", "cluster"} <= module.predict_step(batch, 0).keys()


def test_modes_are_looked_for_where_the_channel_is_averaged_out(accepted):
    _, whole = accepted
    model = whole["model"].eval()
    x = torch.rand(6, *model.autoencoder.input_shape)
    assert torch.equal(model.mode_view(x), model(x))
    decoded = [model.swap(x, torch.full((6, 1), v)) for v in (0, 1)]
    mean = sum(model.encoder(d)[:, 0] for d in decoded) / 2
    torch.testing.assert_close(model.mode_view(x)[:, 0], mean)
    model.cluster_on = "z1"
    assert torch.equal(model.mode_view(x), model.encoder(x))
    model.cluster_on = "propensity"


def test_content_is_the_autoencoders_latent_once_the_gate_has_opened(accepted):
    _, whole = accepted
    model = whole["model"].eval()
    x = torch.rand(6, *model.autoencoder.input_shape)
    decoded = [model.swap(x, torch.full((6, 1), v)) for v in (0, 1)]
    mean = sum(model.autoencoder.encode(d)[0].flatten(1) for d in decoded) / 2
    torch.testing.assert_close(model.content(x), mean)
    assert not model.modes_move
    model.cluster_on = "symmetrised"
    assert model.content(x) is None
    assert model.modes_move
    model.cluster_on = "propensity"
    assert plus(Planted(samples=20)).content(x) is None


def test_clusters_of_the_latent_are_measured_in_z(accepted):
    _, whole = accepted
    model = whole["model"]
    (target,) = model.target_list
    assert target.sub_means.shape[-1] == model.hparams["latent_dim"]
    used = target.sub_means[target.active.flatten()]
    assert (used.std(dim=-1) > 0).any(), "one number for all dimensions: means of the propensity, not of z"


def test_a_refused_run_is_codid_to_the_last_bit(monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", False)
    data = Planted(samples=120)
    model = plus(data)
    trainer(4).fit(model, data)
    codid = make(CoDID, data, **SETTINGS)
    trainer(4).fit(codid, data)
    own = model.state_dict()
    assert len(codid.target_list[0].labels) > 0
    for key, value in codid.state_dict().items():
        assert not differences(value, own[key]), key


def test_restart_would_forget_the_autoencoder():
    with pytest.raises(ValueError, match=r"model\.restart"):
        plus(Planted(), restart=True)


def test_several_other_attributes(monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", True)
    data = Planted(channels=3, second=True, samples=120)
    run = trainer(4)
    run.fit(plus(data, targets=[0, 1], moded=[0]), data)
    assert all(torch.isfinite(v) for v in run.callback_metrics.values())


def test_trained_on_real_samples_only_the_modes_differ_from_codids(monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", True)
    data = Planted(samples=120)
    ours, plain = plus(data, train_on="real"), make(CoDID, data, **SETTINGS)
    for model in (ours, plain):
        trainer(SETTINGS["pretrain_epochs"]).fit(model, data)
    assert ours.swapping
    x = torch.rand(6, *ours.autoencoder.input_shape)
    assert torch.equal(ours.eval()(x), plain.eval()(x))
    assert ours.content(x) is not None
    assert plain.content(x) is None


@pytest.mark.parametrize("method", ["codid_plus", "codid_modes"])
@pytest.mark.parametrize("dataset", ["cmnist", "uci_har", "mfd"])
def test_the_config_keeps_the_data_sets_own_settings(dataset, method):
    resolver = Resolver.run([], run=False)
    files = [part for file in method_configs(dataset, method) for part in ("-c", file)]
    config, codid = resolver.resolve(files)["model"], resolver.resolve(files[:2])["model"]
    assert config["class_path"].endswith("CoDIDPlus")
    chosen = {"discrimination", "split_by"} if method == "codid_modes" else set()
    kept = {key: value for key, value in codid["init_args"].items() if key not in chosen}
    assert kept.items() <= config["init_args"].items()
