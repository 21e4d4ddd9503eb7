"""What a config of own data may leave out: the backbone follows from the shape, the names from file and class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from torch import nn

from codid_lightning.nn.backbones import Decoder, Encoder, fitting
from codid_lightning.training import build, resolve, runs
from tests.commands import codid

README = Path(__file__).parents[2] / "README.md"
SHAPES = {
    (5,): "mlp",
    (2, 27): "mlp",
    (3, 28): "har",
    (3, 128): "har",
    (1, 511): "har",
    (1, 512): "mfd",
    (1, 5120): "mfd",
    (3, 32, 32): "resnet18",
    (1, 28, 28): "resnet18",
}


@pytest.mark.parametrize(("shape", "expected"), SHAPES.items(), ids=str)
def test_auto_is_the_backbone_that_fits_the_shape(shape, expected):
    assert fitting(shape) == expected
    networks = []
    for name in ("auto", expected):
        torch.manual_seed(0)
        networks.append(nn.Sequential(Encoder(name, shape, 2, 128), Decoder(name, shape, 2, 128)))
    x = torch.rand(4, *shape)
    found, wanted = (network(x) for network in networks)
    assert torch.equal(found, wanted)
    assert found.shape == x.shape


def write_arrays(root, *shape):
    rng = np.random.default_rng(0)
    labels = {"label": rng.choice(["no", "yes"], 80), "site": rng.choice(["A", "B"], 80)}
    np.savez(root / "samples.npz", x=rng.normal(size=(80, *shape)).astype("float32"), **labels)


def readme_config(root):
    """The config of README, as it is there but for the folder."""
    text = README.read_text().partition("# mine.yaml\n")[2].partition("```")[0]
    config = yaml.safe_load(text)
    config["data"]["init_args"]["root"] = str(root)
    (root / "mine.yaml").write_text(yaml.safe_dump(config))
    return str(root / "mine.yaml")


def test_readmes_config_takes_a_network_for_series_and_names_its_runs(tmp_path):
    write_arrays(tmp_path, 3, 128)
    config = readme_config(tmp_path)
    schedule = ["--trainer.max_epochs=2", "--model.discovery.start=1", "--trainer.enable_progress_bar=false"]
    assert codid("fit", "-c", config, *schedule, f"--trainer.default_root_dir={tmp_path / 'runs'}") == 0
    (run,) = (tmp_path / "runs" / "samples" / "codid" / "seed0").iterdir()
    result = runs.read_result(run)
    assert (result["dataset"], result["method"]) == ("samples", "codid")
    module = build(config, record=False).module
    assert any(isinstance(layer, nn.Conv1d) for layer in module.encoder.modules())


def test_given_names_stay(tmp_path):
    write_arrays(tmp_path, 4)
    found = resolve(["-c", readme_config(tmp_path), "--dataset=mine", "--method=ours"])
    assert (found["dataset"], found["method"]) == ("mine", "ours")
    assert resolve(["-c", "configs/uci_har/base.yaml"])["dataset"] == "uci_har"


def test_a_folder_of_pictures_has_the_name_of_the_folder(tmp_path):
    (tmp_path / "animals").mkdir()
    pd.DataFrame({"path": ["a.png"]}).to_csv(tmp_path / "animals" / "metadata.csv")
    data = {"class_path": "OwnImages", "init_args": {"root": str(tmp_path / "animals"), "attributes": ["a", "b"]}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump({"data": data, "model": {"class_path": "Base"}}))
    found = resolve(["-c", str(tmp_path / "x.yaml")])
    assert (found["dataset"], found["method"]) == ("animals", "base")


def test_data_without_a_file_have_the_name_of_their_class():
    found = resolve(["--data=Toy", "--model=DANN"])
    assert (found["dataset"], found["method"]) == ("toy", "dann")
