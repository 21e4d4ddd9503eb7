"""Validation windows that share no sample with training windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from datamodules.base import seeded_generator

_MAX_LOSS = 0.25  # windows left out at a border per validation window; a stretch that loses more is not cut

Rows = list[Tensor]


@dataclass(frozen=True)
class Stretch:
    """Windows of one uninterrupted recording, in the order of time."""

    rows: Tensor  # (n,)
    start: Tensor  # (n,) first sample of each window
    length: int  # samples in a window

    def __len__(self) -> int:
        return len(self.rows)

    def cut(self, count: int, at_end: bool) -> tuple[Tensor, Tensor]:
        """The rows that share no sample with the first or last `count` rows, and these."""
        if at_end:
            return self.rows[self.start + self.length <= self.start[-count]], self.rows[-count:]
        return self.rows[self.start >= self.start[count - 1] + self.length], self.rows[:count]

    def worth_cutting(self, count: int) -> bool:
        """Whether a cut leaves out few rows, at either end."""
        if not 0 < count < len(self):
            return False
        lost = len(self) - count - min(len(self.cut(count, at_end)[0]) for at_end in (False, True))
        return lost <= _MAX_LOSS * count


def hold_out(
    cells: Tensor, recording: Tensor, start: Tensor, length: int, fraction: float, seed: int, whole: bool = False
) -> tuple[Tensor, Tensor]:
    """Hold windows out for validation, a share of about `fraction` in every cell of labels.

    A long stretch gives its first or its last part to validation; the windows at the border that share samples with
    this part are left out. Of short stretches, whole ones are held out. Cells too small for either are joined with the
    other such cells of the same first label.

    Args:
        cells: Labels (N, Q) of the windows.
        recording: Number (N,) of each window's recording.
        start: First sample (N,) of each window, counted within its recording.
        length: Samples in a window.
        fraction: Share of the windows to hold out.
        seed: Of all choices.
        whole: Hold out whole stretches wherever a cell has several.

    Returns:
        Rows for training and for validation, both in increasing order.
    """
    generator = seeded_generator(seed)
    train: Rows = [torch.empty(0, dtype=torch.long)]
    val: Rows = [torch.empty(0, dtype=torch.long)]
    small: dict[int, list[Stretch]] = {}
    for first, stretches in _by_cell(cells, _stretches(recording, start, length)):
        rest, held = _divide(stretches, fraction, generator, whole)
        if rest and held:
            train, val = train + rest, val + held
        else:
            small.setdefault(first, []).extend(stretches)
    for stretches in small.values():
        rest, held = _divide_whole(stretches, fraction, generator)
        train, val = train + rest, val + held
    return torch.cat(train).sort().values, torch.cat(val).sort().values


def _stretches(recording: Tensor, start: Tensor, length: int) -> Iterator[Stretch]:
    """All windows; a stretch ends where its recording ends or there is a gap between two windows."""
    order = start.argsort(stable=True)
    order = order[recording[order].argsort(stable=True)]
    broken = (recording[order].diff() != 0) | (start[order].diff() > length)
    for rows in order.tensor_split((broken.nonzero().flatten() + 1).tolist()):
        yield Stretch(rows, start[rows], length)


def _by_cell(cells: Tensor, stretches: Iterator[Stretch]) -> list[tuple[int, list[Stretch]]]:
    """The first label of each cell and its stretches."""
    found: dict[tuple[int, ...], list[Stretch]] = {}
    for stretch in stretches:
        found.setdefault(tuple(cells[stretch.rows[0]].tolist()), []).append(stretch)
    return [(cell[0], found[cell]) for cell in sorted(found)]


def _divide(
    stretches: Sequence[Stretch], fraction: float, generator: torch.Generator, whole: bool
) -> tuple[Rows, Rows]:
    """Training and validation rows of a cell; one list is empty if the cell is too small."""
    counts = {i: round(fraction * len(stretch)) for i, stretch in enumerate(stretches)}
    long = {i for i, stretch in enumerate(stretches) if stretch.worth_cutting(counts[i])}
    if whole and len(stretches) > 1:
        long = set()
    rest, held = _divide_whole([s for i, s in enumerate(stretches) if i not in long], fraction, generator)
    if not long and not held:
        return _divide_one(stretches, fraction, generator, whole)
    for i in sorted(long):
        part = stretches[i].cut(counts[i], _coin(generator))
        rest, held = [*rest, part[0]], [*held, part[1]]
    return rest, held


def _divide_whole(stretches: Sequence[Stretch], fraction: float, generator: torch.Generator) -> tuple[Rows, Rows]:
    """Hold out random whole stretches as long as this brings the share nearer to `fraction`; one at least stays."""
    target, taken = fraction * sum(map(len, stretches)), 0
    held: Rows = []
    rest: Rows = []
    for i in torch.randperm(len(stretches), generator=generator).tolist():
        size = len(stretches[i])
        nearer = abs(taken + size - target) < abs(taken - target)
        if nearer and len(held) < len(stretches) - 1:
            taken += size
            held.append(stretches[i].rows)
        else:
            rest.append(stretches[i].rows)
    return rest, held


def _divide_one(
    stretches: Sequence[Stretch], fraction: float, generator: torch.Generator, whole: bool
) -> tuple[Rows, Rows]:
    """Hold out the shortest of several stretches (`whole`), or cut the longest one."""
    by_size = sorted(stretches, key=len)
    if whole and len(by_size) > 1:
        return [stretch.rows for stretch in by_size[1:]], [by_size[0].rows]
    *others, longest = by_size
    count = max(1, round(fraction * sum(map(len, stretches))))
    if count >= len(longest):
        return [], []
    rest, held = longest.cut(count, _coin(generator))
    return [part for part in (*(s.rows for s in others), rest) if len(part)], [held]


def _coin(generator: torch.Generator) -> bool:
    return bool(torch.rand((), generator=generator) < 0.5)
