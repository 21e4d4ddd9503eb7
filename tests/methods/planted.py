"""Small images with a known answer: a shape in one of several channels, or labels that leave no trace."""

from __future__ import annotations

from typing import Any

import torch
from lightning import Trainer, seed_everything

from codid_lightning.methods.base import DisentanglementModule
from datamodules.base import AttributeDataModule, AttributeDataset, stack_columns


class Planted(AttributeDataModule):
    """a_1: a bar is horizontal or vertical, of random place and brightness. a_2: the channel it stands in.

    Args:
        traceless: a_2 says nothing about the picture.
        channels: Values of a_2; `missing` of them never occur.
        missing: How many.
        second: A third attribute, the sign of a pattern on the border.
    """

    attribute_names = ("bar", "channel")
    mode_sizes = (None, None)
    test_names = ("test",)
    test_attributes = (0,)

    def __init__(
        self, traceless: bool = False, channels: int = 2, missing: int = 0, samples: int = 600, second: bool = False,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**{"batch_size": 50, **kwargs})
        self.traceless, self.missing, self.samples, self.second = traceless, missing, samples, second
        self.input_shape = (channels, 8, 8)
        self.value_names = (("0", "1"), tuple(str(v) for v in range(channels)))
        if second:
            self.attribute_names, self.mode_sizes = ("bar", "channel", "border"), (None, None, None)
            self.value_names = (*self.value_names, ("0", "1"))

    def build(self) -> dict[str, AttributeDataset]:
        return {name: self._draw(seed) for seed, name in enumerate(("train", "val", "test"))}

    def _draw(self, seed: int) -> AttributeDataset:
        generator = torch.Generator().manual_seed(seed)
        n, channels = self.samples, self.input_shape[0]
        a1 = torch.randint(2, (n,), generator=generator)
        a2 = torch.randint(channels - self.missing, (n,), generator=generator)
        a3 = torch.randint(2, (n,), generator=generator)
        shown = torch.randint(channels, (n,), generator=generator) if self.traceless else a2
        place = torch.randint(1, 6, (n,), generator=generator)
        bars = (torch.arange(8)[None] - place[:, None]).clamp(0, 1) * (torch.arange(8)[None] <= place[:, None] + 2)
        lines = bars.float()[:, None, :].expand(-1, 8, -1)
        picture = torch.where(a1[:, None, None] == 1, lines, lines.transpose(1, 2))
        picture = picture * (0.5 + 0.5 * torch.rand(n, 1, 1, generator=generator))
        x = torch.zeros(n, *self.input_shape)
        x[torch.arange(n), shown] = picture
        if self.second:
            x[:, :, 0] = torch.maximum(x[:, :, 0], a3[:, None, None].float())
        columns = [a1, a2, a3] if self.second else [a1, a2]
        return AttributeDataset(x, stack_columns(columns))


def make(method: type[DisentanglementModule], data: AttributeDataModule, **kwargs: Any) -> Any:
    seed_everything(0, verbose=False)
    facts = {k: getattr(data, k) for k in ("input_shape", "attribute_sizes", "test_names", "test_attributes")}
    return method(**{**facts, "backbone": "mlp", "latent_dim": 8, **kwargs})


def trainer(epochs: int = 3, **kwargs: Any) -> Trainer:
    quiet = {f"enable_{part}": False for part in ("checkpointing", "progress_bar", "model_summary")}
    settings = {"accelerator": "cpu", "logger": False, "max_epochs": epochs, "use_distributed_sampler": False}
    return Trainer(**{**settings, **quiet, **kwargs})
