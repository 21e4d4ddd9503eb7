"""The audit as one HTML page: a verdict in plain words, then the modes, tables and pictures that support it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from codid_lightning.analysis.audit import GAP, LEVEL, Association, Audit, AuditCell, Finding
from codid_lightning.analysis.evaluation import LoadedRun
from codid_lightning.analysis.pages.exemplars import exemplars
from codid_lightning.analysis.pages.page import PageCell, PageTable, Picture, render, row
from codid_lightning.analysis.pages.verdict import Names, p_text, verdict
from codid_lightning.metrics.groups import MIN_GROUP_SIZE
from datamodules.base import AttributeDataModule

EXEMPLARS = 8  # samples shown per mode
WORST = 12  # cells shown at least


class ModeView(NamedTuple):
    """One mode: samples of it, and how the other attributes are distributed in it."""

    title: str
    picture: Picture
    mix: str


def audit_page(run: LoadedRun, found: Audit) -> str:
    """The whole page."""
    names = Names(run.data, found)
    return render(
        "audit.html.j2",
        title=f"Audit of {run.name}",
        verdict=verdict(found, names),
        attribute=names.attributes[0],
        source=found.modes.source,
        modes=[_mode(run.data, found, names, mode) for mode in found.modes.ids],
        information=_information_table(found.findings, names),
        associations=_association_table(found.associations, names),
        cells=_cell_table(found, names),
        leakage=_leakage_table(found, names),
    )


def _mode(data: AttributeDataModule, found: Audit, names: Names, mode: int) -> ModeView:
    inside = found.modes.labels == mode
    train = data.datasets["train"]
    mixes = []
    for q in range(1, len(names.attributes)):
        shares = train.a[inside, q].bincount(minlength=len(names.values[q])) / inside.sum()
        mixes.append(f"{names.attributes[q]}: {names.shares(q, shares)}")
    of_value = found.modes.values == mode // found.modes.slots
    size = f"{int(inside.sum())} samples, {100 * float(inside.sum() / of_value.sum()):.0f} % of this value"
    picture = exemplars(train.inputs(found.modes.nearest(mode, EXEMPLARS)), f"{names.mode(mode)}: {size}")
    return ModeView(names.mode(mode), picture, "; ".join(mixes))


def _information_table(findings: Sequence[Finding], names: Names) -> PageTable:
    rows = [
        row(
            names.attributes[f.attribute],
            f"{f.information:.3f}",
            f"{f.by_chance:.3f}",
            f"{f.available:.3f}",
            PageCell(f"{100 * f.share:.0f} %", f.correlated),
            p_text(f.p_value),
        )
        for f in findings
    ]
    head = ("attribute a", "I(c₁; a | a₁), bits", "by chance, bits", "H(a | a₁), bits", "share", "p")
    note = "The p-values are from permutations of a within each value of a₁, with Holm's correction over attributes."
    return PageTable(head, rows, note)


def _association_table(associations: Sequence[Association], names: Names) -> PageTable:
    rows = [
        row(
            names.mode(a.mode),
            names.attributes[a.attribute],
            names.shares(a.attribute, a.inside),
            names.shares(a.attribute, a.outside),
            f"{a.strength:.2f}",
            PageCell(p_text(a.p_value), a.p_value < LEVEL),
        )
        for a in associations
    ]
    head = ("mode", "attribute", "in this mode", "in the other modes of its value", "Cramér's V", "p")
    note = (
        "Each mode is compared with the other modes of its value by a chi-squared test without continuity correction, "
        f"with Holm's correction over all {len(rows)} rows. Values below {LEVEL:g} are highlighted."
    )
    return PageTable(head, rows, note)


def _cell_table(found: Audit, names: Names) -> PageTable:
    total = sum(n for _, n in found.accuracies.values())
    overall = sum(accuracy * n for accuracy, n in found.accuracies.values()) / total
    shown = found.cells[: max(WORST, sum(cell.hurt for cell in found.cells))]
    left = len(found.cells) - len(shown)
    note = (
        f"The worst cells of each test set ({', '.join(found.accuracies)}) first"
        f"{f'; {left} better cells are not shown' if left else ''}. A test sample has the mode of its nearest training "
        f"samples. Highlighted: {100 * GAP:.0f} points or more below the accuracy of all samples, {100 * overall:.1f} "
        "%. Otherwise: the same mode with other values of the attribute, or all modes of its value if it has fewer "
        f"than {MIN_GROUP_SIZE} such samples. p: one-sided Fisher's exact test of the two, with Holm's correction."
    )
    head = ("test set", "mode", "cell", "accuracy", "otherwise", "test samples", "training samples", "p")
    return PageTable(head, [_cell_row(cell, overall, names) for cell in shown], note)


def _cell_row(cell: AuditCell, overall: float, names: Names) -> list[PageCell]:
    low = cell.hurt or (cell.count >= MIN_GROUP_SIZE and overall - cell.accuracy >= GAP)
    return row(
        cell.test,
        names.mode(cell.mode),
        names.cell(cell.attribute, cell.value),
        PageCell(f"{100 * cell.accuracy:.1f} %", low),
        "–" if cell.rest != cell.rest else f"{100 * cell.rest:.1f} %",
        str(cell.count),
        str(cell.training),
        PageCell(p_text(cell.p_value), cell.hurt),
    )


def _leakage_table(found: Audit, names: Names) -> PageTable:
    rows = [
        row(
            names.attributes[f.attribute],
            f"{f.leaked:.3f}",
            f"{f.entropy:.3f}",
            f"{f.explained:.3f}",
            f"{100 * f.probe:.1f} %",
            f"{100 * f.majority:.1f} %",
        )
        for f in found.findings
    ]
    bits = ("in z₁, bits", "H(a), bits", "in the modes alone, bits")
    note = (
        f"Measured on {found.probed}. Information about a that the modes contain cannot be removed without losing the "
        "modes; what z₁ contains beyond it is leakage. The last two columns are accuracies: of a linear probe of a on "
        "z₁, and of always predicting the most frequent value."
    )
    return PageTable(("attribute a", *bits, "linear probe", "most frequent value"), rows, note)
