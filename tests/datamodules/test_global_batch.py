"""A batch size for all devices together: the steps of one device, whatever their number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from codid_lightning.training.identity import config_hash
from datamodules.base import DataError
from datamodules.toy import Toy


def batches(rank: int, world: int, **sizes: Any) -> list[Tensor]:
    data = Toy(samples_per_mode=40, **sizes)
    data.setup()
    data.trainer = SimpleNamespace(global_rank=rank, world_size=world)  # type: ignore[assignment]
    return list(data._sampler("train", shuffle=True))


@pytest.mark.parametrize("world", [2, 3, 5])
def test_ranks_share_the_batches_of_one_device(world: int) -> None:
    """Also where they cannot be divided evenly: then some ranks hold one sample more."""
    alone = batches(0, 1, batch_size=32)
    shares = [batches(rank, world, global_batch_size=32) for rank in range(world)]
    assert [len(share) for share in shares] == [len(alone)] * world
    for whole, *parts in zip(alone, *shares, strict=True):
        assert torch.equal(torch.cat(parts).sort().values, whole.sort().values)
        lengths = [len(part) for part in parts]
        assert max(lengths) - min(lengths) <= 1


def test_two_samples_for_every_device() -> None:
    with pytest.raises(DataError, match=r"data.global_batch_size is 5.* 3 devices.* 6"):
        batches(0, 3, global_batch_size=5)


def test_configs_that_do_not_use_it_keep_their_identity() -> None:
    before = {"data": {"class_path": "Toy", "init_args": {"batch_size": 32}}}
    now = {"data": {"class_path": "Toy", "init_args": {"batch_size": 32, "global_batch_size": None}}}
    other = {"data": {"class_path": "Toy", "init_args": {"batch_size": 32, "global_batch_size": 64}}}
    assert config_hash(before) == config_hash(now) != config_hash(other)
