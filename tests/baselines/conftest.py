"""Small random data on which every method can be trained in a second."""

from __future__ import annotations

import pytest
import torch

from datamodules.base import AttributeDataModule, AttributeDataset, stack_columns


class ManyValues(AttributeDataModule):
    """Three attributes, one of 30 values: in batches of 8 most of them occur once or never."""

    input_shape = (6,)
    attribute_names = ("a1", "a2", "a3")
    value_names = (("0", "1"), tuple(str(v) for v in range(30)), ("0", "1", "2"))
    mode_sizes = (None, None, None)
    test_attributes = (0,)

    def build(self) -> dict[str, AttributeDataset]:
        return {name: self._draw(seed) for seed, name in enumerate(("train", "val", *self.test_names))}

    def _draw(self, seed: int) -> AttributeDataset:
        generator = torch.Generator().manual_seed(seed)
        columns = [torch.randint(size, (24,), generator=generator) for size in self.attribute_sizes]
        x = torch.randn(24, 6, generator=generator)
        x[:, 0] += columns[0]
        return AttributeDataset(x, stack_columns(columns))


@pytest.fixture
def many_values() -> ManyValues:
    return ManyValues(batch_size=8)
