"""What `codid auto` found, tried and chose, as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from codid_lightning.analysis.auto.search import AutoResult, Tried
from codid_lightning.analysis.data_audit.model import DIAL, ModelVerdict
from codid_lightning.analysis.data_audit.report import Claim, about_data, leaks
from codid_lightning.analysis.pages.data_audit_page import WORDS, accuracy_map
from codid_lightning.analysis.pages.page import PageCell, PageTable, render, row

CHANGED = 30  # rows shown


def auto_page(result: AutoResult, folder: Path, command: str) -> str:
    """The whole page.

    Args:
        result: Of `auto`.
        folder: Where the model is.
        command: That predicts new rows.
    """
    samples = result.audit.samples
    pairs = [(result.before, f"Plain: {result.base.candidate.title}")]
    if result.chosen is not result.base:
        pairs.append((result.after, f"Chosen: {result.chosen.candidate.title}"))
    maps = [
        accuracy_map(samples, m, q, f"{title}, by {samples.others[q].name}")
        for q in range(len(samples.others))
        for m, title in pairs
    ]
    return render(
        "auto.html.j2",
        title=f"A model for {samples.target.name} from {samples.name}",
        claims=claims(result),
        words=WORDS,
        tried=_tried(result),
        left_out=result.left_out,
        proof=_proof(result),
        maps=maps,
        changed=_changed(result),
        command=command,
        python=_python(result, folder),
        limits=_limits(result),
        notes=samples.notes,
    )


def claims(result: AutoResult) -> list[Claim]:
    """Data, choice and proof, a sentence each."""
    audit, before, after = result.audit, result.before, result.after
    found = leaks(audit)
    found.append(about_data(audit.data, audit.samples.target.name))
    found.append(Claim("green", f"Chosen: {result.chosen.candidate.title}.", result.reason))
    proof = (
        f"On {after.rows} test rows it is right in {100 * after.accuracy:.1f} % [{100 * after.interval[0]:.1f}, "
        f"{100 * after.interval[1]:.1f}], in the worst cell in {100 * after.worst:.1f} %; the plain model in "
        f"{100 * before.accuracy:.1f} % and {100 * before.worst:.1f} %."
    )
    if after.hurt:
        found.append(Claim("amber", "Some cells are still predicted worse than others.", proof))
    else:
        found.append(Claim("green", "No cell of the test rows is predicted significantly worse.", proof))
    return found


def as_dict(result: AutoResult) -> dict[str, Any]:
    """Everything, for `auto.json`."""
    return {
        "format": 1,
        "verdict": [claim._asdict() for claim in claims(result)],
        "chosen": result.chosen.candidate.key,
        "plain": result.base.candidate.key,
        "tried": [
            {
                "candidate": t.candidate.key,
                "robust": t.candidate.robust,
                "accuracy": t.accuracy,
                "accuracy_without_correlation": t.independent,
                "worst_cell": t.worst,
                "gain": t.gain,
                "p_value": t.p_value,
                "seconds": t.seconds,
            }
            for t in result.tried
        ],
        "left_out": list(result.left_out),
        "test_before": _numbers(result.before),
        "test_after": _numbers(result.after),
        "changed": [list(entry) for entry in result.changed],
        "audit": result.audit.as_dict(),
    }


def _numbers(verdict: ModelVerdict) -> dict[str, Any]:
    return {
        "rows": verdict.rows,
        "accuracy": verdict.accuracy,
        "interval_95": verdict.interval,
        "balanced_accuracy": verdict.balanced,
        "worst_cell": verdict.worst,
        "without_correlation": [s.accuracy[DIAL.index(0)] for s in verdict.simulations],
        "reversed": [s.accuracy[-1] for s in verdict.simulations],
    }


def _tried(result: AutoResult) -> PageTable:
    head = ("candidate", "without correlation", "as it is", "worst cell", "gain", "p", "seconds")
    note = (
        "Accuracy on training rows, each predicted by a model that was not trained on it (five folds). Without "
        "correlation: rows are re-weighted as if target and other attributes were independent; the gain is over the "
        "plain model. p-values are one-sided; a gain counts if p times the number of candidates against shortcuts is "
        "below 0.05. Test rows took no part."
    )
    return PageTable(head, [_tried_row(t, result) for t in result.tried], note)


def _tried_row(t: Tried, result: AutoResult) -> list[PageCell]:
    mark = " (chosen)" if t is result.chosen else " (plain)" if t is result.base else ""
    numbers = (t.independent, t.accuracy, t.worst)
    shown = [f"{100 * n:.1f} %" if n == n else "–" for n in numbers]
    return row(t.candidate.key + mark, *shown, f"{100 * t.gain:+.1f}", f"{t.p_value:.4f}", f"{t.seconds:.1f}")


def _proof(result: AutoResult) -> PageTable:
    names = [other.name for other in result.audit.samples.others]
    head = ["model", "accuracy", "balanced", "worst cell"]
    for name in names:
        head += [f"{name} independent", f"{name} reversed"]
    rows = []
    for title, verdict in (("plain", result.before), ("chosen", result.after)):
        turned = [f"{100 * s.accuracy[i]:.1f} %" for s in verdict.simulations for i in (DIAL.index(0), -1)]
        rows.append(
            row(title, *(f"{100 * n:.1f} %" for n in (verdict.accuracy, verdict.balanced, verdict.worst)), *turned)
        )
    note = "Test rows as they are, and re-weighted: target and attribute independent, or with the reverse correlation."
    return PageTable(head, rows, note)


def _changed(result: AutoResult) -> PageTable:
    rows = [
        row(str(number + 1), value, PageCell(one, one != value), PageCell(other, other != value))
        for number, value, one, other in result.changed[:CHANGED]
    ]
    right = sum(other == value for _, value, _, other in result.changed)
    wrong = sum(one == value for _, value, one, _ in result.changed)
    note = f"{len(result.changed)} rows: {right} are right now, {wrong} were right before."
    return PageTable(("row", "value", "plain", "chosen"), rows, note)


def _python(result: AutoResult, folder: Path) -> str:
    read = "pandas.read_csv('new.csv')" if result.model.encoder else "numpy.load('new.npy')"
    lines = (
        f"import {'pandas' if result.model.encoder else 'numpy'}",
        "from codid_lightning.analysis.auto import AutoModel",
        f"print(AutoModel.load({str(folder)!r}).predict({read}))",
    )
    return "\n".join(lines)


def _limits(result: AutoResult) -> str:
    if not result.model.fitted.needs_site:
        return "New rows need the columns of the inputs only."
    names = ", ".join(name for name, _ in result.model.others)
    return f"New rows need {names}, too. Rows of values that training did not have are used as they are measured."
