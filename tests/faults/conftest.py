"""A run to compare with, and room for the slowest machine: a test here starts several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.victims import CODID, run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A run from beginning to end and how long it took."""
    folder = tmp_path_factory.mktemp("undisturbed")
    run(["--version"], folder)  # the server of processes has to import everything first
    ended = run(["fit", *CODID, "--run_dir", "run"], folder)
    assert ended.code == 0, ended.said
    return folder / "run", ended.seconds
