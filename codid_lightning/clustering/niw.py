"""The normal-inverse-Wishart prior of a Gaussian cluster: posterior, MAP estimate and log marginal likelihood.

One implementation serves three families, told apart by the shape of the scatter:

* ``full``: ``(K, d, d)``, the normal-inverse-Wishart of the paper's appendix;
* ``diag``: ``(K, d)``, one normal-inverse-Gamma per dimension, that is a one-dimensional normal-inverse-Wishart;
* ``spherical``: ``(K,)``, one variance shared by all dimensions.

Everything here works on per-cluster summaries, costs nothing next to a pass over the data and is done in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

CovarianceType = Literal["full", "diag", "spherical"]


@dataclass(frozen=True)
class Moments:
    """What a Gaussian needs to know of its points: how many, their mean, their scatter around that mean."""

    n: Tensor  # (K,)
    mean: Tensor  # (K, d)
    scatter: Tensor  # (K, d, d), (K, d) or (K,)

    def __getitem__(self, index: Tensor) -> Moments:
        return Moments(self.n[index], self.mean[index], self.scatter[index])

    def merged(self, other: Moments) -> Moments:
        """Moments of the unions of the two sides' clusters, pairwise."""
        n = self.n + other.n
        weight = other.n / n.clamp_min(torch.finfo(n.dtype).tiny)
        shift = other.mean - self.mean
        spread = _outer(shift, self.scatter)
        scatter = self.scatter + other.scatter + _per_cluster(self.n * weight, spread) * spread
        return Moments(n, self.mean + weight[:, None] * shift, scatter)


@dataclass(frozen=True)
class NIW:
    """Prior NIW(mu*, kappa*, Psi*, nu*) on the mean and covariance of each cluster.

    Args:
        mean: Prior mean mu*, ``(d,)``.
        kappa: How many observations the prior mean is worth.
        psi: Prior scatter Psi*: ``(d, d)``, ``(d,)`` or a scalar tensor, by covariance family.
        nu: How many observations the prior scatter is worth (``full``: more than d - 1).
    """

    mean: Tensor
    kappa: float
    psi: Tensor
    nu: float

    @property
    def covariance_type(self) -> CovarianceType:
        """Family of the covariance, told by the shape of ``psi``."""
        families: tuple[CovarianceType, ...] = ("spherical", "diag", "full")
        return families[self.psi.ndim]

    def scatter(self, data: Moments) -> Tensor:
        """Posterior scatter Psi_n of each cluster."""
        shrink = self.kappa * data.n / (self.kappa + data.n)
        spread = _outer(data.mean - self.mean, data.scatter)
        return self.psi + data.scatter + _per_cluster(shrink, spread) * spread

    def map_estimate(self, data: Moments) -> tuple[Tensor, Tensor]:
        """Mode of the posterior: means ``(K, d)`` and covariances shaped like the scatter."""
        n = data.n[:, None]
        means = (self.kappa * self.mean + n * data.mean) / (self.kappa + n)
        scatter = self.scatter(data)
        return means, scatter / _per_cluster(self._freedom(data.n) + self._mode_offset(), scatter)

    def log_density(self, means: Tensor, covariances: Tensor) -> Tensor:
        """Log of the prior density at given means and covariances, up to a constant, ``(K,)``."""
        spread = _outer(means - self.mean, covariances)
        exponent = 0.5 * (self.nu + self._mode_offset())
        return -exponent * _log_det(covariances) - 0.5 * _trace_ratio(self.psi + self.kappa * spread, covariances)

    def log_marginal(self, data: Moments) -> Tensor:
        """Log marginal likelihood f_x of each cluster's points, ``(K,)`` (paper's appendix, "Preliminaries")."""
        d = data.mean.shape[1]
        nu = self._freedom(data.n)
        prior_nu = torch.full_like(nu, self.nu)
        psi = self.psi.expand_as(data.scatter)
        evidence = self._log_normaliser(self.scatter(data), nu) - self._log_normaliser(psi, prior_nu)
        shrink = 0.5 * d * (math.log(self.kappa) - torch.log(self.kappa + data.n))
        return evidence + shrink - 0.5 * d * math.log(math.pi) * data.n

    def _freedom(self, n: Tensor) -> Tensor:
        """Posterior nu_n: a shared variance sees every coordinate of every point."""
        return self.nu + (n * self.mean.shape[0] if self.covariance_type == "spherical" else n)

    def _mode_offset(self) -> float:
        """What the mode of the joint density over (mean, covariance) adds to nu."""
        return 3.0 if self.covariance_type == "diag" else self.mean.shape[0] + 2.0

    def _log_normaliser(self, scatter: Tensor, nu: Tensor) -> Tensor:
        """Log normaliser of the inverse Wishart (or Gammas) without the powers of two, which cancel in f_x."""
        d = self.mean.shape[0]
        if self.covariance_type == "full":
            gammas: Tensor = torch.special.multigammaln(0.5 * nu, d)
        else:
            gammas = torch.lgamma(0.5 * nu) * (d if self.covariance_type == "diag" else 1)
        return gammas - 0.5 * nu * _log_det(scatter)


def _outer(vectors: Tensor, like: Tensor) -> Tensor:
    """Outer products of row vectors, in the family of ``like``."""
    if like.ndim == 3:
        return vectors[:, :, None] * vectors[:, None, :]
    return vectors.square() if like.ndim == 2 else vectors.square().sum(1)


def _per_cluster(values: Tensor, like: Tensor) -> Tensor:
    """Reshape ``(K,)`` so that it broadcasts over the trailing dimensions of ``like``."""
    return values.reshape(-1, *[1] * (like.ndim - 1))


def _log_det(scale: Tensor) -> Tensor:
    """Log determinant ``(K,)`` of each scatter or covariance; a shared variance counts once."""
    if scale.ndim == 3:
        factor: Tensor = torch.linalg.cholesky(scale)
        return 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
    return scale.log().sum(1) if scale.ndim == 2 else scale.log()


def _trace_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Trace of ``denominator^-1 numerator`` for each cluster, ``(K,)``."""
    if numerator.ndim == 3:
        factor = torch.linalg.cholesky(denominator)
        return torch.cholesky_solve(numerator, factor).diagonal(dim1=1, dim2=2).sum(1)
    ratio = numerator / denominator
    return ratio.sum(1) if ratio.ndim == 2 else ratio
