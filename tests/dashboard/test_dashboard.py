import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import wandb
import yaml
from jsonargparse import Namespace
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure

from codid_lightning.analysis.dashboard import figures
from codid_lightning.analysis.dashboard.boards import Disk, TensorBoard, boards_of
from codid_lightning.analysis.dashboard.callback import Dashboard
from codid_lightning.cli.main import main
from codid_lightning.experiments.spaces import read_space
from codid_lightning.training import loggers, resolve, runs
from codid_lightning.training.identity import shareable
from tests.dashboard.wandb_file import OfflineRun, read_run

START = "--model.discovery.start=0"  # for runs of few epochs
RUN = ["fit", "-c", "configs/toy/codid.yaml", "--data.samples_per_mode=40", "--trainer.max_epochs=5"]
RUN += ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false", "--model.latent_dim=4"]
RUN += ["--model.discovery.start=2", "--model.discovery.every=1", "--model.alignment.steps=1"]
pytestmark = pytest.mark.timeout(600)
SETTINGS = ("WANDB_API_KEY", "WANDB_MODE", "WANDB_RUN_ID", "WANDB_BASE_URL", "CODID_RUN_DIR")


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in SETTINGS:
        monkeypatch.setenv(name, "")  # so that it is restored, whatever wandb does to it
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield
    stop_wandb()


def stop_wandb() -> None:
    wandb.finish()
    wandb.teardown()  # it reads the environment only once


def train(directory: Path, *more: str, code: int = 0) -> dict[str, Any]:
    assert main([*RUN, "--run_dir", str(directory), *more]) == code
    stop_wandb()
    return runs.read_result(directory)["metrics"]


def refinements(directory: Path) -> list[dict[str, Any]]:
    """What mode discovery did, from the checkpoint."""
    state = torch.load(directory / runs.CHECKPOINTS / runs.LAST, weights_only=True)
    (history,) = [c["history"] for c in state["callbacks"].values() if "history" in c]
    return history


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, OfflineRun]:
    """A run kept offline, and what its file says."""
    directory = tmp_path_factory.mktemp("offline")
    with pytest.MonkeyPatch.context() as patch:
        for name in SETTINGS:
            patch.setenv(name, "")
            patch.delenv(name)
        patch.setenv("NETRC", str(directory / "netrc"))
        train(directory, "-c", "configs/loggers/wandb.yaml")
    return directory, read_run(directory)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Metrics of the same run without any dashboard."""
    return train(tmp_path_factory.mktemp("plain"))


# --------------------------------------------------------------------------------------------------------------- wandb


def test_looking_changes_nothing(offline, plain: dict[str, Any]) -> None:
    assert runs.read_result(offline[0])["metrics"] == plain


def test_runs_are_grouped_and_know_their_config(offline) -> None:
    directory, run = offline
    assert (run.name, run.group) == ("toy-codid-seed0", "toy-codid")
    config = shareable(runs.read_config(directory))
    for key in ("dataset", "method", "seed_everything", "model", "data"):
        assert run.config[key] == config[key]


def test_losses_scores_and_cluster_counts_are_there_by_name(offline) -> None:
    directory, run = offline
    steps = {"attribute", "mode_prediction", "reconstruction", "isotropic", "weight_alignment"}
    steps |= {"discriminator", "meta", "discrimination"}
    assert {f"train/{name}" for name in steps} <= run.keys
    assert {"modes/acc", "modes/ari", "modes/nmi", "val/acc"} <= run.keys
    history = refinements(directory)
    assert len(history) == 3
    for value in (0, 1):
        assert run.values(f"clusters/a1={value}") == [note["counts"][value] for note in history]
    for kind in ("split", "merge"):
        notes = [note for note in history if note["kind"] == kind]
        accepted = [sum(move["accepted"] for move in note["moves"]) for note in notes]
        rejected = [len(note["moves"]) - count for note, count in zip(notes, accepted, strict=True)]
        assert run.values(f"moves/a1/{kind}_accepted") == accepted
        assert run.values(f"moves/a1/{kind}_rejected") == rejected


def test_every_move_is_listed_with_its_ratio(offline) -> None:
    directory, run = offline
    path = max(directory.glob("wandb/*/files/media/table/moves_*.json"), key=lambda p: p.stat().st_mtime_ns)
    table = json.loads(path.read_text())
    listed = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    moves = [(note["epoch"], move) for note in refinements(directory) for move in note["moves"]]
    assert len(moves) > 0
    assert [(row["epoch"], row["kind"], row["log_hastings"], row["accepted"]) for row in listed] == [
        (epoch, move["kind"], pytest.approx(move["log_hastings"]), move["accepted"]) for epoch, move in moves
    ]
    finite = {move["kind"] for _, move in moves if np.isfinite(move["log_hastings"])}
    assert {key.split("/")[1] for key in run.keys if key.startswith("log_hastings/")} == finite


def test_weights_are_there_for_every_cluster_and_value(offline) -> None:
    directory, run = offline
    counts = refinements(directory)[-1]["counts"]
    shown = {key.removesuffix("/values") for key in run.keys if key.startswith("weights/") and key.endswith("/values")}
    clusters = {name.split(",")[0] for name in shown}
    assert len(clusters) >= sum(counts)  # a cluster that vanished meanwhile may have been shown, too
    assert {name.split(", ")[1] for name in shown} == {"a2=0", "a2=1"}
    some = next(iter(sorted(shown)))
    assert sum(run.values(f"{some}/values")[0]) > 0


def test_images_and_the_final_table_are_there(offline) -> None:
    directory, run = offline
    (media,) = directory.glob("wandb/offline-run-*/files/media")
    assert len(list(media.glob("images/tsne/z1_*.png"))) == len(refinements(directory)) + 1
    for test in ("test1", "test2", "test3"):
        for attribute in ("a1", "a2"):
            assert run.values(f"confusion/{test}/{attribute}/_type") == ["image-file"]
    (path,) = media.glob("table/results_*.json")
    listed = dict(json.loads(path.read_text())["data"])
    metrics = runs.read_result(directory)["metrics"]
    assert len(listed) >= 12
    assert {name: metrics[name] for name in listed} == listed


def test_a_checkpoint_is_an_artifact_only_if_asked_for(offline, tmp_path: Path) -> None:
    assert "model" not in offline[1].artifacts
    overlay = yaml.safe_load(Path("configs/loggers/wandb.yaml").read_text())
    overlay["trainer"]["callbacks+"][0]["init_args"] = {"checkpoint": True, "images": False}
    (tmp_path / "overlay.yaml").write_text(yaml.safe_dump(overlay))
    train(tmp_path / "run", "-c", str(tmp_path / "overlay.yaml"), "--trainer.max_epochs=1", START)
    assert "model" in read_run(tmp_path / "run").artifacts


def test_where_wandb_cannot_start_training_goes_on(
    tmp_path: Path, plain: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = wandb.init

    def broken(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("mode") == "disabled":
            return start(*args, **kwargs)
        raise wandb.errors.CommError("no network")

    monkeypatch.setattr(wandb, "init", broken)
    with pytest.warns(UserWarning, match=r"Weights & Biases cannot be reached.*no network") as caught:
        assert train(tmp_path, "-c", "configs/loggers/wandb.yaml") == plain
    assert sum("Weights & Biases" in str(w.message) for w in caught) == 1
    assert (tmp_path / "figures" / "moves.csv").is_file()
    assert "train/attribute" in (tmp_path / "logs" / "version_0" / "metrics.csv").read_text()


def test_a_dashboard_that_breaks_off_is_replaced_by_files(tmp_path: Path) -> None:
    class Broken:
        def figure(self, name: str, figure: Figure) -> None:
            raise OSError("connection lost")

    dashboard = Dashboard(directory=str(tmp_path))
    dashboard.boards = [Broken()]
    trainer = SimpleNamespace(current_epoch=3)
    with pytest.warns(UserWarning, match="Broken failed"):
        dashboard._show(trainer, lambda board: board.figure("tsne/z1", Figure()))
    assert (tmp_path / "tsne-z1-epoch0003.png").is_file()


# ------------------------------------------------------------------------------------------- other places, figures


@pytest.mark.parametrize("switched_off", [False, True])
def test_without_a_dashboard_figures_are_files(
    tmp_path: Path, plain: dict[str, Any], switched_off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if switched_off:
        monkeypatch.setenv("WANDB_MODE", "disabled")
        overlay = "configs/loggers/wandb.yaml"
    else:
        overlay = "configs/callbacks/dashboard.yaml"
    assert train(tmp_path, "-c", overlay) == plain
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    history = refinements(tmp_path)
    assert {f"tsne-z1-epoch{note['epoch']:04d}.png" for note in history} <= names
    assert {f"weights-epoch{note['epoch']:04d}.png" for note in history} <= names
    assert {f"confusion-test{i}-a{q}-epoch0005.png" for i in (1, 2, 3) for q in (1, 2)} <= names
    results = pd.read_csv(tmp_path / "figures" / "results.csv")
    assert dict(zip(results.metric, results.value, strict=True))["test3/acc"] == pytest.approx(plain["test3/acc"])
    assert len(pd.read_csv(tmp_path / "figures" / "moves.csv")) == sum(len(note["moves"]) for note in history)


def test_tensorboard_gets_figures_histograms_and_tables() -> None:
    class Writer:  # the methods of torch.utils.tensorboard.SummaryWriter that are used
        def __init__(self) -> None:
            self.calls: list[tuple[str, str, int]] = []

        def add_figure(self, tag: str, figure: Figure, global_step: int) -> None:
            self.calls.append(("figure", tag, global_step))

        def add_histogram(self, tag: str, values: np.ndarray, global_step: int) -> None:
            self.calls.append(("histogram", tag, global_step))

        def add_text(self, tag: str, text_string: str, global_step: int) -> None:
            self.calls.append((text_string, tag, global_step))

    logger = object.__new__(TensorBoardLogger)
    logger._experiment = Writer()
    trainer = SimpleNamespace(loggers=[logger], global_step=7)
    (board,) = boards_of(trainer, Path("unused"))
    assert isinstance(board, TensorBoard)
    board.figure("tsne/z1", Figure())
    board.histograms("weights", {"cluster 0": np.ones(3)})
    board.table("moves", ("epoch", "kind"), [(1, "split")])
    assert logger.experiment.calls == [
        ("figure", "tsne/z1", 7),
        ("histogram", "weights/cluster 0", 7),
        ("| epoch | kind |\n| --- | --- |\n| 1 | split |", "moves", 7),
    ]


def test_tensorboards_files_go_to_the_runs_directory(tmp_path: Path) -> None:
    overlay = ["-c", "configs/toy/base.yaml", "-c", "configs/loggers/tensorboard.yaml"]
    config = resolve(overlay)["trainer"]
    assert [c["class_path"].rpartition(".")[2] for c in config["callbacks"]] == ["Dashboard"]
    given = Namespace(class_path=config["logger"]["class_path"], init_args=Namespace(**config["logger"]["init_args"]))
    csv, tensorboard = loggers.complete(given, tmp_path, "toy-base-seed0", "toy-base")
    assert csv.init_args.save_dir == tensorboard.init_args.save_dir == str(tmp_path)


def test_confusions_count_what_accuracy_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, np.ndarray] = {}
    confusion = figures.confusion

    def keep(counts: np.ndarray, names: Any, title: str) -> Figure:
        drawn[title] = counts
        return confusion(counts, names, title)

    monkeypatch.setattr(figures, "confusion", keep)
    metrics = train(tmp_path, "-c", "configs/callbacks/dashboard.yaml", "--trainer.max_epochs=2", START)
    assert len(drawn) == 6
    for title, counts in drawn.items():
        attribute, test = title.split(", ")
        name = f"{test}/acc" if attribute == "a1" else f"{test}/{attribute}/acc"
        assert np.trace(counts) / counts.sum() == pytest.approx(metrics[name])
        assert counts.sum() == 6 * 20


def test_an_empty_set_of_loggers_means_files(tmp_path: Path) -> None:
    (board,) = boards_of(SimpleNamespace(loggers=[]), tmp_path)
    assert isinstance(board, Disk)


def test_the_sweep_is_the_papers_space_on_validation_data() -> None:
    sweep = yaml.safe_load(Path("benchmarks/sweep.yaml").read_text())
    assert sweep["metric"]["name"].startswith("val/")
    space = {p.key: p for p in read_space(yaml.safe_load(Path("configs/spaces/codid.yaml").read_text()))}
    assert set(sweep["parameters"]) == set(space)
    for key, given in sweep["parameters"].items():
        assert all(space[key].named(value) is not None for value in given["values"])
    command = [part for part in sweep["command"][2:] if part != "${args}"]
    arguments = [f"--{key}={given['values'][0]}" for key, given in sweep["parameters"].items()]
    found = resolve([*command, *arguments])["model"]["init_args"]
    assert found["discovery"]["init_args"]["n_clusters"] == 2
