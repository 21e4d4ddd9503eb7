"""Inside `analysis`, imports go one way: tables, then figures, then pages and the dashboard."""

import ast
from pathlib import Path

import codid_lightning.analysis

ROOT = Path(codid_lightning.analysis.__file__).parent
ALLOWED = {"tables": set(), "figures": {"tables"}, "pages": {"tables", "figures"}, "dashboard": {"figures"}}


def imported(folder: str) -> set[str]:
    """Sub-packages of `analysis` that the files of one of them import."""
    trees = [ast.parse(file.read_text()) for file in (ROOT / folder).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) and n.module for a in n.names]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    inside = [name.split(".")[2] for name in names if name.startswith("codid_lightning.analysis.")]
    return set(inside) & ALLOWED.keys() - {folder}


def test_sub_packages_import_only_those_below():
    for folder, below in ALLOWED.items():
        assert imported(folder) <= below, folder
    assert imported("pages") == {"tables", "figures"}  # the test sees imports
