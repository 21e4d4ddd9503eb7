"""A result is confirmed by its checkpoint, and every way of being wrong is found."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from codid_lightning.training import runs
from datamodules import Toy
from tests.commands import codid


@pytest.fixture
def copy(base_run, tmp_path):
    shutil.copytree(base_run, tmp_path / "run")
    return tmp_path / "run"


def change(run, **changes):
    (run / "result.json").write_text(json.dumps({**runs.read_result(run), **changes}))


def test_a_result_is_confirmed(base_run, capsys):
    assert codid("verify", base_run) == 0
    said = capsys.readouterr()
    tests = {name for name in runs.read_result(base_run)["metrics"] if name.startswith("test")}
    assert f"{len(tests)} of {len(tests)} test metrics are confirmed" in said.out
    assert said.err == ""


def test_codid_and_evaluated_runs_are_confirmed(codid_run, tmp_path, capsys):
    shutil.copytree(codid_run, tmp_path / "run")
    change(tmp_path / "run", metrics={**runs.read_result(codid_run)["metrics"], "test1/leakage_a2": 0.5})
    assert codid("verify", tmp_path / "run") == 0
    assert "other metrics of the result are not of a test" in capsys.readouterr().out


def test_an_edited_metric_is_found(copy, capsys):
    metrics = runs.read_result(copy)["metrics"]
    change(copy, metrics={**metrics, "test3/acc": metrics["test3/acc"] + 0.01})
    assert codid("verify", copy) == 1
    rows = [line for line in capsys.readouterr().out.splitlines() if "differs" in line]
    assert len(rows) == 1
    assert "test3/acc" in rows[0]
    assert codid("verify", copy, "--tolerance", "0.02") == 0
    assert codid("verify", copy, "--tolerance", "much") == 1


def test_a_metric_that_was_left_out_is_found(copy):
    change(copy, metrics={k: v for k, v in runs.read_result(copy)["metrics"].items() if k != "test2/f1"})
    assert codid("verify", copy) == 1


def test_metrics_that_an_earlier_version_did_not_compute_are_named(copy, capsys):
    metrics = runs.read_result(copy)["metrics"]
    later = {name for name in metrics if name.startswith("test") and name.split("/")[-1] not in ("acc", "f1")}
    change(copy, metrics={name: value for name, value in metrics.items() if name not in later})
    assert codid("verify", copy) == 0
    assert f"{len(later)} metrics are not in the result" in capsys.readouterr().out


def test_another_checkpoint_is_found(copy):
    path = copy / "checkpoints" / "last.ckpt"
    state = torch.load(path, weights_only=True)
    state["state_dict"]["predictors.0.weight"] *= -1
    torch.save(state, path)
    assert codid("verify", copy) == 1


@pytest.mark.parametrize(
    ("field", "code", "said"),
    [
        ("data_checksum", 1, "The data differs: the checksum was 0000"),
        ("config_hash", 1, "The config differs"),
        ("code_checksum", 0, "The code differs"),
    ],
)
def test_other_data_config_and_code_are_named(copy, capsys, field, code, said):
    change(copy, **{field: "0" * 16})
    assert codid("verify", copy) == code
    assert said in capsys.readouterr().err


def test_other_data_of_the_same_shape_is_found(copy, capsys):
    """Seen from the run's side: its data is drawn anew with another seed."""
    assert codid("verify", copy, "--data.init_args.seed=5") == 1
    assert "The data differs" in capsys.readouterr().err


def test_results_without_checksums_say_so(copy, capsys):
    """Results of earlier versions."""
    result = runs.read_result(copy)
    (copy / "result.json").write_text(json.dumps({k: v for k, v in result.items() if "checksum" not in k}))
    assert codid("verify", copy) == 0
    assert "no checksum of the data to compare with" in capsys.readouterr().err


def test_a_run_of_version_0_1_is_confirmed(tmp_path, capsys):
    shutil.copytree(Path(__file__).parents[1] / "golden" / "run_0_1", tmp_path / "run")
    assert codid("verify", tmp_path / "run") == 0, capsys.readouterr()


@pytest.mark.parametrize("content", [None, "", "[]", '{"metrics": 3}'])
def test_no_result(copy, capsys, content):
    (copy / "result.json").unlink()
    if content is not None:
        (copy / "result.json").write_text(content)
    assert codid("verify", copy) == 1
    assert "result.json" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------- checksums


def made(**arguments):
    data = Toy(samples_per_mode=10, **arguments)
    data.setup()
    return data


def test_the_checksum_of_data_sees_every_value():
    """One bit of one sample of any split, one label, one mode, one name."""
    usual = made().checksum()
    assert made().checksum() == usual
    assert made(batch_size=7).checksum() == usual
    assert made(seed=1).checksum() != usual
    for split in ("train", "val", "test3"):
        for tensor, value in (("x", 1e-7), ("a", 1), ("mode", 1)):
            data = made()
            getattr(data.datasets[split], tensor).view(-1)[-1] += value
            assert data.checksum() != usual, (split, tensor)
    data = made()
    data.value_names = (("no", "yes"), *data.value_names[1:])
    assert data.checksum() != usual


def test_the_checksum_of_code_sees_every_file(tmp_path):
    for package in ("codid_lightning", "datamodules"):
        shutil.copytree(package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    program = "from codid_lightning.training import runs; print(runs.code_checksum(), runs.git_revision())"

    def checksum():
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout.split()

    assert checksum() == [runs.code_checksum(), "None"]
    (tmp_path / "datamodules" / "toy.py").open("a").write("\n")
    assert checksum()[0] != runs.code_checksum()


def test_a_package_inside_of_somebodys_repository_has_no_revision(tmp_path, monkeypatch):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    installed = tmp_path / "site-packages" / "runs.py"
    installed.parent.mkdir()
    installed.touch()
    assert len(runs.git_revision()) == 40
    monkeypatch.setattr(runs, "__file__", str(installed))
    assert runs.git_revision() is None
