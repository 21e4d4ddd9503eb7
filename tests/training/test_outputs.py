"""Places that cannot be written, and directories that do not exist: one message with the path and the key."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from lightning import Callback, Trainer

from codid_lightning.training import build, fit
from codid_lightning.training.messages import exact_resume
from tests.commands import SMALL_TOY, codid, fit_toy

FIT = ("fit", "-c", "configs/toy/base.yaml", *SMALL_TOY, "--trainer.max_epochs=1", "--trainer.accelerator=cpu")
PROC = Path("/proc")


def places(tmp_path: Path) -> dict[str, Path]:
    file = tmp_path / "file"
    file.touch()
    return {"file": file, "below a file": file / "deeper", **({"proc": PROC / "runs"} if PROC.is_dir() else {})}


@pytest.mark.parametrize("key", ["--trainer.default_root_dir", "--run_dir"])
def test_an_output_that_cannot_be_written_is_named(tmp_path, key, capsys):
    for place in places(tmp_path).values():
        assert codid(*FIT, f"{key}={place}") == 1
        said = capsys.readouterr().err
        (message,) = [line for line in said.splitlines() if line.startswith("codid: ")]
        assert f"Cannot write to {place}" in message
        assert key in message
        assert "Traceback" not in said


@pytest.mark.skipif(not PROC.is_dir(), reason="needs /proc")
def test_an_existing_special_directory_is_named(capsys):
    assert codid(*FIT, "--run_dir=/proc/self") == 1
    assert "Cannot write to /proc/self (" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["audit", "evaluate"])
def test_a_missing_run_directory_is_named(command, tmp_path, capsys):
    assert codid(command, tmp_path / "nosuchdir") == 1
    assert f"There is no run directory {tmp_path / 'nosuchdir'}." in capsys.readouterr().err


def test_the_page_of_an_audit_cannot_be_written(tmp_path, capsys):
    run = fit_toy(tmp_path / "runs")
    (tmp_path / "file").touch()
    assert codid("audit", run, "--output", tmp_path / "file" / "page.html") == 1
    assert "with --output" in capsys.readouterr().err


def test_no_command_writes_to_a_place_that_cannot_be_written(tmp_path, capsys):
    run = fit_toy(tmp_path / "runs")
    below = tmp_path / "file" / "below"
    below.parent.touch()
    toy, checkpoint = ("-c", "configs/toy/codid.yaml"), run / "checkpoints" / "last.ckpt"
    commands = {
        ("data", "summary", *toy, "--output", below / "f.png"): "--output",
        ("figure", "complexity", run, "--output", below / "f.png"): "--output",
        **{("report", run, "--output", below / f"t{ending}"): "--output" for ending in (".md", ".html")},
        ("predict", "--ckpt_path", checkpoint, "--run_dir", below): "--run_dir",
        ("tune", *toy, "--trials=1", "--root", below): "--root",
        ("benchmark", "-c", "benchmarks/quick.yaml", "--root", below): "--root",
        ("demo", "--output", below): "--output",
    }
    for command, key in commands.items():
        capsys.readouterr()
        assert codid(*command) == 1, command
        (message,) = capsys.readouterr().err.splitlines()
        assert message.startswith(f"codid: Cannot write to {below}"), command
        assert message.endswith(f"choose a folder that can be written with {key}.")


class SaveWithinAnEpoch(Callback):
    """Save after the third batch of the second epoch, as a signal to stop does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        if trainer.current_epoch == 1 and trainer.fit_loop.batch_idx == 2:
            trainer.save_checkpoint(self.path)


def warnings_of_resuming(tmp_path: Path, own: bool) -> list[str]:
    """Of a run that continues within an epoch, from the last checkpoint of its directory or from a file elsewhere."""
    keys = {"data.samples_per_mode": 40, "data.batch_size": 32, "model.latent_dim": 4, "trainer.max_epochs": 2,
            "trainer.accelerator": "cpu", "trainer.enable_progress_bar": False,
            "trainer.default_root_dir": str(tmp_path)}  # fmt: skip
    run = build("configs/toy/base.yaml", keys)
    elsewhere = tmp_path / "elsewhere.ckpt"
    run.trainer.callbacks.append(SaveWithinAnEpoch(elsewhere))
    fit(run)
    run.last.write_bytes(elsewhere.read_bytes())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(build("configs/toy/base.yaml", keys, {"ckpt_path": str(run.last if own else elsewhere)}))
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize("own", [True, False])
def test_lightning_calls_resuming_from_our_checkpoint_not_unreliable(tmp_path, own):
    """A file elsewhere may be of anyone, and keeps the warning."""
    shown = any("unreliable results" in message for message in warnings_of_resuming(tmp_path, own))
    assert shown != own


def test_only_the_warning_about_resuming_is_hidden():
    with pytest.warns(UserWarning, match="Another warning"), exact_resume():
        warnings.warn("Another warning about resuming.", stacklevel=1)
