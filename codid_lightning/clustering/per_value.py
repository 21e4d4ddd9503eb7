"""Modes under each value of an attribute: one clusterer per value, and slot numbers that clusters keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from sklearn.base import clone
from torch import Tensor

from codid_lightning.clustering.base import Clusterer
from codid_lightning.clustering.moves import MoveKind

# The search of all runs so far. ``refine`` follows one Gaussian per cluster, so that overlapping ones are not joined.
_FOLLOWED: dict[str, Any] = {"max_overlap": None, "every_level": False, "fineness": 1}


@dataclass(frozen=True)
class Move:
    """One proposed move under one attribute value, in slot numbers of that value."""

    value: int
    kind: str
    slots: tuple[int, ...]
    log_hastings: float
    accepted: bool
    reason: str = ""


@dataclass(frozen=True)
class Clustering:
    """The result of clustering that training uses, for A attribute values with K slots each."""

    labels: Tensor  # (N,) slot id: value * K + slot
    probs: Tensor  # (N, K) cluster probabilities over the slots of the sample's own value
    active: Tensor  # (A, K) slots in use
    inherit: Tensor  # (A, K, K) weight of former slot j in slot k; rows sum to one where active, else to zero
    share: Tensor  # (A, K) share of its parent's probability: 0.5 for both children of a split, 1 if not split
    means: Tensor  # (A, K, d)
    sub_means: Tensor  # (A, K, 2, d)
    sub_probs: Tensor  # (N, 2) probabilities of the two subclusters of the sample's cluster
    moves: tuple[Move, ...]

    def to(self, device: torch.device) -> Clustering:
        """The same clusters on another device."""
        tensors: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **tensors)

    def with_means_in(self, z: Tensor) -> Clustering:
        """The same clusters on the device of other features z (N, d), with the means of (sub)clusters in them."""
        here = self.to(z.device)
        values, slots = self.active.shape

        def weighted_means(weight: Tensor) -> Tensor:
            total = z.new_zeros(values * slots).index_add(0, here.labels, weight)
            sums = z.new_zeros(values * slots, z.shape[1]).index_add(0, here.labels, weight[:, None] * z)
            return (sums / total.clamp_min(1e-12)[:, None]).view(values, slots, -1)

        halves = [weighted_means(share.to(z)) for share in here.sub_probs.unbind(1)]
        return replace(here, means=weighted_means(torch.ones_like(z[:, 0])), sub_means=torch.stack(halves, dim=2))

    def as_parts_of(self, former: Tensor) -> Clustering:
        """The same clusters as parts of the only cluster that each value had before, former (A, K)."""
        sizes = self.labels.bincount(minlength=former.numel()).view(former.shape).to(self.share)
        share = torch.where(self.active, sizes / sizes.sum(1, keepdim=True), 1.0)
        former = former.to(self.active.device)
        return replace(self, inherit=(self.active[:, :, None] & former[:, None]).to(self.inherit), share=share)


class ModesPerValue:
    """One clusterer under each value of an attribute.

    Args:
        clusterer: Prototype; every value gets a copy.
        n_clusters: Initial number of clusters under each value.
        max_clusters: Slots under each value, the truncation level of the Dirichlet process.
        search: Whether ``fit`` searches the number of clusters. By default it finds ``n_clusters``, and only
            ``refine`` changes their number, as in Algorithm 1.
        min_size: Clusters with fewer samples are merged into the one with the nearest mean; 0 keeps all.
    """

    def __init__(
        self,
        clusterer: Clusterer,
        n_clusters: Sequence[int],
        max_clusters: int,
        search: bool = False,
        min_size: int = 0,
    ) -> None:
        if max(n_clusters) > max_clusters:
            raise ValueError(f"n_clusters is {list(n_clusters)}, max_clusters is {max_clusters}; raise max_clusters.")
        self.max_clusters, self.min_size = max_clusters, min_size
        self.absorbed = [0 for _ in n_clusters]  # clusters merged by the last call because they were small
        arguments: dict[str, Any] = {"max_clusters": max_clusters} | _FOLLOWED | ({} if search else {"max_rounds": 0})
        self.clusterers = [_under_value(clusterer, v, n_clusters=k, **arguments) for v, k in enumerate(n_clusters)]
        self.slots: list[list[int]] = [[] for _ in n_clusters]

    def fit(self, z: Tensor, a: Tensor, modes: Tensor | None = None) -> Clustering:
        """Cluster representations ``(N, d)`` under each value ``(N,)`` from scratch.

        Args:
            z: Representations.
            a: Values of the attribute.
            modes: True modes ``(N,)``; only ``TrueModes`` uses them.
        """
        for value, clusterer in enumerate(self.clusterers):
            here = self._samples(a, value)
            clusterer.fit(z[here], None if modes is None else modes[here])
            if clusterer.n_clusters_ > self.max_clusters:
                raise ValueError(
                    f"Value {value} has {clusterer.n_clusters_} modes, max_clusters is {self.max_clusters}; raise it."
                )
            if self._absorb(value, z[here]):
                clusterer.parents_ = torch.eye(clusterer.n_clusters_, dtype=torch.float64, device=z.device)
            self.slots[value] = list(range(clusterer.n_clusters_))
        return self._assemble(z, a, self.slots, moves=())

    def refine(self, z: Tensor, a: Tensor, move: MoveKind, subcluster_probs: Tensor | None = None) -> Clustering:
        """Cluster the same samples again after training has moved them, with one round of merge or split proposals.

        Args:
            z: Representations ``(N, d)`` of the samples of the last call, in the same order.
            a: Values of the attribute ``(N,)``.
            move: Kind of the proposals.
            subcluster_probs: Probabilities of the subclusters for proposed splits, in each slot of the sample's value,
                ``(N, K, 2)``, or in whichever one a sample comes to be in, ``(N, 2)``; default: those found by the
                clusterers.
        """
        former = [list(slots) for slots in self.slots]
        for value, clusterer in enumerate(self.clusterers):
            here = self._samples(a, value)
            halves = None if subcluster_probs is None else subcluster_probs[here]
            if halves is not None and halves.ndim == 3:
                halves = halves[:, former[value]]
            clusterer.refine(z[here], move, halves)
            self._absorb(value, z[here])
            self.slots[value] = _carry_slots(clusterer.parents_, former[value], self.max_clusters)
        moves = [move for value in range(len(former)) for move in self._moves(value, former[value])]
        return self._assemble(z, a, former, tuple(moves))

    def _absorb(self, value: int, z: Tensor) -> int:
        self.absorbed[value] = self.clusterers[value].absorb(z, self.min_size) if self.min_size > 0 else 0
        return self.absorbed[value]

    def state_dict(self) -> dict[str, Any]:
        """The state, as tensors and numbers; ``refine`` gives the same results after loading."""
        return {"slots": [list(s) for s in self.slots], "clusterers": [c.state_dict() for c in self.clusterers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned."""
        self.slots = [list(s) for s in state["slots"]]
        for clusterer, learned in zip(self.clusterers, state["clusterers"], strict=True):
            clusterer.load_state_dict(learned)

    def _samples(self, a: Tensor, value: int) -> Tensor:
        here = torch.where(a == value)[0]
        if len(here) == 0:
            raise ValueError(f"No sample has value {value} of the attribute; remove the value or add samples.")
        return here

    def _assemble(self, z: Tensor, a: Tensor, former: list[list[int]], moves: tuple[Move, ...]) -> Clustering:
        n, d = z.shape
        values, slots = len(self.clusterers), self.max_clusters
        found = Clustering(
            labels=torch.zeros(n, dtype=torch.long, device=z.device),
            probs=torch.zeros(n, slots, device=z.device),
            active=torch.zeros(values, slots, dtype=torch.bool, device=z.device),
            inherit=torch.zeros(values, slots, slots, device=z.device),
            share=torch.ones(values, slots, device=z.device),
            means=torch.zeros(values, slots, d, device=z.device),
            sub_means=torch.zeros(values, slots, 2, d, device=z.device),
            sub_probs=torch.zeros(n, 2, device=z.device),
            moves=moves,
        )
        for value, clusterer in enumerate(self.clusterers):
            here, slot = self._samples(a, value), torch.tensor(self.slots[value], device=z.device)
            old = torch.tensor(former[value], device=z.device)
            found.labels[here] = value * slots + slot[clusterer.labels_]
            found.probs[here[:, None], slot] = clusterer.probs_.float()
            found.sub_probs[here] = clusterer.sub_probs_.float()
            found.active[value, slot] = True
            found.inherit[value, slot[:, None], old] = clusterer.parents_.float()
            siblings = ((clusterer.parents_ == 1).double().sum(0) > 1).double()
            found.share[value, slot] = 1 - 0.5 * (clusterer.parents_ @ siblings).float()
            found.means[value, slot] = clusterer.means_.float()
            found.sub_means[value, slot] = clusterer.sub_means_.float()
            clusterer.drop_labels()
        return found

    def _moves(self, value: int, former: list[int]) -> list[Move]:
        return [
            Move(value, p.kind, tuple(former[c] for c in p.clusters), p.log_hastings, p.accepted, p.reason)
            for p in self.clusterers[value].moves_
        ]


def _under_value(clusterer: Clusterer, value: int, **arguments: Any) -> Clusterer:
    """A copy of the prototype with another random state and those of the arguments that its class has."""
    copy: Clusterer = clone(clusterer)
    known = copy.get_params()
    seeds = {name: known[name] + value for name in ("random_state", "seed") if isinstance(known.get(name), int)}
    arguments |= seeds
    copy.set_params(**{name: argument for name, argument in arguments.items() if name in known})
    return copy


def _carry_slots(parents: Tensor, former: list[int], max_clusters: int) -> list[int]:
    """Slots of the new clusters: that of the main parent, or the first free slot for the second child of a split."""
    heirs = [former[k] for k in parents.argmax(1).tolist()]
    slots: list[int] = []
    for slot in heirs:
        free = (s for s in range(max_clusters) if s not in heirs and s not in slots)
        slots.append(next(free) if slot in slots else slot)
    return slots
