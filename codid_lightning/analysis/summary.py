"""Summary of a data set: sizes, counts of every value and mode, and the information that its labels share."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from typing import NamedTuple

import torch
from rich import box
from rich.table import Table
from torch import Tensor

from codid_lightning.metrics.information import conditional_information, information_null
from datamodules.base import AttributeDataModule, AttributeDataset

_MAX_SHARES = 4  # more values of the second attribute do not fit into a terminal
_NOTABLE_CHANCE = 0.005  # bits
_DRAWS = 20


class Information(NamedTuple):
    """Bits that two labels share, and the mean for independent labels of as many samples."""

    bits: float
    chance: float


def informations(data: AttributeDataModule, split: str) -> dict[str, Information]:
    """I(a_q; a_r) for all pairs of attributes and, where modes are known, I(m_q; a_r | a_q)."""
    dataset, names = data.datasets[split], data.attribute_names
    labelled = [q for q in range(len(names)) if bool((dataset.a[:, q] >= 0).all())]
    a, nothing = dataset.a.T, torch.zeros(len(dataset), dtype=torch.long)
    found = {f"I({names[q]}; {names[r]})": (a[q], a[r], nothing) for q, r in combinations(labelled, 2)}
    for q, r in permutations(labelled, 2):
        if data.mode_sizes[q] is not None:
            found[f"I({names[q]}'s mode; {names[r]} | {names[q]})"] = (dataset.mode[:, q], a[r], a[q])
    return {
        name: Information(conditional_information(*labels), float(information_null(*labels, draws=_DRAWS).mean()))
        for name, labels in found.items()
    }


def tables(data: AttributeDataModule) -> Iterator[Table]:
    """Splits, values of every attribute, and modes, as tables with a column per split."""
    yield _splits(data)
    for q, name in enumerate(data.attribute_names):
        counts = {split: _counts(d.a[:, q], data.attribute_sizes[q]) for split, d in data.datasets.items()}
        yield _table(f"samples per value of {name}", data.value_names[q], counts)
        if data.mode_sizes[q] is not None:
            yield _modes(data, q)


def _splits(data: AttributeDataModule) -> Table:
    found = {split: informations(data, split) for split in data.datasets}
    table = Table("", *found, title="splits; information in bits", box=box.SIMPLE_HEAD, title_justify="left")
    table.add_row("samples", *(str(len(data.datasets[split])) for split in found))
    for name in dict.fromkeys(name for of_split in found.values() for name in of_split):
        known = [of_split.get(name) for of_split in found.values()]
        table.add_row(name, *("-" if info is None else f"{info.bits:.4f}" for info in known))
        if any(info is not None and info.chance > _NOTABLE_CHANCE for info in known):
            table.add_row("  by chance alone", *("-" if info is None else f"{info.chance:.4f}" for info in known))
    return table


def _modes(data: AttributeDataModule, q: int) -> Table:
    """Counts of an attribute's modes and, where they fit, the next attribute's distribution under each in training."""
    names = mode_names(data, q)
    columns = {split: _counts(d.mode[:, q], len(names)) for split, d in data.datasets.items()}
    r = (q + 1) % len(data.attribute_names)
    if "train" in data.datasets and data.attribute_sizes[r] <= _MAX_SHARES:
        for value, name in enumerate(data.value_names[r]):
            shares = [_share(data.datasets["train"], q, mode, r, value) for mode in range(len(names))]
            columns[f"{name}, train"] = shares
    return _table(f"samples per mode of {data.attribute_names[q]}", names, columns)


def _table(title: str, names: tuple[str, ...], columns: dict[str, list[str]]) -> Table:
    table = Table("", *columns, title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name, *cells in zip(names, *columns.values(), strict=True):
        table.add_row(name, *cells)
    return table


def _share(dataset: AttributeDataset, q: int, mode: int, r: int, value: int) -> str:
    own = dataset.a[dataset.mode[:, q] == mode, r]
    return f"{(own == value).float().mean():.1%}" if len(own) else "-"


def mode_names(data: AttributeDataModule, q: int) -> tuple[str, ...]:
    """The modes of an attribute, each with its value."""
    sizes, names = data.mode_sizes[q] or (), data.mode_names if q == 0 else ()
    values = [value for value, size in zip(data.value_names[q], sizes, strict=True) for _ in range(size)]
    named = names or tuple(f"mode {mode}" for mode in range(len(values)))
    return tuple(f"{value}: {name.replace('_', ' ')}" for value, name in zip(values, named, strict=True))


def _counts(labels: Tensor, size: int) -> list[str]:
    return list(map(str, labels[labels >= 0].bincount(minlength=size).tolist()))
