"""An audit as a whole: what was found, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codid_lightning.analysis.data_audit.hidden import DRAWS
from codid_lightning.analysis.data_audit.model import DIAL, GAP, Cell, ModelVerdict, judge_predictions
from codid_lightning.analysis.data_audit.samples import Samples
from codid_lightning.analysis.data_audit.verdict import AttributeFinding, DataVerdict, judge

Array = NDArray[Any]
Light = Literal["red", "amber", "green"]
FORMAT = 1
MIN_EXPECTED = 10  # rows below which a cell of target and attribute is rare
DECIMALS = 5  # of columns in standard deviations, to which duplicates agree


class Claim(NamedTuple):
    """A sentence of the verdict, with the numbers that support it, a line per attribute."""

    light: Light
    claim: str
    reason: str


@dataclass(frozen=True)
class DataAudit:
    """Data, what was found in them, and what predictions show."""

    samples: Samples
    data: DataVerdict
    model: ModelVerdict | None
    duplicates: int  # rows of test sets that are rows of training, too

    @property
    def problems(self) -> set[str]:
        """What `--fail-on` can name."""
        found = {"leak"} if self.samples.leaks else set()
        found |= {"shortcut"} if self.data.threat == "yes" else set()
        found |= {"duplicates"} if self.duplicates else set()
        return found | ({"hurt"} if self.model and self.model.hurt else set())

    def claims(self) -> list[Claim]:
        """The verdict, most urgent first."""
        found = [*leaks(self), about_data(self.data, self.samples.target.name)]
        if self.model is not None:
            found.append(about_model(self.model, self.samples))
        return found

    def rare_cells(self) -> list[str]:
        """Cells of target and attribute with few rows, in words."""
        return list(_rare(self.samples))

    def as_dict(self) -> dict[str, Any]:
        """Everything, for `audit.json`."""
        return {
            "format": FORMAT,
            "name": self.samples.name,
            "rows": len(self.samples),
            "target": self.samples.target.name,
            "shortcuts_threaten": self.data.threat,
            "hidden_correlation": self.data.hides,
            "model_hurt": None if self.model is None else self.model.hurt,
            "problems": sorted(self.problems),
            "verdict": [claim._asdict() for claim in self.claims()],
            "leaking_columns": list(self.samples.leaks),
            "duplicates": self.duplicates,
            "notes": list(self.samples.notes),
            "rare_cells": self.rare_cells(),
            "attributes": [_attribute(finding) for finding in self.data.attributes],
            "model": None if self.model is None else _model(self.model, self.samples),
        }


def audit_samples(samples: Samples, predicted: Array | None = None, draws: int = DRAWS, seed: int = 0) -> DataAudit:
    """Audit data, and predictions (N,) if there are any, as numbers of the target's values; negative where unknown."""
    data = judge(samples, draws, seed)
    modes = data.modes if data.hides == "yes" else None
    model = None if predicted is None else judge_predictions(samples, predicted, modes, seed)
    return DataAudit(samples, data, model, duplicates(samples))


def duplicates(samples: Samples) -> int:
    """Rows of test sets whose inputs are, to rounding, those of a training row."""
    if samples.part is None:
        return 0
    flat = samples.x.reshape(len(samples), -1).astype(float)
    spread = flat.std(0)
    rounded = np.round((flat - flat.mean(0)) / np.where(spread > 0, spread, 1), DECIMALS) + 0.0  # no negative zero
    known = {row.tobytes() for row in rounded[samples.part == "train"]}
    return sum(row.tobytes() in known for row in rounded[samples.part != "train"])


# ------------------------------------------------------------------------------------------------------------- words


def p_text(value: float) -> str:
    """A p-value as it is printed."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def leaks(audit: DataAudit) -> list[Claim]:
    """What makes accuracies too good: columns that determine the target, and test rows that are training rows."""
    found, names = [], audit.samples.leaks
    if names:
        columns = ", ".join(f"`{name}`" for name in names)
        verb = "determines" if len(names) == 1 else "each determine"
        claim = Claim(
            "red",
            f"{columns} {verb} {audit.samples.target.name}.",
            f"If it is known only after {audit.samples.target.name} is, leave it out: "
            f"--exclude {' '.join(names)}. Everything below is computed with it.",
        )
        found.append(claim)
    if audit.duplicates:
        claim = Claim(
            "red",
            "Test rows are training rows.",
            f"{audit.duplicates} rows of the test sets have the inputs of a training row: accuracies are too high.",
        )
        found.append(claim)
    return found


def about_data(data: DataVerdict, target: str) -> Claim:
    """Do shortcuts threaten? This follows from the data alone."""
    order = {"yes": 0, "unclear": 1, "no": 2}
    findings = sorted(data.attributes, key=lambda finding: order[finding.threat])
    reasons = "\n".join(" ".join(sentences(finding, target)) for finding in findings)
    if data.threat == "yes":
        names = " or ".join(finding.name for finding in findings if finding.threat == "yes")
        return Claim("red", f"Shortcuts threaten: a model can use {names} to predict {target}.", reasons)
    if data.threat == "unclear":
        return Claim("amber", "It is unclear whether shortcuts threaten.", reasons)
    return Claim("green", "No shortcut was found.", reasons)


def sentences(f: AttributeFinding, target: str) -> Iterator[str]:
    """What was found about one attribute."""
    yield _plain(f, target)
    yield _hidden(f, target)
    yield _readable(f, target)


def _plain(f: AttributeFinding, target: str) -> str:
    plain = f.plain
    low, high = plain.interval
    numbers = f"{plain.information:.2f} [{low:.2f}, {high:.2f}] of {plain.available:.2f} bits, {p_text(f.plain_p)}"
    if not f.correlated:
        return f"No plain correlation of {target} and {f.name} was found ({numbers})."
    return (
        f"{target} and {f.name} are correlated ({numbers}): from {f.name} alone, {100 * plain.shortcut:.0f} % of rows "
        f"are predicted rightly; by always the same value, {100 * plain.majority:.0f} %."
    )


def _hidden(f: AttributeFinding, target: str) -> str:
    if f.hidden is None:
        return f"Whether kinds of rows correlate with {f.name} cannot be tested: it does not vary within {target}."
    amount = f"{f.hidden.information:.2f} of {f.hidden.available:.2f} bits, {p_text(f.hidden_p)}"
    if f.hides == "yes":
        return f"Hidden correlation: some kinds of rows of the same {target} correlate with {f.name} ({amount})."
    if f.hides == "no":
        return f"No hidden correlation with {f.name} was found ({amount})."
    return (
        f"Rows of the same {target} differ so much between values of {f.name} ({amount}) that kinds of rows cannot be "
        f"distinguished from the effect of {f.name} on the inputs."
    )


def _readable(f: AttributeFinding, target: str) -> str:
    if f.hidden is None:
        return f"So it cannot be tested either whether inputs show {f.name} rather than {target}."
    if f.readable is None:
        return f"Some value of {f.name} is too rare to test whether inputs show it."
    low, high = f.readable.interval
    return (
        f"Inputs {'show' if f.visible else 'do not visibly show'} {f.name}: within {target}, a classifier gains "
        f"{f.readable.information:.2f} [{low:.2f}, {high:.2f}] bits ({100 * f.readable.accuracy:.0f} % right, "
        f"{100 * f.readable.majority:.0f} % without inputs)."
    )


def about_model(model: ModelVerdict, samples: Samples) -> Claim:
    """Is the model hurt?"""
    low, high = model.interval
    overall = (
        f"It is right in {100 * model.accuracy:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of {model.rows} rows; "
        f"balanced {100 * model.balanced:.1f} %, worst cell {100 * model.worst:.1f} %."
    )
    hurt = [cell for cell in model.cells if cell.hurt]
    if not hurt:
        return Claim(
            "green",
            "The model is not visibly hurt.",
            f"{overall} In no cell is the accuracy significantly lower than with other values of the attribute, by "
            f"{100 * GAP:.0f} points or more.",
        )
    cell = hurt[0]
    return Claim(
        "red",
        "The model is hurt.",
        f"{overall} In {len(hurt)} of {len(model.cells)} cells it is significantly lower than with other values of the "
        f"attribute. The worst is {cell_name(cell, samples)}: {100 * cell.accuracy:.1f} %, otherwise "
        f"{100 * cell.rest:.1f} %.",
    )


def kind_name(cell: Cell, samples: Samples) -> str:
    """Value or mode of the target."""
    value = f"{samples.target.name} {samples.target.values[cell.value]}"
    return value if cell.mode < 0 else f"{value}, mode {cell.mode + 1}"


def cell_name(cell: Cell, samples: Samples) -> str:
    """A cell in words."""
    other = samples.others[cell.attribute]
    return f"{kind_name(cell, samples)}, {other.name} {other.values[cell.other]}"


def _rare(samples: Samples) -> Iterator[str]:
    for other in samples.others:
        for v, value in enumerate(samples.target.values):
            for o, name in enumerate(other.values):
                count = int(((samples.target.labels == v) & (other.labels == o)).sum())
                if count < MIN_EXPECTED:
                    rows = "no row" if count == 0 else "1 row" if count == 1 else f"{count} rows"
                    yield f"{samples.target.name} {value}, {other.name} {name}: {rows}"


# -------------------------------------------------------------------------------------------------------------- JSON


def _attribute(f: AttributeFinding) -> dict[str, Any]:
    return {
        "name": f.name,
        "threat": f.threat,
        "plain": {
            "bits": f.plain.information,
            "interval_95": f.plain.interval,
            "available_bits": f.plain.available,
            "p_value": f.plain_p,
            "accuracy_of_attribute_alone": f.plain.shortcut,
            "accuracy_of_most_frequent": f.plain.majority,
        },
        "hidden": None
        if f.hidden is None
        else {
            "answer": f.hides,
            "bits": f.hidden.information,
            "available_bits": f.hidden.available,
            "share": f.hidden.share,
            "p_value": f.hidden_p,
            "permutations": f.hidden.draws,
        },
        "readable": None
        if f.readable is None
        else {
            "bits": f.readable.information,
            "interval_95": f.readable.interval,
            "p_value": f.readable.p_value,
            "accuracy": f.readable.accuracy,
            "accuracy_without_inputs": f.readable.majority,
        },
    }


def _model(model: ModelVerdict, samples: Samples) -> dict[str, Any]:
    return {
        "accuracy": model.accuracy,
        "interval_95": model.interval,
        "balanced_accuracy": model.balanced,
        "worst_cell_accuracy": None if np.isnan(model.worst) else model.worst,
        "rows": model.rows,
        "cells": [
            {
                "test": cell.test,
                "target": samples.target.values[cell.value],
                "mode": None if cell.mode < 0 else cell.mode + 1,
                "attribute": samples.others[cell.attribute].name,
                "value": samples.others[cell.attribute].values[cell.other],
                "accuracy": cell.accuracy,
                "interval_95": cell.interval,
                "rows": cell.count,
                "otherwise": None if np.isnan(cell.rest) else cell.rest,
                "p_value": cell.p_value,
                "hurt": cell.hurt,
            }
            for cell in model.cells
        ],
        "simulation": [
            {
                "attribute": samples.others[s.attribute].name,
                "correlation": DIAL,
                "accuracy": s.accuracy,
                "weight_without_rows": s.missing,
            }
            for s in model.simulations
        ],
    }
