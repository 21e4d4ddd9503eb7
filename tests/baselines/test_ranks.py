"""Two ranks with batches of unequal size train baselines with the gradients of one device."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from codid_lightning.methods import baselines
from codid_lightning.nn.statistics import over_all_ranks
from datamodules.base import Batch
from tests.baselines.small import RANKS, build
from tests.codid.ranks import assert_gradients_agree
from tests.codid.tiny import gradients_of, random_batch, tiny_data

SIZE = 23  # odd: one rank holds a sample more
NAMES = ("Base", "DANN", "DTS", "IDEVC", "IDFaceVC")  # the others compare samples of one rank with each other


def gradients(name: str) -> dict[str, dict[str, Tensor]]:
    """Gradients of a training step on this rank's part of the global batch, or on all of it in a single process."""
    module = build(name, tiny_data(), reconstruction=0.5)
    module = (over_all_ranks(module) if dist.is_initialized() else module).double().train()
    optimizers = module.configure_optimizers()
    module.trainer = SimpleNamespace(optimizers=optimizers if isinstance(optimizers, list) else [optimizers])  # type: ignore[assignment]
    whole = random_batch(module, SIZE, shape=(2,))  # type: ignore[arg-type]
    batch = Batch(**{k: v[dist.get_rank() :: RANKS] for k, v in whole.items()}) if dist.is_initialized() else whole  # type: ignore[typeddict-item,attr-defined]
    with patch.object(torch, "randn_like", torch.zeros_like):  # every rank has its own noise
        return {"step": gradients_of(module, partial(module.training_step, batch, 0))}


def all_gradients() -> dict[str, Any]:
    return {name: gradients(name) for name in NAMES}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_gradients_are_those_of_the_global_batch(tmp_path: Path) -> None:
    assert_gradients_agree(all_gradients, tmp_path, tolerance=1e-10)


def test_the_names_exist() -> None:
    assert set(NAMES) <= set(baselines.__all__)
