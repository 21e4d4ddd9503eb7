"""The modes of a trained run: CoDID's own clusters, or those a mixture finds in any other method's z_1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from codid_lightning.clustering import DPGMM, ModesPerValue
from codid_lightning.codid import CoDID
from codid_lightning.evaluation import Encoded
from codid_lightning.module import DisentanglementModule

SLOTS = 16  # modes under a value at most, where the mixture searches for them


@dataclass(frozen=True)
class Modes:
    """Discovered modes under each value of the first attribute."""

    z: Tensor  # (N, d) training representations
    values: Tensor  # (N,) value of the first attribute
    labels: Tensor  # (N,) value * slots + number
    slots: int
    source: str

    @property
    def ids(self) -> list[int]:
        """All modes, those of one value side by side."""
        found: list[int] = self.labels.unique().tolist()
        return found

    def title(self, mode: int, value_names: tuple[str, ...]) -> str:
        """A mode as people read it: the value and its number, counted from 1."""
        value = mode // self.slots
        below = [m for m in self.ids if m // self.slots == value]
        return f"{value_names[value]} {below.index(mode) + 1}"

    def nearest(self, mode: int, count: int) -> Tensor:
        """Indices of the training samples of a mode that lie nearest to its centroid."""
        inside = (self.labels == mode).nonzero().flatten()
        distance = (self.z[inside] - self.z[inside].mean(0)).square().sum(1)
        return inside[distance.argsort()[:count]]

    def of(self, z: Tensor, values: Tensor, neighbours: int = 5) -> Tensor:
        """Modes of new samples, by the vote of their nearest training samples of the same value."""
        found = torch.empty_like(values)
        for value in values.unique().tolist():
            here, there = self.values == value, values == value
            vote = KNeighborsClassifier(min(neighbours, int(here.sum())))
            vote.fit(self.z[here].numpy(), self.labels[here].numpy())
            found[there] = torch.from_numpy(vote.predict(z[there].numpy())).to(found)
        return found


def discover(model: DisentanglementModule, train: Encoded) -> Modes:
    """The modes of the first attribute in the training set; a DPGMM looks for them where the method has none."""
    z, values = train.z[:, 0], train.a[:, 0]
    if isinstance(model, CoDID):
        for target in model.target_list:
            if target.attribute == 0 and target.moded and target.ready and len(target.labels) == len(z):
                return Modes(z, values, target.labels.cpu().long(), target.slots, "the clusters CoDID trained with")
    count = int(values.max()) + 1
    found = ModesPerValue(DPGMM(deterministic=True), [1] * count, SLOTS, search=True).fit(z, values)
    return Modes(z, values, found.labels, SLOTS, "a Dirichlet-process mixture fitted to z_1")
