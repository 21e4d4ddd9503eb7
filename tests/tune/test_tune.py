import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import optuna
import pytest
import torch
import yaml
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from codid_lightning import Base
from codid_lightning.cli.commands.tune import divide
from codid_lightning.cli.main import main
from codid_lightning.errors import RunError
from codid_lightning.experiments.matrix import method_configs
from codid_lightning.experiments.search import Objective, ReportToOptuna, Search
from codid_lightning.experiments.spaces import Parameter, read_space
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.training import resolve
from codid_lightning.training.config import MONITORS
from codid_lightning.training.identity import flatten
from datamodules.toy import Toy
from tests.codid.tiny import tiny_codid, tiny_data, tiny_trainer

SPACE = {
    "model.init_args.lr": {"type": "log_uniform", "low": 1e-3, "high": 0.1},
    "model.init_args.latent_dim": {"type": "choice", "values": [2, 4, 128]},
}
RUN = ["-c", "configs/toy/base.yaml", "--data.samples_per_mode=600", "--trainer.max_epochs=3"]
RUN += ["--trainer.accelerator=cpu", "--model.lr=1e-3", "--model.latent_dim=128", "--model.decay_from=1"]


@pytest.fixture
def space(tmp_path: Path) -> str:
    path = tmp_path / "space.yaml"
    path.write_text(yaml.safe_dump(SPACE))
    return str(path)


@pytest.fixture
def search(space: str, tmp_path: Path) -> Search:
    return Search(RUN, trials=4, space=space, root=str(tmp_path / "studies"))


def finished(search: Search) -> list[int]:
    return [trial.number for trial in search.study.get_trials() if trial.state.is_finished()]


# -------------------------------------------------------------------------------------------------------------- spaces


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "log_uniform", "low": 0.01, "high": 10}, FloatDistribution(0.01, 10, log=True)),
        ({"type": "uniform", "low": 0, "high": 1}, FloatDistribution(0, 1)),
        ({"type": "int", "low": 1, "high": 17, "step": 2}, IntDistribution(1, 17, step=2)),
        ({"type": "choice", "values": ["max", "mean"]}, CategoricalDistribution(["max", "mean"])),
    ],
)
def test_a_space_is_data(given: dict, expected: object) -> None:
    assert Parameter.read("key", given) == Parameter("key", expected)


@pytest.mark.parametrize("wrong", [{"type": "normal"}, {"type": "int", "low": 1}, {"type": "choice", "values": 3}])
def test_a_space_that_is_none_is_named(wrong: dict) -> None:
    with pytest.raises(RunError, match=r"search space of model\.lr must be"):
        Parameter.read("model.lr", wrong)
    with pytest.raises(RunError, match=r"model\.lr has no `hihg`"):
        Parameter.read("model.lr", {"type": "uniform", "low": 0, "high": 1, "hihg": 2})


def test_entries_of_a_list_are_searched_one_by_one() -> None:
    clusters = Parameter.read("n_clusters", {"type": "int", "low": 2, "high": 10, "entries": 2})
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(0)).ask()
    drawn = clusters.suggest(trial)
    assert trial.params == {"n_clusters[0]": drawn[0], "n_clusters[1]": drawn[1]}
    assert clusters.value(trial.params) == drawn
    assert clusters.named([6, 4]) == {"n_clusters[0]": 6, "n_clusters[1]": 4}
    assert clusters.named([6, 11]) is None
    assert clusters.named(6) is None


def test_every_shipped_space_fits_its_method() -> None:
    methods = [("cmnist", path.stem) for path in Path("configs/baselines").glob("*.yaml")]
    methods += [(dataset, "codid") for dataset in ("cmnist", "cfashion_mnist", "mfd", "uci_har")]
    assert len(methods) >= 17
    for dataset, method in methods:
        arguments = [part for config in method_configs(dataset, method) for part in ("-c", config)]
        trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(0)).ask()
        drawn = {p.key: p.suggest(trial) for p in read_space(resolve(arguments)["space"])}
        config = resolve([*arguments, *(f"--{key}={value}" for key, value in drawn.items())])
        given = dict(flatten(config))
        assert {key: given[key] for key in drawn} == drawn


def test_settings_of_a_part_that_is_null_are_not_searched(tmp_path: Path) -> None:
    arguments = [part for config in method_configs("cmnist", "itdpm") for part in ("-c", config)]
    search = Search(arguments, root=str(tmp_path))
    assert not any(".splits." in key or ".weights." in key for key in search.space)
    assert any(".discovery." in key for key in search.space)


def test_the_space_is_that_of_the_config(tmp_path: Path) -> None:
    def space_of(dataset: str, method: str) -> dict:
        return resolve([part for config in method_configs(dataset, method) for part in ("-c", config)])["space"]

    clusters, weight = "model.init_args.discovery.init_args.n_clusters", "model.init_args.mode_loss.init_args.weight"
    assert space_of("cmnist", "wo_sc") == space_of("cmnist", "codid")
    assert space_of("cmnist", "codid")[clusters]["entries"] == 2
    assert "entries" not in space_of("uci_har", "codid")[clusters]
    assert max(space_of("mfd", "ua")[weight]["values"]) == 0.1
    with pytest.raises(RunError, match="config of base has no search space: add the key `space`, or give --space FILE"):
        Search(RUN, root=str(tmp_path))


def test_a_config_with_a_space_needs_no_file(tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(yaml.safe_dump({"space": SPACE}))
    search = Search([*RUN, "-c", str(overlay)], trials=1, root=str(tmp_path / "studies"))
    assert {p.key for p in search.parameters} == SPACE.keys()
    assert "--space" not in search.job(0, "name").command
    (trial,) = search.run()
    assert trial.state == TrialState.COMPLETE
    assert "the config's space" in search.write_best().read_text()


# ------------------------------------------------------------------------------------------------- validation data only


def test_no_test_metric_can_be_named(space: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in get_args(Objective):
        assert MONITORS[name].startswith("val/")
    root = tmp_path / "studies"
    for name in ("test3", "test3/acc", "test/acc"):
        assert main(["tune", *RUN, "--space", space, "--root", str(root), "--objective", name]) == 2
        assert "objective must be one of val, val_balanced, val_worst" in capsys.readouterr().err
    assert not root.exists()


def test_no_test_set_is_read(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a search looked at test data")

    monkeypatch.setattr(Toy, "test_dataloader", refuse)
    monkeypatch.setattr(DisentanglementModule, "test_step", refuse)
    trials = list(search.run(limit=2))
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2
    logged = (search.folder(0) / "logs" / "version_0" / "metrics.csv").read_text()
    assert "val/worst_acc" in logged
    assert "test" not in logged
    assert not list(search.directory.rglob("result.json"))


# --------------------------------------------------------------------------------------------------------------- study


def test_a_study_is_resumed_and_ends_as_an_overlay(search: Search, space: str, capsys) -> None:
    first = list(search.run(limit=1))
    assert first[0].params == {"model.init_args.lr": 1e-3, "model.init_args.latent_dim": 128}  # the config as given
    again = ["tune", *RUN, "--trials", "4", "--space", space, "--root", str(search.directory.parents[1])]
    assert main(again) == 0
    assert finished(search) == [0, 1, 2, 3]
    assert search.study.get_trials()[0].datetime_complete == first[0].datetime_complete
    best = search.best
    assert best.value == max(t.value for t in search.study.get_trials() if t.state == TrialState.COMPLETE)
    config = resolve([*RUN, "-c", str(search.directory / "best.yaml")])
    assert {
        f"model.init_args.{name}": config["model"]["init_args"][name] for name in ("lr", "latent_dim")
    } == best.params
    assert config["model"]["class_path"].endswith("Base")
    for figure in ("history.png", "importance.png"):
        assert (search.directory / figure).read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert main(again) == 0  # nothing is left to do
    assert "trial" not in capsys.readouterr().out.split("4 of 4 trials are over")[0]


def test_values_are_those_after_the_last_epoch(search: Search) -> None:
    (trial,) = search.run(limit=1)
    assert list(trial.intermediate_values) == [0, 1, 2]
    assert trial.value == trial.intermediate_values[2]


def test_another_config_space_or_objective_is_another_study(search: Search, space: str, tmp_path: Path) -> None:
    more = {"space": space, "root": str(tmp_path / "studies")}
    assert Search([*RUN, "--data.root=/elsewhere"], trials=9, **more).directory == search.directory
    assert Search([*RUN, "--data.noise=0.2"], **more).directory != search.directory
    assert Search(RUN, objective="val", **more).directory != search.directory
    with pytest.raises(RunError, match="selection is val: choose `last` or the objective, val_worst"):
        Search([*RUN, "--selection=val"], **more)


def test_a_space_of_another_method_is_refused_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = str(tmp_path / "dann.yaml")
    Path(space).write_text(yaml.safe_dump({"model.init_args.adversary_lr": SPACE["model.init_args.lr"]}))
    assert main(["tune", *RUN, "--space", space, "--root", str(tmp_path)]) == 2
    assert "model.adversary_lr" in capsys.readouterr().err
    assert main(["tune", *RUN, "--space", "nowhere.yaml", "--root", str(tmp_path)]) == 1
    assert "no search space nowhere.yaml" in capsys.readouterr().err


def test_the_trial_of_a_dead_process_is_taken_up_again(search: Search) -> None:
    _, held = search._take()
    other, lost = search._take()
    lost.close()  # as its process's death would
    (trial,) = search.run(limit=1)
    assert trial.number == other.number == 1
    assert [t.number for t in search.run()] == [2, 3]
    assert search.missing == 1  # the one in somebody's hands
    held.close()
    assert [t.number for t in search.run()] == [0]
    assert search.missing == 0


def test_a_trial_behind_the_median_is_pruned() -> None:
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.MedianPruner(5, n_warmup_steps=2))
    for _ in range(5):
        study.add_trial(optuna.trial.create_trial(value=0.9, intermediate_values={0: 0.9, 1: 0.9, 2: 0.9}))
    report = ReportToOptuna(study.ask(), "val_worst")
    module = Base(**Toy().facts)

    def after(epoch: int, value: float) -> None:
        metrics = {"val/worst_acc": torch.tensor(value), "val/acc": torch.tensor(1.0)}
        report.on_validation_end(SimpleNamespace(current_epoch=epoch, callback_metrics=metrics), module)

    after(0, 0.3)
    after(1, 0.2)  # within the warm-up
    assert (report.last, report.best) == pytest.approx((0.2, 0.3))
    with pytest.raises(optuna.TrialPruned):
        after(2, 0.1)
    ahead = ReportToOptuna(study.ask(), "val_worst")
    report = ahead
    after(2, 0.95)
    assert ahead.last == pytest.approx(0.95)


def test_epochs_before_clusters_exist_do_not_count() -> None:
    report = ReportToOptuna(optuna.create_study(direction="maximize").ask(), "val_worst")
    data = tiny_data(samples_per_mode=300)
    module = tiny_codid(data, discovery={"start": 2})
    for value in ("last", "best"):
        with pytest.raises(RunError, match="No epoch can be selected"):
            getattr(report, value)
    tiny_trainer(4, callbacks=[report]).fit(module, data)
    assert list(report.values) == [2, 3]


def test_a_diverging_trial_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(yaml.safe_dump({"model.init_args.lr": {"type": "choice", "values": [1e30, 1e-3]}}))
    search = Search(RUN, trials=6, space=str(space), root=str(tmp_path / "studies"))
    by_lr = {}
    for trial in search.run():
        by_lr.setdefault(trial.params["model.init_args.lr"], set()).add(trial.state)
        if trial.state == TrialState.FAIL:
            assert "not finite" in trial.user_attrs["error"]
    assert by_lr[1e30] == {TrialState.FAIL}
    assert TrialState.COMPLETE in by_lr[1e-3]
    assert search.best.params == {"model.init_args.lr": 1e-3}


def test_without_optuna_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "codid_lightning.cli.commands.tune")
    monkeypatch.setitem(sys.modules, "optuna.trial", None)
    assert main(["tune", *RUN]) == 1
    assert "pip install 'codid-lightning[tune]'" in capsys.readouterr().err


def test_arguments_of_the_search_are_told_from_those_of_the_run() -> None:
    args = ["-c", "a.yaml", "--trials", "3", "--trainer.max_epochs", "2", "--objective=val", "--data.root", "trials"]
    ours, theirs = divide(args, ["trials", "objective"])
    assert ours == ["--trials", "3", "--objective=val"]
    assert theirs == ["-c", "a.yaml", "--trainer.max_epochs", "2", "--data.root", "trials"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_processes_share_a_study_and_ray_extends_it(space: str, tmp_path: Path) -> None:
    root = str(tmp_path / "studies")
    common = ["tune", *RUN, "--space", space, "--root", root]
    command = [sys.executable, "-m", "codid_lightning", *common, "--trials", "12"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    search = Search(RUN, trials=12, space=space, root=root)
    assert finished(search) == list(range(12))
    shares = [{line.split(":")[0].split()[-1] for line in text.splitlines() if "] trial" in line} for text in printed]
    assert shares[0].isdisjoint(shares[1])
    assert {int(number) for share in shares for number in share} == set(range(12))

    ray = pytest.importorskip("ray", reason="Ray is not installed: trials were not distributed through a Ray cluster")
    try:
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        assert main([*common, "--trials", "14", "--engine", "ray", "--address", "local"]) == 0
    finally:
        ray.shutdown()
    assert finished(search) == list(range(14))
