"""A dashboard that cannot be reached or written: the run goes on, says so once, and keeps its own files."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from tests.faults.victims import ROOT, Ended, result, run

FIT = [
    "fit", "-c", str(ROOT / "configs/toy/base.yaml"), "--data.init_args.samples_per_mode", "20",
    "--model.init_args.latent_dim", "4", "--trainer.max_epochs", "1", "--trainer.accelerator", "cpu",
    "--trainer.enable_progress_bar", "false", "--run_dir", "run",
]  # fmt: skip
WANDB = ["-c", str(ROOT / "configs/loggers/wandb.yaml")]
KEY = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_INIT_TIMEOUT": "1"}  # nobody listens


def set_environment(variables: dict[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        del os.environ[name]
    os.environ.update({"NETRC": os.devnull, **variables})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    ended = run(FIT, folder)
    assert ended.code == 0, ended.said
    return folder / "run"


def check_unaffected(ended: Ended, run_dir: Path, plain: Path) -> None:
    assert ended.code == 0, ended.said
    assert "Traceback" not in ended.said
    found, expected = (result(place) for place in (run_dir, plain))
    assert found["metrics"] == expected["metrics"]
    assert (run_dir / "logs" / "version_0" / "metrics.csv").read_text().startswith("epoch,")


@pytest.mark.slow
def test_dashboard_cannot_be_reached(plain: Path, tmp_path: Path) -> None:
    ended = run([*FIT, *WANDB], tmp_path, partial(set_environment, KEY))
    check_unaffected(ended, tmp_path / "run", plain)
    assert ended.said.count("Weights & Biases cannot be reached") == 1
    assert [*(tmp_path / "run").glob("wandb/offline-run-*/*.wandb"), *(tmp_path / "run").glob("figures/*.png")]


@pytest.mark.slow
def test_dashboard_has_no_place_to_write(plain: Path, tmp_path: Path) -> None:
    """A file stands where its folder should be."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "wandb").touch()
    check_unaffected(run([*FIT, *WANDB], tmp_path, partial(set_environment, {})), tmp_path / "run", plain)
