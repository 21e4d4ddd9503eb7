"""A baseline is found by its file alone."""

from __future__ import annotations

from codid_lightning.methods import baselines
from codid_lightning.methods.baselines.adversarial import AdversarialModule

TITLES = {name: name for name in ("CODA", "CORAL", "DANN", "DIOSC", "DTS", "HFS", "IRM", "MI", "MMD", "REx")}
TITLES |= {"ACMI": "A-CMI", "Base": "BASE", "IDEVC": "IDE-VC", "IDFaceVC": "ID-FaceVC"}
TITLES |= {name: name for name in ("DFR", "EIIL", "JTT", "LISA", "LfF", "Mixup", "SPARE")}
TITLES |= {"GroupResampling": "Group resampling"}
NEW_METHOD = """
from codid_lightning.methods.baselines.adversarial import AdversarialModule
from codid_lightning.methods.baselines.mi import MI


class Parent(AdversarialModule):
    pass


class NewMethod(MI):
    title = "New method"
"""


def test_public_names_are_the_methods_with_a_title():
    assert baselines.__all__ == sorted(TITLES)
    assert {name: getattr(baselines, name).title for name in baselines.__all__} == TITLES
    assert not hasattr(AdversarialModule, "title")


def test_a_new_file_is_found(tmp_path, monkeypatch):
    (tmp_path / "new_method.py").write_text(NEW_METHOD)
    monkeypatch.setattr(baselines, "__path__", [*baselines.__path__, str(tmp_path)])
    found = baselines.find_methods()
    assert found.keys() - TITLES.keys() == {"NewMethod"}
    assert found["NewMethod"].title == "New method"
