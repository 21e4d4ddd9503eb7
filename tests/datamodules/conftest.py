"""Where real data lie, if they are at hand."""

import os
from pathlib import Path

import pytest
import yaml

import datamodules


@pytest.fixture(scope="session")
def real_root() -> Path:
    root = os.environ.get("CODID_DATA_ROOT")
    if not root:
        pytest.skip("CODID_DATA_ROOT is not set: no real data at hand")
    return Path(root)


@pytest.fixture
def real(real_root):
    """The folder of one real data set, e.g. `real("MNIST")`; skips the test where it is missing."""

    def folder(name: str) -> Path:
        if not (real_root / name).exists():
            pytest.skip(f"{name} is not below CODID_DATA_ROOT")
        return real_root / name

    return folder


@pytest.fixture
def configured(real):
    """A data set as its config describes it, on the real files, e.g. `configured("cmnist", "MNIST")`."""

    def build(dataset: str, folder: str, **changes):
        config = yaml.safe_load((Path(__file__).parents[2] / "configs" / dataset / "data.yaml").read_text())
        arguments = {**config["init_args"], "root": str(real(folder).parent), **changes}
        module = getattr(datamodules, config["class_path"])(**arguments)
        module.prepare_data()
        module.setup()
        return module

    return build
