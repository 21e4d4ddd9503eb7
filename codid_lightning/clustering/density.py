"""The mixture that was fitted, as a density of the samples: evaluation, draws, number of parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from codid_lightning.clustering.features import QuadraticFeatures, feature_width
from codid_lightning.clustering.niw import CovarianceType, cholesky
from codid_lightning.clustering.projection import Projection

_ROWS = 1 << 16  # samples evaluated at a time


@dataclass(frozen=True)
class MixtureDensity:
    """A Gaussian mixture in the space of a projection, and one Gaussian outside of it.

    Args:
        projection: From samples to the space of the mixture.
        covariance_type: Family of the covariances.
        weights: ``(K,)``.
        means: ``(K, p)`` in the space of the mixture.
        covariances: In the space of the mixture, shaped as their family needs.
    """

    projection: Projection
    covariance_type: CovarianceType
    weights: Tensor
    means: Tensor
    covariances: Tensor

    def evaluate(self, x: Tensor, double: bool) -> tuple[Tensor, Tensor]:
        """Responsibilities ``(N, K)`` and log densities ``(N,)`` of samples, in their dtype.

        Args:
            x: Samples ``(N, d)``.
            double: Whether to compute in float64.
        """
        parts = [self._evaluate(part, double) for part in x.split(_ROWS)]
        return torch.cat([probs for probs, _ in parts]), torch.cat([density for _, density in parts])

    def _evaluate(self, x: Tensor, double: bool) -> tuple[Tensor, Tensor]:
        y = self.projection(x)
        features = QuadraticFeatures(y.double() if double else y, self.covariance_type)
        table = features.coefficients(self.weights.log(), self.means, self.covariances)
        probs, density, _ = features.assign(table)
        return probs.to(x.dtype), density.to(x.dtype) + self.projection.log_volume(x)

    def full_covariances(self) -> Tensor:
        """Covariances in the space of the samples, ``(K, d, d)``."""
        basis, scale = self.projection.basis, self.projection.scale
        outside = torch.eye(len(basis)).to(basis) - basis @ basis.T
        return scale**2 * basis @ self._inner() @ basis.T + self.projection.residual * outside

    def full_means(self) -> Tensor:
        """Means in the space of the samples, ``(K, d)``."""
        return self.means @ self.projection.basis.T * self.projection.scale + self.projection.mean

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Draw samples ``(n, d)`` and the components ``(n,)`` they are of."""
        component = torch.multinomial(self.weights.cpu().double(), n, replacement=True, generator=generator)
        basis, p = self.projection.basis.cpu(), self.means.shape[1]
        noise = torch.randn(n, p, generator=generator, dtype=torch.float64)
        factor = cholesky(self._inner().cpu().double())
        inner = self.means.cpu()[component] + (factor[component] @ noise[:, :, None])[:, :, 0]
        outside = torch.randn(n, len(basis), generator=generator, dtype=torch.float64)
        outside = (outside - outside @ basis @ basis.T) * math.sqrt(self.projection.residual)
        x = self.projection.mean.cpu() + inner * self.projection.scale @ basis.T + outside
        return x.to(self.means.device), component.to(self.means.device)

    def parameters(self) -> int:
        """Number of free parameters in the space of the mixture."""
        k, p = self.means.shape
        return k * feature_width(p, self.covariance_type) - 1

    def _inner(self) -> Tensor:
        inner = self.covariances
        if inner.ndim == 3:
            return inner
        return torch.diag_embed(inner.reshape(len(inner), -1).expand_as(self.means))
