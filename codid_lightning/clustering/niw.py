"""The normal-inverse-Wishart prior of a Gaussian cluster: posterior, MAP estimate and log marginal likelihood.

There are three families of covariances. The shape of the scatter says which:

* ``full``: ``(K, d, d)``, the normal-inverse-Wishart of the paper's appendix;
* ``diag``: ``(K, d)``, one normal-inverse-Gamma per dimension, that is a one-dimensional normal-inverse-Wishart;
* ``spherical``: ``(K,)``, one variance shared by all dimensions.

All functions use per-cluster summaries in float64. They take little time compared with a pass over the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

CovarianceType = Literal["full", "diag", "spherical"]
PsiUnit = Literal["clusters", "samples"]
_FAMILIES: tuple[CovarianceType, ...] = ("spherical", "diag", "full")


@dataclass(frozen=True)
class Moments:
    """Number, mean and scatter around the mean of the points of each cluster."""

    n: Tensor  # (K,)
    mean: Tensor  # (K, d)
    scatter: Tensor  # (K, d, d), (K, d) or (K,)

    def __getitem__(self, index: Tensor) -> Moments:
        return Moments(self.n[index], self.mean[index], self.scatter[index])

    def joined(self, other: Moments) -> Moments:
        """These clusters and those of `other`, on the device of these."""
        pairs = ((self.n, other.n), (self.mean, other.mean), (self.scatter, other.scatter))
        return Moments(*(torch.cat([mine, theirs.to(mine)]) for mine, theirs in pairs))

    def merged(self, other: Moments) -> Moments:
        """Moments of the union of each cluster with the cluster of the same index in `other`."""
        pairs = torch.arange(len(self.n), device=self.n.device).repeat(2)
        both = Moments(
            torch.cat([self.n, other.n]), torch.cat([self.mean, other.mean]), torch.cat([self.scatter, other.scatter])
        )
        return both.grouped(pairs, len(self.n))

    def grouped(self, group: Tensor, count: int) -> Moments:
        """Moments of ``count`` unions of clusters; ``group`` ``(K,)`` is the union of each cluster."""

        def total(values: Tensor) -> Tensor:
            return values.new_zeros(count, *values.shape[1:]).index_add_(0, group, values)

        n = total(self.n)
        mean = total(self.n[:, None] * self.mean) / n[:, None]
        spread = _outer(self.mean - mean[group], self.scatter)
        return Moments(n, mean, total(self.scatter + _per_cluster(self.n, spread) * spread))


@dataclass(frozen=True)
class NIW:
    """Prior NIW(mu*, kappa*, Psi*, nu*) on the mean and covariance of each cluster.

    Args:
        mean: Prior mean mu*, ``(d,)``.
        kappa: Weight of the prior mean, in observations.
        psi: Prior scatter Psi*: ``(d, d)``, ``(d,)`` or a scalar tensor, by covariance family.
        nu: Weight of the prior scatter, in observations (``full``: more than d - 1).
    """

    mean: Tensor
    kappa: float
    psi: Tensor
    nu: float

    @property
    def covariance_type(self) -> CovarianceType:
        """Family of the covariance."""
        return _FAMILIES[self.psi.ndim]

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
        prior_nu = torch.full_like(data.n, self.nu)
        psi = self.psi.expand_as(data.scatter)
        evidence = self._log_integral(self.scatter(data), self._freedom(data.n)) - self._log_integral(psi, prior_nu)
        shrink = 0.5 * d * (math.log(self.kappa) - torch.log(self.kappa + data.n))
        return evidence + shrink - 0.5 * d * math.log(math.pi) * data.n

    def _freedom(self, n: Tensor) -> Tensor:
        """Posterior nu_n; for a shared variance, every coordinate of a point counts."""
        return self.nu + (n * self.mean.shape[0] if self.covariance_type == "spherical" else n)

    def _mode_offset(self) -> float:
        return _mode_offset(self.mean.shape[0], self.covariance_type)

    def _log_integral(self, scatter: Tensor, nu: Tensor) -> Tensor:
        """Log integral of the unnormalised inverse Wishart (or Gammas), without powers of two, which f_x cancels."""
        d = self.mean.shape[0]
        if self.covariance_type == "full":
            gammas: Tensor = torch.special.multigammaln(0.5 * nu, d)
        else:
            gammas = torch.lgamma(0.5 * nu) * (d if self.covariance_type == "diag" else 1)
        return gammas - 0.5 * nu * _log_det(scatter)


def _mode_offset(d: int, covariance_type: CovarianceType) -> float:
    """The number added to nu in the mode of the joint density of mean and covariance."""
    return 3.0 if covariance_type == "diag" else d + 2.0


def empirical_prior(
    clusters: Moments,
    psi_scale: float = 1.0,
    kappa: float | None = None,
    nu: float | None = None,
    floor: float = 1e-9,
    unit: PsiUnit = "clusters",
) -> NIW:
    """Prior with hyperparameters estimated from the clusters (empirical Bayes). The data are centred at the origin.

    Psi*: the mode of the prior is psi_scale * W, where W is the pooled within-cluster covariance. With the MAP estimate
    that EM uses, a cluster without points is then as wide as the others.
    kappa*: from the spread of the cluster means, in units of W.
    nu*: of the vaguest proper prior, twice and four times that, the one with the highest marginal likelihood. If the
    covariances of the clusters agree, the prior is strong, which helps with few points in many dimensions. The upper
    limit keeps it weak compared with clusters of moderate size: else a half could not be narrower than its cluster.

    With unit ``samples``, W is isotropic: the total variance of the samples in every direction. It does not shrink with
    the clusters. With a large nu, the expected width of a cluster then no longer depends on the current clusters.

    Args:
        clusters: Moments of the current clusters.
        psi_scale: Expected variance of a cluster, in units of W.
        kappa: Given weight of the prior mean.
        nu: Given weight of the prior scatter.
        floor: Variance added to W in every direction.
        unit: What W is: the pooled within-cluster covariance, or the variance of all samples summed over dimensions.
    """
    d = clusters.mean.shape[1]
    within = _pooled_covariance(clusters) if unit == "clusters" else _total_variance(clusters)
    within = within + floor * _identity(within)
    origin = torch.zeros_like(clusters.mean[0])
    if kappa is None:
        spread = _outer(clusters.mean, clusters.scatter)
        distance = _trace_ratio(spread, within.expand_as(spread))
        between = float((clusters.n * distance).sum() / (clusters.n.sum() * d))
        kappa = 1 / min(max(between, 1.0), 1000.0)
    vaguest = 3.0 if clusters.scatter.ndim == 2 else d + 2.0
    candidates = [nu] if nu is not None else [vaguest, 2 * vaguest, 4 * vaguest]
    offset = _mode_offset(d, _FAMILIES[within.ndim])
    priors = [NIW(origin, kappa, psi_scale * (weight + offset) * within, weight) for weight in candidates]
    return max(priors, key=lambda prior: float(prior.log_marginal(clusters).sum()))


def _pooled_covariance(clusters: Moments) -> Tensor:
    """Covariance within clusters, in the family of their scatter."""
    k, d = clusters.mean.shape
    return clusters.scatter.sum(0) / ((clusters.n.sum() - k).clamp_min(1) * (d if clusters.scatter.ndim == 1 else 1))


def _total_variance(clusters: Moments) -> Tensor:
    """Variance of all samples summed over dimensions, times the identity, in the family of the clusters' scatter."""
    together = torch.zeros(len(clusters.n), dtype=torch.long, device=clusters.n.device)
    covariance = clusters.grouped(together, 1).scatter[0] / clusters.n.sum()
    return (covariance.trace() if covariance.ndim == 2 else covariance.sum()) * _identity(covariance)


def _identity(like: Tensor) -> Tensor:
    """The identity in the family of a covariance ``(d, d)``, ``(d,)`` or ``()``."""
    return torch.eye(len(like)).to(like) if like.ndim == 2 else torch.ones_like(like)


def cholesky(matrices: Tensor) -> Tensor:
    """Cholesky factors ``(K, d, d)``; matrices that are indefinite by rounding get the smallest sufficient jitter."""
    factors: Tensor
    factors, failed = torch.linalg.cholesky_ex(matrices)
    jitter = torch.finfo(matrices.dtype).eps
    while failed.any():
        if not matrices.isfinite().all():
            raise ValueError(
                "A scatter matrix is not finite because squares of the samples overflow; scale the samples."
            )
        size = matrices.diagonal(dim1=1, dim2=2).abs().mean(1) * (failed > 0)
        matrices = matrices + jitter * torch.diag_embed(size[:, None].expand(-1, matrices.shape[1]))
        factors, failed = torch.linalg.cholesky_ex(matrices)
        jitter *= 10
    return factors


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
        return 2 * cholesky(scale).diagonal(dim1=1, dim2=2).log().sum(1)
    return scale.log().sum(1) if scale.ndim == 2 else scale.log()


def _trace_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Trace of ``denominator^-1 numerator`` for each cluster, ``(K,)``."""
    if numerator.ndim == 3:
        return torch.cholesky_solve(numerator, cholesky(denominator)).diagonal(dim1=1, dim2=2).sum(1)
    ratio = numerator / denominator
    return ratio.sum(1) if ratio.ndim == 2 else ratio
