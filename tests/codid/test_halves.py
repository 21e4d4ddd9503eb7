"""The halves of clusters between two refinements: where they are, what they are called, and how S finds them."""

from __future__ import annotations

from dataclasses import replace

import torch

from codid_lightning.methods.codid.target import HALF_MEMORY
from codid_lightning.methods.losses import isotropic_loss
from codid_lightning.nn.slots import SubclusterNet
from tests.codid.tiny import bench, random_batch, random_clusters, tiny_codid, tiny_data


def prepared():
    """A module on random clusters, with a batch of all its samples."""
    torch.manual_seed(0)
    module = tiny_codid(tiny_data(), discovery={"n_clusters": 2}, max_clusters=3).double()
    batch = random_batch(module, 60)
    return bench(module, batch["a"]), batch


def test_isotropic_loss_is_the_expected_squared_distance():
    torch.manual_seed(0)
    halves, z, centres = torch.rand(7, 2).softmax(1), torch.randn(7, 3), torch.randn(7, 2, 3)
    expected = sum(halves[i, j] * (z[i] - centres[i, j]).norm() ** 2 for i in range(7) for j in range(2)) / 7
    torch.testing.assert_close(isotropic_loss(halves, z, centres), expected)


def test_means_of_halves_are_running_means_of_the_mixtures_halves():
    module, batch = prepared()
    target = module.target_list[0]
    before, z = target.sub_means.clone(), torch.randn(60, 2, module.latent_dim, dtype=torch.float64)
    view = target.view(z, batch["a"], batch["index"], torch.zeros(60, 2, dtype=torch.float64))
    after = target.update_subcluster_means(view)
    for slot in range(len(before)):
        for half in range(2):
            members = z[(target.labels == slot) & (target.second == half), 0]
            total = HALF_MEMORY * before[slot, half] + members.sum(0).to(before)
            torch.testing.assert_close(after[slot, half], total / (HALF_MEMORY + len(members)), rtol=1e-6, atol=1e-6)


def test_halves_keep_their_order_when_the_mixture_names_them_anew():
    module, batch = prepared()
    target = module.target_list[0]
    second, means = target.second.clone(), target.sub_means.clone()
    found = random_clusters(target, batch["a"])  # those the module has
    turned = torch.zeros(target.values * target.slots, dtype=torch.bool)
    turned[[0, target.slots]] = True  # one cluster of each value
    flips = turned[found.labels][:, None]
    other = turned.view(target.values, target.slots, 1, 1)
    renamed = replace(
        found,
        sub_probs=torch.where(flips, found.sub_probs.flip(1), found.sub_probs),
        sub_means=torch.where(other, found.sub_means.flip(2), found.sub_means),
    )
    module.adopt(target, renamed, torch.zeros(60, module.latent_dim))
    assert torch.equal(target.second, second)
    assert torch.equal(target.sub_means, means)


def test_halves_are_proposed_for_every_cluster_a_sample_may_move_to():
    module, batch = prepared()
    (target,), z = module.target_list, torch.randn(60, module.latent_dim, dtype=torch.float64)
    proposed = module.splits.propose(target, z, batch["a"][:, 0])
    assert proposed.shape == (60, target.slots, 2)
    for slot in range(target.slots):
        target.labels = (batch["a"][:, 0] * target.slots + slot).int()
        torch.testing.assert_close(proposed[:, slot], module.splits.subcluster_probs(target, z, batch["a"][:, 0]))


def test_subclustering_net_finds_halves_again_after_it_was_sure_of_another_cut():
    """As after a split: both children begin with the row of their parent, for which each was one half."""
    torch.manual_seed(0)
    net = SubclusterNet(1, 1, 4)
    with torch.no_grad():
        net.out_bias.copy_(torch.tensor([[40.0, -40.0]]))
    side = torch.arange(64) % 2
    centres = torch.stack([torch.full((4,), -1.0), torch.full((4,), 1.0)])
    z = centres[side] + 0.3 * torch.randn(64, 4)
    value = slot = torch.zeros(64, dtype=torch.long)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(300):
        loss = isotropic_loss(net(z, value, slot), z, centres.expand(64, 2, 4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.equal(net(z, value, slot).argmax(1), side)
