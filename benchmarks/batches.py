"""How CoDID's step grows with the batch and with the number of targets, in units of BASE's step.

    python -m benchmarks.batches --output results/step.md

CMNIST's shapes, ten clusters per target, one thread. BASE, CoDID, and CoDID with all pairs and the kernel for every
batch (as if batches were small) take turns on the same batches in one process; the tables have medians over repeats of
the ratios of their CPU times, so that they hold on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import yaml

from benchmarks.provenance import header
from benchmarks.step import SAMPLES, SHAPE, Base, Batch, CoDID, attached, clustered
from codid_lightning.methods.codid.parts import compared
from codid_lightning.methods.codid.parts.alignments import DiscriminatorAlignment
from codid_lightning.methods.codid.parts.weights import LearnedWeights
from codid_lightning.nn import virtual

ROOT = Path(__file__).parents[1]
CLUSTERS, MANY = 10, 1 << 40
LARGEST_OF_ALL_PAIRS = 2048  # at 8192 they need 4 GB


def settings() -> dict[str, DiscriminatorAlignment]:
    """The alignment with the paper's number of updates, and as shipped for CMNIST."""
    config = yaml.safe_load((ROOT / "configs" / "cmnist" / "codid.yaml").read_text())
    shipped = config["model"]["init_args"]["alignment"]
    shipped = dict(shipped.get("init_args", shipped))
    shipped["weights"] = LearnedWeights(**shipped["weights"])
    return {"N_d = 15": DiscriminatorAlignment(), "shipped": DiscriminatorAlignment(**shipped)}


@contextmanager
def as_if_small() -> Iterator[None]:
    """All pairs of a value are compared, and the kernel between samples is made, whatever the size of the batch."""
    before = compared.MAX_PARTNERS, virtual.MAX_KERNEL
    compared.MAX_PARTNERS = virtual.MAX_KERNEL = MANY
    try:
        yield
    finally:
        compared.MAX_PARTNERS, virtual.MAX_KERNEL = before


def seconds(module: Any, batch: Batch) -> float:
    """CPU seconds of a step."""
    start = time.process_time()
    module.training_step(batch, 0)
    return time.process_time() - start


def ratios(sizes: tuple[int, ...], codid: CoDID, size: int, repeats: int) -> tuple[float, float | None]:
    """CoDID's step over BASE's, with the parts and with all pairs."""
    a = torch.stack([torch.randint(n, (SAMPLES,)) for n in sizes], dim=1)
    base = attached(Base(SHAPE, sizes, reconstruction=1.1, backbone="mlp"))
    module = clustered(attached(codid), a, CLUSTERS)
    found: list[tuple[float, float | None]] = []
    for turn in range(repeats + 1):
        index = torch.randperm(SAMPLES)[:size]
        batch = Batch(x=torch.rand(size, *SHAPE), a=a[index], mode=torch.full_like(a[index], -1), index=index)
        floor, now, before = seconds(base, batch), seconds(module, batch), None
        if size <= LARGEST_OF_ALL_PAIRS:
            with as_if_small():
                before = seconds(module, batch)
        if turn > 0:
            found.append((now / floor, None if before is None else before / floor))
    earlier = [before for _, before in found if before is not None]
    return statistics.median(now for now, _ in found), statistics.median(earlier) if earlier else None


def shown(value: float | None) -> str:
    """A cell."""
    return "-" if value is None else f"{value:.2f}"


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/step.md"))
    parser.add_argument("--batches", type=int, nargs="*", default=[128, 512, 2048, 8192])
    parser.add_argument("--attributes", type=int, nargs="*", default=[2, 4, 6, 10])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    lines = header("A step of CoDID, in steps of BASE")
    lines += ["", "## Batches", "", "Before: all pairs of a value, and the kernel, for every size of the batch.", ""]
    lines += ["| setting | batch | before | now |", "|---|---|---|---|"]
    for name, alignment in settings().items():
        for size in options.batches:
            now, before = ratios(
                (2, 2), CoDID(SHAPE, (2, 2), alignment=alignment, backbone="mlp"), size, options.repeats
            )
            lines.append(f"| {name} | {size} | {shown(before)} | {shown(now)} |")
            print(lines[-1], flush=True)
    lines += ["", "## Targets", "", "Batches of 128, shipped settings, Q attributes with two values each.", ""]
    lines += ["| Q | one target | all Q |", "|---|---|---|"]
    for count in options.attributes:
        found = []
        for targets in ([0], list(range(count))):
            codid = CoDID(SHAPE, (2,) * count, alignment=settings()["shipped"], targets=targets, backbone="mlp")
            found.append(ratios((2,) * count, codid, 128, options.repeats)[0])
        lines.append(f"| {count} | {shown(found[0])} | {shown(found[1])} |")
        print(lines[-1], flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
