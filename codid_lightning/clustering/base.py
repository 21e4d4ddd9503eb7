"""The interface of all clusterers, and functions of their samples, labels and probabilities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
import torch
from joblib import effective_n_jobs
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from codid_lightning.clustering.moves import MoveKind, Proposal

_RECORDS = {"moves_", "history_"}  # what is not state

Array = Any  # a numpy array or a torch tensor; results have the type of the input


class Clusterer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Clusters samples, and clusters the same samples again after they have moved.

    Learned state (numpy arrays or torch tensors, like the input):
        labels_: Cluster of each sample, ``(N,)``.
        probs_: Cluster probabilities of each sample, ``(N, K)``.
        sub_probs_: Probabilities of the two subclusters of each sample's cluster, ``(N, 2)``.
        means_: Cluster means, ``(K, d)``.
        sub_means_: Means of the two subclusters of each cluster, ``(K, 2, d)``.
        n_clusters_: Number of clusters K.
        parents_: Weights of the former clusters in each cluster, ``(K, K_old)``; rows sum to one. The row of an
            unchanged cluster, and of both children of a split, has a one at the former cluster; the row of a merged
            cluster has the shares of its parts.
        moves_: The proposals of the last call, accepted or not.
    """

    labels_: Array
    probs_: Array
    sub_probs_: Array
    means_: Array
    sub_means_: Array
    parents_: Array
    n_clusters_: int
    moves_: tuple[Proposal, ...]

    @abstractmethod
    def fit(self, X: Array, y: Array | None = None) -> Self:
        """Cluster samples ``(N, d)`` from scratch."""

    @abstractmethod
    def refine(self, X: Array, move: MoveKind | None = None, subcluster_probs: Array | None = None) -> Self:
        """Cluster the same samples again after they moved, starting from the clusters found last.

        Args:
            X: The samples of the last call, in the same order, ``(N, d)``.
            move: Whether merges or splits are proposed; clusterers with a fixed number of clusters ignore it.
            subcluster_probs: Probabilities of the subclusters for proposed splits, in each cluster of the last call,
                ``(N, K, 2)``, or in whichever cluster a sample comes to be in, ``(N, 2)``; default: those found by the
                clusterer.
        """

    @abstractmethod
    def predict_proba(self, X: Array) -> Array:
        """Cluster probabilities ``(N, K)`` of samples ``(N, d)``."""

    def predict(self, X: Array) -> Array:
        """Most probable cluster of each sample, ``(N,)``."""
        return self.predict_proba(X).argmax(1)

    def transform(self, X: Array) -> Array:
        """Cluster probabilities ``(N, K)`` of samples ``(N, d)``, as features for another estimator."""
        return self.predict_proba(X)

    @property
    def _n_features_out(self) -> int:
        return self.n_clusters_

    def absorb(self, X: Array, min_size: int) -> int:
        """Merge each cluster with fewer samples into the one with the nearest mean, the smallest first.

        Args:
            X: The samples of the last call, ``(N, d)``.
            min_size: Smallest number of samples of a cluster.

        Returns:
            The number of clusters that were merged.
        """
        moves, parents, before = self.moves_, torch.as_tensor(self.parents_), self.n_clusters_
        while self.n_clusters_ > 1:
            sizes = torch.as_tensor(self.labels_).bincount(minlength=self.n_clusters_)
            small = int(sizes.argmin())
            if sizes[small] >= min_size:
                break
            means, probs = torch.as_tensor(self.means_), torch.as_tensor(self.probs_).clone()
            distance = (means - means[small]).square().sum(1)
            distance[small] = torch.inf
            near = int(distance.argmin())
            lineage = torch.eye(self.n_clusters_).to(parents)
            lineage[near, [small, near]] = (sizes[[small, near]] / sizes[[small, near]].sum()).to(parents)
            probs[:, near] += probs[:, small]
            kept = torch.arange(self.n_clusters_) != small
            self.probs_, self.n_clusters_ = self._return(X, probs[:, kept]), self.n_clusters_ - 1
            self.refine(X)
            parents = torch.as_tensor(self.parents_) @ lineage[kept] @ parents
        self.moves_, self.parents_ = moves, self._return(X, torch.where((parents - 1).abs() < 1e-9, 1.0, parents))
        return before - self.n_clusters_

    def state_dict(self) -> dict[str, Any]:
        """All learned state, as tensors and numbers. After loading it, all methods give the same results."""
        learned = {name: value for name, value in vars(self).items() if name.endswith("_") and name not in _RECORDS}
        return {name: torch.as_tensor(v) if isinstance(v, np.ndarray) else v for name, v in learned.items()}

    def drop_labels(self) -> None:
        """Delete the labels and subcluster probabilities of the samples; ``refine`` computes them again."""
        del self.labels_, self.sub_probs_

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of another clusterer of the same class and arguments."""
        self.__dict__.update(state)
        self.moves_ = ()
        self.__dict__.pop("history_", None)

    def _read(self, X: Array, reset: bool) -> Tensor:
        """Check samples as scikit-learn does and return them as a floating-point tensor ``(N, d)``."""
        if not reset:
            check_is_fitted(self)
        if not isinstance(X, Tensor):
            checked: np.ndarray = validate_data(self, X, dtype=[np.float64, np.float32], reset=reset)
            return torch.from_numpy(checked)
        x: Tensor = X.detach()
        if x.ndim != 2 or 0 in x.shape:
            raise ValueError(f"Expected samples of shape (N, d) with N, d > 0, got {tuple(x.shape)}.")
        if not x.sum().isfinite() and not torch.isfinite(x).all():  # a finite sum is a fast check
            raise ValueError(f"Input X contains NaN or infinity in {int((~x.isfinite()).any(1).sum())} samples.")
        if reset:
            self.n_features_in_ = x.shape[1]
        elif x.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {x.shape[1]} features, but was fitted with {self.n_features_in_}.")
        return x if x.dtype in (torch.float32, torch.float64) else x.float()

    def _read_again(self, X: Array) -> Tensor:
        """Check samples given to ``refine``: they must be those of the last call."""
        x = self._read(X, reset=False)
        if len(x) != len(self.probs_):
            raise ValueError(f"X has {len(x)} samples; refine needs the {len(self.probs_)} samples of the last call.")
        return x

    @staticmethod
    def _return(X: Array, value: Tensor) -> Array:
        """A result in the type of the input: numpy array or torch tensor."""
        return value if isinstance(X, Tensor) else value.cpu().numpy()

    def _publish(self, X: Array, **learned: Tensor) -> Self:
        """Set learned arrays in the type of the input."""
        for name, value in learned.items():
            setattr(self, name, self._return(X, value))
        return self


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Use this many threads of torch in the body; None changes nothing, a negative number counts back from all."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(effective_n_jobs(number))
    try:
        yield
    finally:
        if number is not None:
            torch.set_num_threads(before)


def one_hot(labels: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """Indicators ``(N, K)`` of labels ``(N,)``."""
    return torch.zeros(len(labels), k, dtype=dtype, device=labels.device).scatter_(1, labels[:, None], 1)


def cluster_means(x: Tensor, probs: Tensor) -> Tensor:
    """Means ``(K, d)`` of samples ``(N, d)`` under responsibilities ``(N, K)``."""
    counts = probs.sum(0, dtype=torch.float64).clamp_min(torch.finfo(x.dtype).tiny)
    return ((probs.T.to(x.dtype) @ x) / counts[:, None]).to(x.dtype)


def subcluster_means(x: Tensor, labels: Tensor, halves: Tensor, k: int) -> Tensor:
    """Means ``(K, 2, d)`` of the two halves of each cluster; for an empty half, the mean of the cluster."""
    member = one_hot(labels, k, x.dtype)
    both = torch.cat([member * halves[:, :1], member * halves[:, 1:]], 1)
    pair = cluster_means(x, both).reshape(2, k, -1).transpose(0, 1)
    empty = (both.sum(0) == 0).reshape(2, k).T
    return torch.where(empty[:, :, None], cluster_means(x, member)[:, None, :], pair)


def principal_halves(x: Tensor, labels: Tensor, k: int, iterations: int = 10) -> Tensor:
    """Halves of every cluster, divided at its mean along its axis of largest variance: one-hot ``(N, 2)``.

    The axes of all clusters are found by one power iteration, linear in N and d, that starts at the largest deviations.
    """
    centred = x - cluster_means(x, one_hot(labels, k, x.dtype))[labels]
    largest = x.new_zeros(k).scatter_reduce_(0, labels, centred.abs().amax(1), "amax")
    axes = torch.zeros(k, x.shape[1]).to(x)
    extreme = centred.abs().amax(1) == largest[labels]
    axes[labels[extreme]] = centred[extreme]
    for _ in range(iterations):
        along = (centred * axes[labels]).sum(1)
        axes = torch.zeros_like(axes).index_add_(0, labels, along[:, None] * centred)
        axes = torch.nn.functional.normalize(axes, dim=1)
    side = ((centred * axes[labels]).sum(1) > 0).long()
    return one_hot(side, 2, x.dtype)
