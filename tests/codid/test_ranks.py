"""Two processes compute what one process computes on the same global batch, and never drift apart."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from lightning import Callback
from torch import Tensor

from codid_lightning import CoDID, clustering
from codid_lightning.clustering import DPGMM
from codid_lightning.methods import baselines
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.codid.parts.mode_losses import WorstCells
from codid_lightning.methods.codid.parts.prior import PriorInLogits
from codid_lightning.nn.statistics import over_all_ranks
from datamodules.base import Batch
from datamodules.toy import ToyFourAttributes
from tests.codid.ranks import RANKS, assert_gradients_agree, on_two_ranks
from tests.codid.tiny import (
    bench,
    gradients_of,
    random_batch,
    tiny_codid,
    tiny_data,
    tiny_trainer,
    without_normalisation,
)

SIZE = 23  # odd: one rank holds a sample more
CASES: dict[str, dict[str, Any]] = {
    "as written": {},
    "a discriminator per mode": {"alignment": {"sharing": "mode", "encoder_lr": 1e-3}},
    "worst cells": {"mode_loss": WorstCells()},
    "prior in the logits": {"mode_loss": PriorInLogits()},
    "four attributes": {"targets": [0, 1, 2], "moded": [0, 1]},
}
EAGER = {"clusterer": DPGMM(concentration=1e30, max_rounds=0), "n_clusters": 2}  # splits a lot


def overlay(file: Path) -> dict[str, Any]:
    """The arguments a variant's config sets."""
    arguments: dict[str, Any] = yaml.safe_load(file.read_text())["model"]["init_args"]
    if given := arguments.get("discovery", {}).get("clusterer"):
        arguments["discovery"]["clusterer"] = getattr(clustering, given["class_path"])()
    return arguments


VARIANTS: dict[str, dict[str, Any]] = {"codid": {}}
VARIANTS |= {file.stem: overlay(file) for file in sorted(Path("configs/variants").glob("*.yaml"))}
for _name in ("wo_sc", "ua", "itdpm"):
    VARIANTS[_name] |= {"discovery": {**VARIANTS[_name].get("discovery", {}), **EAGER}, "splits": None}


BACKBONES: dict[str, tuple[int, ...]] = {"mlp": (3,), "har": (2, 32), "mfd": (1, 640), "resnet18": (3, 16, 16)}


def step_gradients(
    case: dict[str, Any], shape: tuple[int, ...] | None = None, normalised: bool = False
) -> dict[str, dict[str, Tensor]]:
    """Gradients of every step on this rank's part of the global batch, or on all of it in a single process."""
    data = ToyFourAttributes() if "targets" in case else tiny_data()
    data.input_shape = data.input_shape if shape is None else shape
    alignment = {"weights": {"step": 0.5}, **case.get("alignment", {})}
    module = tiny_codid(data, **{**case, "discovery": {"n_clusters": 2}, "alignment": alignment})
    if not normalised:
        module = without_normalisation(module)
    elif dist.is_initialized():
        module = over_all_ranks(module)
    module = module.double()
    whole = random_batch(module, SIZE, shape=data.input_shape)
    bench(module, whole["a"])
    parts = [Batch(**{k: v[rank::RANKS] for k, v in whole.items()}) for rank in range(RANKS)]
    joined = Batch(**{k: torch.cat([part[k] for part in parts]) for k in whole})
    batch = parts[dist.get_rank()] if dist.is_initialized() else joined
    encoding = module.encode(batch["x"])
    views = module.views(encoding.z, batch)
    alignment = module.alignment
    pairs = alignment.shuffled_pairs(module, views)
    steps = {
        "inform": lambda: module.inform(batch),
        "subcluster": lambda: module.splits.step(module, views),
        "discriminate": lambda: alignment.discriminate(module, views),
        "weigh": lambda: alignment.weigh(module, batch, encoding, views, pairs),
        "disentangle": lambda: alignment.disentangle(module, encoding, views, pairs),
    }
    return {name: gradients_of(module, step) for name, step in steps.items()}


def all_gradients() -> dict[str, Any]:
    return {name: step_gradients(case) for name, case in CASES.items()}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gradients_of_every_step_are_those_of_the_global_batch(tmp_path):
    assert_gradients_agree(all_gradients, tmp_path)


def gradients_of_backbones() -> dict[str, Any]:
    return {
        name: step_gradients({"backbone": name, "reconstruction": 0.5}, shape, normalised=True)
        for name, shape in BACKBONES.items()
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_batchnorm_over_all_ranks_gives_the_gradients_of_one_device(tmp_path):
    """Of all steps with all backbones, also through the virtual step, which is differentiated twice."""
    assert_gradients_agree(gradients_of_backbones, tmp_path, tolerance=1e-10)


class Hashes(Callback):
    """Hash of parameters, statistics, clusters and optimizers as every batch finds them, and at the end."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self._note(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._note(trainer, pl_module)

    def _note(self, trainer: Any, pl_module: Any) -> None:
        digest = hashlib.sha256()
        state = {k: v for k, v in pl_module.state_dict().items() if not k.startswith(("metrics", "cells"))}
        optimizers = [optimizer.state_dict()["state"] for optimizer in trainer.optimizers]
        for tensor in _tensors([state, optimizers]):
            digest.update(tensor.detach().contiguous().numpy().tobytes())
        self.found.append(digest.hexdigest())


def _tensors(nested: Any) -> list[Tensor]:
    if isinstance(nested, Tensor):
        return [nested]
    items = nested.values() if isinstance(nested, dict) else nested if isinstance(nested, list) else []
    return [tensor for item in items for tensor in _tensors(item)]


def build(name: str, data: Any) -> DisentanglementModule:
    if name in VARIANTS:
        return tiny_codid(data, **VARIANTS[name])
    torch.manual_seed(0)
    facts = {k: getattr(data, k) for k in ("input_shape", "attribute_sizes", "test_names", "test_attributes")}
    model: DisentanglementModule = getattr(baselines, name)(**facts, latent_dim=4)
    return model


def train_everything() -> dict[str, Any]:
    """Each method through the trainer: hashes by batch, number of refinements, and metrics."""
    results = {}
    for name in [*VARIANTS, *baselines.__all__]:
        data, hashes = tiny_data(batch_size=18), Hashes()
        model = build(name, data)
        trainer = tiny_trainer(4 if name in VARIANTS else 1, devices=RANKS, strategy="ddp", callbacks=[hashes])
        trainer.fit(model, data)
        clusters = [int(t.active.sum()) for t in model.target_list] if isinstance(model, CoDID) else []
        metrics = {key: float(value) for key, value in trainer.callback_metrics.items()}
        results[name] = {"hashes": hashes.found, "clusters": clusters, "metrics": metrics, "world": trainer.world_size}
    return results


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_never_drift_apart_whatever_the_method(tmp_path):
    first, second = on_two_ranks(train_everything, tmp_path)
    assert {run["world"] for run in first.values()} == {RANKS}
    for name in first:
        assert len(first[name]["hashes"]) == 1 + 3 * (4 if name in VARIANTS else 1)  # global batches as on one device
        assert first[name] == second[name], name
        assert len(set(first[name]["hashes"])) == len(first[name]["hashes"])
    assert min(sum(first[name]["clusters"]) for name in ("wo_sc", "ua", "itdpm")) > 4  # split on the way
