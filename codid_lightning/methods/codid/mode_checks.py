"""Checks of clusters that need no label: do they merely follow the other attributes, are they too small to be modes?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from codid_lightning.clustering import Clustering

SMALL = 10  # samples; a cluster with fewer is no mode
FOLLOWING = 0.98  # share of a cluster's samples with the same values of the other attributes


def problems(found: Clustering, others: Tensor, min_size: int, attribute: int = 0) -> Iterator[str]:
    """One sentence for every value with clusters that are no modes.

    Clusters follow the other attributes if under a value there are several, and nearly all samples of each have the
    same values of the other attributes, while the value's samples do not. Within such clusters nothing of the other
    attributes is left, and log p(c | a_2) says everything about the cluster.

    Args:
        found: Clusters of the training set.
        others: Joint value of the other attributes, (N,).
        min_size: Smallest number of samples that a cluster may have; 0 is `SMALL`.
        attribute: Position of the attribute.
    """
    values, slots = found.active.shape
    joint = int(others.max()) + 1
    table = (found.labels * joint + others).bincount(minlength=values * slots * joint).view(values, slots, joint).cpu()
    for value in range(values):
        counts = table[value][found.active[value].cpu()]
        sizes = counts.sum(1).tolist()
        name = f"value {value} of attribute {attribute + 1}"
        if len(sizes) > 1 and _share(counts).min() >= FOLLOWING > _share(counts.sum(0, keepdim=True)).min():
            yield (
                f"The {len(sizes)} clusters under {name} ({_listed(sizes)} samples) follow the other attributes, "
                f"not modes: in each, at least {FOLLOWING:.0%} of the samples have the same values of these."
            )
        small = [size for size in sizes if size < (min_size or SMALL)]
        if small and len(sizes) > 1:
            yield (
                f"{len(small)} of {len(sizes)} clusters under {name} have only {_listed(small)} samples, too few for a "
                f"mode: set model.discovery.min_cluster_size (for instance to {SMALL}) to merge them into the nearest."
            )


def _share(counts: Tensor) -> Tensor:
    """Share of the most frequent value in each row of counts (n, E)."""
    return counts.amax(1) / counts.sum(1).clamp_min(1)


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(str(size) for size in sizes)
