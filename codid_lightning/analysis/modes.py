"""The modes of a trained run: the method's own clusters, or those that a mixture finds in z_1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from codid_lightning.analysis.evaluation import Encoded, LoadedRun, encode
from codid_lightning.clustering import DPGMM, ModesPerValue
from codid_lightning.methods.base import DisentanglementModule

SLOTS = 16  # largest number of modes of one value that the mixture may find


@dataclass(frozen=True)
class Modes:
    """The modes discovered under each value of the first attribute."""

    z: Tensor  # (N, d) training representations
    values: Tensor  # (N,) value of the first attribute
    labels: Tensor  # (N,) value * slots + number
    slots: int
    source: str

    @property
    def ids(self) -> list[int]:
        """All modes, sorted by value."""
        found: list[int] = self.labels.unique().tolist()
        return found

    def title(self, mode: int, value_names: tuple[str, ...]) -> str:
        """A mode in words: the name of its value, and its number under this value, from 1."""
        value = mode // self.slots
        below = [m for m in self.ids if m // self.slots == value]
        return f"{value_names[value]} {below.index(mode) + 1}"

    def nearest(self, mode: int, count: int) -> Tensor:
        """Indices of the `count` training samples of a mode that are nearest to its centroid."""
        inside = (self.labels == mode).nonzero().flatten()
        distance = (self.z[inside] - self.z[inside].mean(0)).square().sum(1)
        return inside[distance.argsort()[:count]]

    def of(self, z: Tensor, values: Tensor, neighbours: int = 5) -> Tensor:
        """Modes of new samples, by a vote of the nearest training samples with the same value."""
        found = torch.empty_like(values)
        for value in values.unique().tolist():
            here, there = self.values == value, values == value
            vote = KNeighborsClassifier(min(neighbours, int(here.sum())))
            vote.fit(self.z[here].numpy(), self.labels[here].numpy())
            found[there] = torch.from_numpy(vote.predict(z[there].numpy())).to(found)
        return found


def discover(model: DisentanglementModule, train: Encoded) -> Modes:
    """The modes of the first attribute in the training set.

    They are the method's own clusters. Where it has none, a DPGMM is fitted to z_1.
    """
    z, values = train.z[:, 0], train.a[:, 0]
    for target in model.mode_targets():
        if target.attribute == 0 and target.ready and len(target.labels) == len(z):
            return Modes(z, values, target.labels.cpu().long(), target.slots, "the clusters the method trained with")
    count = int(values.max()) + 1
    found = ModesPerValue(DPGMM(deterministic=True), [1] * count, SLOTS, search=True).fit(z, values)
    return Modes(z, values, found.labels, SLOTS, "a Dirichlet-process mixture fitted to z_1")


def reference_cells(run: LoadedRun) -> Tensor:
    """The cell (N,) of every validation sample: its mode, as the run finds them, and its value of the second attribute.

    The modes of validation samples are those of their nearest training samples, see `Modes.of`.
    """
    modes = discover(run.model, encode(run.model, run.data.datasets["train"]))
    val = encode(run.model, run.data.datasets["val"])
    return modes.of(val.z[:, 0], val.a[:, 0]) * run.data.attribute_sizes[1] + val.a[:, 1]
