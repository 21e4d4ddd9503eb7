"""Heads follow clusters that split and merge, and nothing else moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from codid_lightning import CoDID
from codid_lightning.clustering import DPGMM, Clustering
from codid_lightning.methods.codid.parts.weights import LearnedWeights
from codid_lightning.methods.codid.target import Target
from codid_lightning.nn.conditional import ConditionalMLP
from codid_lightning.nn.slots import ModePredictor, SubclusterNet
from datamodules.base import Batch
from tests.codid.oracle import logits
from tests.codid.tiny import bench, fitted, random_batch, random_clusters, tiny_codid, tiny_data

SLOTS = 4  # per value; the last one of each sleeps until a split wakes it
TABLES = {
    "mode_predictor.weight",
    "mode_predictor.bias",
    "subcluster_net.out_weight",
    "subcluster_net.out_bias",
    "discriminator.condition",
    "weight_net.condition",
}


def prepared(**changes) -> tuple[CoDID, Batch]:
    """A module some batches into training, so that all optimizers hold moments."""
    module = tiny_codid(tiny_data(), **{"max_clusters": SLOTS, "discovery": {"n_clusters": 2}, **changes})
    batch = random_batch(module, 60, shape=(2,))
    bench(module, batch["a"])
    for step in range(2):
        module.training_step(batch, step)
    return module, batch


def change(target: Target, a: Tensor, split: bool) -> Clustering:
    """Under value 0, slot 1 splits into 1 and 3, or slots 0 (three parts) and 2 (one part) merge into 0."""
    found = random_clusters(target, a)
    active, inherit, share = found.active.clone(), found.inherit.clone(), found.share.clone()
    if split:
        active[0, 3], inherit[0, 3, 1] = True, 1
        share[0, [1, 3]] = 0.5
    else:
        active[0, 2], inherit[0, 2] = False, 0
        inherit[0, 0, [0, 2]] = torch.tensor([0.75, 0.25])
    return replace(found, active=active, inherit=inherit, share=share)


def state(module: CoDID) -> dict[str, Tensor]:
    """Parameters and Adam's moments and step counts, by name."""
    names = {parameter: name for name, parameter in module.named_parameters()}
    kept = {name: parameter.detach().clone() for parameter, name in names.items()}
    for number, optimizer in enumerate(module.trainer.optimizers):
        for parameter, moments in optimizer.state.items():
            for moment, value in moments.items():
                kept[f"{names[parameter]}|{moment}|{number}"] = value.clone()
    return kept


def table_of(name: str) -> str:
    return name.split("|")[0].removeprefix("targets.0.")


def adopt(module: CoDID, found: Clustering) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    before = state(module)
    target = module.target_list[0]
    module.adopt(target, found, representations(), reset_heads=module.discovery.reset_heads)
    return before, state(module)


def representations() -> Tensor:
    """Of 60 samples."""
    return torch.randn(60, 4, generator=torch.Generator().manual_seed(1))


def outputs(module: CoDID, batch: Batch) -> list[Tensor]:
    """Of all four heads that know clusters."""
    target, z = module.target_list[0], module(batch["x"]).detach()
    (view,) = module.views(z, batch)
    return [
        target.mode_predictor(z[:, 0], target.active.flatten()),
        logits(module, target, view.own, view.rest, view),
        LearnedWeights(scale="none").weigh(target, view, torch.arange(len(z)), torch.ones(len(z))),
        target.subcluster_net(view.own, view.value, view.slot),
    ]


@pytest.mark.parametrize("sharing", ["value", "mode", "all"])
@pytest.mark.parametrize("split", [True, False], ids=["split", "merge"])
def test_rows_and_moments_follow_their_clusters(sharing, split):
    module, batch = prepared(alignment={"sharing": sharing})
    before, after = adopt(module, change(module.target_list[0], batch["a"], split))
    inherited = TABLES | (
        {f"discriminator.{name}" for name in ("weight", "out_weight", "out_bias")} if sharing == "mode" else set()
    )
    assert any("|exp_avg|" in name and table_of(name) in inherited for name in before)
    for name, old in before.items():
        new = after[name]
        if table_of(name) not in inherited or name.split("|")[1:2] == ["step"]:
            assert torch.equal(old, new), name
            continue
        expected = old.clone()
        if split:
            expected[3] = old[1]
            if name == "targets.0.mode_predictor.bias":
                expected[[1, 3]] += torch.tensor(0.5).log()
        else:
            expected[0] = 0.75 * old[0] + 0.25 * old[2]
            if name == "targets.0.mode_predictor.bias":
                expected[0] = new[0]  # below, there are tests of the merged cluster's probability
        survivors = [k for k in range(2 * SLOTS) if k not in ((1, 3) if split else (0, 2, 3))]
        assert torch.equal(new[survivors[:-1]], old[survivors[:-1]]), name  # bit for bit
        used = [k for k in range(2 * SLOTS) if k not in ((7,) if split else (2, 3, 7))]
        if split and name != "targets.0.mode_predictor.bias":
            assert torch.equal(new[used], expected[used]), name  # a child's rows and moments are its parent's
        torch.testing.assert_close(new[used], expected[used], msg=name)


@pytest.mark.parametrize("sharing", ["value", "mode", "all"])
@pytest.mark.parametrize("reset_heads", [False, True])
def test_without_a_split_or_merge_nothing_changes(sharing, reset_heads):
    module, batch = prepared(alignment={"sharing": sharing}, discovery={"n_clusters": 2, "reset_heads": reset_heads})
    module.eval()
    before = outputs(module, batch)
    old, new = adopt(module, random_clusters(module.target_list[0], batch["a"]))
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)
    assert all(torch.equal(one, other) for one, other in zip(before, outputs(module, batch), strict=True))


SEEDS = st.integers(0, 2**31 - 1)


def predictor(seed: int, spread: float) -> tuple[CoDID, Tensor]:
    """A module with three of four slots in use under each value, a predictor of any sharpness, and 40 samples."""
    torch.manual_seed(seed)
    module = tiny_codid(tiny_data(), max_clusters=SLOTS, discovery={"n_clusters": 2}, seed=seed)
    bench(module, random_batch(module, 40, shape=(2,))["a"])
    with torch.no_grad():
        for parameter in module.target_list[0].mode_predictor.parameters():
            parameter.normal_(std=spread)
    return module, torch.randn(40, 4)


def mode_probabilities(module: CoDID, z: Tensor) -> Tensor:
    target = module.target_list[0]
    return target.mode_predictor(z, target.active.flatten()).exp().detach()


def merging(target: Target, value: int, large: int, small: int, share: float) -> Clustering:
    """Slots of one value merge; the large one's samples have this share."""
    active = target.active.clone()
    active[value, small] = False
    inherit = torch.diag_embed(active.float())
    inherit[value, large, [large, small]] = torch.tensor([share, 1 - share])
    return replace(unchanged(target), active=active, inherit=inherit)


def splitting(target: Target, value: int, slot: int, free: int) -> Clustering:
    found = unchanged(target)
    active, inherit, share = target.active.clone(), found.inherit.clone(), found.share.clone()
    active[value, free], inherit[value, free, slot] = True, 1
    share[value, [slot, free]] = 0.5
    return replace(found, active=active, inherit=inherit, share=share)


def unchanged(target: Target) -> Clustering:
    """The clustering of 40 samples that the target has, with samples in slots that all changes leave."""
    a = torch.arange(40)[:, None] % 2
    found = random_clusters(target, a)
    inherit = torch.diag_embed(target.active.float())
    return replace(found, labels=a[:, 0] * SLOTS, active=target.active.clone(), inherit=inherit)


@given(SEEDS, st.floats(0.01, 4), st.integers(0, 1), st.permutations(range(3)), st.floats(0.5, 0.99))
@settings(max_examples=25, deadline=None)
def test_any_merge_conserves_the_probability_of_its_parts(seed, spread, value, slots, share):
    module, z = predictor(seed, spread)
    target, (large, small, _) = module.target_list[0], slots
    before = mode_probabilities(module, z).mean(0).view(2, SLOTS)
    module.adopt(target, merging(target, value, large, small, share), z)
    after = mode_probabilities(module, z).mean(0).view(2, SLOTS)
    digits = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(after[value, large], before[value, [large, small]].sum(), **digits)
    torch.testing.assert_close(
        after.sum() - after[value, large], before.sum() - before[value, [large, small]].sum(), **digits
    )
    assert after[value, small] == 0


@given(SEEDS, st.floats(0.01, 4), st.integers(0, 1), st.integers(0, 2), st.floats(0.01, 0.99))
@settings(max_examples=25, deadline=None)
def test_any_split_followed_by_its_merge_leaves_every_probability(seed, spread, value, slot, share):
    """Whatever the sizes of the two children."""
    module, z = predictor(seed, spread)
    target, free = module.target_list[0], SLOTS - 1
    before = mode_probabilities(module, z)
    module.adopt(target, splitting(target, value, slot, free), z)
    children = mode_probabilities(module, z)[:, [value * SLOTS + slot, value * SLOTS + free]]
    torch.testing.assert_close(children.sum(1), before[:, value * SLOTS + slot], rtol=1e-4, atol=1e-6)
    module.adopt(target, merging(target, value, slot, free, share), z)
    torch.testing.assert_close(mode_probabilities(module, z), before, rtol=1e-3, atol=1e-5)


def test_several_merges_at_once_conserve_the_probabilities_of_all():
    module, z = predictor(0, 2.0)
    target = module.target_list[0]
    before = mode_probabilities(module, z).mean(0).view(2, SLOTS)
    first, second = (merging(target, value, 0, 2, 0.7) for value in (0, 1))
    inherit = torch.stack([first.inherit[0], second.inherit[1]])
    module.adopt(target, replace(first, active=first.active & second.active, inherit=inherit), z)
    after = mode_probabilities(module, z).mean(0).view(2, SLOTS)
    torch.testing.assert_close(after[:, 0], before[:, 0] + before[:, 2], rtol=1e-4, atol=1e-6)


def test_children_share_their_parents_mode_probability():
    module, batch = prepared()
    target, z = module.target_list[0], torch.randn(20, 4)
    parent = target.mode_predictor(z, target.active.flatten()).exp()
    adopt(module, change(target, batch["a"], split=True))
    children = target.mode_predictor(z, target.active.flatten()).exp()
    digits = {"rtol": 0, "atol": 1e-6}
    torch.testing.assert_close(children[:, 1] + children[:, 3], parent[:, 1], **digits)
    torch.testing.assert_close(children[:, [0, 2, 4, 5, 6]], parent[:, [0, 2, 4, 5, 6]], **digits)


@pytest.mark.parametrize("sharing", ["value", "mode"])
def test_a_split_leaves_the_discriminators_outputs(sharing):
    module, batch = prepared(alignment={"sharing": sharing})
    module.eval()
    target = module.target_list[0]
    before = outputs(module, batch)
    found = change(target, batch["a"], split=True)
    moved = (found.labels == 1) & (torch.arange(60) % 2 == 0)
    adopt(module, replace(found, labels=torch.where(moved, 3, found.labels)))
    torch.testing.assert_close(outputs(module, batch)[1], before[1])


def test_full_reconfiguration_resets_the_heads_and_leaves_the_rest():
    module, batch = prepared(discovery={"n_clusters": 2, "reset_heads": True})
    before, after = adopt(module, change(module.target_list[0], batch["a"], split=True))
    heads = {name for name in before if name.startswith("targets.0.")}
    weights = {name for name in heads if "|" not in name}
    assert all(not torch.equal(before[name], after[name]) for name in weights)
    assert before.keys() - after.keys() == heads - weights  # their moments are gone
    assert all(torch.equal(before[name], after[name]) for name in before.keys() - heads)


@pytest.mark.parametrize("sharing", ["value", "mode"])
def test_clusters_come_and_go_in_training(sharing):
    eager = DPGMM(concentration=1e30, max_rounds=0)  # splits are welcome
    parts = {"alignment": {"sharing": sharing}, "discovery": {"n_clusters": 2, "clusterer": eager}, "splits": None}
    module = fitted(3, max_clusters=6, **parts)
    target = module.target_list[0]
    held = {id(p) for optimizer in module.trainer.optimizers for g in optimizer.param_groups for p in g["params"]}
    assert {id(p) for p in module.parameters()} == held
    assert target.active.sum() > 4  # from two clusters per value
    used = target.labels.unique()
    assert target.active.flatten()[used].all()
    assert torch.equal(target.labels.long() // target.slots, module.trainer.datamodule.datasets["train"].a[:, 0])
    counts = target.active.sum(1)[target.labels // target.slots]
    sample = torch.arange(len(counts)).repeat_interleave(counts)
    sums = torch.zeros(len(counts)).index_add(0, sample, target.probs[: len(sample)])
    torch.testing.assert_close(sums, torch.ones(len(counts)))


@pytest.mark.parametrize(
    ("head", "sizes", "fans"),
    [
        (ModePredictor, (64, 25), {"weight": 25, "bias": 25}),
        (SubclusterNet, (9, 64, 25, 400), {"weight": 25, "bias": 25, "out_weight": 400, "out_bias": 400}),
        (ConditionalMLP, (64, 9, 25, 400), {"weight": 25, "condition": 25, "out_weight": 400, "out_bias": 400}),
    ],
    ids=["mode predictor", "subcluster net", "conditional"],
)
def test_heads_start_as_linear_layers_of_torch_do(head, sizes, fans):
    """Uniform between the inverse square roots of the inputs, minus and plus."""
    torch.manual_seed(0)
    parameters = dict(head(*sizes).named_parameters())
    assert parameters.keys() == fans.keys()
    for name, parameter in parameters.items():
        bound = fans[name] ** -0.5
        assert bound / 2 < parameter.max() <= bound, name
        assert -bound <= parameter.min() < -bound / 2, name


def test_clusters_are_not_among_the_saved_weights():
    """They are extra state, so that a checkpoint of any training set can be loaded."""
    module, _ = prepared()
    target = module.target_list[0]
    saved = set(target.state_dict()) - {"_extra_state"}  # the clusters, whatever their number
    assert saved == {name for name, _ in target.named_parameters()}
