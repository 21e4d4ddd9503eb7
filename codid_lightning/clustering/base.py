"""What every clusterer promises, and the halves of a cluster along its principal axis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from codid_lightning.clustering.moves import MoveKind, Proposal

Array = Any  # a numpy array or a torch tensor: what comes in decides what goes out


class Clusterer(ClusterMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Clusters samples, and keeps clustering them while they move.

    Learned state (numpy arrays or torch tensors, like the input):
        labels_: Cluster of each sample, ``(N,)``.
        probs_: Cluster probabilities of each sample, ``(N, K)``.
        sub_probs_: Probabilities of the two halves of each sample's own cluster, ``(N, 2)``.
        means_: Cluster means, ``(K, d)``.
        sub_means_: Means of the two halves of each cluster, ``(K, 2, d)``.
        n_clusters_: Number of clusters K.
        parents_: Weights of the former clusters in each cluster, ``(K, K_old)``; rows sum to one. A survivor has an
            identity row, both children of a split point to their parent, a merged cluster has the parts' proportions.
        moves_: The proposals of the last call and what became of them.
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
            move: Propose merges or splits; clusterers with a given number of clusters ignore it.
            subcluster_probs: Probabilities of the halves to propose splits into, ``(N, 2)``; default: own halves.
        """

    @abstractmethod
    def predict_proba(self, X: Array) -> Array:
        """Cluster probabilities ``(N, K)`` of samples ``(N, d)``."""

    def predict(self, X: Array) -> Array:
        """Most probable cluster of each sample, ``(N,)``."""
        return self.predict_proba(X).argmax(1)

    def state_dict(self) -> dict[str, Any]:
        """Everything learned, as tensors and numbers: enough to ``refine`` and ``predict`` exactly as this one."""
        learned = {name: value for name, value in vars(self).items() if name.endswith("_") and name != "moves_"}
        return {name: torch.as_tensor(v) if isinstance(v, np.ndarray) else v for name, v in learned.items()}

    def forget_samples(self) -> None:
        """Drop what was learned of each sample and ``refine`` does without; it brings it back."""
        del self.labels_, self.sub_probs_

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what another clusterer of the same class and arguments learned."""
        self.__dict__.update(state)
        self.moves_ = ()

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
        if not x.sum().isfinite() and not torch.isfinite(x).all():  # the sum is a fast way to say yes
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
            raise ValueError(f"refine needs the {len(self.probs_)} samples of the last call, got {len(x)}.")
        return x

    @staticmethod
    def _return(X: Array, value: Tensor) -> Array:
        """A result in the kind of the input."""
        return value if isinstance(X, Tensor) else value.cpu().numpy()

    def _publish(self, X: Array, **learned: Tensor) -> Self:
        """Set learned arrays in the kind of the input."""
        for name, value in learned.items():
            setattr(self, name, self._return(X, value))
        return self


def one_hot(labels: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """Indicators ``(N, K)`` of labels ``(N,)``."""
    return torch.zeros(len(labels), k, dtype=dtype, device=labels.device).scatter_(1, labels[:, None], 1)


def cluster_means(x: Tensor, probs: Tensor) -> Tensor:
    """Means ``(K, d)`` of samples ``(N, d)`` under responsibilities ``(N, K)``."""
    counts = probs.sum(0, dtype=torch.float64).clamp_min(torch.finfo(x.dtype).tiny)
    return ((probs.T.to(x.dtype) @ x) / counts[:, None]).to(x.dtype)


def half_means(x: Tensor, labels: Tensor, halves: Tensor, k: int) -> Tensor:
    """Means ``(K, 2, d)`` of the two halves of each cluster; an empty half sits at its cluster's mean."""
    member = one_hot(labels, k, x.dtype)
    both = torch.cat([member * halves[:, :1], member * halves[:, 1:]], 1)
    pair = cluster_means(x, both).reshape(2, k, -1).transpose(0, 1)
    empty = (both.sum(0) == 0).reshape(2, k).T
    return torch.where(empty[:, :, None], cluster_means(x, member)[:, None, :], pair)


def principal_halves(x: Tensor, labels: Tensor, k: int, iterations: int = 10) -> Tensor:
    """Cut every cluster at its mean across its axis of largest variance: one-hot ``(N, 2)``.

    The axes of all clusters come from one power iteration, linear in N and d, started at the largest deviations.
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
