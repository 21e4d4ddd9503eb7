"""Files that lie: damaged, of something else, or made to run code."""

from __future__ import annotations

import ast
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import codid_lightning
import datamodules
from codid_lightning import CoDID
from tests.faults.victims import CODID, ROOT, Ended, last_checkpoint, load, run

SMALL = [*CODID, "--trainer.max_epochs", "2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    ended = run(["fit", *SMALL, "--run_dir", "run"], folder)
    assert ended.code == 0, ended.said
    return folder / "run"


class Bomb:
    """Unpickling it creates a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def reading(checkpoint: Path) -> dict[str, list[object]]:
    """Every command that reads a checkpoint."""
    given = [*SMALL, "--ckpt_path", checkpoint]
    return {name: [name, *given] for name in ("fit", "validate", "test", "predict", "evaluate")}


def check_refused(ended: Ended, *said: str) -> None:
    assert ended.code == 1, ended.said
    message = ended.said[ended.said.index("codid: ") :]
    assert "Traceback" not in ended.said
    assert len(message.strip().splitlines()) <= 4, message
    for words in said:
        assert words in message


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict", "evaluate"])
def test_checkpoint_with_code(command: str, trained: Path, tmp_path: Path) -> None:
    """Code in a checkpoint is not run, and the command says that it will not read it."""
    bomb, mark = tmp_path / "bomb.ckpt", tmp_path / "executed"
    torch.save({**load(last_checkpoint(trained)), "extra": Bomb(mark)}, bomb)
    torch.load(bomb, weights_only=False)
    assert mark.exists()  # it is live
    mark.unlink()
    check_refused(run(reading(bomb)[command], tmp_path), str(bomb), "more than tensors")
    assert not mark.exists()


def test_checkpoint_with_code_from_python(trained: Path, tmp_path: Path) -> None:
    bomb, mark = tmp_path / "bomb.ckpt", tmp_path / "executed"
    torch.save({**load(last_checkpoint(trained)), "extra": Bomb(mark)}, bomb)
    with pytest.raises(pickle.UnpicklingError):
        CoDID.load_from_checkpoint(bomb)
    assert not mark.exists()


@pytest.mark.parametrize(("command", "share"), [("fit", 0.0), ("fit", 0.5), ("test", 0.99), ("evaluate", 0.5)])
def test_truncated_checkpoint(command: str, share: float, trained: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.ckpt"
    content = last_checkpoint(trained).read_bytes()
    torn.write_bytes(content[: int(share * len(content))])
    check_refused(run(reading(torn)[command], tmp_path), str(torn), "damaged")


def changed_checkpoint(trained: Path, folder: Path, **changes: Any) -> Path:
    path = folder / "changed.ckpt"
    content = {**load(last_checkpoint(trained)), **changes}
    torch.save({name: value for name, value in content.items() if value is not None}, path)
    return path


def test_checkpoint_of_another_version(trained: Path, tmp_path: Path) -> None:
    state = load(last_checkpoint(trained))["codid"]
    path = changed_checkpoint(trained, tmp_path, codid={**state, "schema": 99})
    check_refused(run(reading(path)["test"], tmp_path), "another version")


def test_checkpoint_of_another_program(trained: Path, tmp_path: Path) -> None:
    path = changed_checkpoint(trained, tmp_path, codid=None)
    check_refused(run(reading(path)["evaluate"], tmp_path), "another program")


def test_checkpoint_with_other_clusters(trained: Path, tmp_path: Path) -> None:
    command = ["fit", *SMALL, "--ckpt_path", last_checkpoint(trained), "--model.init_args.max_clusters", "9"]
    check_refused(run(command, tmp_path), "model.max_clusters was 16, is 9")


def test_checkpoint_of_another_method(trained: Path, tmp_path: Path) -> None:
    command = ["test", "-c", ROOT / "configs/toy/base.yaml", "--model.init_args.latent_dim", "8"]
    check_refused(run([*command, "--ckpt_path", last_checkpoint(trained)], tmp_path), "does not fit")


def test_checkpoint_of_another_dataset(trained: Path, tmp_path: Path) -> None:
    command = ["test", *SMALL, "--data", "ToyNineModes", "--ckpt_path", last_checkpoint(trained)]
    check_refused(run(command, tmp_path), "model.attribute_sizes was")


def test_checkpoint_of_a_dataset_of_the_same_shape(trained: Path, tmp_path: Path) -> None:
    """It would fit, but its values mean something else."""
    facts = load(last_checkpoint(trained))["hyper_parameters"]
    columns = {f"a{q}": np.arange(120) % size for q, size in enumerate(facts["attribute_sizes"])}
    np.savez(tmp_path / "own.npz", x=np.zeros((120, *facts["input_shape"]), dtype=np.float32), **columns)
    data = {"class_path": "OwnArrays", "init_args": {"root": ".", "file": "own.npz", "attributes": list(columns)}}
    model = ["--model.init_args.latent_dim", "8", "--trainer.accelerator", "cpu"]
    command = ["test", "-c", ROOT / "configs/toy/codid.yaml", *model, "--data", json.dumps(data)]
    check_refused(run([*command, "--ckpt_path", last_checkpoint(trained)], tmp_path), "point `data` at the data set")


# ---------------------------------------------------------------------------------------------------------------- text


def test_config_with_code(tmp_path: Path) -> None:
    mark, config = tmp_path / "executed", tmp_path / "evil.yaml"
    config.write_text(f"dataset: !!python/object/apply:os.mkdir [{mark}]")
    yaml.unsafe_load(config.read_text())
    assert mark.exists()  # it is live
    mark.rmdir()
    ended = run(["fit", "-c", config, *SMALL], tmp_path)
    assert ended.code == 1, ended.said
    assert "Traceback" not in ended.said
    assert not mark.exists()


def test_config_of_a_run_with_code(trained: Path, tmp_path: Path) -> None:
    mark, evil = tmp_path / "executed", tmp_path / "run"
    (evil / "checkpoints").mkdir(parents=True)
    last_checkpoint(evil).write_bytes(last_checkpoint(trained).read_bytes())
    (evil / "config.yaml").write_text(f"dataset: !!python/object/apply:os.mkdir [{mark}]")
    check_refused(run(["fit", *SMALL, "--run_dir", evil, "--resume", "true"], tmp_path), "config.yaml")
    check_refused(run(["evaluate", evil], tmp_path), "config.yaml")
    assert not mark.exists()


def test_report_escapes_names_from_data(trained: Path, tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    (tmp_path / "run").mkdir()
    for name in ("config.yaml", "result.json"):
        (tmp_path / "run" / name).write_text((trained / name).read_text())
    found = json.loads((trained / "result.json").read_text())
    named = {**found, "method": evil, "dataset": evil, "metrics": {**found["metrics"], f"{evil}/acc": 0.5}}
    (tmp_path / "run" / "result.json").write_text(json.dumps(named))
    ended = run(["report", "run", "--output", "report.html"], tmp_path)
    assert ended.code == 0, ended.said
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


# ---------------------------------------------------------------------------------------------------------- the source


def calls() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """All calls in the packages: place, name of the function, constant keyword arguments."""
    for package in (codid_lightning, datamodules):
        for file in sorted(Path(str(package.__file__)).parent.rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Call):
                    yield f"{file.name}:{node.lineno}", ast.unparse(node.func), constants(node)


def constants(call: ast.Call) -> dict[str, Any]:
    return {k.arg: k.value.value for k in call.keywords if k.arg and isinstance(k.value, ast.Constant)}


def unsafe(function: str, keywords: dict[str, Any]) -> bool:
    """Whether a call could run what is in a file or a name."""
    name = function.rsplit(".", 1)[-1]
    return (
        (function == "torch.load" and keywords.get("weights_only") is not True)
        or (function in ("np.load", "numpy.load") and keywords.get("allow_pickle", False) is not False)
        or function in ("eval", "exec", "yaml.load", "yaml.full_load", "os.system", "os.popen", "pd.read_pickle")
        or function.startswith(("pickle.", "dill.", "joblib.", "marshal.", "shelve."))
        or name == "unsafe_load"
        or keywords.get("shell", False) is not False
    )


def test_source_runs_nothing_that_was_read() -> None:
    assert [(place, name) for place, name, keywords in calls() if unsafe(name, keywords)] == []


def test_source_check_finds_what_it_looks_for() -> None:
    bad = ["torch.load(f)", "torch.load(f, weights_only=False)", "pickle.loads(b)", "eval(s)", "yaml.load(f, L)",
           "subprocess.run(c, shell=True)", "np.load(f, allow_pickle=True)"]  # fmt: skip
    good = ["torch.load(f, weights_only=True)", "np.load(f)", "yaml.safe_load(f)", "subprocess.run(c)"]
    for code, expected in [*((c, True) for c in bad), *((c, False) for c in good)]:
        node = ast.parse(code, mode="eval").body
        assert isinstance(node, ast.Call)
        assert unsafe(ast.unparse(node.func), constants(node)) is expected, code
