"""Centre and scale samples, and project them to the principal components that separate clusters."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_MAX_UNPROJECTED = 16  # samples with more dimensions are projected
_MAX_COMPONENTS = 32  # further components take more time than they are useful
_ROWS = 1 << 14  # rows projected at a time


@dataclass(frozen=True)
class Projection:
    """An affine map ``y = (x - mean) @ basis / scale`` to the space mixtures are fitted in.

    The directions outside of the basis are modelled by one isotropic Gaussian that all clusters share, so that
    densities are densities of ``x``.

    Args:
        mean: Mean of the samples, ``(d,)``, float64.
        basis: Orthonormal directions, ``(d, p)``, float64.
        scale: Root mean square of the projected coordinates.
        residual: Variance in each direction outside of the basis; zero if there are none.
    """

    mean: Tensor
    basis: Tensor
    scale: float
    residual: float

    @classmethod
    def fit(cls, x: Tensor, n_components: int | None = None, weights: Tensor | None = None) -> Projection:
        """Principal components of ``x`` ``(N, d)``.

        Args:
            x: Samples.
            n_components: Number of components; default: all in at most 16 dimensions, else
                ``structured_components``.
            weights: How often each sample counts, ``(N,)``; default: once.
        """
        n, d = x.shape
        if weights is None:
            mean = x.mean(0, dtype=torch.float64)
            covariance = sum((_centred(part, mean) for part in x.split(_ROWS)), torch.zeros(d, d).to(mean)) / n
        else:
            exact, shares = x.double(), weights.double() / weights.sum(dtype=torch.float64)
            mean = shares @ exact
            covariance = (exact - mean).T @ ((exact - mean) * shares[:, None])
            n = max(1, round(float(weights.sum(dtype=torch.float64))))
        if n_components is None and d <= _MAX_UNPROJECTED:
            return cls(mean, torch.eye(d).to(mean), math.sqrt(float(covariance.diagonal().mean())) or 1.0, 0.0)
        values, vectors = torch.linalg.eigh(covariance)
        values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
        p = min(d, n_components or structured_components(values, n))
        residual = float(values[p:].mean()) if p < d else 0.0
        return cls(mean, vectors[:, :p].contiguous(), math.sqrt(float(values[:p].mean())) or 1.0, residual)

    def __call__(self, x: Tensor) -> Tensor:
        """Project samples ``(N, d)`` to ``(N, p)``, in their dtype."""
        matrix = (self.basis / self.scale).to(x.dtype)
        return torch.cat([(part - self.mean).to(x.dtype) @ matrix for part in x.split(_ROWS)])

    def log_volume(self, x: Tensor) -> Tensor:
        """Terms ``(N,)`` to add to log densities of ``y`` to get log densities of ``x``."""
        d, p = self.basis.shape
        volume = x.new_full((len(x),), -p * math.log(self.scale))
        if self.residual <= 0:
            return volume
        inside = (self(x) * self.scale).square().sum(1)
        total = torch.cat([(part - self.mean).square().sum(1).to(x.dtype) for part in x.split(_ROWS)])
        outside = (total - inside).clamp_min(0) / self.residual
        return volume - 0.5 * (outside + (d - p) * math.log(2 * math.pi * self.residual))


def structured_components(values: Tensor, n: int) -> int:
    """Number of principal components above noise, from the sorted eigenvalues of the covariance of n samples.

    Eigenvalues below the largest eigenvalue of pure noise at the median level (Marchenko-Pastur) are discarded. The
    result is the effective rank of the others: exp of the entropy of their shares of the variance.
    """
    d = len(values)
    level = float(values[: max(1, min(n - 1, d))].median())
    edge = 1.05 * level * (1 + math.sqrt(d / n)) ** 2
    signal = values[values > edge]
    if len(signal) == 0:
        return 1
    shares = signal / signal.sum()
    return min(_MAX_COMPONENTS, math.ceil(float(torch.exp(-(shares * shares.log()).sum())) - 1e-9))


def _centred(x: Tensor, mean: Tensor) -> Tensor:
    """Scatter of a block of rows around the mean, ``(d, d)`` in float64."""
    rows = (x - mean).to(x.dtype)
    return (rows.T @ rows).double()
