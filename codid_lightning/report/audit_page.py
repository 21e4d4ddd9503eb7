"""The audit as one HTML page: a verdict in plain words, then the modes, tables and pictures behind it."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from codid_lightning.audit import GAP, LEVEL, Association, Audit, Cell, Finding
from codid_lightning.evaluation import SMALLEST_GROUP, LoadedRun
from codid_lightning.figures.style import COLORS, new_figure, printed
from codid_lightning.report.page import Picture, drawn, page
from datamodules.base import AttributeDataModule

EXEMPLARS = 8
SIDE = 56  # pixels of an exemplar
WORST = 12
escape = html.escape


def audit_page(run: LoadedRun, found: Audit) -> str:
    """The whole page; everything that comes from data is escaped."""
    names = Names(run.data, found)
    parts = [
        _verdict(found, names),
        "<h2>The discovered modes</h2>",
        f"<p>Modes of {escape(names.attributes[0])} are {escape(found.modes.source)}, in the training set. The "
        "pictures are the samples nearest to each mode's centroid.</p>",
        *(_mode(run.data, found, names, mode) for mode in found.modes.ids),
        "<h2>How each mode correlates with the other attributes</h2>",
        _information_table(found.findings, names),
        _association_table(found.associations, names),
        "<h2>Accuracy in each cell of mode and attribute</h2>",
        _cell_table(found, names),
        "<h2>How much the other attributes leak into z<sub>1</sub></h2>",
        _leakage_table(found, names),
    ]
    return page(f"Audit of {run.name}", "\n".join(parts))


class Names:
    """How attributes, values and modes are written; escaped where they enter the page, not here."""

    def __init__(self, data: AttributeDataModule, found: Audit) -> None:
        self.attributes, self.values, self.modes = data.attribute_names, data.value_names, found.modes

    def mode(self, mode: int) -> str:
        """Value and number of a mode."""
        return self.modes.title(mode, self.values[0])

    def shares(self, attribute: int, shares: Tensor, most: int = 4) -> str:
        """The most frequent values with their shares."""
        top = shares.argsort(descending=True)[:most].sort().values.tolist()
        text = ", ".join(f"{self.values[attribute][v]} {100 * shares[v]:.0f} %" for v in top)
        return text + (", …" if len(shares) > most else "")


# ------------------------------------------------------------------------------------------------------------ verdict


def _verdict(found: Audit, names: Names) -> str:
    sentences = [_about_data(found, names), _about_model(found, names), _about_leakage(found, names)]
    items = "".join(f"<p><strong>{escape(head)}</strong> {escape(text)}</p>" for head, text in sentences)
    return f'<div class="answer">{items}</div>'


def _about_data(found: Audit, names: Names) -> tuple[str, str]:
    """Does the data hide correlations?"""
    first = names.attributes[0]
    if found.hidden == "no":
        return (
            "No hidden correlation was found.",
            f"Under each value of {first}, its discovered modes are as independent of the other attributes as chance "
            "allows, or too weakly tied to them to matter.",
        )
    tied = [f for f in found.findings if f.correlated]
    text = "; ".join(
        f"the modes of {first} carry {100 * f.share:.0f} % of the information about {names.attributes[f.attribute]} "
        f"({f.information:.3f} bits, by chance {f.by_chance:.3f}, p = {_p(f.p_value)})"
        for f in tied
    )
    if found.hidden == "yes":
        return "The data hides correlations:", f"under a fixed value of {first}, {text}."
    return (
        "It cannot be told whether the data hides correlations:",
        f"under a fixed value of {first}, {text}. So much that the modes found are mostly that attribute itself: this "
        "model's z1 groups samples by it. Audit a model that keeps the two apart before you conclude anything about "
        "the data.",
    )


def _about_model(found: Audit, names: Names) -> tuple[str, str]:
    """Is the model hurt?"""
    shown = ", ".join(f"{100 * accuracy:.1f} % on {test}" for test, (accuracy, _) in found.accuracies.items())
    overall = f"Its accuracy for {names.attributes[0]} is {shown}."
    hurt = [cell for cell in found.cells if cell.hurt]
    if not found.hurt:
        return (
            "The model is not visibly hurt.",
            f"{overall} In no cell of mode and attribute is it significantly lower, by {100 * GAP:.0f} points or more, "
            "than with other values of the attribute.",
        )
    texts = [overall]
    if found.falls:
        best, worst = found.extremes
        texts.append(f"It falls from {best} to {worst}: the model relies on what changed between them.")
    if hurt:
        cell, count = hurt[0], "one" if len(hurt) == 1 else str(len(hurt))
        where = f"{names.attributes[cell.attribute]} = {names.values[cell.attribute][cell.value]}"
        texts.append(
            f"In {count} of {len(found.cells)} cells it is significantly lower; for {names.mode(cell.mode)} with "
            f"{where} it is {100 * cell.accuracy:.1f} %, otherwise {100 * cell.rest:.1f} %."
        )
    return "The model is hurt.", " ".join(texts)


def _about_leakage(found: Audit, names: Names) -> tuple[str, str]:
    """How much do the other attributes leak?"""
    texts = [
        f"{f.leaked:.2f} of {f.entropy:.2f} bits about {names.attributes[f.attribute]}, of which the modes alone tell "
        f"{min(f.explained, f.entropy):.2f}"
        for f in found.findings
    ]
    return "Leakage:", f"on {found.probed}, z1 tells " + "; ".join(texts) + "."


# -------------------------------------------------------------------------------------------------------------- modes


def _mode(data: AttributeDataModule, found: Audit, names: Names, mode: int) -> str:
    """A mode's size, its mix of the other attributes and its exemplars."""
    inside = found.modes.labels == mode
    train = data.datasets["train"]
    mixes = []
    for q in range(1, len(names.attributes)):
        shares = train.a[inside, q].bincount(minlength=len(names.values[q])) / inside.sum()
        mixes.append(f"{names.attributes[q]}: {names.shares(q, shares)}")
    of_value = found.modes.values == mode // found.modes.slots
    size = f"{int(inside.sum())} samples, {100 * float(inside.sum() / of_value.sum()):.0f} % of this value"
    picture = exemplars(train.inputs(found.modes.nearest(mode, EXEMPLARS)), f"{names.mode(mode)}: {size}")
    return f"<h3>{escape(names.mode(mode))}</h3>{picture.html()}<p>{escape('; '.join(mixes))}</p>"


def exemplars(x: Tensor, caption: str) -> Picture:
    """Samples (n, ...) as images side by side, as traces of every channel, or as their numbers."""
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return Picture(caption, "image/png", _images(x))
    with printed():
        return drawn(caption, _traces(x) if x.ndim == 3 else _features(x.flatten(1)), dpi=110)


def _images(x: Tensor) -> bytes:
    tiles = (x.clamp(0, 1) * 255).byte().expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy()
    scaled = [np.asarray(Image.fromarray(tile).resize((SIDE, SIDE), Image.Resampling.NEAREST)) for tile in tiles]
    gap = np.full((SIDE, 4, 3), 255, dtype=np.uint8)
    strip = np.concatenate([part for tile in scaled for part in (tile, gap)][:-1], axis=1)
    out = io.BytesIO()
    Image.fromarray(strip).save(out, format="PNG")
    return out.getvalue()


def _traces(x: Tensor) -> Figure:
    figure, axes = new_figure(1, x.shape[1], 2.0, 1.1, sharey=True)
    for channel, panel in enumerate(axes[0]):
        panel.plot(x[:, channel].T.numpy(), color=COLORS[0], linewidth=0.6, alpha=0.6)
        panel.set(title=f"channel {channel + 1}", xticks=[])
    return figure


def _features(x: Tensor) -> Figure:
    figure, axes = new_figure(1, 1, 3.0, 1.1)
    axes[0, 0].plot(x.T.numpy(), color=COLORS[0], marker="o", markersize=2, linewidth=0.6, alpha=0.6)
    axes[0, 0].set(xlabel="input", xticks=range(x.shape[1]) if x.shape[1] <= 12 else [])
    return figure


# ------------------------------------------------------------------------------------------------------------- tables


class Bad(str):
    """A cell to be highlighted."""


def _marked(bad: bool, text: str) -> str:
    return Bad(text) if bad else text


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of already escaped cells."""

    def cell(text: str) -> str:
        return f'<td class="bad">{text}</td>' if isinstance(text, Bad) else f"<td>{text}</td>"

    titles = "".join(f"<th>{title}</th>" for title in head)
    body = "".join(f'<tr><th scope="row">{first}</th>{"".join(map(cell, rest))}</tr>' for first, *rest in rows)
    return f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _information_table(findings: Sequence[Finding], names: Names) -> str:
    rows = [
        (
            escape(names.attributes[f.attribute]),
            f"{f.information:.3f}",
            f"{f.by_chance:.3f}",
            f"{f.available:.3f}",
            _marked(f.correlated, f"{100 * f.share:.0f} %"),
            escape(_p(f.p_value)),
        )
        for f in findings
    ]
    head = ("attribute a", "I(c<sub>1</sub>; a | a<sub>1</sub>), bits", "by chance", "H(a | a<sub>1</sub>), bits")
    note = "p-values by permutation of a within each value of a<sub>1</sub>, corrected by Holm over attributes."
    return _table((*head, "share", "p"), rows) + f'<p class="note">{note}</p>'


def _association_table(associations: Sequence[Association], names: Names) -> str:
    if not associations:
        return "<p>No value has more than one mode.</p>"
    rows = [
        (
            escape(names.mode(a.mode)),
            escape(names.attributes[a.attribute]),
            escape(names.shares(a.attribute, a.inside)),
            escape(names.shares(a.attribute, a.outside)),
            f"{a.strength:.2f}",
            _marked(a.p_value < LEVEL, escape(_p(a.p_value))),
        )
        for a in associations
    ]
    note = (
        "Each mode against the other modes of its value: chi-squared tests without continuity correction, corrected "
        f"by Holm over all {len(rows)} rows; marked below {LEVEL:g}."
    )
    head = ("mode", "attribute", "in this mode", "in the value's other modes", "Cramér's V", "p")
    return _table(head, rows) + f'<p class="note">{note}</p>'


def _cell_table(found: Audit, names: Names) -> str:
    def row(c: Cell) -> tuple[str, ...]:
        value = escape(f"{names.attributes[c.attribute]} = {names.values[c.attribute][c.value]}")
        low = c.hurt or (c.count >= SMALLEST_GROUP and overall - c.accuracy >= GAP)
        accuracy, p = _marked(low, f"{100 * c.accuracy:.1f} %"), _marked(c.hurt, escape(_p(c.p_value)))
        rest = "–" if c.rest != c.rest else f"{100 * c.rest:.1f} %"
        return escape(names.mode(c.mode)), value, accuracy, rest, str(c.count), str(c.training), p

    total = sum(n for _, n in found.accuracies.values())
    overall = sum(accuracy * n for accuracy, n in found.accuracies.values()) / total

    shown = found.cells[: max(WORST, sum(cell.hurt for cell in found.cells))]
    left = len(found.cells) - len(shown)
    rest = f", {left} better cells left out" if left else ""
    note = (
        f"On {', '.join(found.accuracies)} together, the worst first{rest}; test samples get the mode of their nearest "
        f"training samples. Marked: {100 * GAP:.0f} points or more below the {100 * overall:.1f} % of all samples. "
        "Otherwise: the same mode with other values of the attribute, or all modes of its value where it has fewer "
        f"than {SMALLEST_GROUP} such samples. p: Fisher's exact test of the two, one-sided, corrected by Holm."
    )
    head = ("mode", "cell", "accuracy", "otherwise", "test samples", "training samples", "p")
    return _table(head, map(row, shown)) + f'<p class="note">{escape(note)}</p>'


def _leakage_table(found: Audit, names: Names) -> str:
    rows = [
        (
            escape(names.attributes[f.attribute]),
            f"{f.leaked:.3f}",
            f"{f.entropy:.3f}",
            f"{f.explained:.3f}",
            f"{100 * f.probe:.1f} %",
            f"{100 * f.majority:.1f} %",
        )
        for f in found.findings
    ]
    note = (
        f"Measured on {escape(found.probed)}. What the modes alone tell cannot be removed without losing them; what "
        "z<sub>1</sub> tells beyond it is leakage."
    )
    head = ("attribute a", "bits in z<sub>1</sub>", "of H(a)", "told by the modes alone", "linear probe", "guessing")
    return _table(head, rows) + f'<p class="note">{note}</p>'
