"""Titles of methods and data sets in tables and figures, and the paper's order of methods."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import yaml

from codid_lightning.training.config_files import config_folder

OURS = "codid"
NEEDS = {"a2": "a2", "val_a2": "val. a2", "modes": "modes"}  # of a config, and in tables
TRUTH = "truth"  # the row with the true number of modes; no method
BASELINES = (
    *("base", "mmd", "dann", "coral", "irm", "rex", "dts", "ide_vc"),
    *("mi", "a_cmi", "hfs", "coda", "id_facevc", "diosc"),
)
CLUSTERING = ("km", "itkm", "itdpm", "wo_sc", "ua")  # variants that discover modes in their own way
VARIANTS = ("km_mp", "km_mc", "km_id", "km_sd", *CLUSTERING, "t")
PAPER_ORDER = (TRUTH, *BASELINES, *VARIANTS, OURS)
DATASETS = {
    "toy": "Toy",
    "toy_nine_modes": "Toy, nine modes",
    "toy_four_attributes": "Toy, four attributes",
    "colored_digits": "Colored digits",
    "cmnist": "CMNIST",
    "cfashion_mnist": "CFashion-MNIST",
    "canine_bg": "Canine-BG",
    "uci_har": "UCI-HAR",
    "realworld": "RealWorld",
    "hhar": "HHAR",
    "mfd": "MFD",
    "cwru": "CWRU",
}


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    """A config of every method that has one in this package, by the method's name."""
    files = sorted(config_folder().glob("*/*.yaml"))
    configs = [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    return {str(c["method"]): c for c in configs if isinstance(c, dict) and {"method", "title"} <= c.keys()}


@cache
def shipped_titles() -> dict[str, str]:
    """The title of every method that has a config in this package, by the method's name."""
    return {TRUTH: "Ground truth"} | {method: str(config["title"]) for method, config in _shipped().items()}


def method_needs(name: str, recorded: Sequence[str] | None = None) -> str:
    """What a method must know besides a_1 of training samples, in words.

    Args:
        name: The method.
        recorded: What a run's config says; for a method that has no config in this package.
    """
    shipped = _shipped().get(name)
    needs = recorded if shipped is None else shipped.get("needs", [])
    return "" if needs is None else ", ".join(NEEDS[need] for need in needs) or "nothing"


@cache
def extensions() -> tuple[str, ...]:
    """Methods of this package that are not in the paper: those with a config in `configs/methods`."""
    return tuple(sorted(file.stem for file in (config_folder() / "methods").glob("*.yaml")))


def method_title(name: str) -> str:
    """The title in the method's shipped config, or else the name itself."""
    return shipped_titles().get(name, name)


def unique_titles(recorded: Mapping[str, str]) -> dict[str, str]:
    """Titles of methods, given those that their runs recorded (empty: none).

    An overlay without a title inherits that of the config below it. So a title that belongs to another shipped method,
    or that two methods recorded, is replaced by the method's own.
    """
    claims = Counter(recorded.values())
    owners = {title: method for method, title in shipped_titles().items()}
    return {
        method: title if title and claims[title] == 1 and owners.get(title, method) == method else method_title(method)
        for method, title in recorded.items()
    }


@cache
def dataset_title(name: str) -> str:
    """The data set as the paper writes it, or else the `title` of the class in its config, or its name."""
    file = config_folder() / name / "data.yaml"
    if name in DATASETS or not file.is_file():
        return DATASETS.get(name, name)
    import datamodules  # only here: reading results need not load torch

    cls = getattr(datamodules, str(yaml.safe_load(file.read_text(encoding="utf-8"))["class_path"]), None)
    return str(getattr(cls, "title", name))


def method_order(name: str) -> tuple[float, str]:
    """Sort key: the paper's order, with all other methods just before CoDID."""
    return (PAPER_ORDER.index(name) if name in PAPER_ORDER else PAPER_ORDER.index(OURS) - 0.5, name)
