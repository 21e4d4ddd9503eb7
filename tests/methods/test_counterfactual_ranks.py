"""Counterfactual training on two processes: the gradients of one, one verdict, and never apart."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from codid_lightning import CoDID
from codid_lightning.methods.codid.parts.gate import SwapScores
from datamodules.base import Batch
from tests.codid.ranks import RANKS, assert_gradients_agree, on_two_ranks
from tests.codid.test_ranks import Hashes
from tests.codid.tiny import gradients_of, without_normalisation
from tests.methods import recipes
from tests.methods.planted import Planted, make, trainer

SIZE = 23  # odd: one rank holds a sample more
CASES: dict[str, dict[str, Any]] = {
    "images": {},
    "gaussian": {"likelihood": "gaussian"},
    "real samples too": {"train_on": "both"},
}


def step_gradients(case: dict[str, Any]) -> dict[str, Any]:
    """Gradients of the autoencoder's and the classifier's step on this rank's part of a batch, or on all of it."""
    data = Planted(channels=3, second=True, samples=SIZE)
    data.setup()
    whole = data.datasets["train"][torch.arange(SIZE)]
    whole["x"] = whole["x"].double()
    module = without_normalisation(make(CoDID, data, **recipes.counterfactual(**case))).double().train()
    swaps = module.counterfactuals
    swaps.occurring = torch.ones_like(swaps.occurring)
    trainer = SimpleNamespace(world_size=1, num_training_batches=1)
    trainer.optimizers = module.configure_optimizers()
    trainer.strategy = SimpleNamespace(_lightning_optimizers=trainer.optimizers)
    module.trainer = trainer
    parts = [Batch(**{k: v[rank::RANKS] for k, v in whole.items()}) for rank in range(RANKS)]
    joined = Batch(**{k: torch.cat([part[k] for part in parts]) for k in whole})
    batch = parts[dist.get_rank()] if dist.is_initialized() else joined
    found = {}
    for name, verdict, epoch in (("autoencode", 0.0, 4), ("rejected", 0.0, 9), ("accepted", 1.0, 9)):
        swaps.gate_metrics = {"gate/accepted": verdict}
        swaps.generator = torch.Generator().manual_seed(5)
        trainer.current_epoch = epoch  # the autoencoder learns for five
        step = partial(swaps.step, module) if name == "autoencode" else module.training_step
        found[name] = gradients_of(module, lambda step=step: step(batch, 0))
    return found


def all_gradients() -> dict[str, Any]:
    return {name: step_gradients(case) for name, case in CASES.items()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gradients_of_every_step_are_those_of_the_global_batch(tmp_path):
    assert_gradients_agree(all_gradients, tmp_path)


def train_through_the_gate() -> dict[str, Any]:
    """All methods through the trainer on this rank: hashes by batch, verdict and metrics."""
    SwapScores.accepted = True  # type: ignore[assignment]
    results = {}
    methods = {
        "counterfactual": recipes.counterfactual(epochs=1),
        "codid_plus": recipes.codid_plus(),
        "balanced_modes": recipes.balanced_modes(epochs=1),
    }
    for name, arguments in methods.items():
        data, hashes = Planted(samples=101, batch_size=18), Hashes()
        model = make(CoDID, data, **arguments)
        run = trainer(4, devices=RANKS, strategy="ddp", callbacks=[hashes])
        run.fit(model, data)
        metrics = {k: float(v) for k, v in run.callback_metrics.items()}
        results[name] = {"hashes": hashes.found, "metrics": metrics, "world": run.world_size}
    return results


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_never_drift_apart_and_agree_on_the_verdict(tmp_path):
    first, second = on_two_ranks(train_through_the_gate, tmp_path)
    for name, run in first.items():
        assert run["world"] == RANKS
        assert run == second[name], name
        assert len(set(run["hashes"])) == len(run["hashes"]) == 1 + 4 * 3
        assert run["metrics"]["gate/accepted"] == 1
