"""W sees z_q of one sample and z_-q of its partner, in `weigh` and in the grid of all pairs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from codid_lightning import CoDID
from codid_lightning.methods.codid.parts.weights import LearnedWeights
from codid_lightning.methods.codid.target import Target, View
from codid_lightning.methods.losses import summary_divergence
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
