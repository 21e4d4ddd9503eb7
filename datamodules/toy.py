"""The paper's toy data: every attribute is one axis, modes are interleaved clusters along it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

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
    set. Here the modes at 0 and 3 have the same likely a_2, and those at 1 and 2 the other, so that a boundary with x_2
    is simpler than the correct one, which ignores it. The correlation is hidden: a_1 and a_2 are independent.

    Args:
        noise: Standard deviation of the Gaussian noise on both axes.
        samples_per_mode: Samples per mode in training and validation together, and in each test set half as many.
    """

    title = "Toy"
    input_shape = (2,)
    attribute_names = ("a1", "a2")
    value_names: tuple[tuple[str, ...], ...] = (("0", "1"), ("0", "1"))
    modes_per_value: ClassVar[tuple[int, ...]] = (3, 3)
    positions: ClassVar[tuple[float, ...]] = (0, 2, 4, 1, 3, 5)  # x_1 of each mode
    p_a2_given_mode: ClassVar[Matrix] = ((0.95, 0.05, 0.5, 0.05, 0.95, 0.5), (0.05, 0.95, 0.5, 0.95, 0.05, 0.5))

    def __init__(self, samples_per_mode: int = 1000, noise: float = 0.15, **kwargs: Any) -> None:
        super().__init__(samples_per_mode=samples_per_mode, **kwargs)
        self.noise, self.count = noise, samples_per_mode

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Positions of the modes; `render` adds the noise."""
        per_mode = self.count if train else self.count // 2
        modes = torch.arange(len(self.positions)).repeat_interleave(per_mode)
        return torch.tensor(self.positions, dtype=torch.float32)[modes], modes

    def render(self, raw: Tensor, a2: Tensor, generator: torch.Generator) -> Tensor:
        """Points (x_1, x_2) with noise."""
        points = torch.stack([raw, a2.float()], dim=1)
        return points + self.noise * torch.randn(points.shape, generator=generator)


class ToyNineModes(Toy):
    """The paper's case study: 2, 3 and 4 well separated modes under the three values of a_1."""

    title = "Toy, nine modes"
    value_names = (("0", "1", "2"), ("0", "1"))
    modes_per_value = (2, 3, 4)
    positions = (0, 2, 4, 6, 8, 1, 3, 5, 7)
    p_a2_given_mode = (
        (0.8, 0.2, 0.8, 0.1, 0.6, 0.3, 0.8, 0.2, 0.7),
        (0.2, 0.8, 0.2, 0.9, 0.4, 0.7, 0.2, 0.8, 0.3),
    )

    def __init__(self, noise: float = 0.02, **kwargs: Any) -> None:
        super().__init__(noise=noise, **kwargs)


class ToyFourAttributes(AttributeDataModule):
    """Four binary attributes on four axes, a_1 and a_2 with three interleaved modes under each value.

    Each of m_1 -> a_2, m_1 -> m_2, m_1 -> a_4, a_2 -> a_4 and m_2 -> a_3 is a logistic coupling; its strength is solved
    for, so that the joint distribution has the paper's mutual informations. The paper does not say how a_3 and a_4
    depend on each other. Here they depend through the modes, so that no attribute is almost determined by the others:
    if a_3 were drawn given a_4, whole cells of test3 would not occur in training. All couplings are reversed in the
    anticorrelated test3, and removed in test2.

    Args:
        samples: Training and validation samples; each test set has half as many.
        noise: Standard deviation of the Gaussian noise on all axes.
        val_fraction: Share of the samples held out for validation.
    """

    title = "Toy, four attributes"
    input_shape = (4,)
    attribute_names = ("a1", "a2", "a3", "a4")
    value_names = (("0", "1"),) * 4
    mode_sizes = ((3, 3), (3, 3), None, None)
    test_attributes = (0, 1, 2, 3)
    positions = Toy.positions
    # I(a2;a4), I(a3;a4), I(m1;a2|a1), I(m1;a4|a1), I(m2;a3|a2) in nats
    informations: ClassVar[tuple[float, ...]] = (0.07, 0.13, 0.14, 0.36, 0.28)

    def __init__(self, samples: int = 10000, noise: float = 0.1, val_fraction: float = 0.1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
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


# Sign of the coupling of each mode. Of the patterns that were tried, these have the reversed distribution closest to
# that of training, measured as the number of training samples that are worth one reversed sample.
_A2_PATTERN = np.array([1, -1, 1, -1, 1, -1])  # of m_1
_A4_PATTERN = np.array([-1, -1, 1, -1, 1, -1])  # of m_1, for a_4 and for the modes of a_2
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
