import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from datamodules.base import (
    AttributeDataModule,
    AttributeDataset,
    DataError,
    EpochBatches,
    seeded_generator,
    split_indices,
)


class Numbers(AttributeDataModule):
    """Samples that are their own number."""

    input_shape = (1,)
    attribute_names = ("a1", "a2")
    value_names = (("x", "y"), ("p", "q", "r"))
    mode_sizes = (None, None)
    test_attributes = (0,)

    def build(self):
        parts = {}
        for name, size in {"train": 101, "val": 20, "test1": 30, "test2": 30, "test3": 1}.items():
            number = torch.arange(size)
            parts[name] = AttributeDataset(number[:, None].float(), torch.stack([number % 2, number % 3], 1))
        return parts


def built(**changes):
    """A data module whose training set is changed in place, e.g. `x=lambda x: x * nan`."""
    options = {k: v for k, v in changes.items() if k in ("on_bad_values", "batch_size")}

    class Changed(Numbers):
        def build(self):
            parts = super().build()
            for key, change in changes.items():
                if key not in options:
                    setattr(parts["train"], key, change(getattr(parts["train"], key)))
            return parts

    module = Changed(**options)
    module.setup()
    return module


SIZES = st.integers(1, 400), st.integers(2, 64), st.integers(1, 4)


@settings(max_examples=300, deadline=None)
@given(*SIZES, st.integers(0, 3), st.integers(0, 2))
def test_ranks_share_an_epoch_without_loss_or_repetition(size, batch_size, world, seed, epoch):
    shares = []
    for rank in range(world):
        sampler = EpochBatches(size, batch_size, shuffle=True, seed=seed, rank=rank, world=world)
        sampler.set_epoch(epoch)
        shares.append([batch.tolist() for batch in sampler])
        assert len(shares[-1]) == len(sampler)
    assert len({len(batches) for batches in shares}) == 1  # every rank takes as many steps
    assert sorted(i for batches in shares for batch in batches for i in batch) == list(range(size))
    if size >= 2 * world:  # BatchNorm can use every batch of every rank
        assert min(len(batch) for batches in shares for batch in batches) >= 2
    assert max(len(batch) for batches in shares for batch in batches) <= batch_size + 2
    global_sizes = [sum(map(len, step)) for step in zip(*shares, strict=True)]
    assert max(global_sizes) - min(global_sizes) <= 1  # no small batch at the end


@settings(max_examples=100, deadline=None)
@given(*SIZES)
def test_evaluation_sees_every_sample_once_in_order(size, batch_size, world):
    seen = []
    for rank in range(world):
        batches = list(EpochBatches(size, batch_size, shuffle=False, rank=rank, world=world))
        assert all(len(batch) <= batch_size for batch in batches)
        seen += [i for batch in batches for i in batch.tolist()]
    assert seen == list(range(size))


def test_order_is_a_function_of_seed_and_epoch():
    def order(seed, epoch):
        sampler = EpochBatches(100, 10, shuffle=True, seed=seed)
        sampler.set_epoch(epoch)
        torch.rand(3)  # the global generator must not matter
        return torch.cat(list(sampler)).tolist()

    assert order(0, 1) == order(0, 1)
    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1, 2)}) == 6


def test_interrupted_epoch_goes_on_once():
    sampler = EpochBatches(100, 10, shuffle=True)
    whole = [batch.tolist() for batch in sampler]
    sampler.start = 7
    assert [batch.tolist() for batch in sampler] == whole[7:]
    assert [batch.tolist() for batch in sampler] == whole


def test_streams_of_different_keys_are_unrelated():
    streams = [torch.rand(2000, generator=seeded_generator(*keys)) for keys in ((0,), (1,), (0, 1), (1, 0), (0, 0))]
    correlations = torch.corrcoef(torch.stack(streams)) - torch.eye(5)
    assert correlations.abs().max() < 0.1


@pytest.mark.parametrize(("size", "fraction"), [(10, 0.2), (101, 0.1), (3, 0.5)])
def test_splits_are_a_partition(size, fraction):
    rest, share = split_indices(size, fraction, seed=1)
    assert len(share) == round(size * fraction)
    assert sorted([*rest.tolist(), *share.tolist()]) == list(range(size))


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_give_the_batches_of_the_contract(workers):
    module = Numbers(batch_size=25, num_workers=workers)
    module.setup()
    batches = list(module.train_dataloader())
    assert [len(b["index"]) for b in batches] == [20, 20, 20, 20, 21]  # not four of 25 and one of 1
    for batch in batches:
        assert torch.equal(batch["x"][:, 0].long(), batch["index"])
        assert torch.equal(batch["a"], torch.stack([batch["index"] % 2, batch["index"] % 3], 1))
        assert (batch["mode"] == -1).all()
    assert torch.cat([b["index"] for b in module.encode_dataloader()]).tolist() == list(range(101))
    assert [sum(len(b["index"]) for b in loader) for loader in module.test_dataloader()] == [30, 30, 1]


def test_loaders_give_what_those_of_torch_do():
    module = Numbers(batch_size=25)
    module.setup()
    own = module.train_dataloader()
    plain = DataLoader(own.dataset, sampler=own.sampler, batch_size=None, collate_fn=lambda batch: batch)
    samples = type(own)(own.dataset, sampler=range(0, 101, 2), batch_size=10, collate_fn=len)
    assert len(own) == len(plain) == 5
    for epoch in (0, 1):
        own.sampler.set_epoch(epoch)
        for mine, theirs in zip(own, plain, strict=True):
            assert mine.keys() == theirs.keys()
            assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert list(samples) == [10, 10, 10, 10, 10, 1], "a loader made of samples collates them"


def test_batches_of_one_raise():
    with pytest.raises(DataError, match=r"data\.batch_size is 1"):
        Numbers(batch_size=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": lambda a: a + 1}, r"`train` has a1 labels 1\.\.2, expected 0\.\.1"),
        ({"a": lambda a: a - 1}, r"labels -1\.\.0"),
        ({"a": lambda a: a * 0}, r"no training sample has a1 = y"),
        ({"a": lambda a: a[:0]}, r"the split `train` is empty"),
        ({"x": lambda x: x.expand(-1, 2)}, r"shape \(2,\), expected \(1,\)"),
        ({"x": lambda x: x * torch.nan}, r"101 of 101 samples of `train` hold NaN.*\[0, 1, 2, 3, 4\].*data\.root"),
    ],
)
def test_unusable_data_raise_by_name(changes, message):
    with pytest.raises(DataError, match=message):
        built(**changes)


@pytest.mark.parametrize("count", [1, 10])
def test_bad_values_are_dropped_or_imputed(count):
    def spoil(x):
        x = x.clone()
        x[3 : 3 + count] = torch.tensor([torch.nan, torch.inf, -torch.inf]).repeat(4)[:count, None]
        return x

    with pytest.raises(DataError, match=rf"{count} of 101 samples of `train`"):
        built(x=spoil)
    assert len(built(x=spoil, on_bad_values="drop").datasets["train"]) == 101 - count
    imputed = built(x=spoil, on_bad_values="impute").datasets["train"]
    assert (imputed[torch.arange(3, 3 + count)]["x"] == 0).all()


def test_imputed_values_are_0_after_a_transform():
    module = built(
        x=lambda x: torch.where(x == 5, torch.nan, x), transform=lambda _: lambda x: x - 50, on_bad_values="impute"
    )
    assert module.datasets["train"][[4, 5, 6]]["x"].flatten().tolist() == [-46, 0, -44]


def test_finite_values_too_large_to_sum_are_kept():
    assert built(x=lambda x: x.fill_(3e38))


def test_checkpoint_of_other_labels_raises():
    module = Numbers()
    state = pickle.loads(pickle.dumps(module.state_dict()))
    module.load_state_dict(state)
    state["value_names"][0] = ["y", "x"]
    with pytest.raises(DataError, match="point `data` at the data set of the checkpoint"):
        module.load_state_dict(state)
