"""Pictures of some samples of a mode: images, signals or plain numbers."""

import io

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from codid_lightning.analysis.figures.style import COLORS, figure_style, new_figure
from codid_lightning.analysis.pages.page import Picture, to_picture

SIDE = 56  # pixels of an image


def exemplars(x: Tensor, caption: str) -> Picture:
    """Samples (n, ...) as images side by side, as traces of every channel, or as a line over their inputs."""
    if x.ndim == 4 and x.shape[1] in (1, 3):
        return Picture(caption, _images(x))
    with figure_style():
        return to_picture(caption, _traces(x) if x.ndim == 3 else _features(x.flatten(1)), dpi=110)


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
        panel.set(title=f"channel {channel + 1}", xlabel="time step", xticks=[])
    return figure


def _features(x: Tensor) -> Figure:
    figure, axes = new_figure(1, 1, 3.0, 1.1)
    axes[0, 0].plot(x.T.numpy(), color=COLORS[0], marker="o", markersize=2, linewidth=0.6, alpha=0.6)
    axes[0, 0].set(xlabel="input", ylabel="value", xticks=range(x.shape[1]) if x.shape[1] <= 12 else [])
    return figure
