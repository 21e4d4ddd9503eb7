"""Runs in Python: what `build`, `fit`, `test` and `load` promise."""

from __future__ import annotations

import json

import pytest
import torch
import yaml
from jsonargparse import ArgumentError

from codid_lightning.errors import RunError
from codid_lightning.training import build, fit, load, resolve, runs, stages, train
from codid_lightning.training.config import key_arguments

BASE = "configs/toy/base.yaml"
SMALL = {"data.samples_per_mode": 40, "data.batch_size": 32, "model.latent_dim": 4, "trainer.max_epochs": 2,
         "trainer.accelerator": "cpu", "trainer.enable_progress_bar": False}  # fmt: skip


def small(tmp_path, **changes):
    return {**SMALL, "trainer.default_root_dir": str(tmp_path), **changes}


def test_a_run_is_built_fitted_and_loaded(tmp_path):
    run = build(BASE, small(tmp_path))
    trainer, module, data = run
    assert (trainer, module, data) == (run.trainer, run.module, run.data)
    assert run.names == ("toy", "base", "seed0")
    assert trainer.max_epochs == 2
    result = fit(run)
    assert json.loads((run.directory / runs.RESULT).read_text())["metrics"] == result.metrics
    assert (result.method, result.title, result.config_hash) == ("base", "BASE", run.identity)
    loaded = load(run.directory)
    assert loaded.directory == run.directory
    assert not loaded.model.training
    state = loaded.model.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items() if torch.is_tensor(value))


def test_the_process_that_started_ranks_gives_its_next_run_a_new_directory(tmp_path, monkeypatch):
    first = build(BASE, small(tmp_path))
    monkeypatch.setenv("LOCAL_RANK", "0")  # left behind by Lightning's launcher
    second = build(BASE, small(tmp_path, seed_everything=1))
    assert first.directory != second.directory


def test_a_rank_that_another_process_started_joins_its_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("CODID_RUN_DIR", str(tmp_path / "shared"))
    monkeypatch.setenv("CODID_RUN_PID", "1")
    assert build(BASE, small(tmp_path)).directory == tmp_path / "shared"
    monkeypatch.delenv("CODID_RUN_DIR")
    with pytest.raises(RunError, match="add --run_dir"):
        build(BASE, small(tmp_path))


def test_testing_in_python_gives_the_result(tmp_path):
    run = build(BASE, small(tmp_path))
    result = fit(run)
    scores = stages.test(build({"ckpt_path": str(run.last)}, record=False))
    assert scores == {name: result.metrics[name] for name in scores}


def test_training_reads_no_test_data(tmp_path):
    run = build(BASE, small(tmp_path))
    train(run)
    assert run.last.is_file()
    assert not (run.directory / runs.RESULT).exists()


def test_without_a_record_nothing_is_written(tmp_path, monkeypatch):
    root = small(tmp_path)  # paths of configs are relative to the repository
    run = build(BASE, root, record=False)
    monkeypatch.chdir(tmp_path)
    assert run.directory is None
    assert fit(run).metrics["test1/acc"] > 0
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".json", ".yaml", ".csv")]
    with pytest.raises(RunError, match="without a directory"):
        _ = run.last


def test_configs_are_files_mappings_and_resolved_configs(tmp_path):
    keys = small(tmp_path)
    resolved = resolve(["-c", BASE, *key_arguments(keys)])
    nested = {"trainer": {"max_epochs": 7}, "model": {"init_args": {"lr": 0.5}}}
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(yaml.safe_dump(nested))
    identity = build(BASE, keys, record=False).identity
    assert build(resolved, record=False).identity == identity
    assert build(resolved, record=False).config == build(BASE, keys, record=False).config
    by_file, by_mapping = build(BASE, keys, overlay, record=False), build(BASE, keys, nested, record=False)
    assert by_file.identity == by_mapping.identity != identity
    assert by_file.config["trainer"]["max_epochs"] == 7
    assert by_file.config["model"]["init_args"]["lr"] == 0.5
    with pytest.raises(ArgumentError, match="laten_dim"):
        build(BASE, {"model.laten_dim": 3}, record=False)
    with pytest.raises(RunError, match=r"model.lr is -1.*positive"):
        build(BASE, {"model.lr": -1}, record=False)


def test_title_and_space_are_no_part_of_the_experiment(tmp_path):
    plain = build(BASE, small(tmp_path), record=False)
    space = {"space": {"model.init_args.lr": {"type": "uniform", "low": 0, "high": 1}}}
    other = build(BASE, small(tmp_path), {"title": "My method"}, space, record=False)
    assert other.config["title"] == "My method"
    assert other.config["space"] == space["space"]
    assert other.identity == plain.identity


def test_a_run_resumes_in_python(tmp_path):
    first = build(BASE, small(tmp_path), {"trainer.max_epochs": 4, "trainer.max_steps": 8})
    train(first)
    again = build(BASE, small(tmp_path), {"trainer.max_epochs": 4, "trainer.max_steps": 8, "resume": True})
    assert again.directory == first.directory
    assert again.checkpoint == str(first.last)
    with pytest.raises(RunError, match=r"was started with another config: model\.init_args\.lr"):
        build(BASE, small(tmp_path), {"model.lr": 0.1, "resume": True, "run_dir": str(first.directory)})
    with pytest.raises(RunError, match="holds a run already"):
        build(BASE, small(tmp_path), {"run_dir": str(first.directory)})


def test_checkpoints_record_plain_hyperparameters(tmp_path):
    run = build("configs/toy/codid.yaml", small(tmp_path), {"trainer.max_epochs": 1, "model.discovery.start": 0})
    train(run)
    hparams = torch.load(run.last, weights_only=True)["hyper_parameters"]
    assert hparams["_class_path"] == "codid_lightning.CoDID"
    assert tuple(hparams["attribute_sizes"]) == run.data.attribute_sizes
    module = type(run.module).load_from_checkpoint(run.last, weights_only=True)
    assert torch.equal(module.encoder.state_dict()[name := next(iter(module.encoder.state_dict()))],
                       run.module.encoder.state_dict()[name])  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        (["--model.discovery.every=null"], ("discovery", "init_args", "every")),
        (["--model.init_args.alignment.init_args.weights", "null"], ("alignment", "init_args", "weights")),
        (["--model.splits=null"], ("splits",)),
    ],
)
def test_null_is_null_at_any_depth(arguments, path):
    value = resolve(["-c", "configs/cmnist/codid.yaml", *arguments])["model"]["init_args"]
    for name in path:
        value = value[name]
    assert value is None
