"""A schedule without a clustering is an error: the result would be called CoDID and be pre-training."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from codid_lightning.errors import RunError
from codid_lightning.experiments.matrix import Matrix, Pair, Rule
from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.training import build, fit
from tests.codid.tiny import fitted, tiny_codid, tiny_data, tiny_trainer

CONFIGS = Path("configs")


@pytest.mark.parametrize("start", [2, 20])
def test_a_start_after_the_last_epoch_is_an_error(start, tmp_path):
    short = {"trainer.max_epochs": 2, "data.samples_per_mode": 20, "trainer.default_root_dir": str(tmp_path)}
    run = build("configs/toy/codid.yaml", short, {"model.discovery.start": start, "trainer.accelerator": "cpu"})
    with pytest.raises(RunError, match=rf"model\.discovery\.start is {start}.*trainer\.max_epochs is 2"):
        fit(run)


def test_a_plain_trainer_warns_because_its_fit_may_be_continued():
    with pytest.warns(UserWarning, match=r"model\.discovery\.start is 2.*trainer\.max_epochs is 2"):
        fitted(2, discovery={"start": 2})


def test_the_discovery_of_the_trainer_counts():
    data = tiny_data()
    with pytest.warns(UserWarning, match=r"model\.discovery\.start is 7"):
        tiny_trainer(2, callbacks=[ModeDiscovery(start=7)]).fit(tiny_codid(data), data)


def test_runs_that_need_no_clustering_start():
    data = tiny_data()
    late = {"start": 20}
    assert fitted(2, data, discovery=late, moded=[]).trainer.current_epoch == 2
    tiny_trainer(2, fast_dev_run=True).fit(tiny_codid(data, discovery=late), data)
    tiny_trainer(-1, max_steps=2).fit(tiny_codid(data, discovery=late), data)


def test_the_last_epoch_is_early_enough():
    assert fitted(2, discovery={"start": 1}).has_clusters


@pytest.mark.slow
@pytest.mark.parametrize("file", sorted(Path("benchmarks").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_matrix_clusters_where_it_says_codid(file):
    given = yaml.safe_load(file.read_text())
    if "datasets" not in given:
        pytest.skip("not a matrix")
    matrix = Matrix(**given | {"rules": [Rule(**rule) for rule in given.get("rules", [])]})
    clustering = {
        "codid",
        *(path.stem for folder in ("variants", "methods") for path in CONFIGS.glob(f"{folder}/*.yaml")),
    }
    for dataset in matrix.datasets:
        for method in clustering.intersection(matrix.methods):
            pair = Pair.of(matrix, dataset, method)
            model = {} if pair is None else pair.config["model"]["init_args"]
            if model.get("discovery") and model.get("moded") != []:
                assert model["discovery"]["init_args"]["start"] < pair.config["trainer"]["max_epochs"], (
                    dataset,
                    method,
                )
