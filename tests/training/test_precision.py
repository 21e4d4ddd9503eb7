"""Every precision of Lightning: what it trains, tests, predicts and resumes, and what is rejected at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, SingleDeviceStrategy

from codid_lightning import CoDID
from codid_lightning.errors import RunError
from codid_lightning.methods import baselines
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.codid.parts.alignments import DiscriminatorAlignment
from codid_lightning.methods.codid.parts.gate import SwapScores
from codid_lightning.methods.codid.parts.mode_losses import WorstCells
from codid_lightning.methods.codid.parts.prior import PriorInLogits
from codid_lightning.methods.hardware import precision_problem, strategy_problem
from codid_lightning.training.callbacks.checkpoint import AtomicCheckpointIO
from datamodules.base import AttributeDataModule
from tests.codid.test_resume import differences
from tests.codid.tiny import tiny_codid, tiny_data, tiny_trainer
from tests.faults.victims import CODID, run
from tests.methods import recipes
from tests.methods.planted import Planted, make

EPOCHS = 4
TRAINING = ("32-true", "64-true", "bf16-mixed")
Made = tuple[DisentanglementModule, AttributeDataModule]


def baseline(name: str) -> Made:
    data = tiny_data()
    decoding = {"reconstruction": 0.5} if name == "CODA" else {}
    return make(getattr(baselines, name), data, **decoding), data


def codid(**changes: Any) -> Made:
    data = tiny_data()
    return tiny_codid(data, **changes), data


def planted(**arguments: Any) -> Made:
    data = Planted(samples=101, batch_size=18)
    return make(CoDID, data, **arguments), data


WITHOUT: dict[str, Any] = {"alignment": None, "splits": None, "reconstruction": 0.0}
METHODS: dict[str, Callable[[], Made]] = {
    "Base": lambda: baseline("Base"),
    "CoDID": codid,
    "CoDID, worst cells": lambda: codid(mode_loss=WorstCells()),
    "counterfactual": lambda: planted(**recipes.counterfactual(epochs=1)),
    "CoDID-A": lambda: planted(**recipes.codid_plus(mode_loss=PriorInLogits(), **WITHOUT)),
    "CoDID+": lambda: planted(**recipes.codid_plus(alignment=DiscriminatorAlignment(steps=1))),
}


@pytest.fixture(autouse=True)
def accepting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate accepts any autoencoder."""
    monkeypatch.setattr(SwapScores, "accepted", True)


def train(name: str, precision: Any, folder: Path, resume: Path | None = None) -> dict[str, Any]:
    """A training's end; without `resume`, a checkpoint of every epoch is written."""
    model, data = METHODS[name]()
    saver = ModelCheckpoint(folder, "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    saving = {"callbacks": [saver], "enable_checkpointing": True} if resume is None else {}
    trainer = tiny_trainer(EPOCHS, precision=precision, plugins=[AtomicCheckpointIO()], **saving)
    trainer.fit(model, data, ckpt_path=resume)
    expected = torch.float64 if precision == "64-true" else torch.float32
    assert {p.dtype for p in model.parameters()} == {expected}
    if isinstance(model, CoDID):
        assert model.selectable()  # clusters were found, the gate decided
    state = {"weights": model.state_dict(), "optimizers": [o.state_dict()["state"] for o in trainer.optimizers]}
    trainer.test(model, data, verbose=False)
    assert all(torch.isfinite(value) for value in trainer.callback_metrics.values())
    batches = trainer.predict(model, data)
    assert batches
    if isinstance(model, CoDID) and isinstance(model.mode_loss, PriorInLogits):
        assert model.adapt(data.datasets["test"].x).samples == len(data.datasets["test"])
    return state


@pytest.mark.parametrize("precision", TRAINING)
@pytest.mark.parametrize("name", METHODS)
def test_train_test_predict_and_resume(name: str, precision: str, tmp_path: Path) -> None:
    """A run that was interrupted between two epochs ends as the other one does."""
    whole = train(name, precision, tmp_path)
    resumed = train(name, precision, tmp_path, resume=tmp_path / "epoch=2.ckpt")
    assert not differences(resumed, whole)


@pytest.mark.parametrize("name", baselines.__all__)
def test_baselines_train_in_double_precision(name: str) -> None:
    model, data = baseline(name)
    tiny_trainer(1, precision="64-true").fit(model, data)
    assert {p.dtype for p in model.parameters()} == {torch.float64}


@pytest.mark.parametrize("precision", ["16-true", "bf16-true"])
def test_half_precision_evaluates_and_does_not_train(precision: Any) -> None:
    """A model trained otherwise keeps its predictions, up to the digits that 16 bits have."""
    model, data = codid()
    tiny_trainer(3).fit(model, data)
    exact = tiny_trainer(1).test(model, data, verbose=False)[0]
    halved = tiny_trainer(1, precision=precision)
    found = halved.test(model, data, verbose=False)[0]
    assert found["test1/acc"] == pytest.approx(exact["test1/acc"], abs=0.05)
    assert halved.predict(model, data)
    with pytest.raises(RunError, match=f"trainer.precision is {precision}.*bf16-mixed"):
        tiny_trainer(1, precision=precision).fit(model, data)


def test_second_moments_stop_in_bfloat16() -> None:
    """Why `bf16-true` does not train: Adam's average of squared gradients does not fall when gradients vanish."""
    averages = []
    for dtype in (torch.float32, torch.bfloat16):
        parameter = torch.nn.Parameter(torch.zeros(1, dtype=dtype))
        adam = DisentanglementModule.adam([parameter], 1e-3)
        for step in range(1000):
            parameter.grad = torch.full_like(parameter, float(step == 0))
            adam.step()
        averages.append(float(adam.state[parameter]["exp_avg_sq"]) / 1e-3)
    assert averages[0] == pytest.approx(0.999**999, rel=1e-3)
    assert averages[1] == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize(
    ("precision", "trains", "evaluates"),
    [
        (None, True, True),
        (32, True, True),
        ("64", True, True),
        ("bf16", True, True),
        (16, False, True),
        ("16-true", False, True),
        ("transformer-engine", False, False),
        ("transformer-engine-float16", False, False),
    ],
)
def test_every_name_of_a_precision_is_known(precision: Any, trains: bool, evaluates: bool) -> None:
    assert (precision_problem(precision, training=True) is None) == trains
    assert (precision_problem(precision, training=False) is None) == evaluates


class OwnDDP(DDPStrategy):
    """A user's."""


def test_strategies_that_keep_a_model_whole_are_accepted() -> None:
    for strategy in ("auto", "ddp", "ddp_spawn", "ddp_find_unused_parameters_true", SingleDeviceStrategy(), OwnDDP()):
        assert strategy_problem(strategy) is None
    rejected = ("fsdp", "fsdp_cpu_offload", "deepspeed_stage_2", "model_parallel", "xla", FSDPStrategy())
    for strategy in rejected:
        assert "trainer.strategy is" in (strategy_problem(strategy) or "")


def test_a_trainer_with_another_strategy_is_rejected() -> None:
    model, data = baseline("Base")
    with pytest.raises(RunError, match=r"ModelParallelStrategy.*use auto or ddp"):
        tiny_trainer(1, strategy=ModelParallelStrategy(), devices=1).fit(model, data)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--trainer.strategy", "fsdp"), "trainer.strategy is fsdp"),
        (("--trainer.strategy", "lightning.pytorch.strategies.FSDPStrategy"), "trainer.strategy is FSDPStrategy"),
        (("--trainer.strategy", "deepspeed"), "trainer.strategy is deepspeed"),
        (("--trainer.precision", "transformer-engine"), "trainer.precision is transformer-engine"),
        (("--trainer.precision", "16-true"), "trainer.precision is 16-true"),
        (("--trainer.precision", "bf16-true"), "trainer.precision is bf16-true"),
    ],
)
def test_the_command_says_so_in_one_line(arguments: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    """Before there is a run directory."""
    ended = run(["fit", *CODID, *arguments], tmp_path)
    assert ended.code == 1
    assert ended.said.startswith(f"codid: {expected}")
    assert len(ended.said.splitlines()) == 1
    assert not (tmp_path / "runs").exists()
