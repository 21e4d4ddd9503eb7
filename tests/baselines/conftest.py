from __future__ import annotations

import pytest

from tests.baselines.small import ManyValues


@pytest.fixture
def many_values() -> ManyValues:
    return ManyValues(batch_size=8)
