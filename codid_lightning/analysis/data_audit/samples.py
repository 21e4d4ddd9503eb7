"""The rows that an audit looks at, from wherever they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codid_lightning.analysis.data_audit.columns import Encoder

Array = NDArray[Any]


@dataclass(frozen=True)
class Attribute:
    """A label of every row."""

    name: str
    values: tuple[str, ...]
    labels: Array  # (N,) numbers of the values

    @classmethod
    def of(cls, name: str, labels: Any) -> Attribute:
        """From labels (N,) of any type, in sorted order."""
        from datamodules.tables import label_names, label_text

        texts = [label_text(label) for label in np.asarray(labels).tolist()]
        values = label_names(texts)
        place = {value: i for i, value in enumerate(values)}
        return cls(name, values, np.array([place[text] for text in texts]))


@dataclass(frozen=True)
class Samples:
    """Inputs with a target and the other attributes.

    `Samples.of` takes arrays; `reading.read_samples` reads files.

    Args:
        x: Inputs (N, ...): rows, embeddings, series (N, C, T) or pictures (N, C, H, W).
        target: What a model is to predict.
        others: What it should not rely on: site, device, person, batch, color.
        columns: Names of the columns of rows.
        groups: Group (N,) of each row, such as a person: rows of one group are not independent.
        part: `train` or the name of a test set (N,); None if the rows are not split.
        notes: What was noticed in the file and what was done about it, a sentence each.
        leaks: Columns that determine the target.
        name: Of the data, for titles.
    """

    x: Array
    target: Attribute
    others: tuple[Attribute, ...]
    columns: tuple[str, ...] = ()
    groups: Array | None = None
    part: Array | None = None
    notes: Sequence[str] = ()
    leaks: Sequence[str] = ()
    name: str = "data"
    rows: Array | None = None  # (N,) rows in the file that are kept
    encoder: Encoder | None = None  # of tables: how columns became `x`

    @classmethod
    def of(
        cls, x: Any, target: Any, other: Any, *, groups: Any = None, columns: Sequence[str] = (), name: str = "data"
    ) -> Samples:
        """From arrays.

        Args:
            x: Inputs (N, ...).
            target: Labels (N,) of any type.
            other: Labels (N,) of another attribute, or a mapping from names to labels.
            groups: Group (N,) of each row.
            columns: Names of the columns.
            name: Of the data.
        """
        named = other if isinstance(other, dict) else {"other": other}
        others = tuple(Attribute.of(key, labels) for key, labels in named.items())
        own = None if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
        return cls(np.asarray(x), Attribute.of("target", target), others, tuple(columns), own, name=name)

    def __len__(self) -> int:
        return len(self.target.labels)

    def where(self, keep: Array) -> Samples:
        """Some of the rows."""

        def cut(attribute: Attribute) -> Attribute:
            return Attribute(attribute.name, attribute.values, attribute.labels[keep])

        groups, part = (None if own is None else own[keep] for own in (self.groups, self.part))
        rows = np.arange(len(self))[keep] if self.rows is None else self.rows[keep]
        others = tuple(map(cut, self.others))
        return replace(
            self, x=self.x[keep], target=cut(self.target), others=others, groups=groups, part=part, rows=rows
        )
