"""The configs against the paper's appendix, table "Dataset details" and section "Hyperparameter Settings"."""

from inspect import signature
from pathlib import Path

import pytest
import yaml

import datamodules
from codid_lightning import CoDID

CONFIGS = Path(__file__).parents[1] / "configs"

# N_ptr, N_tr, N_it; lambda_mp, lambda_re, lambda_mr, lambda_wa; K0; l_d; N_d
SETTINGS = {
    "cmnist": ((20, 30, 30), (0.3, 1.1, 1, 0.3), [6, 4], 0.0003, 15),
    "cfashion_mnist": ((20, 30, 30), (0.7, 0.9, 1, 0.3), [6, 8], 0.0003, 15),
    "uci_har": ((50, 150, 150), (0.5, 1.2, 1, 0.1), 6, 0.0007, 7),
    "realworld": ((50, 100, 100), (0.1, 1, 1, 0.2), 2, 0.0007, 7),
    "hhar": ((50, 150, 100), (0.1, 0.8, 1, 0.2), 3, 0.0005, 1),
    "mfd": ((50, 150, 150), (0.01, 1, 1, 0.2), 4, 0.001, 1),
}
OURS = {"cmnist": (0.001, 5), "cfashion_mnist": (0.001, 5)}  # l_d and N_d by measurement: docs/reproduction_causes.md
BACKBONES = {"cmnist": "mlp", "cfashion_mnist": "mlp", "canine_bg": "resnet18", "mfd": "mfd"}  # others: har

# values of a_1, of a_2, modes of a_1 (0: unknown), groups, input shape
FACTS = {
    "CMNIST": (2, 2, 5, 0, (3, 28, 28)),
    "CFashionMNIST": (2, 2, 7, 0, (3, 28, 28)),
    "CanineBG": (2, 2, 20, 0, (3, 128, 128)),
    "UCIHAR": (6, 30, 0, 5, (3, 128)),
    "RealWorld": (8, 15, 0, 5, (3, 150)),
    "HHAR": (6, 9, 0, 3, (3, 128)),
    "MFD": (3, 4, 0, 4, (1, 5120)),
}


def config(dataset, method):
    """A config file, with the schedule that it shares with the others of its data set."""
    found = yaml.safe_load((CONFIGS / dataset / f"{method}.yaml").read_text())
    return {**found, "trainer": yaml.safe_load((CONFIGS / dataset / "schedule.yaml").read_text())["trainer"]}


@pytest.mark.parametrize("dataset", SETTINGS)
def test_codid_has_the_papers_hyperparameters(dataset):
    (pretrain, train, until), lambdas, clusters, l_d, n_d = SETTINGS[dataset]
    whole = config(dataset, "codid")
    found = whole["model"]["init_args"]
    assert whole["trainer"]["max_epochs"] == pretrain + train
    discovery, alignment = found["discovery"], found["alignment"]
    assert (discovery["start"], discovery["until"]) == (pretrain, until)
    weights = (found["mode_loss"]["weight"], found["reconstruction"], alignment["weights"]["reconstruction"])
    assert (*weights, found["splits"]["weight_alignment"]) == lambdas
    assert discovery["n_clusters"] == clusters
    assert (alignment["lr"], alignment["steps"]) == OURS.get(dataset, (l_d, n_d))


def test_without_a_config_codid_has_the_settings_of_cmnist():
    (pretrain, _, until), lambdas, _, _, _ = SETTINGS["cmnist"]
    default = {name: parameter.default for name, parameter in signature(CoDID).parameters.items()}
    weights = (default["mode_loss"].weight, default["reconstruction"], default["alignment"].weights.reconstruction)
    assert (*weights, default["splits"].weight_alignment) == lambdas
    assert (default["discovery"].start, default["discovery"].until) == (pretrain, until)
    assert (default["lr"], default["latent_dim"], default["alignment"].steps) == (0.001, 128, 15)


@pytest.mark.parametrize("dataset", [*SETTINGS, "canine_bg"])
def test_base_shares_backbone_width_rate_and_epochs_with_codid(dataset):
    codid, base = config(dataset, "codid"), config(dataset, "base")
    for found in (codid, base):
        arguments = found["model"]["init_args"]
        assert arguments["backbone"] == BACKBONES.get(dataset, "har")
        assert arguments["latent_dim"] == (512 if dataset == "canine_bg" else 128)
        assert arguments["lr"] == 0.001
    assert codid["trainer"]["max_epochs"] == base["trainer"]["max_epochs"]
    assert "batch_size" not in config(dataset, "data")["init_args"]  # 128 by default, as in the paper


@pytest.mark.parametrize("name", FACTS)
def test_data_sets_have_the_papers_facts(name):
    first, second, modes, groups, shape = FACTS[name]
    data = getattr(datamodules, name)()
    assert data.attribute_sizes == (first, second)
    assert sum(data.mode_sizes[0] or ()) == modes
    assert data.groups == groups
    assert data.input_shape == shape
    assert data.batch_size == 128
