"""CoDID of version 0.1.0: its flat arguments become parts, and its checkpoints are read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from codid_lightning import CoDID
from codid_lightning.clustering import KMeans
from codid_lightning.methods.codid.legacy import is_old, upgrade
from tests.commands import codid

GOLDEN = Path(__file__).parents[1] / "golden"


def test_an_old_overlay_stays_an_overlay():
    assert upgrade("CoDID", {"mode_prediction": 0.5}) == {
        "mode_loss": {
            "class_path": "codid_lightning.methods.codid.parts.mode_losses.PredictModes",
            "init_args": {"weight": 0.5},
        },
        "decoding": None,
    }
    assert not is_old("CoDID", {"latent_dim": 4, "discovery": {"start": 3}})


@pytest.fixture
def old_run(tmp_path):
    run = tmp_path / "run"
    shutil.copytree(GOLDEN / "run_0_1", run)
    return run


def test_an_old_run_is_evaluated(old_run):
    assert codid("evaluate", "--ckpt_path", old_run / "checkpoints" / "last.ckpt") == 0
    assert "modes/nmi" in json.loads((old_run / "result.json").read_text())["metrics"]


def test_an_old_checkpoint_loads_without_its_config(old_run):
    module = CoDID.load_from_checkpoint(old_run / "checkpoints" / "last.ckpt")
    assert module.target_list[0].ready
    assert module.discovery.start == 1
    assert module.alignment.steps == 1


def test_an_old_run_is_not_continued_and_the_message_names_the_version(old_run, capsys):
    (old_run / "result.json").unlink()
    code = codid("fit", "-c", old_run / "config.yaml", "--run_dir", old_run, "--resume", "true")
    assert code == 1
    assert "0.1.0" in capsys.readouterr().err


def test_an_old_clusterer_is_not_forgotten(old_run, tmp_path):
    checkpoint = torch.load(old_run / "checkpoints" / "last.ckpt", weights_only=True)
    checkpoint["codid"]["clusterer"] = {"name": "KMeans", "arguments": {"n_clusters": 3, "n_init": 2, "seed": 1}}
    torch.save(checkpoint, tmp_path / "km.ckpt")
    found = CoDID.load_from_checkpoint(tmp_path / "km.ckpt").discovery.clusterer
    assert isinstance(found, KMeans)
    assert found.n_init == 2
