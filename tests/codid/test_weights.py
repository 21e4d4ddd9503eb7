"""W sees z_q of one sample and z_-q of its partner, in `weigh` and in the grid of all pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from codid_lightning import CoDID
from codid_lightning.methods.codid.parts.compared import MAX_PARTNERS, Compared
from codid_lightning.methods.codid.parts.weights import LearnedWeights
from codid_lightning.methods.codid.target import Target, View
from codid_lightning.methods.losses import summary_divergence, weight_alignment_loss
from codid_lightning.nn.conditional import Parts, Table
from tests.codid.tiny import arguments, bench, random_batch

SIZES = {"two attributes": (2, 4), "four attributes": (2, 3, 4, 2), "three values": (3, 2, 3)}
UNSCALED = LearnedWeights(scale="none")


def prepared(sizes: tuple[int, ...], size: int = 40) -> tuple[Target, View]:
    """A weight net with random weights, and a batch with random losses, so that no two samples are alike."""
    torch.manual_seed(0)
    module = CoDID((3,), sizes, **arguments(discovery={"n_clusters": 2})).double()
    batch = random_batch(module, size)
    (target,) = bench(module, batch["a"]).target_list
    for parameter in target.weight_net.parameters():
        torch.nn.init.normal_(parameter)
    (view,) = module.views(module(batch["x"]).detach(), batch)
    view.losses = torch.rand_like(view.losses)
    return target, view


def partners(slot: Tensor) -> list[Tensor]:
    """Permutations within clusters that together make every pair: each rotates all clusters by one more."""
    found = []
    for turn in range(int(slot.bincount().max())):
        permutation = torch.empty_like(slot)
        for members in (torch.nonzero(slot == k).flatten() for k in slot.unique()):
            permutation[members] = members.roll(turn)
        found.append(permutation)
    return found


def in_table(view: View, permutation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value, row and the partner's row of each sample in the batch laid out by value."""
    rows = view.table.shape[1]
    return view.value, view.table.position % rows, view.table.position[permutation] % rows


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_weigh_sees_the_partners_other_attributes(sizes):
    """One pair after the other, with inputs in the order that the docstring of `heads` gives."""
    target, view = prepared(sizes)
    permutation, pair_losses = partners(view.slot)[1], torch.rand(len(view.slot), dtype=torch.float64)
    assert bool((view.others != view.others[permutation]).any(1).sum() > 10), "most partners are unlike"
    net, expected = target.weight_net, []
    for i, k in enumerate(permutation.tolist()):
        of_loss = [view.losses[i, :1], view.losses[k, 1:-1], view.losses[i, -1:], pair_losses[i : i + 1]]
        inputs = torch.cat([*of_loss, view.others[k]])
        hidden = (inputs @ net.weight[view.value[i]] + net.condition[view.slot[i]]).relu()
        expected.append(net.output(hidden.expand(target.values, 1, -1))[view.value[i], 0].sigmoid())
    found = UNSCALED.weigh(target, view, permutation, pair_losses)
    torch.testing.assert_close(found, torch.stack(expected).flatten())


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_the_grid_equals_weigh_for_every_pair_of_a_cluster(sizes):
    target, view = prepared(sizes)
    rows = view.table.shape[1]
    pair_losses = torch.rand(target.values, rows, rows, dtype=torch.float64)
    grid = UNSCALED.weight_grid(target, view, pair_losses)
    compared = torch.zeros_like(grid, dtype=torch.bool)
    for permutation in partners(view.slot):
        places = in_table(view, permutation)
        torch.testing.assert_close(grid[places], UNSCALED.weigh(target, view, permutation, pair_losses[places]))
        compared[places] = True
    _, together = UNSCALED.divergence(target, view, pair_losses)
    assert torch.equal(compared, together & together.mT), "every pair of a cluster was compared, and no other"
    assert compared.sum() > 4 * len(view.slot)


def test_summaries_are_by_the_partners_other_attributes():
    target, view = prepared(SIZES["four attributes"])
    rows = view.table.shape[1]
    pair_losses = torch.rand(target.values, rows, rows, dtype=torch.float64)
    grid = UNSCALED.weight_grid(target, view, pair_losses)
    found, together = UNSCALED.divergence(target, view, pair_losses)
    for value in range(target.values):
        own = torch.nonzero(view.value == value).flatten()
        block = (value, slice(len(own)), slice(len(own)))
        assert torch.equal(together[block], view.slot[own][:, None] == view.slot[own])
        torch.testing.assert_close(found[block], summary_divergence(grid[block], together[block], view.others[own]))


# ------------------------------------------------------------------------------------------------------- large batches


@given(st.lists(st.integers(0, 4), min_size=1, max_size=200), st.integers(1, 20))
def test_parts_hold_every_sample_once_and_are_even(groups, rows):
    group = torch.tensor(groups)
    parts = Parts(group, 5, rows)
    blocks = parts.position // rows
    assert len(parts.position.unique()) == len(groups)
    assert int(parts.position.max()) < parts.shape[0] * parts.shape[1]
    assert torch.equal(parts.group[blocks], group)
    assert torch.equal(parts.unpad(parts.pad(group)), group)
    for own in group.unique():
        sizes = blocks[group == own].unique(return_counts=True)[1]
        assert len(sizes) == -(-int((group == own).sum()) // rows), "no more parts than needed"
        assert sizes.max() - sizes.min() <= 1


def summaries(module: CoDID, view: View, compared: Compared) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss of random halves, divergences (B, B) of all pairs, which of these were compared, and halves."""
    (target,), view.compared = module.target_list, compared
    divergence, together = module.alignment.weight_divergence(target, view)
    halves = torch.rand(len(view.slot), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss = weight_alignment_loss(compared.table.pad(halves), divergence, together)
    rows, found = compared.table.shape[1], torch.full((len(halves), len(halves)), -1.0, dtype=torch.float64)
    block, row = compared.table.position // rows, compared.table.position % rows
    same = block[:, None] == block
    i, k = torch.nonzero(same & (view.slot[:, None] == view.slot), as_tuple=True)
    assert together[block[i], row[i], row[k]].all()
    assert int(together.sum()) == len(i)
    found[i, k] = divergence[block[i], row[i], row[k]]
    return loss, found, found >= 0, halves


def batch_of(size: int, sharing: str, sizes: tuple[int, ...] = (2, 3)) -> tuple[CoDID, View]:
    torch.manual_seed(0)
    alignment = {"sharing": sharing, "weights": {"scale": "none"}}
    module = CoDID((3,), sizes, **arguments(discovery={"n_clusters": 2}, alignment=alignment)).double()
    batch = random_batch(module, size)
    (target,) = bench(module, batch["a"]).target_list
    for parameter in target.weight_net.parameters():
        torch.nn.init.normal_(parameter)
    return module, module.views(module(batch["x"]).detach(), batch)[0]


@pytest.mark.parametrize("sharing", ["value", "mode", "all"])
def test_clusters_that_fit_into_a_part_are_compared_as_by_value(sharing):
    module, view = batch_of(150, sharing)
    (target,) = module.target_list
    assert int(view.slot.bincount().max()) <= MAX_PARTNERS
    parts = Compared.in_parts(target, view)
    loss, divergence, compared, _ = summaries(module, view, parts)
    dense_loss, dense_divergence, dense_compared, _ = summaries(module, view, Compared(view.table, None))
    assert torch.equal(compared, dense_compared)
    torch.testing.assert_close(divergence, dense_divergence, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(loss, dense_loss, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sharing", ["value", "mode", "all"])
def test_larger_clusters_are_compared_in_parts_as_smaller_batches_are(sharing):
    module, view = batch_of(1200, sharing)
    (target,) = module.target_list
    compared = target.compared(view)
    assert compared.slot is not None
    assert int(view.slot.unique(return_counts=True)[1].min()) > MAX_PARTNERS
    loss, divergence, _, halves = summaries(module, view, compared)
    total, block = 0.0, compared.table.position // compared.table.shape[1]
    for part in block.unique():
        (index,) = torch.nonzero(block == part, as_tuple=True)
        small = replace(
            view, own=view.own[index], rest=view.rest[index], value=view.value[index], slot=view.slot[index],
            half=view.half[index], table=Table(view.value[index], target.values), others=view.others[index],
            partnered=view.partnered[index], losses=view.losses[index], pairs=None, compared=None,
        )  # fmt: skip
        dense, together = module.alignment.weight_divergence(target, small)
        assert target.compared(small).slot is None
        (own,) = torch.nonzero(torch.bincount(small.value, minlength=target.values))[:, 0].unique()
        torch.testing.assert_close(divergence[index[:, None], index], dense[own], rtol=1e-9, atol=1e-12)
        total += len(index) * float(weight_alignment_loss(small.table.pad(halves[index]), dense, together))
    assert float(loss) == pytest.approx(total / len(halves), rel=1e-9)


def test_pairs_grow_with_the_batch():
    cells = []
    for size in (1000, 4000):
        module, view = batch_of(size, "value")
        blocks, rows = module.target_list[0].compared(view).table.shape
        cells.append(blocks * rows**2)
    assert cells[1] <= 4 * cells[0]
    module, view = batch_of(40, "value")
    assert module.target_list[0].compared(view).table is view.table
