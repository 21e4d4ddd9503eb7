"""What clusters of z_1 follow after pre-training on CMNIST, digits or colors: results/trap.csv.

    python benchmarks/trap.py --root data

BASE with reconstruction is pre-trained as in `benchmarks/ideas.py`, for as many epochs as CoDID before its first
clustering; once as there, and with reconstruction counting up to 3000 times as much, since the paper's squared error
could be a sum over the 2352 pixels. z_1 is then clustered with the true number of modes, by several views of it: under
each value of a_1 or within the cells (a_1, a_2), where the color cannot be in the way. `probe_mode` is how well a
linear probe reads the digit from the same z_1: the digits are there, but not as clusters.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from lightning import Trainer, seed_everything
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import SpectralEmbedding
from sklearn.model_selection import cross_val_score
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.ideas import COMMON, DIGITS, PER_DIGIT
from codid_lightning import Base
from codid_lightning.metrics.clustering import mode_scores
from datamodules import CMNIST

SCORES = ("nmi", "nmi_a2", "nmi_given_a2")


def plain(z: np.ndarray, k: int) -> np.ndarray:
    """z_1 itself."""
    return z


def whitened(z: np.ndarray, k: int) -> np.ndarray:
    """Its 20 leading components, each as wide as the others."""
    return PCA(min(20, len(z)), whiten=True, random_state=0).fit_transform(z)


def spectral(z: np.ndarray, k: int) -> np.ndarray:
    """Leading eigenvectors of the graph of 15 nearest neighbours."""
    embedding = SpectralEmbedding(k + 3, affinity="nearest_neighbors", n_neighbors=15, random_state=0)
    return embedding.fit_transform(z)


VIEWS: tuple[Callable[[np.ndarray, int], np.ndarray], ...] = (plain, whitened, spectral)


def pretrained(root: Path, seed: int, reconstruction: float) -> tuple[np.ndarray, Tensor, Tensor]:
    """z_1, attributes and digits of 10,000 training images."""
    seed_everything(seed, verbose=False)
    data = CMNIST(root=root, seed=seed, val_fraction=1 - PER_DIGIT / DIGITS)
    facts = (data.input_shape, data.attribute_sizes, data.test_names, data.test_attributes)
    model = Base(*facts, backbone="mlp", reconstruction=reconstruction)
    trainer = Trainer(
        max_epochs=COMMON["discovery.start"],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        limit_val_batches=0,
    )
    trainer.fit(model.train(), datamodule=data)
    samples = data.datasets["train"]
    with torch.no_grad():
        parts = [model.eval()(samples[rows]["x"])[:, 0] for rows in torch.arange(len(samples)).split(1024)]
    return torch.cat(parts).numpy(), samples.a, samples.mode[:, 0]


def clusters(z: np.ndarray, a: Tensor, within: str, view: Callable[[np.ndarray, int], np.ndarray]) -> Tensor:
    """Labels by k-means with the true counts under each value of a_1, or in each cell with a_2."""
    a1, a2 = a.numpy().T
    groups = a1 * 2 + a2 if within == "cell" else a1
    labels = np.zeros(len(z), dtype=np.int64)
    for group in np.unique(groups):
        here = groups == group
        count = (3, 2)[int(a1[here][0])]
        found = KMeans(count, n_init=5, random_state=0).fit_predict(view(z[here], count))
        labels[here] = found + 10 * group
    return torch.from_numpy(labels)


def main() -> int:
    """Measure all views and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--output", type=Path, default=Path("results/trap.csv"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument(
        "--reconstruction", type=float, nargs="+", default=[COMMON["reconstruction"], 30.0, 300.0, 3000.0]
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    with options.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", "reconstruction", "within", "view", *SCORES, "probe_mode"])
        for seed, strength in itertools.product(options.seeds, options.reconstruction):
            z, a, mode = pretrained(options.root, seed, strength)
            probe = cross_val_score(LogisticRegression(max_iter=300), z, mode.numpy(), cv=2).mean()
            for within, view in itertools.product(("value", "cell"), VIEWS):
                scores = mode_scores(clusters(z, a, within, view), mode, a[:, 0], a[:, 1])
                row = [f"{float(scores[f'modes/{name}']):.3f}" for name in SCORES]
                writer.writerow([seed, strength, within, view.__name__, *row, f"{probe:.3f}"])
                file.flush()
    print(options.output.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
