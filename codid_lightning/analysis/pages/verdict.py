"""The verdict of an audit in plain words: what it says about the data, the model and the leakage."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from codid_lightning.analysis.audit import GAP, Audit
from codid_lightning.analysis.data_audit.report import about_data
from datamodules.base import AttributeDataModule


class Claim(NamedTuple):
    """One sentence of the verdict, and the numbers that support it."""

    claim: str
    reason: str


class Names:
    """Names of attributes, values and modes, as the page writes them."""

    def __init__(self, data: AttributeDataModule, found: Audit) -> None:
        self.attributes, self.values, self.modes = data.attribute_names, data.value_names, found.modes

    def mode(self, mode: int) -> str:
        """Value and number of a mode."""
        return self.modes.title(mode, self.values[0])

    def cell(self, attribute: int, value: int) -> str:
        """An attribute and its value."""
        return f"{self.attributes[attribute]} = {self.values[attribute][value]}"

    def shares(self, attribute: int, shares: Tensor, most: int = 4) -> str:
        """The most frequent values of an attribute with their shares."""
        top = shares.argsort(descending=True)[:most].sort().values.tolist()
        text = ", ".join(f"{self.values[attribute][v]} {100 * shares[v]:.0f} %" for v in top)
        return text + (", …" if len(shares) > most else "")


def p_text(value: float) -> str:
    """A p-value as it is printed."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def verdict(found: Audit, names: Names) -> list[Claim]:
    """The answers of an audit: on the data, on the model, on the leakage."""
    about_the_data = about_data(found.data, names.attributes[0])
    return [
        Claim(about_the_data.claim, about_the_data.reason),
        _about_model(found, names),
        _about_leakage(found, names),
    ]


def _equals(p_value: float) -> str:
    text = p_text(p_value)
    return text if text.startswith("<") else f"= {text}"


def _about_model(found: Audit, names: Names) -> Claim:
    """Is the model hurt?"""
    shown = ", ".join(f"{100 * accuracy:.1f} % on {test}" for test, (accuracy, _) in found.accuracies.items())
    overall = f"Its accuracy for {names.attributes[0]} is {shown}."
    if not found.hurt:
        return Claim(
            "The model is not visibly hurt.",
            f"{overall} In no cell of mode and attribute is the accuracy significantly lower than with other values of "
            f"the attribute, by {100 * GAP:.0f} points or more.",
        )
    texts = [overall]
    if found.fall:
        texts.append(
            f"It falls from {found.fall.best} to {found.fall.worst} (p {_equals(found.fall.p_value)}): the model "
            "relies on something that differs between them."
        )
    if hurt := [cell for cell in found.cells if cell.hurt]:
        cell, count = hurt[0], "one" if len(hurt) == 1 else str(len(hurt))
        texts.append(
            f"In {count} of {len(found.cells)} cells it is significantly lower. The worst is {names.mode(cell.mode)} "
            f"with {names.cell(cell.attribute, cell.value)} on {cell.test}: {100 * cell.accuracy:.1f} %, otherwise "
            f"{100 * cell.rest:.1f} %."
        )
    return Claim("The model is hurt.", " ".join(texts))


def _about_leakage(found: Audit, names: Names) -> Claim:
    """How much do the other attributes leak?"""
    texts = [
        f"{f.leaked:.2f} of {f.entropy:.2f} bits about {names.attributes[f.attribute]} "
        f"({f.explained:.2f} of these are in the modes alone)"
        for f in found.findings
    ]
    return Claim("Leakage:", f"on {found.probed}, z₁ contains " + "; ".join(texts) + ".")
