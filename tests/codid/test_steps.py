"""Every step moves exactly the networks it names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from codid_lightning import CoDID
from codid_lightning.methods.codid.parts.alignments import DiscriminatorAlignment
from codid_lightning.methods.codid.parts.splits import LearnedSplits
from codid_lightning.methods.lightning_adapter import count_batch
from codid_lightning.nn.statistics import frozen_running_stats
from datamodules.base import Batch
from datamodules.toy import ToyFourAttributes
from tests.codid.oracle import total_discrimination_loss
from tests.codid.tiny import bench, random_batch, tiny_codid, tiny_data, tiny_trainer

STEPS = ("inform", "subcluster", "discriminate", "weigh", "disentangle")
HEADS = {"mode_predictor": "Cm", "subcluster_net": "S", "discriminator": "D", "weight_net": "W"}


def network_of(name: str) -> str:
    """The network a parameter or buffer belongs to, by the paper's letters; the halves S learns belong to it."""
    first, *rest = name.split(".")
    if rest[-1] == "sub_means":
        return "S"
    return {"encoder": "F", "predictors": "C", "decoder": "R"}.get(first) or HEADS.get(rest[1], "clusters")


def snapshot(module: CoDID) -> dict[str, Tensor]:
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {
        name: tensor.detach().clone() for name, tensor in tensors.items() if not name.startswith(("metrics", "cells"))
    }


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


class Watched(CoDID):
    """Notes which parameters and buffers each step changes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.changes: dict[str, list[set[str]]] = defaultdict(list)
        if isinstance(self.alignment, DiscriminatorAlignment):
            self.alignment = WatchedAlignment(**vars(self.alignment))
        if self.splits is not None:
            self.splits = WatchedSplits(**vars(self.splits))

    def watch(self, name: str, step: Callable[[], None]) -> None:
        before = snapshot(self)
        step()
        self.changes[name].append(moved(before, snapshot(self)))

    def inform(self, batch: Batch) -> None:
        self.watch("inform", lambda: CoDID.inform(self, batch))


class WatchedAlignment(DiscriminatorAlignment):
    """Lets the module note what each step changes."""

    def discriminate(self, codid: Watched, *args: Any) -> None:
        codid.watch("discriminate", lambda: DiscriminatorAlignment.discriminate(self, codid, *args))

    def weigh(self, codid: Watched, *args: Any) -> None:
        codid.watch("weigh", lambda: DiscriminatorAlignment.weigh(self, codid, *args))

    def disentangle(self, codid: Watched, *args: Any) -> None:
        codid.watch("disentangle", lambda: DiscriminatorAlignment.disentangle(self, codid, *args))


class WatchedSplits(LearnedSplits):
    """Lets the module note what the step changes."""

    def step(self, codid: Watched, views: Any) -> None:
        codid.watch("subcluster", lambda: LearnedSplits.step(self, codid, views))


def watched_fit(epochs: int = 3, data: Any = None, **changes: Any) -> Watched:
    data = data or tiny_data()
    module = tiny_codid(data, Watched, **changes)
    tiny_trainer(epochs).fit(module, data)
    return module


def networks(changes: list[set[str]]) -> set[str]:
    return {network_of(name) for names in changes for name in names}


def test_each_step_moves_its_networks_and_nothing_else():
    module = watched_fit()
    pretraining = len(module.changes["inform"]) - len(module.changes["disentangle"])
    assert pretraining > 0
    assert networks(module.changes["inform"][:pretraining]) == {"F", "C", "R"}
    assert networks(module.changes["inform"][pretraining:]) == {"F", "C", "R", "Cm"}
    expected = {"subcluster": {"S"}, "discriminate": {"D"}, "weigh": {"W"}, "disentangle": {"F"}}
    for step, names in expected.items():
        assert len(module.changes[step]) > 0
        assert networks(module.changes[step]) == names, step
    parameters = dict(module.named_parameters())
    for step in STEPS[1:]:
        known = parameters.keys() | ({"targets.0.sub_means"} if step == "subcluster" else set())
        assert all(names <= known for names in module.changes[step]), f"{step} changed a buffer"


def test_all_parameters_of_a_steps_networks_move():
    module = watched_fit()
    everything = {name for name, _ in module.named_parameters()}
    for step, letters in {
        "inform": "F C R Cm",
        "subcluster": "S",
        "discriminate": "D",
        "weigh": "W",
        "disentangle": "F",
    }.items():
        named = {name for name in everything if network_of(name) in letters.split()}
        assert set().union(*module.changes[step]) >= named, step


def test_batchnorm_counts_every_batch_once():
    data = tiny_data()
    module = tiny_codid(data)
    trainer = tiny_trainer()
    trainer.fit(module, data)
    batches = trainer.num_training_batches * trainer.max_epochs
    counts = {name: int(b) for name, b in module.named_buffers() if name.endswith("num_batches_tracked")}
    assert len(counts) == 5  # two layers in each of two encoders, one in the decoder
    assert set(counts.values()) == {batches}
    assert trainer.global_step == batches


def test_running_statistics_are_those_of_the_inform_pass():
    module, reference = tiny_codid(tiny_data()), tiny_codid(tiny_data())
    batch = random_batch(module, 12, shape=(2,))
    bench(module, batch["a"])
    reference.encoder(batch["x"])
    module.training_step(batch, 0)
    for (name, mine), (_, theirs) in zip(
        module.encoder.named_buffers(), reference.encoder.named_buffers(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, msg=name)


@pytest.mark.parametrize("separate", [False, True])
def test_disentangling_pushes_the_encoder_up_the_discrimination_loss(separate):
    alignment = {"encoder_lr": 1e-3 if separate else None, "strength": 3.0}
    module = tiny_codid(tiny_data(), alignment=alignment).double()
    batch = random_batch(module, 40, shape=(2,))
    bench(module, batch["a"])
    with frozen_running_stats(module.encoder):
        encoding = module.encode(batch["x"])
        views = module.views(encoding.z, batch)
        pairs = module.alignment.shuffled_pairs(module, views)
        weights = [w.detach() for w in module.alignment.pair_weights(module, views, pairs)]
        before = total_discrimination_loss(module, views, pairs, weights)
        module.alignment.disentangle(module, encoding, views, pairs)
        after = total_discrimination_loss(module, module.views(module(batch["x"]), batch), pairs, weights)
    assert after > before


def test_without_modes_only_discriminator_and_encoder_follow():
    module = watched_fit(epochs=2, moded=[])
    assert networks(module.changes["discriminate"]) == {"D"}
    assert networks(module.changes["disentangle"]) == {"F"}
    assert not module.changes["weigh"]
    assert not any(module.changes["subcluster"])


def test_a_targets_step_leaves_the_other_targets_heads_alone():
    module = tiny_codid(ToyFourAttributes(), targets=[0, 1], discovery={"n_clusters": 2})
    batch = random_batch(module, 36, shape=(4,))
    bench(module, batch["a"])
    views = module.views(module(batch["x"]), batch)
    module.splits.step(module, views)
    optimizer = module.optimizer("subcluster")
    # A gradient of zero would still move a net by its momentum: each net must have been updated once, not twice.
    assert {int(state["step"]) for state in optimizer.state.values()} == {1}


def test_lightning_still_counts_optimizer_steps_where_the_adapter_looks():
    trainer = tiny_trainer()
    place = trainer
    for name in ("fit_loop", "epoch_loop", "manual_optimization", "optim_step_progress"):
        assert hasattr(place, name), f"Trainer...{name} is gone: methods/lightning_adapter.py needs another way"
        place = getattr(place, name)
    count_batch(trainer)
    assert place.total.completed == 1
