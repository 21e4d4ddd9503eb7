"""Averages of weights equal those of torch, are what is tested and saved, and survive an interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

from codid_lightning.training.callbacks.averaging import AveragedWeights
from tests.baselines.small import ManyValues, build, trainer
from tests.codid.test_resume import differences
from tests.codid.tiny import tiny_codid, tiny_data

KINDS = {"swa": {"start": 0.5}, "ema": {"start": 0.25, "decay": 0.8}}


class Reference(Callback):
    """Averages of an encoder by torch: after epochs 2 and 3 (swa), or after all steps from epoch 1 on (ema)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.average: AveragedModel | None = None

    def _add(self, module: Any) -> None:
        if self.average is None:
            function = get_ema_avg_fn(0.8) if self.kind == "ema" else None
            self.average = AveragedModel(module.encoder, avg_fn=function)
        self.average.update_parameters(module.encoder)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if self.kind == "ema" and trainer.current_epoch >= 1:
            self._add(pl_module)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self.kind == "swa" and trainer.current_epoch >= 2:
            self._add(pl_module)


def fit(method: str, folder: Path, *callbacks: Callback, resume: Path | None = None):
    """Four epochs of three batches; without `resume`, a checkpoint per batch."""
    data = tiny_data() if method == "CoDID" else ManyValues(batch_size=8)
    model = tiny_codid(data, seed=0) if method == "CoDID" else build(method, data)
    saver = [] if resume else [ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)]
    run = trainer(max_epochs=4, callbacks=[*callbacks, *saver], enable_checkpointing=not resume)
    run.fit(model, data, ckpt_path=resume)
    return run, model


@pytest.mark.parametrize("kind", KINDS)
def test_the_average_is_torchs(kind, tmp_path):
    reference = Reference(kind)
    _, model = fit("Base", tmp_path, reference, AveragedWeights(**KINDS[kind]))
    assert reference.average is not None
    for own, expected in zip(model.encoder.parameters(), reference.average.module.parameters(), strict=True):
        torch.testing.assert_close(own, expected)
    plain = fit("Base", tmp_path / "plain")[1]
    assert not torch.equal(plain.predictors[0].weight, model.predictors[0].weight)


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_with_the_weights_and_checkpoints_hold_the_average(kind, tmp_path):
    fit("Base", tmp_path / "plain")
    fit("Base", tmp_path / "own", AveragedWeights(**KINDS[kind]))
    plain, own = (torch.load(tmp_path / f / "step=11.ckpt", weights_only=True) for f in ("plain", "own"))
    weights = own["averaged_weights"]["weights"]
    assert not differences({k: plain["state_dict"][k] for k in weights}, weights), (
        "the average does not change training"
    )
    assert differences(plain["state_dict"], own["state_dict"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["Base", "JTT", "CoDID"])
def test_a_resumed_run_ends_bit_for_bit_alike(method, kind, tmp_path):
    def kept(folder: Path, resume: Path | None = None) -> dict[str, Any]:
        run, _ = fit(method, folder, AveragedWeights(**KINDS[kind]), resume=resume)
        run.save_checkpoint(folder / "final.ckpt")
        final = torch.load(folder / "final.ckpt", weights_only=True)
        scores = {name: value for name, value in run.callback_metrics.items() if name.startswith("val/")}
        return {**{key: final[key] for key in ("state_dict", "optimizer_states", "codid")}, "scores": scores}

    whole = kept(tmp_path / "whole")
    for step in (5, 10):
        assert not differences(whole, kept(tmp_path / str(step), tmp_path / "whole" / f"step={step}.ckpt"))


def test_impossible_arguments_are_errors():
    for wrong in ({"start": 1.0}, {"decay": 1.0}):
        with pytest.raises(ValueError, match=f"AveragedWeights.{next(iter(wrong))} is 1.0"):
            AveragedWeights(**wrong)
