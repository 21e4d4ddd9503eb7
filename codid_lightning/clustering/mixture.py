"""MAP-EM of a Gaussian mixture and of the two-component mixtures inside its clusters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from codid_lightning.clustering.features import QuadraticFeatures
from codid_lightning.clustering.niw import NIW, Moments


@dataclass(frozen=True)
class MapEM:
    """EM for the MAP estimate of a truncated Dirichlet-process mixture on fixed data.

    Args:
        features: The data.
        prior: Prior of each cluster's mean and covariance.
        concentration: Concentration alpha of the Dirichlet process.
    """

    features: QuadraticFeatures
    prior: NIW
    concentration: float

    def coefficients(self, moments: Moments) -> Tensor:
        """M-step: log of weight times density of each cluster, as linear functions of the features.

        GEM sticks truncated one after the last cluster have their mode at weights proportional to the counts; what is
        left, (alpha - 1) / (N + alpha - 1), belongs to clusters not opened yet.
        """
        total = moments.n.sum() + max(self.concentration - 1, 0)
        means, covariances = self.prior.map_estimate(moments)
        return self.features.coefficients(torch.log(moments.n / total), means, covariances)

    def objective(self, log_likelihood: Tensor, moments: Moments) -> float:
        """Log posterior density, up to a constant, of the parameters that gave ``log_likelihood``."""
        prior = self.prior.log_density(*self.prior.map_estimate(moments)).sum()
        return float(log_likelihood.sum(dtype=torch.float64) + prior)

    def run(self, moments: Moments, iterations: int, tol: float) -> tuple[Tensor, Moments, list[float]]:
        """Iterate until the objective per sample gains less than ``tol``; clusters below one sample vanish.

        Returns:
            Responsibilities of the last E-step, the moments they were computed with, and the objectives.
        """
        bounds: list[float] = []
        for _ in range(max(1, iterations)):
            current = moments
            responsibilities, log_likelihood, sums = self.features.assign(self.coefficients(current))
            bounds.append(self.objective(log_likelihood, current))
            moments = self.features.moments(sums)
            if len(bounds) > 1 and bounds[-1] - bounds[-2] < tol * len(log_likelihood):
                break
        return responsibilities, current, bounds

    def halves(self, labels: Tensor, k: int, start: Tensor, iterations: int) -> Tensor:
        """Probability of the first sub-cluster of each sample's own cluster, ``(N,)``, by EM inside all clusters."""
        member = torch.nn.functional.one_hot(labels, k).to(start.dtype)
        whole = self.features.sums(member)
        first = start
        for _ in range(iterations):
            one, two = self.split_moments(member, whole, first)
            alive = (one.n > 1) & (two.n > 1)
            if not alive.any():
                break
            difference = torch.zeros(k, self.features.width, dtype=torch.float64, device=labels.device)
            difference[alive] = self._log_terms(one[alive]) - self._log_terms(two[alive])
            score = self.features.scores(difference).gather(1, labels[:, None])[:, 0]
            first = torch.where(alive[labels], torch.sigmoid(score), first)
        return first

    def _log_terms(self, moments: Moments) -> Tensor:
        return self.features.coefficients(torch.log(moments.n), *self.prior.map_estimate(moments))

    def split_moments(self, member: Tensor, whole: Tensor, first: Tensor) -> tuple[Moments, Moments]:
        """Moments of both sub-clusters of each cluster."""
        one = self.features.sums(member * first[:, None])
        return self.features.moments(one), self.features.moments(whole - one)


def principal_cut(x: Tensor, labels: Tensor, moments: Moments) -> Tensor:
    """Indicator of each sample's side across its cluster's principal axis, ``(N,)``."""
    if moments.scatter.ndim == 3:
        axes = torch.linalg.eigh(moments.scatter).eigenvectors[:, :, -1]
    else:
        scatter = moments.scatter if moments.scatter.ndim == 2 else torch.ones_like(moments.mean)
        axes = torch.nn.functional.one_hot(scatter.argmax(1), scatter.shape[1]).to(scatter)
    offsets = (axes * moments.mean).sum(1).to(x.dtype)
    along = (x @ axes.T.to(x.dtype)).gather(1, labels[:, None])[:, 0]
    side: Tensor = along > offsets[labels]
    return side.to(x.dtype)


def kmeans_plus_plus(x: Tensor, k: int, generator: Generator) -> Tensor:
    """Labels ``(N,)`` of the nearest of k samples drawn far from each other."""
    first = int(torch.randint(len(x), (), generator=generator))
    distances = (x - x[first]).square().sum(1)
    labels = torch.zeros(len(x), dtype=torch.long, device=x.device)
    for cluster in range(1, k):
        cumulated = distances.double().cumsum(0)
        if cumulated[-1] == 0:
            break
        draw = torch.rand((), generator=generator, dtype=torch.float64).to(x.device) * cumulated[-1]
        chosen = torch.searchsorted(cumulated, draw).clamp_max(len(x) - 1)
        candidate = (x - x[chosen]).square().sum(1)
        labels[candidate < distances] = cluster
        distances = torch.minimum(distances, candidate)
    populated: Tensor = labels.unique(return_inverse=True)[1]
    return populated
