"""A data set is found by its file alone."""

from __future__ import annotations

import datamodules

TITLES = {
    "CFashionMNIST": "CFashion-MNIST",
    "CMNIST": "CMNIST",
    "CWRU": "CWRU",
    "CanineBG": "Canine-BG",
    "ColoredDigits": "Colored digits",
    "ColoredGlyphs": "Colored glyphs",
    "HHAR": "HHAR",
    "MFD": "MFD",
    "RealWorld": "RealWorld",
    "Toy": "Toy",
    "ToyFourAttributes": "Toy, four attributes",
    "ToyNineModes": "Toy, nine modes",
    "UCIHAR": "UCI-HAR",
}
NEW_DATASET = """
from datamodules.correlated import CorrelatedDataModule
from datamodules.toy import Toy


class Parent(CorrelatedDataModule):
    pass


class NewToy(Toy):
    title = "New toy"
"""


def test_data_sets_are_public_names_and_have_titles():
    found = datamodules.find_datasets()
    assert {name: cls.title for name, cls in found.items() if hasattr(cls, "title")} == TITLES
    assert {*found, "AttributeDataModule", "Batch", "DataError"} <= set(datamodules.__all__)
    assert all(getattr(datamodules, name) is cls for name, cls in found.items())


def test_a_new_file_is_found(tmp_path, monkeypatch):
    before = datamodules.find_datasets()
    (tmp_path / "new_toy.py").write_text(NEW_DATASET)
    monkeypatch.setattr(datamodules, "__path__", [*datamodules.__path__, str(tmp_path)])
    found = datamodules.find_datasets()
    assert found.keys() - before.keys() == {"NewToy"}
