"""Each variant does what its row of the ablation table says, and nothing of what the row leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from codid_lightning import clustering
from codid_lightning.clustering import DPGMM
from codid_lightning.methods.codid.discovery import ModeDiscovery
from tests.codid.test_steps import Watched, networks
from tests.codid.tiny import PARTS, SETTINGS, tiny_codid, tiny_data, tiny_trainer

FOLDER = Path(__file__).parents[2] / "configs" / "variants"
VARIANTS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
EPOCHS, BATCHES = 4, 3


def settings_of(name: str) -> dict[str, Any]:
    """The overlay's arguments, with the clusterer built."""
    overlay = yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) if name != "codid" else {"model": {}}
    arguments = dict(overlay["model"].get("init_args", {}))
    if given := arguments.get("discovery", {}).get("clusterer"):
        arguments["discovery"]["clusterer"] = getattr(clustering, given["class_path"])()
    return arguments


class Recording(ModeDiscovery):
    """Keeps what was clustered with, and the encoder's first layer around every refinement."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.halves_given: list[tuple[int, ...] | None] = []
        self.labels: list[torch.Tensor] = []
        self.encoders: list[tuple[torch.Tensor, torch.Tensor]] = []

    def proposed_halves(self, *arguments):
        found = super().proposed_halves(*arguments)
        self.halves_given.append(None if found is None else tuple(found.shape))
        return found

    def discover(self, trainer, module, *arguments):
        before = module.encoder.subnetworks[0][1].weight.detach().clone()
        super().discover(trainer, module, *arguments)
        self.encoders.append((before, module.encoder.subnetworks[0][1].weight.detach().clone()))
        self.labels.append(module.target_list[0].labels.clone())


@pytest.fixture(scope="module")
def runs() -> dict[str, tuple[Watched, Recording]]:
    """Every variant and CoDID itself, trained for a pre-training epoch and three more."""
    found = {}
    for name in ["codid", *VARIANTS]:
        data, given = tiny_data(), settings_of(name)
        schedule = {**PARTS["discovery"][1], **given.pop("discovery", {})}
        if given.get("splits", "") is None and "clusterer" not in schedule:
            schedule |= {"clusterer": DPGMM(concentration=1e30, max_rounds=0), "n_clusters": 2}
        discovery = Recording(**schedule)
        module = tiny_codid(data, Watched, **given)
        tiny_trainer(EPOCHS, callbacks=[discovery]).fit(module, data)
        found[name] = module, discovery
    return found


def kinds(discovery: ModeDiscovery) -> list[str]:
    return [entry["kind"] for entry in discovery.history]


def test_all_ten_are_there():
    assert sorted(["t", "km", "km_mp", "km_mc", "km_id", "km_sd", "itkm", "itdpm", "wo_sc", "ua"]) == VARIANTS


@pytest.mark.parametrize("name", ["codid", *VARIANTS])
def test_trains_the_networks_of_its_row(name, runs):
    module, _ = runs[name]
    trained = {step: bool(networks(changes)) for step, changes in module.changes.items()}
    weighted, plain = name in ("codid", "ua", "wo_sc"), name != "km_mp"
    assert trained.get("weigh", False) == weighted
    assert trained.get("discriminate", False) == trained.get("disentangle", False) == plain
    assert trained.get("subcluster", False) == (name in ("codid", "ua"))
    predicted = "Cm" in networks(module.changes["inform"])
    assert predicted == (name != "km_mc")


@pytest.mark.parametrize("name", ["t", "km", "km_mp", "km_mc", "km_id", "km_sd"])
def test_clusters_once(name, runs):
    module, discovery = runs[name]
    assert kinds(discovery) == ["fit"]
    assert torch.equal(module.target_list[0].labels, discovery.labels[0])


@pytest.mark.parametrize("name", ["codid", "itkm", "itdpm", "wo_sc", "ua"])
def test_clusters_again_and_again(name, runs):
    _, discovery = runs[name]
    assert kinds(discovery) == ["fit", "split", "merge"]


@pytest.mark.parametrize("name", ["codid", *VARIANTS])
def test_only_the_km_variants_start_again(name, runs):
    module, discovery = runs[name]
    before, after = discovery.encoders[0]
    again = name.startswith("km")
    assert torch.equal(before, after) != again
    inform = module.trainer.optimizers[0]
    steps = {int(state["step"]) for p, state in inform.state.items() if p is module.encoder.subnetworks[0][1].weight}
    adversarial = 0 if name == "km_mp" else (EPOCHS - 1) * BATCHES  # the disentangle step shares inform's Adam
    assert steps == {(EPOCHS - again) * BATCHES + adversarial}


def test_true_modes_are_the_clusters(runs):
    module, discovery = runs["t"]
    data = module.trainer.datamodule.datasets["train"]
    pairs = torch.stack([module.target_list[0].labels, data.mode[:, 0]], 1).unique(dim=0)
    assert len(pairs) == 6
    assert discovery.scores["modes/acc"] == 1


@pytest.mark.parametrize(("name", "groups"), [("km", 2), ("km_id", 2 * SETTINGS["max_clusters"]), ("km_sd", 1)])
def test_discriminators_are_shared_as_the_name_says(name, groups, runs):
    module, _ = runs[name]
    assert len(module.target_list[0].discriminator.weight) == groups


def test_repeated_kmeans_keeps_its_number_of_clusters(runs):
    _, discovery = runs["itkm"]
    assert {tuple(entry["counts"]) for entry in discovery.history} == {(2, 4)}


@pytest.mark.parametrize("name", ["itdpm", "wo_sc"])
def test_mixtures_change_their_number_of_clusters(name, runs):
    _, discovery = runs[name]
    assert discovery.history[0]["counts"] == [2, 2]
    assert sum(discovery.history[1]["counts"]) > 4


def test_the_subclustering_net_proposes_splits_in_codid_alone(runs):
    """It halves each sample for every cluster that the sample may move to before the split."""
    for name in ("codid", "ua", "itdpm", "wo_sc", "itkm"):
        module, discovery = runs[name]
        target = module.target_list[0]
        shape = (len(target.labels), target.slots, 2) if name in ("codid", "ua") else None
        assert discovery.halves_given == [shape], name


def test_ua_resets_its_heads():
    assert settings_of("ua") == {"discovery": {"reset_heads": True}}  # what that does: test_heads
