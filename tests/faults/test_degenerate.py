"""Data at the edge of what can be learned from: each set trains to the end or is refused in one line, at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import codid_lightning.methods.baselines as baselines
from codid_lightning import CoDID
from codid_lightning.methods.base import DisentanglementModule
from datamodules.base import AttributeDataModule, AttributeDataset, DataError
from tests.codid.tiny import arguments, tiny_trainer

METHODS = [getattr(baselines, name) for name in baselines.__all__] + [CoDID]


class Given(AttributeDataModule):
    """Two attributes with the given labels; inputs are points around them."""

    test_names = ("test",)
    test_attributes = (0, 1)
    attribute_names = ("a1", "a2")
    mode_sizes = (None, None)
    input_shape = (3,)

    def __init__(self, train: Tensor, test: Tensor, sizes: tuple[int, int] = (2, 2), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.value_names = tuple(tuple(map(str, range(size))) for size in sizes)
        self.train, self.test = train, test

    def build(self) -> dict[str, AttributeDataset]:
        return {"train": points(self.train), "val": points(self.train[:9]), "test": points(self.test)}


def points(a: Tensor) -> AttributeDataset:
    noise = torch.randn(len(a), 3, generator=torch.Generator().manual_seed(len(a)))
    x = torch.cat([a.float(), a.float().sum(1, keepdim=True)], 1) + 0.1 * noise
    return AttributeDataset(x, a)


def labels(size: int, values: tuple[int, int] = (2, 2)) -> Tensor:
    """All combinations in turn."""
    numbers = torch.arange(size)
    return torch.stack([numbers % values[0], numbers // values[0] % values[1]], 1)


def trained(method: type[DisentanglementModule], data: AttributeDataModule, **changes: Any) -> DisentanglementModule:
    """An epoch, for CoDID one more that works on clusters, then a test."""
    torch.manual_seed(0)
    if method is CoDID:
        changes = arguments(**{"discovery": {"n_clusters": 2}, **changes})
    module = method(**data.facts, **{"latent_dim": 4, **changes})
    trainer = tiny_trainer(2 if method is CoDID else 1)
    trainer.fit(module, data)
    trainer.test(module, data, verbose=False)
    assert all(torch.isfinite(p).all() for p in module.parameters())
    assert {"test/acc", "test/f1"} <= trainer.callback_metrics.keys()
    module.logged = trainer.callback_metrics
    return module


def each(method: type[DisentanglementModule]) -> str:
    return method.__name__


@pytest.mark.parametrize("method", METHODS, ids=each)
class TestEveryMethod:
    def test_one_value_of_the_other_attribute(self, method: type[DisentanglementModule]) -> None:
        a = labels(40)
        a[:, 1] = 0
        trained(method, Given(a, a, batch_size=16))

    def test_last_batch_of_one_sample(self, method: type[DisentanglementModule]) -> None:
        trained(method, Given(labels(33), labels(17), batch_size=16))

    def test_smallest_batches(self, method: type[DisentanglementModule]) -> None:
        """Two samples: often of two values, never of one cluster."""
        trained(method, Given(labels(12), labels(5), batch_size=2))

    def test_values_of_the_other_attribute_unseen_at_test(self, method: type[DisentanglementModule]) -> None:
        """Leave-one-group-out: the held-out group has no number in training, so only a_1 is scored."""
        data = Given(labels(40, (2, 3)), labels(12) + torch.tensor([0, 3]), sizes=(2, 5), batch_size=16)
        data.test_attributes = (0,)
        logged = trained(method, data).logged
        assert not [name for name in logged if name.startswith("test/a2")]

    def test_values_with_one_sample_each(self, method: type[DisentanglementModule]) -> None:
        """Five values of a_1 for forty samples, one of them and one of a_2 with a single sample."""
        a = labels(40, (4, 3))
        a[0] = torch.tensor([4, 3])
        trained(method, Given(a, a, sizes=(5, 4), batch_size=16))


@pytest.mark.parametrize("batch_size", [2, 7])
def test_batch_smaller_than_the_number_of_clusters(batch_size: int) -> None:
    """Thirty clusters: in a batch, hardly any sample has a partner."""
    data = Given(labels(60), labels(10), batch_size=batch_size)
    module = trained(CoDID, data, discovery={"n_clusters": 15}, max_clusters=15)
    assert module.target_list[0].active.sum() > batch_size


def test_all_samples_of_one_mode() -> None:
    """Identical inputs under each value: no cluster is made up, whatever number is asked for."""

    class Identical(Given):
        def build(self) -> dict[str, AttributeDataset]:
            splits = super().build()
            for split in splits.values():
                split.x = split.a[:, :1].float().expand(-1, 3).clone()
            return splits

    module = trained(CoDID, Identical(labels(40), labels(8), batch_size=16), discovery={"n_clusters": 4})
    assert module.target_list[0].active.sum(1).tolist() == [1, 1]


def test_value_missing_in_training() -> None:
    a = labels(40, (2, 2))
    with pytest.raises(DataError, match="no training sample has a1 = 2"):
        trained(CoDID, Given(a, a, sizes=(3, 2)))


def test_empty_split() -> None:
    with pytest.raises(DataError, match="`test` is empty"):
        trained(CoDID, Given(labels(40), labels(40)[:0]))


@pytest.mark.parametrize(
    ("shape", "dtype"), [((40, 4), torch.float32), ((40, 3, 1), torch.float32)], ids=["channels", "layout"]
)
def test_wrong_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    class Wrong(Given):
        def build(self) -> dict[str, AttributeDataset]:
            return {name: AttributeDataset(torch.zeros(shape, dtype=dtype), labels(40)) for name in super().build()}

    with pytest.raises(DataError, match=rf"shape \({', '.join(map(str, shape[1:]))},?\), expected \(3,\)"):
        trained(CoDID, Wrong(labels(40), labels(40)))


@pytest.mark.parametrize(
    ("bad", "split", "remedy"),
    [(float("nan"), "train", "drop"), (float("inf"), "val", "impute"), (-float("inf"), "test", "drop")],
)
def test_bad_values(bad: float, split: str, remedy: str) -> None:
    class Poisoned(Given):
        def build(self) -> dict[str, AttributeDataset]:
            splits = super().build()
            splits[split].x[[1, 3]] = bad
            return splits

    with pytest.raises(DataError, match=rf"2 of \d+ samples of `{split}`.*\[1, 3\].*on_bad_values"):
        trained(CoDID, Poisoned(labels(40), labels(12)))
    trained(CoDID, Poisoned(labels(40), labels(12), on_bad_values=remedy, batch_size=16))
