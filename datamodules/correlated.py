"""Data with constructed modes: the second attribute is drawn from P(a_2 | m_1), and shifted at test."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from datamodules.base import AttributeDataModule, AttributeDataset, DataError, seeded_generator, stack_columns

Matrix = Sequence[Sequence[float]]


def correlation_matrix(matrix: Matrix, num_modes: int, strength: float = 1.0) -> Tensor:
    """P(a_2 | m_1) of shape (A_2, M), mixed with the uniform distribution; `strength` is the share of P."""
    p = torch.tensor(matrix, dtype=torch.float64)
    if p.ndim != 2 or p.shape[1] != num_modes:
        raise DataError(f"P(a2|m1) must have one column per mode ({num_modes}), got shape {tuple(p.shape)}.")
    if (p < 0).any() or (p.sum(0) - 1).abs().max() > 1e-6:
        raise DataError(f"The columns of P(a2|m1) must be probabilities; they sum to {p.sum(0).tolist()}.")
    if not 0 <= strength <= 1:
        raise DataError(f"data.correlation is {strength}; it must lie in [0, 1].")
    return strength * p + (1 - strength) / len(p)


def anticorrelated(p: Tensor) -> Tensor:
    """1 - P, normalised over the values of a_2 (for two values it is exactly 1 - P)."""
    return (1 - p) / (len(p) - 1)


def hidden_correlation(p: Tensor, mode_sizes: Sequence[int]) -> float:
    """I(m_1; a_2 | a_1) in nats for equally likely modes."""
    total, start = 0.0, 0
    for size in mode_sizes:
        block = p[:, start : start + size]  # (A_2, modes of this value)
        marginal = block.mean(1, keepdim=True)
        total += float(torch.xlogy(block, block / marginal).sum()) / p.shape[1]
        start += size
    return total


class CorrelatedDataModule(AttributeDataModule):
    """Two attributes, modes under the first, the second drawn given the mode.

    Training and validation follow P(a_2 | m_1); test1 does too, test2 draws a_2 uniformly and test3 from 1 - P.
    The three tests have the same held-out samples and the same noise; they differ only in a_2. A data set sets
    `modes_per_value` and `p_a2_given_mode`, and implements `load` and `render`.

    Args:
        correlation: 1 is the paper's P, 0 is no correlation (uniform), values between are mixtures of both.
        val_fraction: Share of the training samples held out for validation.
        samples_per_mode: Training and validation samples per mode; null is the number of samples of the rarest mode.
    """

    modes_per_value: ClassVar[tuple[int, ...]]
    p_a2_given_mode: ClassVar[Matrix]
    transform: Callable[[Tensor], Tensor] | None = None  # converts a batch of the output of `render` to inputs

    def __init__(
        self, correlation: float = 1.0, val_fraction: float = 0.1, samples_per_mode: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.p = correlation_matrix(self.p_a2_given_mode, sum(self.modes_per_value), correlation)
        self.val_fraction, self.samples_per_mode = val_fraction, samples_per_mode
        self.mode_sizes = (self.modes_per_value, None)
        self.test_attributes = (0, 1)

    @property
    def hidden_correlation(self) -> float:
        """I(m_1; a_2 | a_1) of the training data, in nats."""
        return hidden_correlation(self.p, self.modes_per_value)

    @abstractmethod
    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Raw samples and their modes (N,), from the training or the held-out source."""

    @abstractmethod
    def render(self, raw: Tensor, a2: Tensor, generator: torch.Generator) -> Tensor:
        """Samples made from `raw` and the values of the second attribute, with the noise of this data set."""

    def build(self) -> dict[str, AttributeDataset]:
        """Train and validation under P; the same held-out samples under P, uniform and 1 - P."""
        raw, modes, rank = self._shuffled(train=True)
        available = self._rarest(modes)
        count = self.samples_per_mode or available
        if not 2 <= count <= available:
            raise DataError(
                f"data.samples_per_mode is {count}; {type(self).__name__} has 2 to {available} samples of every mode."
            )
        cut = count - round(count * self.val_fraction)
        train, val = rank < cut, (cut <= rank) & (rank < count)
        splits = {
            "train": self._split(raw[train], modes[train], self.p, 1),
            "val": self._split(raw[val], modes[val], self.p, 2),
        }
        raw, modes, rank = self._shuffled(train=False)
        held_out = rank < self._rarest(modes)
        uniform = torch.full_like(self.p, 1 / len(self.p))
        for name, p in zip(self.test_names, (self.p, uniform, anticorrelated(self.p)), strict=True):
            splits[name] = self._split(raw[held_out], modes[held_out], p, 3)
        return splits

    def _shuffled(self, train: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Samples in random order, their modes, and the position of each among the samples of its mode."""
        raw, modes = self.load(train)
        order = torch.randperm(len(modes), generator=seeded_generator(self.seed, 0 if train else 4))
        raw, modes = raw[order], modes[order]
        rank = torch.empty_like(modes)
        for m in modes.unique():
            rank[modes == m] = torch.arange(int((modes == m).sum()))
        return raw, modes, rank

    def _rarest(self, modes: Tensor) -> int:
        return int(modes.bincount(minlength=sum(self.modes_per_value)).min())

    def _split(self, raw: Tensor, modes: Tensor, p: Tensor, stream: int) -> AttributeDataset:
        a1 = torch.repeat_interleave(torch.tensor(self.modes_per_value))[modes]
        # A uniform number per sample and the inverse cumulative distribution: the tests share the numbers, so
        # they differ only where P makes them differ.
        uniforms = torch.rand(len(modes), generator=seeded_generator(self.seed, stream), dtype=torch.float64)
        a2 = (uniforms[:, None] > p.cumsum(0).T[modes][:, :-1]).sum(1)
        x = self.render(raw, a2, seeded_generator(self.seed, stream, 1))
        unknown = torch.full_like(modes, -1)
        return AttributeDataset(x, stack_columns([a1, a2]), stack_columns([modes, unknown]), self.transform)
