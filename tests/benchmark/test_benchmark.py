import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

from codid_lightning.cli.main import main
from codid_lightning.errors import RunError
from codid_lightning.experiments.launchers import FAILURE, OUTPUT
from codid_lightning.experiments.matrix import Experiment, Forecast, Matrix, Rule, cells_of
from codid_lightning.training import runs

TOY = Matrix(datasets=["toy"], methods=["base"])


def key(**changes: object) -> str:
    (cell,) = cells_of(Matrix(**{**vars(TOY), **changes}))
    return cell.key


def test_a_cell_is_known_by_its_config_without_places() -> None:
    elsewhere = Rule(set={"data.init_args.root": "/elsewhere", "trainer.default_root_dir": "/tmp/x"})
    display = Rule(set={"trainer.enable_progress_bar": False, "data.init_args.num_workers": 3})
    assert key(root="here") == key(root="there") == key(rules=[elsewhere]) == key(rules=[display])
    other = {key(), key(seeds=[1]), key(methods=["dann"]), key(rules=[Rule(set={"model.init_args.lr": 0.01})])}
    assert len(other) == 4


def test_the_key_is_the_one_the_run_will_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    quick = {"trainer.max_epochs": 1, "trainer.accelerator": "cpu", "data.init_args.samples_per_mode": 10}
    (cell,) = cells_of(Matrix(["toy"], ["base"], [3], rules=[Rule(set=quick)], root="runs"))
    assert main(list(cell.job().command[3:])) == 0
    assert cell.finished
    result = runs.read_result(cell.directory)
    assert (result["config_hash"], result["seed"], result["method"]) == (cell.key, 3, "base")
    assert runs.read_config(cell.directory)["data"]["init_args"]["seed"] == 3


def test_rules_change_and_leave_out_cells() -> None:
    rules = [
        Rule(set={"model.init_args.lr": 0.1}),
        Rule(methods=["dann"], set={"model.init_args.lr": 0.2, "model.init_args.strength": 3.0}),
        Rule(datasets=["toy_nine_modes"], methods=["base"], skip=True),
    ]
    cells = cells_of(Matrix(["toy", "toy_nine_modes"], ["base", "dann"], rules=rules))
    assert [(c.dataset, c.method) for c in cells] == [("toy", "base"), ("toy", "dann"), ("toy_nine_modes", "dann")]
    assert "--model.init_args.lr=0.1" in cells[0].arguments
    assert "--model.init_args.lr=0.2" in cells[1].arguments
    assert "--model.init_args.strength=3.0" in cells[1].arguments


def test_groups_are_runs_of_their_own() -> None:
    every = cells_of(Matrix(["uci_har"], ["base"], [0, 1]))
    assert [(c.seed, c.group) for c in every] == [(seed, group) for seed in (0, 1) for group in range(5)]
    assert len({c.key for c in every}) == 10
    assert [c.group for c in cells_of(Matrix(["uci_har", "toy"], ["base"], groups=[1, 3]))] == [1, 3, None]
    with pytest.raises(RunError, match="groups 0 to 4, not 7"):
        cells_of(Matrix(["uci_har"], ["base"], groups=[7]))


def test_an_unknown_method_is_named_with_a_hint() -> None:
    with pytest.raises(RunError, match=r"no config for the method `dan` on `toy`\. Did you mean `dann`\?"):
        cells_of(Matrix(["toy"], ["dan"]))


def test_the_papers_matrix_is_its_tables() -> None:
    matrix = yaml.safe_load(Path("benchmarks/paper.yaml").read_text())
    rules = [Rule(**rule) for rule in matrix.pop("rules")]
    cells = cells_of(Matrix(**matrix, rules=rules))
    places = {(c.dataset, c.group) for c in cells}
    methods = Counter(c.method for c in cells)
    assert Counter(dataset for dataset, _ in places) == {
        **{"cmnist": 1, "cfashion_mnist": 1, "canine_bg": 1},
        **{"uci_har": 5, "realworld": 5, "hhar": 3, "mfd": 4},
    }
    assert len(places) == 20
    assert methods.pop("t") == 3 * 5  # the series have no true modes to be given
    assert len(methods) == 24
    assert set(methods.values()) == {20 * 5}
    assert len({c.directory for c in cells}) == len(cells) == 2415


def test_a_dry_run_lists_and_touches_nothing(matrix_file, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = matrix_file(["toy"], ["base", "dann"], [0, 1])
    cells = cells_of(Matrix(["toy"], ["base", "dann"], [0, 1], rules=_rules(path), root=str(tmp_path / "runs")))
    for cell, file in zip(cells[:2], (runs.RESULT, FAILURE), strict=True):
        cell.directory.mkdir(parents=True)
        (cell.directory / file).touch()
    before = sorted(tmp_path.rglob("*"))
    assert main(["benchmark", "-c", path, "--dry_run"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert sorted(tmp_path.rglob("*")) == before
    assert printed[-1] == "4 runs: 1 finished, 3 to do."
    assert [(line.split("  ")[0], line.split("  ")[-1]) for line in printed[:-1]] == [
        ("failed before", str(cells[1].directory)),
        ("to do", str(cells[2].directory)),
        ("to do", str(cells[3].directory)),
    ]


def _rules(path: str) -> list[Rule]:
    return [Rule(**rule) for rule in yaml.safe_load(Path(path).read_text())["rules"]]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_failing_cell_does_not_stop_the_others(matrix_file, capsys: pytest.CaptureFixture[str]) -> None:
    broken = {"methods": ["dann"], "set": {"model.init_args.lr": -1.0}}
    path = matrix_file(["toy"], ["dann", "base"], rules=[broken])
    assert main(["benchmark", "-c", path, "--jobs", "1"]) == 1
    failed, done = cells_of(Matrix(["toy"], ["dann", "base"], rules=_rules(path), root=_root(path)))
    assert (failed.finished, failed.failed) == (False, True)
    assert (done.finished, done.failed) == (True, False)
    assert "model.lr is -1.0" in json.loads((failed.directory / FAILURE).read_text())["output"]
    printed = capsys.readouterr().out
    assert "1 of 2 runs failed" in printed
    assert "toy, dann, seed 0: codid: model.lr is -1.0; it must be positive." in printed
    assert str(failed.directory / OUTPUT) in printed
    assert "Comparison with baselines" in printed  # the report, of what there is


def _root(path: str) -> str:
    return yaml.safe_load(Path(path).read_text())["root"]


def test_what_is_finished_is_not_run_again(matrix_file, capsys: pytest.CaptureFixture[str]) -> None:
    path = matrix_file(["toy"], ["base"])
    (cell,) = cells_of(Matrix(["toy"], ["base"], rules=_rules(path), root=_root(path)))
    assert main(list(cell.job().command[3:])) == 0
    before = (cell.directory / runs.RESULT).read_bytes()
    assert main(["benchmark", "-c", path]) == 0
    assert (cell.directory / runs.RESULT).read_bytes() == before
    assert not (cell.directory / OUTPUT).exists()  # no process was started
    assert "All 1 runs are finished." in capsys.readouterr().out


def test_the_time_left_is_learnt_from_runs_of_the_same_kind(tmp_path: Path) -> None:
    def cell(dataset: str, method: str, seed: int) -> Experiment:
        return Experiment(dataset, method, seed, None, (), f"{dataset}{method}{seed}", tmp_path)

    cells = [cell("toy", m, s) for m in ("base", "codid") for s in (0, 1)] + [cell("cmnist", "base", 0)]
    forecast = Forecast(cells, parallel=2)
    assert forecast.left() is None
    forecast.update(cells[0], 10)
    assert forecast.left() == (10 + 10 + 10 + 10) / 2  # all they can be compared with
    forecast.update(cells[2], 40)
    assert forecast.left() == (10 + 40 + 25) / 2  # base on toy, CoDID on toy, and anything
    assert (forecast.finished, forecast.total) == (2, 5)
