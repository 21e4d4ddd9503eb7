"""Any number of attributes, some with modes to discover, some conditioned on their value."""

from __future__ import annotations

import pytest
import torch

from datamodules.base import AttributeDataModule, AttributeDataset, stack_columns
from datamodules.toy import ToyFourAttributes
from tests.codid.oracle import logits
from tests.codid.test_steps import Watched
from tests.codid.tiny import bench, random_batch, tiny_codid, tiny_trainer


class ThreeAttributes(AttributeDataModule):
    """Values 3, 2 and 4 on three axes."""

    input_shape = (3,)
    attribute_names = ("a1", "a2", "a3")
    value_names = (("0", "1", "2"), ("0", "1"), ("0", "1", "2", "3"))
    mode_sizes = (None, None, None)
    test_attributes = (0, 1, 2)

    def build(self) -> dict[str, AttributeDataset]:
        return {name: self._draw(seed) for seed, name in enumerate(("train", "val", *self.test_names))}

    def _draw(self, seed: int) -> AttributeDataset:
        generator = torch.Generator().manual_seed(seed)
        columns = [torch.randint(size, (90,), generator=generator) for size in self.attribute_sizes]
        x = torch.stack(columns, 1) + 0.1 * torch.randn(90, 3, generator=generator)
        return AttributeDataset(x, stack_columns(columns))


@pytest.mark.parametrize(
    ("targets", "moded"),
    [([0], None), ([0, 1], [1]), ([0, 1, 2], [0, 2]), ([2], []), ([1, 2], None)],
)
def test_three_attributes_train_with_any_targets(targets, moded):
    data = ThreeAttributes(batch_size=30)
    module = tiny_codid(data, Watched, targets=targets, moded=moded, discovery={"n_clusters": 2})
    trainer = tiny_trainer(3)
    trainer.fit(module, data)
    assert all(value.isfinite() for value in trainer.callback_metrics.values())
    moved = set().union(*(names for steps in module.changes.values() for names in steps))
    assert {name for name, _ in module.named_parameters()} <= moved
    with_modes = targets if moded is None else moded
    for target in module.target_list:
        assert target.moded == (target.attribute in with_modes)
        assert hasattr(target, "weight_net") == target.moded
    assert {entry["attribute"] for c in trainer.callbacks if hasattr(c, "history") for entry in c.history} == set(
        with_modes
    )


def test_each_target_pairs_its_own_representation_with_all_others():
    module = tiny_codid(ThreeAttributes(), targets=[0, 1, 2], moded=[0], discovery={"n_clusters": 2})
    batch = random_batch(module, 20)
    bench(module, batch["a"])
    z = module(batch["x"])
    for q, view in enumerate(module.views(z, batch)):
        rest = [j for j in range(3) if j != q]
        assert torch.equal(view.own, z[:, q])
        assert torch.equal(view.rest, torch.cat([z[:, j] for j in rest], dim=1))
        conditions = module.target_list[0].labels[batch["index"]] if q == 0 else batch["a"][:, q]
        assert torch.equal(view.slot, conditions)  # clusters where there are modes, the value where not


def test_the_discrimination_loss_is_the_sum_over_targets():
    data = ThreeAttributes()
    module = tiny_codid(data, targets=[0, 1, 2], moded=[0], discovery={"n_clusters": 2}).double()
    batch = random_batch(module, 20)
    bench(module, batch["a"])
    views = module.views(module(batch["x"]), batch)
    pairs = module.alignment.shuffled_pairs(module, views)
    _, whole = module.alignment.gradient_of_z(module, views, pairs, [None] * 3)
    parts = 0.0
    for target, view, marginals in zip(module.target_list, views, pairs, strict=True):
        counted = view.partnered > 0
        joint = logits(module, target, view.own, view.rest, view)[counted].sigmoid()
        marginal = logits(module, target, view.own, view.rest[marginals.permutation], view)[counted].sigmoid()
        parts = parts - joint.log().mean() - (1 - marginal).log().mean()
    torch.testing.assert_close(whole, parts)


def test_the_papers_four_attributes_train():
    data = ToyFourAttributes(samples=600)
    module = tiny_codid(data, targets=[0, 1, 2, 3], moded=[0, 1], discovery={"n_clusters": 3})
    trainer = tiny_trainer(3)
    trainer.fit(module, data)
    assert {"modes/nmi", "modes/a2/nmi"} <= trainer.callback_metrics.keys()
