"""The configs are the tests: each one trains, tests and, as an overlay, fits every data set."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from codid_lightning.analysis.tables.names import BASELINES, DATASETS, VARIANTS, extensions, shipped_titles
from codid_lightning.experiments.matrix import method_configs
from codid_lightning.methods import baselines
from codid_lightning.training import resolve
from codid_lightning.training.registry import method_names
from tests.commands import codid
from tests.fakes import FAKES

CONFIGS = Path(__file__).parents[1] / "configs"
FOLDERS = sorted(file.parent.name for file in CONFIGS.glob("*/data.yaml"))
EXPERIMENTS = sorted(
    file.relative_to(CONFIGS)
    for folder in FOLDERS
    for file in (CONFIGS / folder).glob("*.yaml")
    if file.stem not in ("data", "schedule")
)
OVERLAYS = {
    kind: sorted(f.stem for f in (CONFIGS / kind).glob("*.yaml")) for kind in ("baselines", "variants", "methods")
}
OTHERS = sorted(file for kind in ("callbacks", "loggers") for file in (CONFIGS / kind).glob("*.yaml"))
SIZES = {"canine_bg": ("--data.image_size=32", "--data.batch_size=4", "--data.val_fraction=0.34")}

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """The folder of a data set's fake, written once."""

    @cache
    def write(dataset: str) -> Path:
        root = tmp_path_factory.mktemp(dataset)
        if dataset in FAKES:
            FAKES[dataset](root)
        return root

    return write


def run(root: Path, dataset: str, *files: Path) -> None:
    """`fit`, then `test`, one batch of each; mode discovery has its turn before the first."""
    configs = [part for file in files for part in ("-c", file)]
    sizes = SIZES.get(dataset, ("--data.batch_size=16",))
    arguments = [*configs, f"--data.root={root}", "--model.latent_dim=8", *sizes, "--trainer.fast_dev_run=1"]
    if files[0].stem == "codid":
        arguments += ["--model.discovery.start=0"]
    assert codid("fit", *arguments) == 0
    assert codid("test", *arguments) == 0


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=str)
def test_every_config_trains_and_tests(experiment, roots):
    dataset = experiment.parent.name
    run(roots(dataset), dataset, CONFIGS / experiment)


@pytest.mark.parametrize("name", OVERLAYS["baselines"])
def test_every_baseline_trains_and_tests(name, roots):
    dataset = "colored_digits"
    run(roots(dataset), dataset, CONFIGS / dataset / "base.yaml", CONFIGS / "baselines" / f"{name}.yaml")


@pytest.mark.parametrize("name", OVERLAYS["variants"])
def test_every_variant_trains_and_tests(name, roots):
    dataset = "colored_digits"
    run(roots(dataset), dataset, CONFIGS / dataset / "codid.yaml", CONFIGS / "variants" / f"{name}.yaml")


@pytest.mark.parametrize("name", OVERLAYS["methods"])
def test_every_method_of_ours_trains_and_tests(name, roots):
    dataset = "colored_digits"
    files = method_configs(dataset, name)
    configs = [part for file in files for part in ("-c", file)]
    few = ("--data.batch_size=16", "--model.latent_dim=8", "--trainer.fast_dev_run=1")
    for command in ("fit", "test"):
        assert codid(command, *configs, f"--data.root={roots(dataset)}", *few) == 0


@pytest.mark.parametrize("dataset", FOLDERS)
def test_every_overlay_resolves_on_every_data_set(dataset):
    for kind, own in (("baselines", "base"), ("variants", "codid"), ("methods", "codid")):
        before = CONFIGS / dataset / f"{own}.yaml"
        if not before.is_file():
            continue
        plain = resolve(["-c", str(before)])
        for name in OVERLAYS[kind]:
            config = resolve(["-c", str(before), "-c", str(CONFIGS / kind / f"{name}.yaml")])
            assert (config["dataset"], config["method"]) == (dataset, name)
            assert config["data"] == plain["data"], "an overlay is about the method"
            for shared in ("backbone", "latent_dim", "lr"):
                assert config["model"]["init_args"][shared] == plain["model"]["init_args"][shared]
        for overlay in OTHERS:
            config = resolve(["-c", str(before), "-c", str(overlay)])
            assert config["model"] == plain["model"]


@pytest.mark.parametrize("dataset", FOLDERS)
def test_methods_on_a_data_set_share_their_schedule(dataset):
    """Epochs, learning-rate decay, batches and BatchNorm: a method that trains otherwise cannot be compared."""
    own = [file.stem for file in (CONFIGS / dataset).glob("*.yaml") if file.stem not in ("data", "schedule")]
    short = [] if dataset.startswith("toy") else ["configs/schedules/short.yaml"]  # part of what we recommend
    found = set()
    for method in {*own, *OVERLAYS["baselines"], *(OVERLAYS["variants"] if "codid" in own else ())}:
        files = [*method_configs(dataset, method), *short]
        config = resolve([part for file in files for part in ("-c", str(file))])
        batches, callbacks = config["data"]["init_args"]["batch_size"], config["trainer"]["callbacks"]
        decay = config["model"]["init_args"]["decay_from"]
        found.add((config["trainer"]["max_epochs"], decay, batches, str(callbacks)))
    assert len(found) == 1, found
    if (CONFIGS / dataset / "schedule.yaml").is_file():
        plain = [method for method in own if method != "codid_adaptive"]
        written = [yaml.safe_load((CONFIGS / dataset / f"{method}.yaml").read_text()) for method in plain]
        assert {str(config.get("overlays")) for config in written} == {"schedule.yaml"}


def test_names_in_results_are_those_of_the_files():
    for experiment in EXPERIMENTS:
        config = resolve(["-c", str(CONFIGS / experiment)])
        assert (config["dataset"], config["method"]) == (experiment.parent.name, experiment.stem)
    assert set(FOLDERS) >= DATASETS.keys()
    assert {*OVERLAYS["baselines"], "base"} >= set(BASELINES)
    assert set(OVERLAYS["variants"]) >= set(VARIANTS)
    assert set(OVERLAYS["methods"]) == set(extensions())


def test_every_method_has_one_title():
    """The same in all its configs, and its own: an overlay without a title would inherit that of the config below."""
    files = [CONFIGS / experiment for experiment in EXPERIMENTS]
    files += [CONFIGS / kind / f"{name}.yaml" for kind, names in OVERLAYS.items() for name in names]
    configs = [yaml.safe_load(file.read_text()) for file in files]
    found = {(config["method"], config.get("title")) for config in configs if set(config) != {"overlays"}}
    assert dict(found) == {method: title for method, title in shipped_titles().items() if method != "truth"}
    assert len(found) == len(dict(found)) == len({title for _, title in found})


def test_every_method_has_a_config():
    trained = set()
    for method in ("base", *OVERLAYS["baselines"]):
        files = [part for file in method_configs("cmnist", method) for part in ("-c", file)]
        trained.add(resolve(files)["model"]["class_path"].split(".")[-1])
    assert trained == set(baselines.__all__)
    assert trained | {"CoDID"} <= set(method_names())
