"""HTML pages from Jinja2 templates: each is one file that needs no network. Every value is escaped."""

import base64
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.figure import Figure

_TEMPLATES = Environment(
    loader=PackageLoader("codid_lightning.analysis.pages"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


class Picture(NamedTuple):
    """An image with its caption."""

    caption: str
    content: bytes  # PNG

    @property
    def source(self) -> str:
        """The image as a URL that contains it."""
        return f"data:image/png;base64,{base64.b64encode(self.content).decode()}"


class PageCell(NamedTuple):
    """The text of a table's cell, and whether the page highlights it."""

    text: str
    highlighted: bool = False


class PageTable(NamedTuple):
    """A table with one line of headings; the first cell of each row is its heading."""

    head: Sequence[str]
    rows: Sequence[Sequence[PageCell]]
    note: str = ""


def row(*cells: str | PageCell) -> list[PageCell]:
    """A row of a table; plain text is not highlighted."""
    return [PageCell(cell) if isinstance(cell, str) else cell for cell in cells]


def render(template: str, **values: Any) -> str:
    """Fill a template of this package, for example `report.html.j2`."""
    return _TEMPLATES.get_template(template).render(**values)


def to_picture(caption: str, figure: Figure, dpi: int = 150) -> Picture:
    """A matplotlib figure as a picture."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi, bbox_inches="tight")
    return Picture(caption, content.getvalue())


def saved_pictures(directories: Iterable[tuple[str, Path]]) -> list[Picture]:
    """The PNG files in the `figures` folders of run directories, each given after what to call its run."""
    files = sorted((file, name) for name, folder in directories for file in (folder / "figures").glob("*.png"))
    return [Picture(f"{file.stem} ({name})", file.read_bytes()) for file, name in files]
