"""The same seed gives the same result, and a run goes on only as it began."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.faults.victims import CODID, assert_same_end, last_checkpoint, run

FIT = ["fit", *CODID, "--run_dir", "run"]


@pytest.mark.parametrize("workers", [0, 2])
def test_same_result(workers: int, undisturbed: tuple[Path, float], tmp_path: Path) -> None:
    ended = run([*FIT, "--data.init_args.num_workers", workers], tmp_path)
    assert ended.code == 0, ended.said
    assert_same_end(tmp_path / "run", undisturbed[0])


def test_same_result_with_four_threads(tmp_path: Path) -> None:
    """Other threads sum in another order, so only runs with as many of them are the same bit for bit."""
    for name in ("run", "again"):
        ended = run(["fit", *CODID, "--run_dir", name], tmp_path, partial(torch.set_num_threads, 4))
        assert ended.code == 0, ended.said
    assert_same_end(tmp_path / "run", tmp_path / "again")


def test_other_seed_gives_another_result(undisturbed: tuple[Path, float], tmp_path: Path) -> None:
    """Otherwise the comparisons above would show nothing."""
    assert run([*FIT, "--seed_everything", "1"], tmp_path).code == 0
    with pytest.raises(AssertionError, match="state_dict"):
        assert_same_end(tmp_path / "run", undisturbed[0])


@pytest.mark.parametrize(
    ("key", "value", "was"),
    [
        ("model.init_args.lr", "0.01", "0.001"),
        ("trainer.devices", "2", "auto"),
        ("data.init_args.correlation", "0.5", "1.0"),
        ("seed_everything", "3", "0"),
    ],
)
def test_going_on_with_another_config(
    key: str, value: str, was: str, undisturbed: tuple[Path, float], tmp_path: Path
) -> None:
    command = ["fit", *CODID, "--run_dir", undisturbed[0], "--resume", "true", f"--{key}", value]
    ended = run(command, tmp_path)
    assert ended.code == 1, ended.said
    assert f"{key} was {was}, is {value}" in ended.said


def test_going_on_with_other_samples(tmp_path: Path) -> None:
    """The same config and the same labels, but the file has changed."""
    rng = np.random.default_rng(0)
    table = {"x": rng.normal(size=(80, 3)).astype(np.float32), "a": np.arange(80) % 2, "b": np.arange(80) // 2 % 2}
    np.savez(tmp_path / "own.npz", **table)
    data = {"class_path": "OwnArrays", "init_args": {"root": ".", "file": "own.npz", "attributes": ["a", "b"]}}
    command = ["fit", *CODID, "--data", json.dumps(data), "--run_dir", "run", "--trainer.max_epochs", "2"]
    command = [c for c in command if "samples_per_mode" not in c and c != "40"]
    ended = run(command, tmp_path)
    assert ended.code == 0, ended.said
    (tmp_path / "run" / "result.json").unlink()
    np.savez(tmp_path / "own.npz", **{**table, "x": table["x"] + 1})
    ended = run([*command, "--resume", "true"], tmp_path)
    assert ended.code == 1, ended.said
    assert "not those the checkpoint was trained on" in ended.said
    assert last_checkpoint(tmp_path / "run").is_file()
