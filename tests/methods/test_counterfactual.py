"""Counterfactual training: what is swapped, what is learnt from it, and what happens where the gate rejects."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint

from codid_lightning import Base, CoDID
from codid_lightning.errors import RunError
from codid_lightning.methods.codid.parts.decoding import DecodedSamples
from codid_lightning.methods.codid.parts.gate import SwapGate, SwapScores, verdict
from codid_lightning.training import resolve
from codid_lightning.training.config_files import packaged_configs
from tests.baselines.small import ManyValues
from tests.codid.test_resume import differences
from tests.methods.planted import Planted, make, trainer
from tests.methods.recipes import counterfactual

LEARNS = {"epochs": 12, "lr": 5e-3}


@pytest.fixture(scope="module")
def accepted():
    """A run on data whose second attribute can be swapped."""
    data = Planted()
    model, run = make(CoDID, data, **counterfactual(**LEARNS)), trainer(14)
    run.fit(model, data)
    return data, model, run


# ------------------------------------------------------------------------------------------------------ what is swapped


def swapper(sizes, occurring):
    model = CoDID(input_shape=(6,), attribute_sizes=sizes, latent_dim=4, **counterfactual())
    found = [v in values for size, values in zip(sizes[1:], occurring, strict=True) for v in range(size)]
    model.counterfactuals.occurring = torch.tensor(found)
    return model


@pytest.mark.parametrize(
    ("sizes", "occurring"), [((2, 2), [[0, 1]]), ((3, 5), [[0, 2, 4]]), ((2, 3, 4), [[1, 2], [0, 1, 3]])]
)
def test_other_values_are_all_other_combinations_equally_often(sizes, occurring):
    swaps = swapper(sizes, occurring).counterfactuals
    every = [(1, *values) for values in product(*occurring)]
    repeats = 600 * (len(every) - 1)
    generator = torch.Generator().manual_seed(0)
    for own in every:
        offset = torch.randint(1, len(every), (repeats,), generator=generator)
        counts = Counter((1, *found) for found in swaps.others_than(torch.tensor([own] * repeats), offset).tolist())
        assert counts.keys() == set(every) - {own}
        assert all(abs(n - 600) < 5 * 600**0.5 for n in counts.values())


def test_evaluation_averages_over_the_values_that_occur():
    torch.manual_seed(0)
    model = swapper((2, 3, 4), [[1, 2], [0, 1, 3]]).eval()
    model.counterfactuals.gate_metrics = {"gate/accepted": 1.0}
    x, z = torch.randn(5, 6), torch.zeros(5, 4)
    for a2, a3 in product([1, 2], [0, 1, 3]):
        condition = torch.cat([F.one_hot(torch.full((5,), v), size) for v, size in ((a2, 3), (a3, 4))], dim=1).float()
        z += model.encoder(model.counterfactuals.autoencoder(x, condition))[:, 0] / 6
    torch.testing.assert_close(model(x)[:, 0], z)
    torch.testing.assert_close(model(x)[:, 1:], model.encoder(x)[:, 1:])


def test_many_combinations_are_thinned_out():
    model = swapper((2, 30, 3), [list(range(30)), [0, 1, 2]]).eval()
    model.counterfactuals.gate_metrics = {"gate/accepted": 1.0}
    seen = []
    model.counterfactuals.autoencoder.render = lambda z, condition: (seen.append(condition[0]), torch.zeros(len(z), 6))[
        1
    ]
    model(torch.randn(2, 6))
    assert len(seen) == 32
    assert len({tuple(c.tolist()) for c in seen}) == 32
    assert torch.stack(seen).sum(0).min() >= 1, "no value is left out"


def test_training_sees_every_combination_equally_often():
    model = swapper((2, 2, 4), [[0, 1], [0, 2, 3]]).train()
    model.counterfactuals.gate_metrics = {"gate/accepted": 1.0}
    model.counterfactuals.generator = torch.Generator().manual_seed(0)
    seen = []
    model.counterfactuals.swap = lambda x, values: (seen.extend(map(tuple, values.tolist())), x)[1]
    model(torch.randn(6000, 6))
    counts = Counter(seen)
    assert counts.keys() == set(product([0, 1], [0, 2, 3]))
    assert all(abs(n - 1000) < 5 * 1000**0.5 for n in counts.values())


def test_swapped_samples_move_to_the_other_channel(accepted):
    data, model, _ = accepted
    batch = data.datasets["val"][torch.arange(200)]
    expected = batch["x"].flip(1)  # the true counterfactual
    error = (model.counterfactuals.swap(batch["x"], 1 - batch["a"][:, 1:]) - expected).square().mean()
    assert error < 0.2 * (batch["x"] - expected).square().mean()


# ----------------------------------------------------------------------------------------------------------- the losses


def test_gaussian_error_has_the_gradient_of_the_likeliest_variance():
    data = ManyValues()
    model = make(CoDID, data, **counterfactual())
    model.counterfactuals.generator = torch.Generator().manual_seed(0)
    data.setup()
    batch = data.datasets["train"][torch.arange(24)]
    parameters = list(model.counterfactuals.autoencoder.parameters())
    found = torch.autograd.grad(model.counterfactuals.autoencoder_loss(model, batch, 0.0), parameters)
    model.counterfactuals.generator = torch.Generator().manual_seed(0)
    noise = torch.randn(24, *model.counterfactuals.autoencoder.latent_shape, generator=model.counterfactuals.generator)
    mean, log_variance = model.counterfactuals.autoencoder.encode(batch["x"])
    condition = torch.cat([F.one_hot(batch["a"][:, 1], 30), F.one_hot(batch["a"][:, 2], 3)], 1).float()
    decoded = model.counterfactuals.autoencoder.decode(mean + (log_variance / 2).exp() * noise, condition)
    profile = 6 / 2 * ((decoded - batch["x"]) ** 2).mean().log()  # -log-likelihood at its best variance
    for one, other in zip(found, torch.autograd.grad(profile, parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_counterfactuals_are_a_batch_of_their_own(accepted):
    data, model, _ = accepted
    batch = data.datasets["train"][torch.arange(50)]
    model.train()
    model.counterfactuals.generator = torch.Generator().manual_seed(3)
    before = {k: v.clone() for k, v in model.encoder.state_dict().items()}
    found = model.counterfactuals.counterfactual_loss(model, batch)
    assert not differences(before, dict(model.encoder.state_dict())), "running statistics belong to real samples"
    x = model.counterfactuals.swap(batch["x"], 1 - batch["a"][:, 1:])  # two values: no choice
    z = model.encoder(x)[:, 0]  # normalised by the counterfactuals alone
    expected = F.nll_loss(model.predictors[0](z).log_softmax(1), batch["a"][:, 0])
    torch.testing.assert_close(found, expected)
    model.encoder.load_state_dict(before)


def test_both_is_the_mean_of_real_samples_and_counterfactuals(accepted, monkeypatch):
    data, model, _ = accepted
    batch = data.datasets["train"][torch.arange(50)]
    model.train()
    swaps = model.counterfactuals
    monkeypatch.setattr(swaps, "settings", replace(swaps.settings, train_on="both"))
    z = model(batch["x"])
    assert torch.equal(z, model.encoder(batch["x"]))
    plain = model.attribute_losses(z, batch["a"]).sum(1).mean()
    expected = (plain + model.counterfactuals.counterfactual_loss(model, batch)) / 2
    torch.testing.assert_close(model.informative_loss(z, batch), expected)


def test_decoded_samples_alone_train_the_prediction(accepted):
    data, model, _ = accepted
    batch = data.datasets["train"][torch.arange(50)]
    model.train()
    model.counterfactuals.generator = torch.Generator().manual_seed(3)
    z = model(batch["x"])
    values = torch.randint(0, 2, (50,), generator=torch.Generator().manual_seed(3))[:, None]
    torch.testing.assert_close(z[:, 0], model.encoder(model.counterfactuals.swap(batch["x"], values))[:, 0])
    torch.testing.assert_close(model.informative_loss(z, batch), model.attribute_losses(z, batch["a"]).sum(1).mean())
    model.eval()
    swapped = model.counterfactuals.swap(batch["x"], 1 - batch["a"][:, 1:])
    gap = (model(batch["x"]) - model(swapped))[:, 0].square().mean()
    assert gap < 0.1 * model(batch["x"])[:, 0].var(0).mean(), "z_1 does not ask for the channel"


# ------------------------------------------------------------------------------------------------------------- the gate


def test_gate_accepts_what_can_be_swapped(accepted):
    _, model, run = accepted
    assert run.callback_metrics["gate/accepted"] == 1
    assert model.counterfactuals.gate_metrics["gate/obedience"] > 0.95
    assert model.counterfactuals.accepted
    assert "accepted" in verdict(model.counterfactuals.gate_metrics)


@pytest.fixture(scope="module")
def rejected():
    """A run on data whose second attribute leaves no trace."""
    data = Planted(traceless=True)
    model, run = make(CoDID, data, **counterfactual(**LEARNS)), trainer(14)
    run.fit(model, data)
    return data, model, run


def test_gate_rejects_what_leaves_no_trace(rejected):
    _, model, run = rejected
    assert run.callback_metrics["gate/accepted"] == 0
    assert model.counterfactuals.gate_metrics["gate/obedience"] < 0.5
    assert not model.counterfactuals.accepted
    assert "rejected" in verdict(model.counterfactuals.gate_metrics)


def test_a_rejected_run_is_base_to_the_last_bit(rejected):
    data, model, _ = rejected
    base = make(Base, data)
    trainer(14).fit(base, data)
    own = model.state_dict()
    for key, value in base.state_dict().items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, own[key]), key


def test_gate_rejects_a_decoder_that_draws_all_samples_alike(accepted, monkeypatch):
    data, model, run = accepted
    kept = SwapGate().measure(run, model, model.counterfactuals)
    assert kept.accepted
    alike = {v: data.datasets["train"].x[data.datasets["train"].a[:, 1] == v].mean(0) for v in (0, 1)}
    monkeypatch.setattr(model.counterfactuals, "swap", lambda x, a: torch.stack([alike[int(v)] for v in a]))
    scores = SwapGate().measure(run, model, model.counterfactuals)
    assert scores.obedience > 0.8, "the mean picture of a channel is in that channel"
    assert abs(scores.survival) < 0.1
    assert not scores.accepted


def test_scores_are_those_of_a_plain_loop(accepted):
    data, model, run = accepted
    scores = SwapGate().measure(run, model, model.counterfactuals)
    model.eval()
    real = swapped = kept = returned = 0
    before, after = [], []

    def predict(x):
        z = model.encoder(x[None])
        return [int(model.predictors[q](z[:, q]).argmax()) for q in range(2)]

    samples = data.datasets["val"]
    for i in range(len(samples)):
        one = samples[[i]]
        old, new = one["a"][:, 1:], 1 - one["a"][:, 1:]
        there = model.counterfactuals.swap(one["x"], new)
        was, is_now, back = predict(one["x"][0]), predict(there[0]), predict(model.counterfactuals.swap(there, old)[0])
        real += was[1] == int(one["a"][0, 1])
        swapped += is_now[1] == int(new)
        kept += is_now[0] == was[0]
        returned += back[0] == was[0]
        before.append(was[0])
        after.append(back[0])
    n = len(samples)
    coincidence = sum(before.count(v) / n * after.count(v) / n for v in (0, 1))
    expected = SwapScores(real / n, swapped / n, 0.5, kept / n, returned / n, coincidence)
    for name, value in vars(expected).items():
        assert getattr(scores, name) == pytest.approx(value, abs=2 / n), name


@pytest.mark.parametrize(
    ("changes", "obedience", "survival"),
    [
        ({}, 1.0, 1.0),
        ({"swapped": 0.25}, 0.0, 1.0),  # chance
        ({"swapped": 0.1}, -0.25, 1.0),
        ({"real": 0.25}, 0.0, 1.0),  # nothing to recognise: nothing is known
        ({"returned": 0.5}, 1.0, 0.0),
        ({"returned": 0.75}, 1.0, 0.5),
        ({"coincidence": 1.0}, 1.0, 0.0),  # one prediction for all
    ],
)
def test_scores_lie_between_chance_and_the_best(changes, obedience, survival):
    perfect = {"real": 0.85, "swapped": 0.85, "chance": 0.25, "kept": 1.0, "returned": 1.0, "coincidence": 0.5}
    scores = SwapScores(**{**perfect, **changes})
    assert scores.obedience == pytest.approx(obedience)
    assert scores.survival == pytest.approx(survival)
    assert scores.accepted == (obedience == 1 and survival == 1)


def test_one_value_cannot_be_swapped(capsys):
    data = Planted(channels=2, missing=1, samples=60)
    model = make(CoDID, data, **counterfactual(epochs=1))
    run = trainer(2)
    run.fit(model, data)
    assert run.callback_metrics["gate/accepted"] == 0
    assert "single value" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ any data, any trainer


DATA = {
    "four values, one missing": Planted(channels=4, missing=1, samples=100),
    "two other attributes": Planted(second=True, samples=100),
    "thirty values": ManyValues(),
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("train_on", ["decoded", "both", "real"])
def test_trains_predicts_and_survives_a_checkpoint(data, precision, train_on, monkeypatch, tmp_path):
    monkeypatch.setattr(SwapScores, "accepted", True)
    model = make(CoDID, data, **counterfactual(epochs=1, train_on=train_on))
    run = trainer(2, precision=precision)
    run.fit(model, data)
    assert all(torch.isfinite(v) for v in run.callback_metrics.values())
    assert {"gate/obedience", "gate/survival", "gate/accepted"} <= run.callback_metrics.keys()
    assert ("train/counterfactual" in run.callback_metrics) == (train_on == "both")
    assert run.global_step == 2 * run.num_training_batches
    run.save_checkpoint(tmp_path / "last.ckpt")
    restored = CoDID.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert restored.counterfactuals.gate_metrics == model.counterfactuals.gate_metrics
    expected, found = (trainer().predict(m, data) for m in (model, restored))
    expected, found = (out[0][0] if isinstance(out[0], list) else out[0] for out in (expected, found))
    assert torch.equal(expected["z"], found["z"])


@pytest.mark.parametrize(("backbone", "shape"), [("resnet18", (3, 32, 32)), ("har", (9, 128)), ("mfd", (1, 640))])
def test_trains_on_every_backbone(backbone, shape, monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", True)
    data = ManyValues(batch_size=8)
    data.input_shape = shape
    run = trainer(2, limit_train_batches=1)
    settings = counterfactual(epochs=1, likelihood="gaussian")
    run.fit(make(CoDID, data, backbone=backbone, **settings), data)
    assert all(torch.isfinite(v) for v in run.callback_metrics.values())


@pytest.mark.parametrize("argument", ["epochs", "lr"])
def test_arguments_that_cannot_be(argument):
    with pytest.raises(ValueError, match=f"model.decoding.{argument} is 0; it must be positive"):
        DecodedSamples(**{argument: 0})


def test_other_bad_input_is_named():
    with pytest.raises(ValueError, match=r"model\.decoding\.kl is -1"):
        DecodedSamples(kl=-1)
    with pytest.raises(ValueError, match="one attribute"):
        CoDID(input_shape=(6,), attribute_sizes=(2,), **counterfactual())
    data = ManyValues()
    data.input_shape = (3, 8, 8)  # standard normal "images"
    with pytest.raises(RunError, match=r"set model\.decoding\.likelihood to gaussian"):
        trainer(1).fit(make(CoDID, data, **counterfactual()), data)


def test_too_few_epochs_are_noticed():
    data = Planted(samples=60)
    with pytest.warns(UserWarning, match="no epoch is left"):
        trainer(1).fit(make(CoDID, data, **counterfactual(epochs=1)), data)


def test_a_trial_of_a_few_batches_says_nothing_of_epochs(recwarn):
    data = Planted(samples=60)
    trainer(1, fast_dev_run=2).fit(make(CoDID, data, **counterfactual(epochs=1)), data)
    assert not any("no epoch is left" in str(warning.message) for warning in recwarn)


# --------------------------------------------------------------------------------------------------------------- resume


def run_to_the_end(folder, resume=None):
    data = Planted(samples=120)
    saver = ModelCheckpoint(folder, "{epoch}-{step}", every_n_train_steps=1, save_top_k=-1)
    ends = ModelCheckpoint(folder, "end-{epoch}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True)
    run = trainer(4, enable_checkpointing=resume is None, callbacks=[saver, ends] if resume is None else [])
    model = make(CoDID, data, **counterfactual(epochs=2))
    run.fit(model, data, ckpt_path=resume)
    run.save_checkpoint(folder / "final.ckpt")
    checkpoint = torch.load(folder / "final.ckpt", weights_only=True)
    kept = {name: checkpoint[name] for name in ("state_dict", "optimizer_states", "codid")}
    metrics = {k: v for k, v in run.callback_metrics.items() if "autoencoder" not in k}  # of epochs long past
    return {**kept, "metrics": metrics}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SwapScores, "accepted", True)
        folder = tmp_path_factory.mktemp("run")
        return folder, run_to_the_end(folder)


@pytest.mark.parametrize("point", ["end-epoch=0", "epoch=0-step=2", "end-epoch=1", "epoch=1-step=6", "epoch=2-step=7"])
def test_resumed_runs_end_bit_for_bit_alike(point, uninterrupted, tmp_path, monkeypatch):
    monkeypatch.setattr(SwapScores, "accepted", True)
    folder, whole = uninterrupted
    assert whole["state_dict"]["counterfactuals._extra_state"]["gate/accepted"] == 1
    assert not differences(whole, run_to_the_end(tmp_path, folder / f"{point}.ckpt"))


# -------------------------------------------------------------------------------------------------------------- configs


@pytest.mark.parametrize("dataset", ["cmnist", "uci_har", "toy_four_attributes"])
def test_the_overlay_fits_base_and_codid(dataset):
    overlay = packaged_configs(["configs/methods/counterfactual.yaml"])[0]
    for kind in ("base", "codid"):
        below = packaged_configs([f"configs/{dataset}/{kind}.yaml"])[0]
        config = resolve(["-c", below, "-c", overlay])
        plain = resolve(["-c", below])
        found = config["model"]["init_args"]
        assert config["model"]["class_path"].endswith("CoDID")
        assert found["decoding"] is not None
        assert found["mode_loss"] is found["alignment"] is found["splits"] is None
        assert config["method"] == "counterfactual"
        assert config["data"] == plain["data"]
        for shared in ("backbone", "latent_dim", "lr"):
            assert found[shared] == plain["model"]["init_args"][shared]
