"""Imports between rooms go one way, and the page that shows them is up to date."""

from __future__ import annotations

from benchmarks.architecture import BEGIN, END, PAGE, ROOT, imports_of, mermaid, rooms

LAYERS = [  # a room may import rooms of earlier layers, but none of its own
    {"errors", "datamodules"},
    {"clustering", "nn", "metrics"},
    {"methods"},
    {"training"},
    {"experiments", "analysis"},
    {"cli"},
]
LEVEL = {room: level for level, layer in enumerate(LAYERS) for room in layer}


def test_a_room_imports_earlier_layers_only():
    wrong = [f"{room} imports {o}" for room, others in rooms().items() for o in others if LEVEL[o] >= LEVEL[room]]
    assert wrong == []


def test_every_room_is_in_a_layer():
    assert rooms().keys() == LEVEL.keys()


def test_nobody_imports_the_command_line():
    users = [file for file in (ROOT / "codid_lightning").rglob("*.py") if "cli" not in file.parts]
    found = {str(file) for file in users for module in imports_of(file) if module.startswith("codid_lightning.cli")}
    assert {file.rpartition("/")[2] for file in found} <= {"__main__.py"}


def test_data_modules_know_nothing_of_the_package():
    assert not rooms()["datamodules"]


def test_the_page_shows_the_rooms():
    page = PAGE.read_text()
    assert page[page.index(BEGIN) + len(BEGIN) : page.index(END)].strip() == mermaid(rooms()), (
        "run `python benchmarks/architecture.py --write`"
    )
