"""Trained runs, shared by everything that looks at them."""

import pytest

from tests.evaluation.short import CODID, fit


@pytest.fixture(scope="session")
def codid_run(tmp_path_factory):
    """CoDID on the toy data, five epochs, of which three refine clusters."""
    overlay = ("-c", "configs/callbacks/snapshots.yaml")
    return fit(tmp_path_factory.mktemp("codid"), "-c", "configs/toy/codid.yaml", *overlay, *CODID)


@pytest.fixture(scope="session")
def base_run(tmp_path_factory):
    """BASE on the toy data, two epochs."""
    return fit(tmp_path_factory.mktemp("base"), "-c", "configs/toy/base.yaml", "--trainer.max_epochs", "2")
