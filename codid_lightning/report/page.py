"""One HTML file with tables and figures, readable without a network."""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from codid_lightning.report.render import LEGEND, to_html
from codid_lightning.report.tables import Table

STYLE = """
:root { --ink: #1a1a1a; --soft: #5c5c5c; --rule: #d0d0d0; --warn: #b3261e; --shade: #f5f5f5 }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.2rem } h3 { font-size: 1rem; margin-bottom: .3rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem }
th, td { padding: .25rem .6rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--rule) }
td { white-space: nowrap }
th[scope=row], th:first-child { text-align: left } thead th { background: var(--shade); text-align: center }
.scroll { overflow-x: auto } .paper, .note { color: var(--soft) } .paper { font-size: .75rem }
.missing, .warn { color: var(--warn) } figure { margin: 1rem 0 } figcaption { color: var(--soft); font-size: .85rem }
img { max-width: 100% } .answer { border-left: 4px solid var(--rule); padding: .2rem 1rem; background: var(--shade) }
td.bad { background: #fde7e5; color: var(--warn); font-weight: 600 }
.strip { display: flex; gap: 1rem; flex-wrap: wrap }
@media print { body { max-width: none; font-size: 11px } h2 { break-after: avoid } figure, tr { break-inside: avoid } }
"""


class Picture(NamedTuple):
    """An image with its caption, embedded in the page."""

    caption: str
    media_type: str
    content: bytes

    def html(self) -> str:
        """A `figure` element."""
        source = f"data:{self.media_type};base64,{base64.b64encode(self.content).decode()}"
        text = html.escape(self.caption)
        return f'<figure><img src="{source}" alt="{text}"><figcaption>{text}</figcaption></figure>'


def drawn(caption: str, figure: Figure, dpi: int = 150) -> Picture:
    """A matplotlib figure as a picture."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi, bbox_inches="tight")
    return Picture(caption, "image/png", content.getvalue())


def saved(directories: Iterable[Path]) -> list[Picture]:
    """The PNG files in the `figures` folders of run directories."""
    files = sorted(file for directory in directories for file in (directory / "figures").glob("*.png"))
    return [Picture(f"{file.stem} ({file.parent.parent.name})", "image/png", file.read_bytes()) for file in files]


def page(title: str, body: str) -> str:
    """A whole document around an already escaped body."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{html.escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def report_page(tables: Sequence[Table], pictures: Sequence[Picture], complaints: Sequence[str]) -> str:
    """The report: tables, figures, and what was left out."""
    parts = [f'<p class="note">{html.escape(LEGEND)}</p>', to_html(tables)]
    if pictures:
        parts += ["<h2>Figures</h2>", *(picture.html() for picture in pictures)]
    if complaints:
        items = "".join(f"<li>{html.escape(complaint)}</li>" for complaint in complaints)
        parts.append(f"<h2>Left out</h2><ul>{items}</ul>")
    return page("Results", "\n".join(parts))
