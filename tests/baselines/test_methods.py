"""Every listed method trains, alone and on two ranks, predicts, and survives a checkpoint; listing it tests it."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from codid_lightning.methods import baselines
from tests.baselines.small import ManyValues, build, epochs_of, flat, train_on_two_ranks, trainer
from tests.codid.test_resume import differences

PENALTIES = [name for name in baselines.__all__ if not issubclass(getattr(baselines, name), baselines.Base)]


@pytest.fixture(params=baselines.__all__)
def name(request) -> str:
    return request.param


def losses_of(name: str) -> set[str]:
    """What the method logs; BASE and what is derived from it have no penalty."""
    return {"train/attribute"} | ({"train/penalty"} if name in PENALTIES else set())


def test_trains_predicts_and_survives_a_checkpoint(name, many_values, tmp_path):
    model = build(name, many_values)
    before = copy.deepcopy(dict(model.named_parameters()))
    epochs = epochs_of(model)
    run = trainer(max_epochs=epochs)
    run.fit(model, many_values)

    assert run.global_step == 3 * epochs, "one count per batch, whatever the number of optimizers"
    assert all(torch.isfinite(v) for v in run.callback_metrics.values())
    assert losses_of(name) <= run.callback_metrics.keys()
    resting = [key for key, parameter in model.named_parameters() if torch.equal(before[key], parameter)]
    assert not resting, "an optimizer forgot these"
    counts = [v for k, v in model.state_dict().items() if k.startswith("encoder") and "num_batches_tracked" in k]
    steps = 3  # also of two stages: the second has new networks
    assert all(c == steps for c in counts), "running statistics move once per batch"

    run.save_checkpoint(tmp_path / "last.ckpt")
    restored = type(model).load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    expected, found = (trainer().predict(m, many_values)[0][0] for m in (model, restored))
    assert torch.equal(expected["z"], found["z"])
    assert all(torch.equal(p, q) for p, q in zip(expected["probabilities"], found["probabilities"], strict=True))
    assert found["z"].shape == (8, 3, 4)


def test_reconstruction_is_an_argument_of_every_method(name, many_values):
    model = build(name, many_values, reconstruction=1.0)
    run = trainer(limit_train_batches=1, limit_val_batches=0)
    run.fit(model, many_values)
    assert run.callback_metrics["train/reconstruction"] > 0


@pytest.mark.parametrize(("backbone", "shape"), [("resnet18", (3, 32, 32)), ("har", (9, 128)), ("mfd", (1, 640))])
def test_trains_on_every_backbone(name, backbone, shape, many_values):
    many_values.input_shape = shape
    model = build(name, many_values, backbone=backbone)
    before = copy.deepcopy(dict(model.encoder.named_parameters()))
    run = trainer(limit_train_batches=1, limit_val_batches=0)
    run.fit(model, many_values)
    assert all(torch.isfinite(v) for v in run.callback_metrics.values())
    assert not any(torch.equal(before[key], p) for key, p in model.encoder.named_parameters() if p.ndim > 1)
    del run, model, before
    gc.collect()  # model and trainer refer to each other; half a gigabyte each would wait for a collection


def test_same_seed_same_weights(name, many_values):
    weights = []
    for _ in range(2):
        model = build(name, many_values)
        trainer(limit_val_batches=0, max_epochs=epochs_of(model)).fit(model, many_values)
        weights.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize("name", PENALTIES)
def test_penalty_pulls_on_the_encoder(name, many_values):
    weights = []
    for strength in (0.0, 1.0):
        model = build(name, many_values, strength=strength)
        trainer(limit_val_batches=0, max_epochs=2).fit(model, many_values)
        weights.append(torch.cat([p.flatten() for p in model.encoder.parameters()]))
    assert not torch.equal(*weights)


def test_half_precision(name, many_values):
    model = build(name, many_values)
    run = trainer(precision="bf16-mixed", limit_val_batches=0, max_epochs=epochs_of(model))
    run.fit(model, many_values)
    assert all(torch.isfinite(v) for v in run.callback_metrics.values())


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return train_on_two_ranks(tmp_path_factory.mktemp("ranks"))


@pytest.mark.slow
@pytest.mark.timeout(900)  # the first case trains all methods
def test_two_ranks_stay_together(name, ranks):
    first, second = (rank[name] for rank in ranks)
    assert torch.equal(first["state"], second["state"])
    assert not torch.equal(first["state"], flat(build(name, ManyValues())))
    assert all(torch.isfinite(v).all() for v in first.values())
    assert losses_of(name) <= first.keys()


def run_and_keep(name: str, folder: Path, resume: Path | None = None) -> dict[str, Any]:
    """What a run of four epochs leaves. Without `resume` it also leaves a checkpoint per batch."""
    data = ManyValues(batch_size=8)
    saver = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    own = {"callbacks": [saver], "enable_checkpointing": True} if resume is None else {}
    model = build(name, data)
    run = trainer(max_epochs=4, limit_val_batches=0, **own)
    run.fit(model, data, ckpt_path=resume)
    run.save_checkpoint(folder / "final.ckpt")
    kept = torch.load(folder / "final.ckpt", weights_only=True)
    return {key: kept[key] for key in ("state_dict", "optimizer_states", "codid")}


@pytest.mark.parametrize("name", [name for name in baselines.__all__ if name not in PENALTIES], indirect=True)
def test_a_resumed_run_ends_bit_for_bit_alike(name, tmp_path):
    whole = run_and_keep(name, tmp_path)
    for step in (3, 5, 11):  # before, inside and at the end of the second stage, where there is one
        (tmp_path / f"from{step}").mkdir()
        assert not differences(whole, run_and_keep(name, tmp_path / f"from{step}", tmp_path / f"step={step}.ckpt"))
