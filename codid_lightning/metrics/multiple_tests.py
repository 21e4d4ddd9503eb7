"""Correction for several tests at once. Needs nothing but Python, so that reading results does not load torch."""

from collections.abc import Sequence
from itertools import accumulate


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted by Holm's method, which is valid for any dependence between the tests."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    scaled = accumulate(((len(order) - rank) * p_values[i] for rank, i in enumerate(order)), max)
    adjusted = dict(zip(order, scaled, strict=True))
    return [min(1.0, adjusted[i]) for i in range(len(p_values))]
