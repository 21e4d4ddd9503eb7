"""A matrix of runs that take a second each, apart from Python's start."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

SMALL = {
    "trainer.max_epochs": 3,
    "trainer.accelerator": "cpu",
    "data.init_args.samples_per_mode": 20,
    "data.init_args.batch_size": 36,
    "model.init_args.latent_dim": 4,
}
CLUSTERED = {
    "model.init_args.discovery.init_args.start": 1,
    "model.init_args.discovery.init_args.every": 1,
    "model.init_args.alignment.init_args.steps": 1,
}


@pytest.fixture
def matrix_file(tmp_path: Path):
    def write(datasets: Sequence[str], methods: Sequence[str], seeds: Sequence[int] = (0,), **more: object) -> str:
        rules = [{"set": SMALL}, {"methods": ["codid"], "set": CLUSTERED}, *more.pop("rules", ())]
        content = {"datasets": list(datasets), "methods": list(methods), "seeds": list(seeds), "rules": rules, **more}
        path = tmp_path / "matrix.yaml"
        path.write_text(yaml.safe_dump({"root": str(tmp_path / "runs"), **content}))
        return str(path)

    return write
