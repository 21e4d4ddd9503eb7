"""Every method on every data set trains on the smallest batches, and on batches without one of the values of a_2."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
import torch

from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.training import build, quiet
from tests.commands import codid
from tests.fakes import FAKES
from tests.test_configs import CONFIGS, EXPERIMENTS, FOLDERS, OTHERS, OVERLAYS

BASES = {"baselines": "base", "variants": "codid", "methods": "codid"}
BATCHES = {"2": 2, "3": 3, "without a value of a_2": 16}
WITHOUT_MODES = {"cwru", "hhar", "mfd", "realworld", "uci_har"}  # CoDID-T is given true modes
SMALL = {
    "canine_bg": {"image_size": 32, "val_fraction": 0.34},
    "cwru": {"windows": 24},
    "toy": {"samples_per_mode": 50},
    "toy_four_attributes": {"samples": 500},
    "toy_nine_modes": {"samples_per_mode": 50},
}

pytestmark = [pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """The folder of a data set's fake, written once."""

    @cache
    def write(dataset: str) -> Path:
        root = tmp_path_factory.mktemp(dataset)
        FAKES.get(dataset, lambda root: None)(root)
        return root

    return write


def recipes(dataset: str) -> dict[str, list[Path]]:
    """Every config of a data set, and every overlay on its `base` or `codid`."""
    own = {file.stem: [CONFIGS / file] for file in EXPERIMENTS if file.parent.name == dataset}
    overlays = {
        f"{kind}/{name}": [CONFIGS / dataset / f"{BASES[kind]}.yaml", CONFIGS / kind / f"{name}.yaml"]
        for kind, names in OVERLAYS.items()
        for name in names
    }
    return own | overlays


def leave_out_a_value(module: DisentanglementModule) -> None:
    """Let training batches hold only the samples that differ from the first in a_2."""

    def kept(batch: dict, loader: int) -> dict:
        rows = (batch["a"][:, 1] != batch["a"][0, 1]).nonzero().flatten()
        return {name: values[rows] for name, values in batch.items()} if module.training and len(rows) > 1 else batch

    module.on_after_batch_transfer = kept


def train(dataset: str, recipe: str, batch: str, root: Path) -> None:
    """Two batches, with mode discovery before the first; parameters stay finite and some of them move."""
    data = {"root": str(root), "batch_size": BATCHES[batch], **SMALL.get(dataset, {})}
    keys = {f"data.init_args.{name}": value for name, value in data.items()}
    keys |= {"trainer.fast_dev_run": 2, "trainer.enable_progress_bar": False, "trainer.accelerator": "cpu"}
    keys |= {"model.init_args.latent_dim": 8}
    files = recipes(dataset)[recipe]
    if (
        files[0].stem.startswith("codid") and files[-1].stem != "coda_conv"
    ):  # which is an overlay on any config, and no CoDID
        keys["model.init_args.discovery.init_args.start"] = 0
    with quiet():
        run = build(*map(str, files), keys, record=False)
        if not batch.isdigit():
            leave_out_a_value(run.module)
        before = [parameter.detach().clone() for parameter in run.module.parameters()]
        run.trainer.fit(run.module, datamodule=run.data)
    after = list(run.module.parameters())
    assert all(torch.isfinite(parameter).all() for parameter in after)
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=False))


# Colored digits have every recipe with every kind of batch. Elsewhere each recipe has one kind, in turn.
# CODID_SWEEP=all tries all kinds everywhere, which takes about twenty minutes.
FULL = {*FOLDERS} if os.environ.get("CODID_SWEEP") == "all" else {"colored_digits"}
EVERY = [
    pytest.param(dataset, recipe, batch, marks=() if dataset == "colored_digits" else pytest.mark.slow)
    for i, dataset in enumerate(FOLDERS)
    for j, recipe in enumerate(recipes(dataset))
    for k, batch in enumerate(BATCHES)
    if dataset in FULL or (i + j + k) % len(BATCHES) == 0
]


@pytest.mark.parametrize(("dataset", "recipe", "batch"), EVERY)
def test_every_config_and_overlay_trains_on_scarce_batches(dataset, recipe, batch, roots):
    if recipe == "variants/t" and dataset in WITHOUT_MODES:
        with pytest.raises(ValueError, match="needs the true mode of every sample"):
            train(dataset, recipe, batch, roots(dataset))
    else:
        train(dataset, recipe, batch, roots(dataset))


# Those of W&B have tests of their own, in tests/dashboard; W&B keeps settings for a whole process.
PLAIN = [overlay for overlay in OTHERS if overlay.stem not in ("wandb", "dashboard")]


@pytest.mark.parametrize("overlay", PLAIN, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_every_callback_and_logger_works_with_codid(overlay, roots, tmp_path, monkeypatch):
    if overlay.stem == "tensorboard":
        pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    few = ("--trainer.limit_train_batches=2", "--trainer.max_epochs=2", "--trainer.enable_progress_bar=false")
    small = ("--model.latent_dim=8", "--model.discovery.start=0", "--data.batch_size=16")
    codid_config = CONFIGS / "colored_digits" / "codid.yaml"
    assert codid("fit", "-c", codid_config, "-c", overlay, *few, *small) == 0
