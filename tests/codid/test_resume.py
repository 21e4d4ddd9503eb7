"""An interrupted run, resumed, ends exactly as the uninterrupted one; a checkpoint needs neither config nor data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from codid_lightning import CoDID
from codid_lightning.clustering import DPGMM, KMeans
from codid_lightning.methods.codid.discovery import ModeDiscovery
from tests.codid.tiny import tiny_codid, tiny_data, tiny_trainer

EPOCHS, BATCHES = 5, 3
EAGER = {"n_clusters": 2, "clusterer": DPGMM(concentration=1e9, max_rounds=0)}  # splits are welcome


def run(folder: Path, resume: Path | None = None) -> dict[str, Any]:
    """Everything a run leaves: its final checkpoint and its metrics. Without `resume`, a checkpoint per batch."""
    data = tiny_data()
    saver = ModelCheckpoint(folder, "{epoch}-{step}", every_n_train_steps=1, save_top_k=-1, save_last=False)
    ends = ModelCheckpoint(folder, "end-{epoch}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True)
    callbacks = [saver, ends] if resume is None else []
    trainer = tiny_trainer(EPOCHS, enable_checkpointing=resume is None, callbacks=callbacks)
    module = tiny_codid(data, seed=0 if resume is None else 7, discovery=EAGER, max_clusters=6)
    trainer.fit(module, data, ckpt_path=resume)
    trainer.save_checkpoint(folder / "final.ckpt")
    checkpoint = torch.load(folder / "final.ckpt", weights_only=True)
    callbacks = {k: v for k, v in checkpoint["callbacks"].items() if k.startswith("ModeDiscovery")}
    kept = {name: checkpoint[name] for name in ("state_dict", "optimizer_states", "codid")}
    return {**kept, "callbacks": callbacks, "metrics": dict(trainer.callback_metrics)}


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two nested structures are not equal bit for bit."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [d for key in one for d in differences(one[key], other[key], f"{path}/{key}")]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        return [d for i, pair in enumerate(zip(one, other, strict=True)) for d in differences(*pair, f"{path}/{i}")]
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return [] if torch.equal(one, other) else [path]
    return [] if one == other else [path]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, run(folder)


def test_the_run_to_resume_is_worth_it(uninterrupted):
    _, whole = uninterrupted
    (state,) = whole["callbacks"].values()
    assert [entry["kind"] for entry in state["history"]] == ["fit", "split", "merge", "split"]
    assert any(move["accepted"] for entry in state["history"] for move in entry["moves"])
    assert {"train/meta", "train/weight_alignment", "modes/nmi", "val/acc"} <= whole["metrics"].keys()


@pytest.mark.parametrize(
    "point",
    [
        "end-epoch=0",  # the next batch clusters for the first time
        "end-epoch=1",  # ... splits
        "end-epoch=2",  # ... merges
        "epoch=1-step=4",  # inside the first epoch with clusters
        "epoch=0-step=3",  # after the last batch of pre-training, before the epoch's end
        "epoch=2-step=7",  # right after the batch that split
        "epoch=3-step=12",  # after the last batch before a split
    ],
)
def test_resumed_runs_end_bit_for_bit_alike(point, uninterrupted, tmp_path):
    folder, whole = uninterrupted
    resumed = run(tmp_path, folder / f"{point}.ckpt")
    assert not differences(whole, resumed)


def test_checkpoints_from_before_every_rank_kept_its_losses_are_read(uninterrupted, tmp_path):
    folder, whole = uninterrupted
    former = torch.load(folder / "epoch=1-step=4.ckpt", weights_only=True)
    (former["codid"]["losses"],) = former["codid"]["losses"]
    torch.save(former, tmp_path / "former.ckpt")
    assert not differences(whole, run(tmp_path, tmp_path / "former.ckpt"))


def test_a_checkpoint_needs_neither_config_nor_data(uninterrupted):
    folder, whole = uninterrupted
    path = folder / "final.ckpt"
    module = CoDID.load_from_checkpoint(path, weights_only=True)
    assert not differences(whole["state_dict"], module.state_dict())
    assert len(module.target_list[0].labels) == 108
    outputs = module.eval().predict_step(next(iter(_batches())), 0)
    assert {"probabilities", "z", "cluster"} <= outputs.keys()


def _batches():
    data = tiny_data()
    data.setup()
    return data.test_dataloader()[0]


@pytest.mark.parametrize("clusterer", [KMeans(n_init=2), DPGMM(concentration=3.0, max_rounds=0)], ids=["km", "dpm"])
def test_a_checkpoint_brings_its_clusterer(clusterer, tmp_path):
    data = tiny_data()
    trainer = tiny_trainer(1)
    trainer.fit(tiny_codid(data, discovery={"clusterer": clusterer}), data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    restored = CoDID.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True).discovery.clusterer
    assert type(restored) is type(clusterer)
    assert restored.get_params() == clusterer.get_params()
    own = ModeDiscovery(clusterer=KMeans(n_init=9))
    other = CoDID.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True, discovery=own)
    assert other.discovery.clusterer.n_init == 9  # what the user gives counts
