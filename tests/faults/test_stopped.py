"""Runs asked to stop save after the batch, say how to go on, and go on exactly."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import pytest

from tests.faults.victims import CODID, assert_same_end, last_checkpoint, load, run, strike

FIT = ["fit", *CODID, "--data.init_args.val_fraction", "0.6", "--run_dir", "run"]
BATCHES = 2  # of 64 in an epoch; a validation has three


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    ended = run(FIT, folder)
    assert ended.code == 0, ended.said
    return folder / "run"


# A function in which the signal comes, at which of its calls, and where the run is to stop: epoch and batches in it.
MOMENTS = [
    ("CoDID.inform", 3, 1, 1),  # a batch of pre-training's successor
    ("DiscriminatorAlignment.discriminate", 3, 2, 1),  # inside the five steps of a batch
    ("DiscriminatorAlignment.discriminate", 8, 5, 0),  # inside the last batch: only its validation is left
    ("ModesPerValue.refine", 1, 2, 1),  # inside a refinement
    ("CoDID.validation_step", 14, 5, 0),  # inside the last validation
]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize(("function", "nth", "epoch", "batch"), MOMENTS)
def test_stop_saves_and_goes_on(
    signum: int, code: int, function: str, nth: int, epoch: int, batch: int, undisturbed: Path, tmp_path: Path
) -> None:
    stopped = run(FIT, tmp_path, partial(strike, function, nth, signum))
    assert stopped.code == code, stopped.said
    assert "--resume true" in stopped.said
    assert str(Path("run/checkpoints/last.ckpt")) in stopped.said
    assert "Traceback" not in stopped.said
    assert load(last_checkpoint(tmp_path / "run"))["global_step"] == BATCHES * epoch + batch
    assert run([*FIT, "--resume", "true"], tmp_path).code == 0
    assert_same_end(tmp_path / "run", undisturbed)


def test_second_interrupt_keeps_the_earlier_checkpoint(undisturbed: Path, tmp_path: Path) -> None:
    """Inside a batch nothing exact can be saved, so the last epoch's checkpoint stays."""
    stopped = run(FIT, tmp_path, partial(strike, "DiscriminatorAlignment.discriminate", 3, signal.SIGINT, times=2))
    assert stopped.code == 130, stopped.said
    assert load(last_checkpoint(tmp_path / "run"))["global_step"] == BATCHES * 2
    assert run([*FIT, "--resume", "true"], tmp_path).code == 0
    assert_same_end(tmp_path / "run", undisturbed)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_stop_while_testing(signum: int, code: int, undisturbed: Path, tmp_path: Path) -> None:
    """After training nothing is left to save; the result comes with the next start."""
    stopped = run(FIT, tmp_path, partial(strike, "DisentanglementModule.test_step", 1, signum))
    assert stopped.code == code, stopped.said
    assert "Traceback" not in stopped.said
    assert not (tmp_path / "run" / "result.json").exists()
    assert run([*FIT, "--resume", "true"], tmp_path).code == 0
    assert_same_end(tmp_path / "run", undisturbed)
