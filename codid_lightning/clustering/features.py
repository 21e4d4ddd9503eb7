"""Passes over the data: Gaussian log densities and sufficient statistics as two matrix products.

The features are ``phi(x) = [1, x, q(x)]``, where q are the products of coordinates that the covariance family needs.
The log density of every cluster is linear in phi, and so are the sufficient statistics of soft assignments. One EM
iteration is ``coefficients @ phi``, a softmax, and ``responsibilities @ phi.T``, for one block of samples after the
other, so that a block stays in cache. Samples are columns: products of coordinates and the softmax are then computed
along contiguous memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from codid_lightning.clustering.niw import CovarianceType, Moments, cholesky

_BLOCK_BYTES = 2 << 20  # a block of features stays in cache between the two products
_MAX_KEPT_BYTES = 1 << 29  # larger features are computed again in every pass
_MIN_EXPONENT = -80.0  # exp of less is subnormal in float32 and ten times slower


class QuadraticFeatures:
    """The features of a data matrix, in blocks of samples.

    Args:
        x: Data, ``(N, d)``; products are summed in this dtype within a block and in float64 across blocks.
        covariance_type: Which products of coordinates the covariance family needs.
        weights: How often each sample counts, ``(N,)``; default: once.
    """

    def __init__(self, x: Tensor, covariance_type: CovarianceType, weights: Tensor | None = None) -> None:
        self.x = x
        self.weights = None if weights is None else weights.to(x)
        self.covariance_type = covariance_type
        n, d = x.shape
        self._rows, self._columns = torch.triu_indices(d, d, device=x.device)
        self.width = feature_width(d, covariance_type)
        row_bytes = self.width * x.element_size()
        self._block = max(64, min(n, _BLOCK_BYTES // row_bytes))
        kept = n * row_bytes <= _MAX_KEPT_BYTES
        self._blocks = [self._build(part) for part in x.split(self._block)] if kept else None

    def __iter__(self) -> Iterator[Tensor]:
        """Blocks of features, ``(width, block)``."""
        return iter(self._blocks) if self._blocks is not None else map(self._build, self.x.split(self._block))

    @property
    def count(self) -> float:
        """Number of samples, or the sum of their weights."""
        return len(self.x) if self.weights is None else float(self.weights.sum(dtype=torch.float64))

    def part(self, index: Tensor) -> QuadraticFeatures:
        """The features of some samples."""
        weights = None if self.weights is None else self.weights[index]
        return QuadraticFeatures(self.x[index], self.covariance_type, weights)

    def sizes(self, labels: Tensor, k: int) -> Tensor:
        """Number of samples of each label, or the sum of their weights, ``(K,)``."""
        return torch.bincount(labels, weights=self.weights, minlength=k)

    def assign(self, coefficients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One E-step, and the statistics for the next M-step.

        Args:
            coefficients: Log of weight times density of each cluster, linear in the features, ``(K, width)``.

        Returns:
            Responsibilities ``(N, K)``, log likelihood of each sample ``(N,)``, sums ``(K, width)`` in float64.
        """
        weights = coefficients.to(self.x.dtype)
        responsibilities = self.x.new_empty(len(weights), len(self.x))
        log_likelihood = self.x.new_empty(len(self.x))
        sums = torch.zeros_like(coefficients)
        start = 0
        parts = zip(self, responsibilities.split(self._block, 1), log_likelihood.split(self._block), strict=True)
        for phi, r, total in parts:
            torch.mm(weights, phi, out=r)
            top = r.amax(0)
            normaliser = r.sub_(top).clamp_min_(_MIN_EXPONENT).exp_().sum(0)
            r.div_(normaliser)
            torch.add(normaliser.log_(), top, out=total)
            sums += self._weigh(r, start) @ phi.T
            start += len(total)
        return responsibilities.T, log_likelihood, sums

    def own_scores(self, coefficients: Tensor, labels: Tensor) -> Tensor:
        """Value ``(N,)`` of the linear function of each sample's cluster at its features; fast for sorted labels."""
        weights = coefficients.to(self.x.dtype)
        scores = []
        for phi, own in zip(self, labels.split(self._block), strict=True):
            low, high = int(own.min()), int(own.max()) + 1
            scores.append((weights[low:high] @ phi).gather(0, own[None] - low)[0])
        return torch.cat(scores)

    def group_sums(self, labels: Tensor, k: int, weights: Tensor | None = None) -> Tensor:
        """Features summed over the samples of each label, ``(K, width)`` in float64; fast for sorted labels."""
        weights = torch.ones_like(self.x[:, 0]) if weights is None else weights
        weights = weights if self.weights is None else weights * self.weights
        sums = torch.zeros(k, self.width, dtype=torch.float64, device=self.x.device)
        for phi, own, w in zip(self, labels.split(self._block), weights.split(self._block), strict=True):
            low, high = int(own.min()), int(own.max()) + 1
            member = w.new_zeros(high - low, len(w)).scatter_(0, own[None] - low, w[None])
            sums[low:high] += member @ phi.T
        return sums

    def moments(self, responsibilities: Tensor) -> Moments:
        """Counts, means and scatters under soft assignments ``(N, K)``."""
        sums = torch.zeros(responsibilities.shape[1], self.width, dtype=torch.float64, device=self.x.device)
        start = 0
        for phi, r in zip(self, responsibilities.split(self._block), strict=True):
            sums += self._weigh(r.T, start) @ phi.T
            start += len(r)
        return self.to_moments(sums)

    def to_moments(self, sums: Tensor) -> Moments:
        """Counts, means and scatters from summed features ``(K, width)``."""
        d = self.x.shape[1]
        n, first, second = sums[:, 0], sums[:, 1 : d + 1], sums[:, d + 1 :]
        mean = first / n.clamp_min(torch.finfo(n.dtype).tiny)[:, None]
        if self.covariance_type == "full":
            scatter = sums.new_empty(len(sums), d, d)
            scatter[:, self._rows, self._columns] = second
            scatter[:, self._columns, self._rows] = second
            scatter -= first[:, :, None] * mean[:, None, :]
        elif self.covariance_type == "diag":
            scatter = (second - first * mean).clamp_min(0)  # rounding must not leave a negative variance
        else:
            scatter = (second[:, 0] - (first * mean).sum(1)).clamp_min(0)
        return Moments(n, mean, scatter)

    def coefficients(self, log_weights: Tensor, means: Tensor, covariances: Tensor) -> Tensor:
        """Log of weight times Gaussian density as linear functions of the features, ``(K, width)``."""
        d = means.shape[1]
        if self.covariance_type == "full":
            factor = cholesky(covariances)
            precision = torch.cholesky_inverse(factor)
            linear = (precision @ means[:, :, None])[:, :, 0]
            log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
            twice = torch.where(self._rows == self._columns, 1.0, 2.0).to(means)
            quadratic = precision[:, self._rows, self._columns] * twice
        else:
            quadratic = 1 / covariances.reshape(len(means), -1)
            linear = means * quadratic
            log_det = -quadratic.expand_as(means).log().sum(1)
        constant = log_weights - 0.5 * (d * math.log(2 * math.pi) + log_det + (linear * means).sum(1))
        return torch.cat([constant[:, None], linear, -0.5 * quadratic], 1)

    def _weigh(self, r: Tensor, start: int) -> Tensor:
        """Responsibilities ``(K, n)`` of the samples from ``start``, times the samples' weights."""
        return r if self.weights is None else r * self.weights[start : start + r.shape[1]]

    def _build(self, x: Tensor) -> Tensor:
        columns = x.T.contiguous()
        d, n = columns.shape
        phi = x.new_empty(self.width, n)
        phi[0] = 1
        phi[1 : d + 1] = columns
        if self.covariance_type == "full":
            torch.mul(columns[self._rows], columns[self._columns], out=phi[d + 1 :])
        elif self.covariance_type == "diag":
            torch.square(columns, out=phi[d + 1 :])
        else:
            phi[d + 1] = columns.square().sum(0)
        return phi


def feature_width(d: int, covariance_type: CovarianceType) -> int:
    """Number of features of a sample in d dimensions."""
    return 1 + d + {"full": d * (d + 1) // 2, "diag": d, "spherical": 1}[covariance_type]
