"""The paper's toy data: every attribute moves one axis, modes are interleaved clusters along it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from scipy.optimize import least_squares
from scipy.special import softmax
from torch import Tensor

from datamodules.base import AttributeDataModule, AttributeDataset, seeded_generator, split_indices, stack_columns
from datamodules.correlated import CorrelatedDataModule, Matrix


class Toy(CorrelatedDataModule):
    """Two attributes in the plane: the mode of a_1 sets x_1, a_2 sets x_2.

    Modes at x_1 = 0, 2, 4 belong to a_1 = 0, those at 1, 3, 5 to a_1 = 1. The paper prints no P(a_2 | m_1) for this
    set; here the modes at 0 and 3 share their likely a_2, and those at 1 and 2 the other, so that a boundary using x_2
    is simpler than the right one, which ignores it. The correlation is a hidden one: a_1 itself says nothing of a_2.

    Args:
        noise: Standard deviation of the Gaussian noise on both axes.
        samples_per_mode: Samples per mode in training and validation together, and in each test set half as many.
    """

    input_shape = (2,)
    attribute_names = ("a1", "a2")
    value_names: tuple[tuple[str, ...], ...] = (("0", "1"), ("0", "1"))
    modes_per_value: ClassVar[tuple[int, ...]] = (3, 3)
    positions: ClassVar[tuple[float, ...]] = (0, 2, 4, 1, 3, 5)  # x_1 of each mode
    p_a2_given_mode: ClassVar[Matrix] = ((0.95, 0.05, 0.5, 0.05, 0.95, 0.5), (0.05, 0.95, 0.5, 0.95, 0.05, 0.5))

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        on_bad_values: Literal["error", "drop", "impute"] = "error",
        correlation: float = 1.0,
        val_fraction: float = 0.1,
        samples_per_mode: int = 1000,
        noise: float = 0.15,
    ) -> None:
        super().__init__(
            root, batch_size, num_workers, seed, on_bad_values, correlation, val_fraction, samples_per_mode
        )
        self.noise, self.count = noise, samples_per_mode

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Positions of the modes; the noise comes with rendering."""
        per_mode = self.count if train else self.count // 2
        modes = torch.arange(len(self.positions)).repeat_interleave(per_mode)
        return torch.tensor(self.positions, dtype=torch.float32)[modes], modes

    def render(self, raw: Tensor, a2: Tensor, generator: torch.Generator) -> Tensor:
        """Points (x_1, x_2) with noise."""
        points = torch.stack([raw, a2.float()], dim=1)
        return points + self.noise * torch.randn(points.shape, generator=generator)


class ToyNineModes(Toy):
    """The paper's case study: 2, 3 and 4 well separated modes under the three values of a_1."""

    value_names = (("0", "1", "2"), ("0", "1"))
    modes_per_value = (2, 3, 4)
    positions = (0, 2, 4, 6, 8, 1, 3, 5, 7)
    p_a2_given_mode = (
        (0.8, 0.2, 0.8, 0.1, 0.6, 0.3, 0.8, 0.2, 0.7),
        (0.2, 0.8, 0.2, 0.9, 0.4, 0.7, 0.2, 0.8, 0.3),
    )

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        on_bad_values: Literal["error", "drop", "impute"] = "error",
        correlation: float = 1.0,
        val_fraction: float = 0.1,
        samples_per_mode: int = 1000,
        noise: float = 0.02,
    ) -> None:
        super().__init__(
            root, batch_size, num_workers, seed, on_bad_values, correlation, val_fraction, samples_per_mode, noise
        )


class ToyFourAttributes(AttributeDataModule):
    """Four binary attributes on four axes, a_1 and a_2 with three interleaved modes under each value.

    Each of m_1 -> a_2, m_1 -> m_2, m_1 -> a_4, a_2 -> a_4 and m_2 -> a_3 is a logistic coupling; its strength is solved
    for, so that the joint distribution has the paper's mutual informations. The paper does not say how its a_3 and a_4
    come to depend on each other; here their modes do, which leaves no attribute nearly determined by the others: with
    a_3 drawn given a_4, whole cells of the reversed test3 would be unheard of in training. Reversing all couplings
    gives the anticorrelated test3, removing them test2.

    Args:
        samples: Training and validation samples; each test set has half as many.
        noise: Standard deviation of the Gaussian noise on all axes.
        val_fraction: Share of the samples held out for validation.
    """

    input_shape = (4,)
    attribute_names = ("a1", "a2", "a3", "a4")
    value_names = (("0", "1"),) * 4
    mode_sizes = ((3, 3), (3, 3), None, None)
    test_attributes = (0, 1, 2, 3)
    positions = Toy.positions
    # I(a2;a4), I(a3;a4), I(m1;a2|a1), I(m1;a4|a1), I(m2;a3|a2) in nats
    informations: ClassVar[tuple[float, ...]] = (0.07, 0.13, 0.14, 0.36, 0.28)

    def __init__(
        self,
        root: str = "data",
        batch_size: int = 128,
        num_workers: int = 0,
        seed: int = 0,
        on_bad_values: Literal["error", "drop", "impute"] = "error",
        samples: int = 10000,
        noise: float = 0.1,
        val_fraction: float = 0.1,
    ) -> None:
        super().__init__(root, batch_size, num_workers, seed, on_bad_values)
        self.samples, self.noise, self.val_fraction = samples, noise, val_fraction

    def build(self) -> dict[str, AttributeDataset]:
        """Draw every split from its own joint distribution."""
        couplings = solve_couplings(self.informations)
        whole = self._draw(couplings, self.samples, 1)
        rest, share = split_indices(len(whole), self.val_fraction, self.seed)
        splits = {"train": whole.subset(rest), "val": whole.subset(share)}
        for name, sign in zip(self.test_names, (1, 0, -1), strict=True):
            splits[name] = self._draw(sign * couplings, self.samples // 2, 2)
        return splits

    def _draw(self, couplings: np.ndarray, count: int, stream: int) -> AttributeDataset:
        cells = torch.from_numpy(joint_distribution(couplings))
        generator = seeded_generator(self.seed, stream)
        drawn = torch.multinomial(cells.flatten(), count, replacement=True, generator=generator)
        m1, m2, a3, a4 = torch.unravel_index(drawn, cells.shape)
        positions = torch.tensor(self.positions, dtype=torch.float32)
        x = torch.stack([positions[m1], positions[m2], a3.float(), a4.float()], dim=1)
        x += self.noise * torch.randn(x.shape, generator=generator)
        unknown = torch.full_like(m1, -1)
        return AttributeDataset(x, stack_columns([m1 // 3, m2 // 3, a3, a4]), stack_columns([m1, m2, unknown, unknown]))


# How each mode leans towards a value: of the patterns of ones that were tried, those whose reversed distribution is the
# closest to training's, by how many samples of training are worth one of it.
_A2_PATTERN = np.array([1, -1, 1, -1, 1, -1])  # of m_1
_A4_PATTERN = np.array([-1, -1, 1, -1, 1, -1])  # of m_1, towards a_4 and the modes of a_2 that go along with it
_A3_PATTERN = np.array([-1, -1, 1, 1, 1, -1])  # of m_2
_SIGN = np.array([-1, 1])


def joint_distribution(couplings: Sequence[float] | np.ndarray) -> np.ndarray:
    """P(m_1, m_2, a_3, a_4) of shape (6, 6, 2, 2) under five logistic couplings, one for each of `informations`."""
    a2_a4, m1_m2, m1_a2, m1_a4, m2_a3 = couplings
    p_a2 = _bernoulli(m1_a2 * _A2_PATTERN)  # (m1, a2)
    p_mode = softmax((m1_m2 * np.outer(_A4_PATTERN, _A3_PATTERN)).reshape(6, 2, 3), axis=2)  # of a_2's value, given m1
    p_m2 = (p_a2[:, :, None] * p_mode).reshape(6, 6)  # (m1, m2)
    p_a4 = _bernoulli(m1_a4 * _A4_PATTERN[:, None] + a2_a4 * _SIGN.repeat(3)[None])  # (m1, m2, a4)
    p_a3 = _bernoulli(m2_a3 * _A3_PATTERN)  # (m2, a3)
    joint: np.ndarray = np.einsum("ij,ijl,jk->ijkl", p_m2 / 6, p_a4, p_a3)
    return joint


def toy_informations(joint: np.ndarray) -> np.ndarray:
    """The five mutual informations of a joint distribution, in the order of `ToyFourAttributes.informations`."""
    cells = joint.reshape(2, 3, 2, 3, 2, 2)  # a1, m1|a1, a2, m2|a2, a3, a4
    return np.array(
        [
            _information(cells.sum((0, 1, 3, 4))[None]),
            _information(cells.sum((0, 1, 2, 3))[None]),
            _information(cells.sum((3, 4, 5))),
            _information(cells.sum((2, 3, 4))),
            _information(cells.sum((0, 1, 5))),
        ]
    )


def solve_couplings(informations: Sequence[float]) -> np.ndarray:
    """Couplings whose joint distribution has the given mutual informations."""
    target = np.asarray(informations)
    found = least_squares(
        lambda c: toy_informations(joint_distribution(c)) - target,
        x0=np.ones(5),
        bounds=(0, 10),
        xtol=1e-15,
        ftol=1e-15,
    )
    couplings: np.ndarray = found.x
    return couplings


def _bernoulli(logits: np.ndarray) -> np.ndarray:
    p = 1 / (1 + np.exp(-logits))
    return np.stack([1 - p, p], axis=-1)


def _information(cells: np.ndarray) -> float:
    """I(u; v | w) in nats of a table (w, u, v)."""
    given_w = cells.sum((1, 2), keepdims=True)
    independent = cells.sum(2, keepdims=True) * cells.sum(1, keepdims=True) / given_w
    return float((cells * np.log(cells / independent)).sum())
