"""The style of all figures: readable in print, in grey and with any colour vision."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import CSS4_COLORS, LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure

# Okabe & Ito's palette: distinguishable with any form of colour blindness. Black is kept for text and centroids.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7F7F7F", "#B8A800")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")  # shapes distinguish classes where colours cannot
DASHES = ((), (4, 1.5), (1, 1), (4, 1, 1, 1), (6, 2), (2, 1))
HIGHLIGHT = "codid"

# Names of colours, those that are too light for a white background as a darker shade.
_DARKER = {"white": "#BDBDBD", "yellow": "#E6C700", "cyan": "#00B7C2", "lime": "#5DBB2F"}
_READABLE: dict[str, Any] = CSS4_COLORS | _DARKER

_SETTINGS: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "figure.dpi": 200,
    "savefig.bbox": "tight",
    "svg.hashsalt": "codid",  # the same figure gives the same file
    "pdf.fonttype": 42,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the style to the figures drawn in this block."""
    with mpl.rc_context(_SETTINGS):
        yield


def new_figure(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, np.ndarray]:
    """A figure with a grid of axes; width and height are inches per panel. It does not use pyplot's global state."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes: np.ndarray = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def save(figure: Figure, path: Path) -> Path:
    """Write the figure; the ending of the path is the format (pdf, png, svg)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if path.suffix == ".svg" else {}
    with figure_style():
        figure.savefig(path, metadata=metadata)
    return path


def line_style(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of the `index`-th line; each alone distinguishes the lines."""
    return {
        "color": COLORS[index % len(COLORS)],
        "dashes": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def value_colors(names: Sequence[str], first: int = 0) -> list[Any]:
    """A colour per value: the one it is named after (`red`), or else the next of the palette from `first` on."""
    palette = [COLORS[(first + i) % len(COLORS)] for i in range(len(names))]
    return [_READABLE.get(name.strip().lower(), other) for name, other in zip(names, palette, strict=True)]


def shades(color: str, count: int) -> list[Any]:
    """`count` shades of one colour, dark to light, none of them close to white."""
    middle = np.array(to_rgb(color))
    scale = LinearSegmentedColormap.from_list("shades", np.stack([0.55 * middle, middle, 1 - 0.45 * (1 - middle)]))
    return [scale(i / max(1, count - 1)) for i in range(count)]


def hide_scales(axes: Axes) -> None:
    """Remove the ticks: the coordinates of an embedding have no meaning."""
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, color="0.7", linewidth=0.6)


def shared_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend below the figure for the lines of all panels."""
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(6, len(handles)))
