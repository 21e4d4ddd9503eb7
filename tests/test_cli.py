"""What users meet: help, messages, run directories, results, predictions."""

from __future__ import annotations

import json
import multiprocessing

import numpy as np
import pandas as pd
import pytest
import yaml

from codid_lightning.cli.console import COMMANDS, TRAINER_COMMANDS
from codid_lightning.cli.main import main
from codid_lightning.training import build, load, runs, stages
from codid_lightning.training.identity import config_hash
from tests.commands import SMALL_TOY, codid, fit_toy

TOY = ("-c", "configs/toy/base.yaml")
TYPOS = [
    # what is typed, the exit code, what the message must name
    (["fitt", *TOY], 2, ["fitt", "`fit`"]),
    (["fit", *TOY, "--trainer.max_epoch=3"], 2, ["trainer.max_epoch", "`trainer.max_epochs`"]),
    (["fit", *TOY, "--model.laten_dim=3"], 2, ["model.laten_dim", "`model.latent_dim`"]),
    (["fit", *TOY, "--data.batchsize=3"], 2, ["data.batchsize", "`data.batch_size`"]),
    (["fit", *TOY, "--seed_everythin=3"], 2, ["seed_everythin", "`seed_everything`"]),
    (["fit", *TOY, "--model=Bas"], 2, ["Bas", "`Base`"]),
    (["fit", *TOY, "--data=Toi"], 2, ["Toi", "`Toy`"]),
    (["fit", *TOY, "--model.lr=fast"], 2, ["model.lr", "fast", "number"]),
    (["fit", *TOY, "--model.backbone=mpl"], 2, ["model.backbone", "mpl", "`mlp`"]),
    (["fit", *TOY, "--selection=value"], 2, ["selection", "value", "`val`"]),
    (["fit", *TOY, "--resume=maybe"], 2, ["resume", "maybe", "true or false"]),
    (["fit", "-c", "configs/toy/bas.yaml"], 2, ["configs/toy/bas.yaml", "configs/toy/base.yaml"]),
    (["fit", "configs/toy/base.yaml"], 2, ["configs/toy/base.yaml", "--key"]),
    (["fit"], 2, ["model", "data", "-c configs/toy/base.yaml"]),
    (["fit", *TOY, "--model.lr=-1"], 1, ["model.lr", "-1", "positive"]),
    (["fit", *TOY, "--data.batch_size=1"], 1, ["data.batch_size", "1", "2 or more"]),
    (["test", *TOY, "--ckpt_path=nowhere.ckpt"], 1, ["nowhere.ckpt"]),
    (["test", *TOY], 1, ["not trained", "--ckpt_path"]),
    (["validate", *TOY], 1, ["not trained", "--ckpt_path"]),
    (["predict", *TOY], 1, ["not trained", "--ckpt_path"]),
    (["figure", "curves", "nowhere"], 2, ["required: --output"]),
]


@pytest.mark.parametrize(("typed", "code", "named"), TYPOS, ids=[" ".join(t[0]) for t in TYPOS])
def test_mistakes_are_named_in_few_lines(typed, code, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert codid(*typed) == code
    message = capsys.readouterr().err
    assert all(word in message for word in named), message
    assert len(message.strip().splitlines()) <= 10
    assert "Traceback" not in message
    assert not list(tmp_path.rglob(runs.RESULT)), "nothing was trained"


FILES = {
    "model: {class_path: Base, init_args: {lattent_dim: 4}}": ["lattent_dim", "latent_dim"],
    "trainr: {max_epochs: 4}": ["trainr", "trainer"],
    "trainer: {max_epochs: four}": ["trainer.max_epochs", "four", "integer"],
    "model: [": ["overlay.yaml"],
}


@pytest.mark.parametrize("content", FILES, ids=str)
def test_mistakes_in_files_are_named(content, tmp_path, capsys):
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(content)
    assert codid("fit", *TOY, "-c", overlay, f"--trainer.default_root_dir={tmp_path}") in (1, 2)
    message = capsys.readouterr().err
    assert all(word in message for word in FILES[content]), message
    assert len(message.strip().splitlines()) <= 10


# --------------------------------------------------------------------------------------------------------------- help


def test_overview_lists_every_command(capsys):
    assert main([]) == main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in {**TRAINER_COMMANDS, **COMMANDS})


@pytest.mark.parametrize("command", TRAINER_COMMANDS)
def test_help_fits_a_screen(command, capsys):
    assert codid(command, "--help") == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("--config", "--data.KEY", "--model.KEY", "CoDID", "CMNIST"))
    assert len(text.splitlines()) <= 50
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    assert codid(command, "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: ")
    assert f"codid {command}" in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(("of", "argument"), [("--model.help=CoDID", "--model.max_clusters"),
                                              ("--data.help=CMNIST", "--data.correlation"),
                                              ("--trainer.help", "--trainer.max_epochs")])  # fmt: skip
def test_help_of_a_class_explains_its_arguments(of, argument, capsys):
    assert codid("fit", of) == 0
    assert argument in capsys.readouterr().out


def test_printed_config_can_be_used_again(tmp_path, capsys):
    assert codid("fit", *TOY, "--model.latent_dim=7", "--print_config") == 0
    printed = capsys.readouterr().out
    config = yaml.safe_load(printed)
    assert config["model"]["init_args"]["latent_dim"] == 7
    assert config["trainer"]["max_epochs"] == 30
    (tmp_path / "again.yaml").write_text(printed)
    assert codid("fit", "-c", tmp_path / "again.yaml", "--print_config") == 0
    assert yaml.safe_load(capsys.readouterr().out) == config


def test_short_config_has_what_was_chosen(capsys):
    assert codid("fit", *TOY, "--model.latent_dim=7", "--print_config=skip_default") == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["model"]["init_args"]["latent_dim"] == 7
    assert len(printed.splitlines()) < 30


# --------------------------------------------------------------------------------------------------------------- runs


def test_testing_the_checkpoint_gives_the_result(tmp_path, capsys):
    run = fit_toy(tmp_path)
    result = runs.read_result(run)
    scores = stages.test(build({"ckpt_path": str(run / runs.CHECKPOINTS / runs.LAST)}, record=False))
    assert scores.keys() >= {f"test{k}/{metric}" for k in (1, 2, 3) for metric in ("acc", "f1", "a2/acc")}
    assert scores == {name: result["metrics"][name] for name in scores}

    capsys.readouterr()
    assert codid("test", *TOY, *SMALL_TOY, f"--ckpt_path={run / runs.CHECKPOINTS / runs.LAST}") == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    for split in ("test1", "test2", "test3"):
        row = next(line for line in printed if line[:1] == [split])
        assert row[1:3] == ["a1", f"{result['metrics'][f'{split}/acc']:.4f}"]
        assert not any("…" in word for line in printed for word in line)


def test_result_says_what_was_run(tmp_path):
    run = fit_toy(tmp_path, "--seed_everything=3")
    result = runs.read_result(run)
    assert (result["schema"], result["method"], result["dataset"]) == (runs.SCHEMA, "base", "toy")
    assert (result["seed"], result["group"], result["epochs"]) == (3, None, 2)
    assert result["versions"].keys() >= {"torch", "lightning"}
    assert result["code_checksum"] == runs.code_checksum()
    assert len(result["data_checksum"]) == 16
    assert result["config_hash"] == config_hash(runs.read_config(run))
    assert (run / runs.CHECKPOINTS / runs.LAST).is_file()
    assert len(list(run.glob("logs/*/metrics.csv"))) == 1
    assert run.parent.relative_to(run.parents[3]).parts == ("toy", "base", "seed3")


def test_cluster_counts_are_printed_where_output_goes(tmp_path, capsys):
    """Epochs count from 1, as in the progress bar."""
    clusters = ("--model.discovery.start=1", "--model.discovery.every=1", "--trainer.max_epochs=3")
    fit_toy(tmp_path, *clusters, config="configs/toy/codid.yaml")
    printed = [line for line in capsys.readouterr().out.splitlines() if "clusters under each value" in line]
    assert [line.partition(":")[0] for line in printed] == ["Epoch 2", "Epoch 3"]


def test_selection_tests_the_best_epoch(tmp_path):
    run = fit_toy(tmp_path, "--selection=val_worst", "--data.val_fraction=0.5", "--trainer.max_epochs=4")
    log = pd.read_csv(next(run.glob("logs/*/metrics.csv")))
    result = runs.read_result(run)
    assert result["selection"] == "val_worst"
    assert result["metrics"]["val/worst_acc"] == pytest.approx(log["val/worst_acc"].max())


def test_selection_by_cells_needs_samples_in_them(tmp_path, capsys):
    arguments = ("--selection=val_worst", "--trainer.max_epochs=1", f"--trainer.default_root_dir={tmp_path}")
    few = "--data.val_fraction=0.05"  # no value of a_1 has ten samples
    assert codid("fit", *TOY, *SMALL_TOY, *arguments, few) == 1
    message = capsys.readouterr().err
    assert "val/worst_acc" in message
    assert "Traceback" not in message


def test_selection_needs_an_epoch_after_pretraining(tmp_path, capsys):
    overlay = ("-c", "configs/methods/counterfactual.yaml", "--model.decoding.epochs=1")
    arguments = ("--selection=val", "--trainer.max_epochs=1", f"--trainer.default_root_dir={tmp_path}")
    assert codid("fit", *TOY, *overlay, *SMALL_TOY, *arguments) == 1
    message = capsys.readouterr().err
    assert "No epoch can be selected by validation data" in message
    assert "Traceback" not in message


def test_a_finished_directory_is_not_overwritten(tmp_path, capsys):
    run = fit_toy(tmp_path)
    assert codid("fit", *TOY, *SMALL_TOY, f"--run_dir={run}") == 1
    assert "--resume true" in capsys.readouterr().err


def _start(root, barrier) -> None:
    barrier.wait()
    directory = runs.new_run_directory(root, "toy", "base", "seed0")
    (directory / "pid").write_text(str(multiprocessing.current_process().pid))


def test_runs_of_the_same_second_have_directories_of_their_own(tmp_path):
    context = multiprocessing.get_context("fork")  # a spawned process would import for longer than a second
    barrier = context.Barrier(8)
    processes = [context.Process(target=_start, args=(tmp_path, barrier)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 8
    owners = [path.read_text() for path in tmp_path.rglob("pid")]
    assert sorted(owners) == sorted(str(process.pid) for process in processes)


# -------------------------------------------------------------------------------------------------------- predictions


def test_predictions_are_files_people_can_open(tmp_path):
    run = fit_toy(tmp_path, "--model.discovery.start=0", config="configs/toy/codid.yaml")
    assert codid("predict", f"--ckpt_path={run / runs.CHECKPOINTS / runs.LAST}") == 0
    metrics = runs.read_result(run)["metrics"]
    truth = load(run).data.datasets
    for split in ("test1", "test2", "test3"):
        table = pd.read_csv(run / "predictions" / f"{split}.csv")
        assert list(table) == ["index", "a1", "a1_probability", "a2", "a2_probability", "cluster"]
        assert (table["index"] == np.arange(len(truth[split]))).all()
        assert (table["a1"].to_numpy() == truth[split].a[:, 0].numpy()).mean() == pytest.approx(metrics[f"{split}/acc"])
        assert table["a1_probability"].between(0.5, 1).all(), "the likelier of two values"
        with np.load(run / "predictions" / f"{split}.npz", allow_pickle=False) as arrays:
            assert arrays["z"].shape == (len(table), 2, 4)
            assert (arrays["index"] == table["index"]).all()


# ------------------------------------------------------------------------------------------------------------- loggers


@pytest.mark.slow
def test_wandb_overlay_works_without_account_or_network(monkeypatch, tmp_path, recwarn):
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = fit_toy(tmp_path, "-c", "configs/loggers/wandb.yaml")
    wandb.finish()
    assert not [w for w in recwarn if "Weights & Biases" in str(w.message)], "it did not try to go online"
    assert len(list(run.glob("wandb/offline-run-*/*.wandb"))) == 1
    assert list(run.glob("logs/*/metrics.csv")), "the CSV file is always written"
    assert json.loads((run / runs.RESULT).read_text())["metrics"]["test1/acc"] > 0
