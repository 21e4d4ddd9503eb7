"""How often clustering keeps what it promises, in numbers too large for the test suite.

    OMP_NUM_THREADS=1 CODID_DATA_ROOT=/path/to/data python benchmarks/quantities.py

Writes results/quantities.md: in how many of 200 well separated mixtures the number of clusters is found, how many of
1000 random sets of samples are clustered alike however they are written down, and what float32 changes where it is used
(products inside a block of a large set in more than 16 dimensions). The images of the last part need $CODID_DATA_ROOT
and are left out without it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import Phase, given, settings
from sklearn.metrics import adjusted_rand_score
from torchvision.datasets import FashionMNIST

sys.path.insert(0, str(Path(__file__).parents[1]))
from codid_lightning.clustering import DPGMM
from tests.clustering.test_dpgmm import ANY_SAMPLES, check_same_clusters, separated

RANGES = ((2, 4), (5, 16), (17, 64), (65, 128))  # of dimensions


def table(names: list[str], rows: list[list[Any]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [names, ["---"] * len(names), *rows]) + "\n"


def recovery(seeds: int, samples: int) -> str:
    """Mixtures of 1 to 20 unit Gaussians in 2 to 128 dimensions, at least eight standard deviations apart."""
    tried: Counter[tuple[int, int]] = Counter()
    found: Counter[tuple[int, int]] = Counter()
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        low, high = bounds = RANGES[seed % len(RANGES)]
        k, d = int(generator.integers(1, 21)), int(generator.integers(low, high + 1))
        x, y = separated(samples, k, d, seed)
        model = DPGMM(random_state=seed).fit(x)
        tried[bounds] += 1
        found[bounds] += model.n_clusters_ == k and adjusted_rand_score(y, model.labels_) > 0.999
        print(f"mixture {seed + 1} of {seeds}: {found.total()} found", flush=True)
    rows = [[f"{low} to {high}", tried[low, high], found[low, high]] for low, high in RANGES]
    title = (
        f"The clusters and their number are found in {100 * found.total() / seeds:.1f} % of {seeds} mixtures of 1 to "
        f"20 unit Gaussians at least eight standard deviations apart, {samples} samples each."
    )
    return f"{title}\n\n{table(['dimensions', 'mixtures', 'found'], rows)}"


def invariance(examples: int) -> str:
    """Random samples without structure, written down in another way; all are tried, also after a failure."""
    tried: Counter[str] = Counter()
    alike: Counter[str] = Counter()

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True, phases=[Phase.generate])
    @given(**ANY_SAMPLES)
    def compare(change: str, **samples: Any) -> None:
        tried[change] += 1
        try:
            check_same_clusters(change=change, **samples)
        except AssertionError:
            print(f"not alike: {change}, {samples}", flush=True)
            return
        alike[change] += 1

    compare()
    rows = [[change, tried[change], alike[change]] for change in sorted(tried)]
    title = (
        f"{alike.total()} of {tried.total()} random sets of samples are clustered alike when something is changed that "
        "should not matter."
    )
    return f"{title}\n\n{table(['what is changed', 'sets', 'clustered alike'], rows)}"


def large_sets(samples: int) -> Iterator[tuple[str, np.ndarray]]:
    """Sets whose products are taken in float32."""
    generator = np.random.default_rng(0)
    for distance in (16, 6):
        y, means = generator.integers(20, size=samples), generator.normal(size=(20, 128)) * distance / 16
        heavy = generator.standard_t(5, size=(samples, 128))
        yield f"20 clusters, {distance} apart, tails of Student's t", (means[y] + heavy).astype(np.float32)
    if root := os.environ.get("CODID_DATA_ROOT"):
        images = FashionMNIST(root, train=True).data[:20_000]
        yield "images of Fashion-MNIST", images.flatten(1).numpy().astype(np.float32) / 255


def precision(samples: int) -> str:
    """The same samples as float32, as a network gives them, and as float64, which all products are then taken in."""
    rows = []
    for name, x in large_sets(samples):
        ends, seconds = [], []
        for written in (x, x.astype(np.float64)):
            began = time.process_time()
            model = DPGMM(deterministic=True).fit(written)
            ends.append(model.refine(written, move="split").refine(written, move="merge"))
            seconds.append(time.process_time() - began)
        same = float((ends[0].labels_ == ends[1].labels_).mean())
        counts = f"{ends[0].n_clusters_}, {ends[1].n_clusters_}"
        rows.append([name, "{} x {}".format(*x.shape), counts, f"{100 * same:.3f}", f"{seconds[1] / seconds[0]:.2f}"])
        print(rows[-1], flush=True)
    names = ["samples", "N x d", "clusters, float32 and float64", "% of samples with the same label", "time ratio"]
    title = "A fit, a round of splits and one of merges, with products in float32 and in float64."
    return f"{title}\n\n{table(names, rows)}"


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=35_000, help="of the sets with products in float32")
    parser.add_argument("--output", type=Path, default=Path("results/quantities.md"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    parts = [precision(arguments.samples), recovery(arguments.seeds, samples=3000), invariance(arguments.examples)]
    arguments.output.write_text("\n".join(parts))
    print("\n".join(parts))


if __name__ == "__main__":
    main()
