"""A table with a known answer: modes under two values, measured at sites with effects of their own. Nothing to load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
VALUE = np.array([0, 0, 0, 1, 1])  # of each mode
SHARE = np.array([0.1, 0.9, 0.1, 0.9, 0.1])  # of site 0 under each mode: the hidden correlation, as in CMNIST


@dataclass(frozen=True)
class Sites:
    """Rows as measured, and what is to be found."""

    x: Array  # (N, d) as measured
    content: Array  # (N, d) before the site's effect
    mode: Array  # (N,)
    value: Array  # (N,) a_1
    site: Array  # (N,) a_2
    offset: Array  # (E, d) of each site; that of site 0 is 0
    scale: Array  # (E, d); that of site 0 is 1

    def rows_of_values(self) -> list[Array]:
        """Rows of each value of a_1."""
        return [np.flatnonzero(self.value == v) for v in (0, 1)]


def modes_at_sites(
    rows: int, seed: int, *, columns: int = 4, sites: int = 2, offsets: bool = True, scales: bool = True,
    share: Array = SHARE, noise: float = 0.5,
) -> Sites:  # fmt: skip
    """Draw rows: modes are equally likely, the value of a_1 follows from the mode, and modes prefer sites.

    Centres of modes and effects of sites are the same for all seeds.

    Args:
        rows: How many.
        seed: Of the rows.
        columns: How many.
        sites: How many; those after the first share what it leaves.
        offsets: Whether sites shift columns.
        scales: Whether sites scale columns.
        share: Probability of site 0 under each mode.
        noise: Deviation of rows around the centre of their mode.
    """
    fixed, rng = np.random.default_rng(1000 + columns), np.random.default_rng(seed)
    centre = fixed.normal(size=(len(VALUE), columns)) * 1.5
    offset, scale = fixed.normal(size=(sites, columns)) * offsets, 1 + 0.5 * fixed.random((sites, columns)) * scales
    offset[0], scale[0] = 0, 1
    mode = rng.integers(len(VALUE), size=rows)
    first = rng.random(rows) < share[mode]
    site = np.where(first, 0, rng.integers(1, sites, size=rows))
    content = centre[mode] + noise * rng.normal(size=(rows, columns))
    return Sites(content * scale[site] + offset[site], content, mode, VALUE[mode], site, offset, scale)
