"""The data sets of benchmarks/clustering.py, none of them downloaded, and their fixed split into two halves.

Methods are developed on `DEVELOPMENT` alone; `HELD_OUT` is for one run at the end. Both have a set of every kind:
tables, embeddings of images and of signals, features as deep networks have them, and Gaussian, elongated, unequal,
heavy-tailed and noisy mixtures. Embeddings are computed once, with fixed seeds, and kept in a cache folder.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE, SpectralEmbedding
from sklearn.preprocessing import StandardScaler

Samples = tuple[np.ndarray, np.ndarray]  # (N, d) in float32, and classes (N,)

_IMAGES = 2000
_WINDOWS = 1800


def gaussians(n: int, k: int, d: int, distance: float, seed: int, unequal: bool = False) -> Samples:
    """Unit Gaussians, the nearest two means `distance` apart; `unequal` shares fall geometrically from 1 to 1/20."""
    generator = np.random.default_rng(seed)
    y = generator.choice(k, n, p=_shares(k, unequal))
    return _means(generator, k, d, distance)[y] + generator.normal(size=(n, d)), y


def elongated(n: int, k: int, d: int, distance: float, ratio: float, seed: int) -> Samples:
    """Gaussians whose widest axis, at random, is `ratio` times their others."""
    generator = np.random.default_rng(seed)
    y = generator.choice(k, n)
    axes = generator.normal(size=(k, d))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    noise = generator.normal(size=(n, d))
    along = (noise * axes[y]).sum(1, keepdims=True)
    return _means(generator, k, d, distance)[y] + noise + (ratio - 1) * along * axes[y], y


def tailed(n: int, k: int, d: int, distance: float, freedom: float, seed: int) -> Samples:
    """Multivariate t distributions."""
    generator = np.random.default_rng(seed)
    y = generator.choice(k, n)
    width = np.sqrt(freedom / generator.chisquare(freedom, size=(n, 1)))
    return _means(generator, k, d, distance)[y] + width * generator.normal(size=(n, d)), y


def noisy(n: int, k: int, d: int, distance: float, share: float, seed: int) -> Samples:
    """Unit Gaussians and, as a class of its own, samples uniform in their bounding box."""
    generator = np.random.default_rng(seed)
    x, y = gaussians(n, k, d, distance, seed)
    drawn = generator.random(n) < share
    box = generator.uniform(x.min(0), x.max(0), size=(n, d))
    return np.where(drawn[:, None], box, x), np.where(drawn, k, y)


def deep_features(n: int, k: int, d: int, within: float, seed: int) -> Samples:
    """Classes of different shapes in a 16-d space, through one random layer with ReLU, on the unit sphere."""
    generator = np.random.default_rng(seed)
    inner = 16
    y = generator.choice(k, n)
    shapes = generator.normal(size=(k, inner, inner)) / np.sqrt(inner)
    hidden = generator.normal(size=(k, inner))[y]
    hidden = hidden + within * np.einsum("nij,nj->ni", shapes[y], generator.normal(size=(n, inner)))
    x = np.maximum(hidden @ generator.normal(size=(inner, d)), 0)
    return x / np.linalg.norm(x, axis=1, keepdims=True), y


def large(n: int = 1_000_000) -> Samples:
    """A million samples of twenty Gaussians in ten dimensions, for time and memory."""
    return gaussians(n, 20, 10, 6, seed=90)


def _means(generator: np.random.Generator, k: int, d: int, distance: float) -> np.ndarray:
    means = generator.normal(size=(k, d))
    gaps = np.linalg.norm(means[:, None] - means[None], axis=2) + np.where(np.eye(k), np.inf, 0)
    nearest: np.ndarray = np.median(gaps.min(1))  # the smallest gap of many means would be arbitrary
    return means * distance / nearest


def _shares(k: int, unequal: bool) -> np.ndarray:
    shares = np.geomspace(1, 0.05, k) if unequal else np.ones(k)
    return shares / shares.sum()


def _table(load: Callable[..., Samples]) -> Samples:
    x, y = load(return_X_y=True)
    return StandardScaler().fit_transform(x), y


def _images(name: str, root: Path, first: int) -> Samples:
    from torchvision import datasets

    data = getattr(datasets, name)(root, train=True, download=False)
    chosen = np.random.default_rng(first).permutation(len(data.data))[:_IMAGES]
    return data.data.numpy()[chosen].reshape(_IMAGES, -1) / 255.0, data.targets.numpy()[chosen]


def _signals(name: str, root: Path, seed: int) -> Samples:
    """Logarithms of the windows' power spectra; the class is the activity or the fault."""
    import datamodules

    options = {"signal": "total"} if name == "UCIHAR" else {}
    windows = getattr(datamodules, name)(root=str(root), download=False, **options).load()
    chosen = np.random.default_rng(seed).permutation(len(windows.x))[:_WINDOWS]
    power = np.abs(np.fft.rfft(windows.x.numpy()[chosen], axis=2)) ** 2
    bands = np.stack([part.mean(2) for part in np.array_split(power, 32, axis=2)], axis=2)
    return np.log(bands.reshape(len(bands), -1) + 1e-6), windows.a1.numpy()[chosen]


def _pca(samples: Samples, d: int) -> Samples:
    return PCA(d, random_state=0).fit_transform(samples[0]), samples[1]


def _tsne(samples: Samples) -> Samples:
    reduced = PCA(30, random_state=0).fit_transform(samples[0])
    return TSNE(random_state=0, max_iter=500).fit_transform(reduced), samples[1]


def _spectral(samples: Samples, d: int) -> Samples:
    embedding = SpectralEmbedding(d, affinity="nearest_neighbors", n_neighbors=10, random_state=0)
    return embedding.fit_transform(samples[0]), samples[1]


def _umap(root: Path, n: int = 4000) -> Samples:
    archive = np.load(root / "umap-mnist" / "embeddings.npz")
    chosen = np.random.default_rng(0).permutation(len(archive["x"]))[:n]
    return archive["x"][chosen], archive["y"][chosen].astype(int)


_Maker = Callable[[Path], Samples]
MIXTURE = "mixture"  # sets whose number of clusters is known start with this

DEVELOPMENT: dict[str, _Maker] = {
    "iris": lambda root: _table(load_iris),
    "breast cancer": lambda root: _table(load_breast_cancer),
    "digits, PCA 20-d": lambda root: _pca(load_digits(return_X_y=True), 20),
    "MNIST, PCA 15-d": lambda root: _pca(_images("MNIST", root, 1), 15),
    "Fashion-MNIST, t-SNE": lambda root: _tsne(_images("FashionMNIST", root, 2)),
    "MNIST, spectral 10-d": lambda root: _spectral(_images("MNIST", root, 3), 10),
    "UCI-HAR, PCA 10-d": lambda root: _pca(_signals("UCIHAR", root, 4), 10),
    "deep features, 50 classes": lambda root: deep_features(2500, 50, 32, 0.7, 5),
    "mixture, 20 Gaussians, 10-d": lambda root: gaussians(2000, 20, 10, 5, 6),
    "mixture, 8 elongated, 2-d": lambda root: elongated(1500, 8, 2, 8, 5, 7),
    "mixture, 12 unequal, 3-d": lambda root: gaussians(2000, 12, 3, 6, 8, unequal=True),
    "mixture, 10 t with 3 degrees, 5-d": lambda root: tailed(2000, 10, 5, 9, 3, 9),
    "mixture, 10 Gaussians and 10 % noise, 2-d": lambda root: noisy(2000, 10, 2, 9, 0.1, 10),
}
HELD_OUT: dict[str, _Maker] = {
    "wine": lambda root: _table(load_wine),
    "digits, spectral 10-d": lambda root: _spectral(load_digits(return_X_y=True), 10),
    "MNIST, UMAP 10-d": _umap,
    "MNIST, t-SNE": lambda root: _tsne(_images("MNIST", root, 21)),
    "Fashion-MNIST, PCA 15-d": lambda root: _pca(_images("FashionMNIST", root, 22), 15),
    "UCI-HAR, spectral 5-d": lambda root: _spectral(_signals("UCIHAR", root, 23), 5),
    "CWRU, PCA 5-d": lambda root: _pca(_signals("CWRU", root, 24), 5),
    "deep features, 100 classes": lambda root: deep_features(3500, 100, 32, 0.6, 25),
    "mixture, 30 Gaussians, 5-d": lambda root: gaussians(2500, 30, 5, 5, 26),
    "mixture, 6 elongated, 5-d": lambda root: elongated(1500, 6, 5, 9, 6, 27),
    "mixture, 8 unequal, 8-d": lambda root: gaussians(2000, 8, 8, 6, 28, unequal=True),
    "mixture, 6 t with 3 degrees, 8-d": lambda root: tailed(1800, 6, 8, 10, 3, 29),
    "mixture, 15 Gaussians and 5 % noise, 3-d": lambda root: noisy(2500, 15, 3, 9, 0.05, 30),
}
HALVES = {"development": DEVELOPMENT, "held-out": HELD_OUT}


def made(name: str, root: Path, cache: Path) -> Samples:
    """Samples and classes of a data set, from the cache folder where they were made before."""
    file = cache / (name.replace(" ", "_").replace(",", "").replace("%", "percent") + ".npz")
    if not file.is_file():
        x, y = (DEVELOPMENT | HELD_OUT)[name](root)
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(file, x=x.astype(np.float32), y=y.astype(int))
    archive = np.load(file)
    return archive["x"], archive["y"]
