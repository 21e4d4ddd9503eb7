"""Clusterers with a fixed number of clusters: k-means and the true modes, with the interface of ``DPGMM``."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch
from sklearn import cluster
from torch import Tensor

from codid_lightning.clustering.base import Array, Clusterer, cluster_means, one_hot, principal_halves, subcluster_means
from codid_lightning.clustering.moves import MoveKind


class _FixedNumber(Clusterer):
    """Hard clusters: one-hot probabilities, subclusters along the principal axis of a cluster, no moves."""

    def _adopt(self, X: Array, x: Tensor, labels: Tensor, k: int) -> Self:
        halves = principal_halves(x, labels, k)
        probs = one_hot(labels, k, x.dtype)
        self.n_clusters_ = k
        self.moves_ = ()
        return self._publish(
            X,
            labels_=labels,
            probs_=probs,
            sub_probs_=halves,
            means_=cluster_means(x, probs),
            sub_means_=subcluster_means(x, labels, halves, k),
            parents_=torch.eye(k, dtype=torch.float64, device=x.device),
        )

    def predict_proba(self, X: Array) -> Array:
        """One-hot vector of the cluster with the nearest mean, ``(N, K)``."""
        x = self._read(X, reset=False)
        nearest = torch.cdist(x, torch.as_tensor(self.means_).to(x)).argmin(1)
        probs = one_hot(nearest, self.n_clusters_, x.dtype)
        return self._return(X, probs)


class KMeans(_FixedNumber):
    """scikit-learn's k-means; ``refine`` starts from the clusters of the last call.

    Args:
        n_clusters: Number of clusters; fewer if there are fewer distinct samples.
        n_init: Restarts of the first fit.
        random_state: Seed of the initial centres.
    """

    def __init__(self, n_clusters: int = 8, n_init: int = 4, random_state: int = 0) -> None:
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.random_state = random_state

    def fit(self, X: Array, y: Array | None = None) -> Self:
        """Cluster samples ``(N, d)`` from scratch; ``y`` is ignored."""
        x = self._read(X, reset=True)
        k = min(self.n_clusters, len(torch.unique(x, dim=0)))
        return self._lloyd(X, x, k, "k-means++", self.n_init)

    def refine(self, X: Array, move: MoveKind | None = None, subcluster_probs: Array | None = None) -> Self:
        """Cluster the same samples again, starting from the means of the last clusters."""
        x = self._read_again(X)
        start = cluster_means(x, torch.as_tensor(self.probs_)).cpu().numpy()
        return self._lloyd(X, x, self.n_clusters_, start, n_init=1)

    def _lloyd(self, X: Array, x: Tensor, k: int, init: str | np.ndarray, n_init: int) -> Self:
        found = cluster.KMeans(k, init=init, n_init=n_init, random_state=self.random_state).fit(x.cpu().numpy())
        return self._adopt(X, x, torch.from_numpy(found.labels_).long().to(x.device), k)


class TrueModes(_FixedNumber):
    """The true modes as clusters: an upper bound for mode discovery."""

    def fit(self, X: Array, y: Array | None = None) -> Self:
        """Take the modes ``y`` ``(N,)`` of samples ``(N, d)`` as their clusters."""
        if y is None:
            raise ValueError("y is None; TrueModes needs the true mode of every sample.")
        x = self._read(X, reset=True)
        modes = torch.as_tensor(y, device=x.device)
        if (modes < 0).any():
            raise ValueError("y has negative (unknown) modes; TrueModes needs the true mode of every sample.")
        values, labels = modes.unique(return_inverse=True)
        return self._adopt(X, x, labels, len(values))

    def refine(self, X: Array, move: MoveKind | None = None, subcluster_probs: Array | None = None) -> Self:
        """Compute the means of the same modes from the moved samples."""
        x = self._read_again(X)
        return self._adopt(X, x, torch.as_tensor(self.probs_).argmax(1), self.n_clusters_)
