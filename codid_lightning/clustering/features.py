"""Passes over the data: Gaussian log densities and sufficient statistics as two matrix products.

With features ``phi(x) = [1, x, q(x)]`` (q: the products of coordinates the covariance family needs), the log density of
every cluster is linear in phi, and so are the sufficient statistics of soft assignments. One EM iteration is then
``phi @ coefficients.T``, a softmax, and ``responsibilities.T @ phi``, done block by block while a block is in cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from codid_lightning.clustering.niw import CovarianceType, Moments

_BLOCK_BYTES = 4 << 20  # a block of features stays in cache between the two products
_CACHE_BYTES = 1 << 30  # above this the features are rebuilt at every pass


class QuadraticFeatures:
    """The features of a data matrix, in blocks of rows.

    Args:
        x: Data, ``(N, d)``; products are summed in this dtype within a block and in float64 across blocks.
        covariance_type: Which products of coordinates the covariance family needs.
    """

    def __init__(self, x: Tensor, covariance_type: CovarianceType) -> None:
        self.x = x
        self.covariance_type = covariance_type
        n, d = x.shape
        self.rows, self.columns = torch.triu_indices(d, d, device=x.device)
        self.width = 1 + d + {"full": d * (d + 1) // 2, "diag": d, "spherical": 1}[covariance_type]
        row_bytes = self.width * x.element_size()
        self.block = max(64, min(n, _BLOCK_BYTES // row_bytes))
        keep = n * row_bytes <= _CACHE_BYTES
        self._cached = [self._build(part) for part in x.split(self.block)] if keep else None

    def __iter__(self) -> Iterator[Tensor]:
        """Blocks of features, ``(block, width)``."""
        if self._cached is not None:
            return iter(self._cached)
        return (self._build(part) for part in self.x.split(self.block))

    def _build(self, x: Tensor) -> Tensor:
        ones = x.new_ones(len(x), 1)
        if self.covariance_type == "full":
            return torch.cat([ones, x, x[:, self.rows] * x[:, self.columns]], 1)
        squares = x.square()
        return torch.cat([ones, x, squares if self.covariance_type == "diag" else squares.sum(1, keepdim=True)], 1)

    def assign(self, coefficients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One E-step and the statistics for the next M-step.

        Args:
            coefficients: Log densities as linear functions of the features, ``(K, width)``.

        Returns:
            Responsibilities ``(N, K)``, log likelihood of each sample ``(N,)``, sums ``(K, width)`` in float64.
        """
        weights = coefficients.to(self.x.dtype).T.contiguous()
        responsibilities = self.x.new_empty(len(self.x), weights.shape[1])
        log_likelihood = self.x.new_empty(len(self.x))
        sums = coefficients.new_zeros(coefficients.shape, dtype=torch.float64)
        for phi, r, total in zip(
            self, responsibilities.split(self.block), log_likelihood.split(self.block), strict=True
        ):
            torch.mm(phi, weights, out=r)
            top = r.amax(1, keepdim=True)
            normaliser = r.sub_(top).exp_().sum(1, keepdim=True)
            r.div_(normaliser)
            torch.add(normaliser.log_(), top, out=total.unsqueeze(1))
            sums += r.T @ phi
        return responsibilities, log_likelihood, sums

    def scores(self, coefficients: Tensor) -> Tensor:
        """Values of linear functions of the features, ``(N, K)``."""
        weights = coefficients.to(self.x.dtype).T.contiguous()
        return torch.cat([phi @ weights for phi in self])

    def sums(self, weights: Tensor) -> Tensor:
        """Features summed with the weights of each cluster, ``(K, width)`` in float64."""
        total = torch.zeros(weights.shape[1], self.width, dtype=torch.float64, device=self.x.device)
        for phi, w in zip(self, weights.split(self.block), strict=True):
            total += w.T.to(phi.dtype) @ phi
        return total

    def moments(self, sums: Tensor) -> Moments:
        """Counts, means and scatters from summed features."""
        d = self.x.shape[1]
        n, first, second = sums[:, 0], sums[:, 1 : d + 1], sums[:, d + 1 :]
        mean = first / n.clamp_min(torch.finfo(n.dtype).tiny)[:, None]
        if self.covariance_type == "full":
            square = sums.new_empty(len(sums), d, d)
            square[:, self.rows, self.columns] = second
            square[:, self.columns, self.rows] = second
            scatter = square - first[:, :, None] * mean[:, None, :]
            # rounding must not leave a negative variance behind
            diagonal = scatter.diagonal(dim1=1, dim2=2)
            diagonal.clamp_min_(0)
        elif self.covariance_type == "diag":
            scatter = (second - first * mean).clamp_min(0)
        else:
            scatter = (second[:, 0] - (first * mean).sum(1)).clamp_min(0)
        return Moments(n, mean, scatter)

    def coefficients(self, log_weights: Tensor, means: Tensor, covariances: Tensor) -> Tensor:
        """Log of weight times Gaussian density as linear functions of the features, ``(K, width)``."""
        d = means.shape[1]
        if self.covariance_type == "full":
            factor = torch.linalg.cholesky(covariances)
            precision = torch.cholesky_inverse(factor)
            linear = (precision @ means[:, :, None])[:, :, 0]
            log_det = 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)
            twice = torch.where(self.rows == self.columns, 1.0, 2.0).to(means)
            quadratic = precision[:, self.rows, self.columns] * twice
        else:
            variances = covariances if self.covariance_type == "diag" else covariances[:, None].expand(-1, d)
            linear = means / variances
            log_det = variances.log().sum(1)
            quadratic = 1 / variances if self.covariance_type == "diag" else 1 / covariances[:, None]
        constant = log_weights - 0.5 * (d * math.log(2 * math.pi) + log_det + (linear * means).sum(1))
        return torch.cat([constant[:, None], linear, -0.5 * quadratic], 1)
