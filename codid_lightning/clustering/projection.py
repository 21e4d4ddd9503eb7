"""Centre, scale and project samples to the directions that carry structure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Projection:
    """An affine map ``y = (x - mean) @ basis / scale`` to the space mixtures are fitted in.

    What the basis leaves out is modelled by one isotropic Gaussian shared by all clusters, so that densities are
    densities of ``x``.

    Args:
        mean: Mean of the samples, ``(d,)``, float64.
        basis: Orthonormal directions, ``(d, p)``, float64.
        scale: Root mean square of the projected coordinates.
        residual: Variance of the left-out directions, zero if there are none.
    """

    mean: Tensor
    basis: Tensor
    scale: float
    residual: float

    @classmethod
    def fit(cls, x: Tensor, n_components: int | None, max_plain: int = 16) -> Projection:
        """Principal components of ``x`` ``(N, d)``; without a given number, those above the noise."""
        n, d = x.shape
        mean = x.mean(0, dtype=torch.float64)
        if n_components is None and d <= max_plain:
            scale = float((x - mean.to(x.dtype)).square().mean(dtype=torch.float64).sqrt())
            return cls(mean, torch.eye(d, dtype=torch.float64, device=x.device), scale or 1.0, 0.0)
        centred = x - mean.to(x.dtype)
        values, vectors = torch.linalg.eigh((centred.T @ centred).double() / n)
        values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
        p = min(d, n_components or signal_components(values, n))
        scale = math.sqrt(float(values[:p].mean()))
        residual = float(values[p:].mean()) if p < d else 0.0
        return cls(mean, vectors[:, :p], scale or 1.0, residual)

    def __call__(self, x: Tensor) -> Tensor:
        """Project samples ``(N, d)`` to ``(N, p)``, in their dtype."""
        return (x - self.mean.to(x.dtype)) @ (self.basis / self.scale).to(x.dtype)

    def log_correction(self, x: Tensor) -> Tensor:
        """What turns a log density of ``y`` into one of ``x``, ``(N,)``."""
        d, p = self.basis.shape
        volume = x.new_full((len(x),), -p * math.log(self.scale))
        if self.residual <= 0:
            return volume
        centred = x - self.mean.to(x.dtype)
        outside = centred.square().sum(1) - (centred @ self.basis.to(x.dtype)).square().sum(1)
        return volume - 0.5 * (outside / self.residual + (d - p) * math.log(2 * math.pi * self.residual))


def signal_components(values: Tensor, n: int, limit: int = 32) -> int:
    """Number of principal components above the noise, from the sorted eigenvalues of the covariance."""
    d = len(values)
    noise = float(values[: min(n - 1, d)].median()) if n > 1 else 0.0
    edge = noise * (1 + math.sqrt(d / n)) ** 2
    return max(1, min(limit, int((values > edge * 1.05).sum())))
