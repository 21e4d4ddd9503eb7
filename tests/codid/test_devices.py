"""Devices without a GPU: what is made on the wrong device is noticed where that is the `meta` device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from codid_lightning import CoDID
from codid_lightning.methods import baselines
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.codid.parts.alignments import DiscriminatorAlignment
from codid_lightning.methods.codid.parts.gate import SwapScores
from codid_lightning.methods.codid.parts.mode_losses import EqualCells, WorstCells
from codid_lightning.methods.codid.parts.prior import PriorInLogits
from codid_lightning.methods.codid.parts.sources import (
    ContentPropensity,
    Experts,
    ModeSource,
    Propensity,
    Representation,
)
from codid_lightning.methods.losses import gaussian_divergence
from tests.baselines.small import build
from tests.codid.tiny import bench, random_batch, random_clusters, tiny_codid, tiny_data
from tests.methods import recipes
from tests.methods.planted import Planted, make, trainer

CASES: dict[str, dict[str, Any]] = {
    "as written": {},
    "a discriminator per mode": {"alignment": {"sharing": "mode", "encoder_lr": 1e-3}},
    "mixture's halves": {"splits": None},
    "equal cells": {"mode_loss": EqualCells()},
    "worst cells": {"mode_loss": WorstCells()},
}


@pytest.fixture(autouse=True)
def known_table() -> None:
    """The table of divergences is computed once on the default device, and then moved."""
    gaussian_divergence(*torch.ones(4, 1))


def test_clusters_come_to_the_device_of_the_features() -> None:
    """Rank 0 sends clusters with its own device; here they are on the CPU, the features on another device."""
    module = tiny_codid(tiny_data())
    found = random_clusters(module.target_list[0], torch.arange(20)[:, None] % 2)
    measured = found.with_means_in(torch.empty(20, 4, device="meta"))
    tensors = [value for value in vars(measured).values() if isinstance(value, torch.Tensor)]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert measured.sub_means.shape == found.sub_means.shape


@pytest.mark.parametrize("case", CASES)
def test_steps_stay_on_the_device_of_the_batch(case: str) -> None:
    """Everything is on the CPU, and what names no device would be made elsewhere: mixing the two raises."""
    data = tiny_data()
    module = tiny_codid(data, **CASES[case])
    batch = random_batch(module, 23, shape=data.input_shape)
    bench(module, batch["a"])
    with torch.device("meta"):
        module.training_step(batch, 0)
        module.predict_step(batch, 0)
        target = module.target_list[0]
        again = random_clusters_on_cpu(module, batch["a"])
        module.adopt(target, again, torch.zeros(len(batch["a"]), module.latent_dim, device=module.device))
    assert all(torch.isfinite(p).all() for p in module.parameters())


def random_clusters_on_cpu(module: CoDID, a: torch.Tensor) -> Any:
    with torch.device("cpu"):
        return random_clusters(module.target_list[0], a, seed=1)


@pytest.mark.parametrize("train_on", ["decoded", "both"])
def test_decoded_samples_stay_on_the_device_of_the_batch(train_on: Any) -> None:
    data = Planted(channels=3, samples=20)
    data.setup()
    module = make(CoDID, data, **recipes.codid_plus(train_on=train_on, alignment=DiscriminatorAlignment(steps=1)))
    batch = data.datasets["train"][torch.arange(20)]
    bench(module, batch["a"], epoch=3)
    swaps = module.counterfactuals
    swaps.start(data.datasets, None)
    swaps.gate_metrics = {"gate/accepted": 1.0}
    swaps.generator = torch.Generator().manual_seed(0)
    with torch.device("meta"):
        module.training_step(batch, 0)
        module.eval()
        module.predict_step(batch, 0)
        swaps.symmetrised_latent(batch["x"])


@pytest.mark.parametrize("source", [Propensity(), Experts(), ContentPropensity(), Representation()], ids=repr)
def test_codid_a_stays_on_the_device_of_the_batch(source: ModeSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a real training: a step, predictions, what its clusters are looked for in, and its tables."""
    monkeypatch.setattr(SwapScores, "accepted", True)
    data = Planted(channels=3, samples=60, batch_size=20)
    none = {"alignment": None, "splits": None, "reconstruction": 0.0}
    module = make(CoDID, data, **recipes.codid_plus(source, mode_loss=PriorInLogits(), **none))
    run = trainer(4)
    run.fit(module, data)
    module.trainer = run
    whole = data.datasets["train"][torch.arange(60)]
    with torch.device("meta"):
        module.train().training_step(whole, 0)
        module.eval().predict_step(whole, 0)
        module.validation_step(whole, 0)
        module.mode_loss.clusters_known(module, adopted=True)
        content = module.discovery.source.content(module, whole["x"])
        if content is not None:
            module.discovery.source.features(content, whole["a"], 0)
    assert module.has_clusters
    assert all(torch.isfinite(p).all() for p in module.parameters())


@pytest.mark.parametrize("name", baselines.__all__)
def test_baselines_stay_on_the_device_of_the_batch(name: str) -> None:
    data = tiny_data()
    module: DisentanglementModule = build(name, data, reconstruction=0.5)
    if name == "LfF":  # it keeps losses of all training samples
        run = trainer(1)
        run.fit(module, data)
        module.trainer = run
    batch = random_batch(module, 23, shape=data.input_shape)  # type: ignore[arg-type]
    module.losses.batch = 0
    with torch.device("meta"):
        if hasattr(module, "warmup_epochs"):
            module.warmup_epochs = 0  # there is no trainer that counts batches
        z = module(batch["x"])
        loss = module.informative_loss(z, batch) + module.weighted_penalty(z, batch)
        loss.backward()
    assert torch.isfinite(loss)
