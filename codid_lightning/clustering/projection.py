"""Centre, scale and project samples to the directions that carry structure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_PLAIN = 16  # up to so many dimensions a full covariance needs no help
_MOST = 32  # components beyond the first few dozen cost more than they tell
_ROWS = 1 << 14  # rows projected at a time


@dataclass(frozen=True)
class Projection:
    """An affine map ``y = (x - mean) @ basis / scale`` to the space mixtures are fitted in.

    What the basis leaves out is modelled by one isotropic Gaussian shared by all clusters, so that densities are
    densities of ``x``.

    Args:
        mean: Mean of the samples, ``(d,)``, float64.
        basis: Orthonormal directions, ``(d, p)``, float64.
        scale: Root mean square of the projected coordinates.
        residual: Variance of the left-out directions; zero if there are none.
    """

    mean: Tensor
    basis: Tensor
    scale: float
    residual: float

    @classmethod
    def fit(cls, x: Tensor, n_components: int | None = None) -> Projection:
        """Principal components of ``x`` ``(N, d)``.

        Args:
            x: Samples.
            n_components: How many; default all in few dimensions, else ``structured_components``.
        """
        n, d = x.shape
        mean = x.mean(0, dtype=torch.float64)
        covariance = sum((_centred(part, mean) for part in x.split(_ROWS)), torch.zeros(d, d).to(mean)) / n
        if n_components is None and d <= _PLAIN:
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
        """What turns log densities of ``y`` into log densities of ``x``, ``(N,)``."""
        d, p = self.basis.shape
        volume = x.new_full((len(x),), -p * math.log(self.scale))
        if self.residual <= 0:
            return volume
        inside = (self(x) * self.scale).square().sum(1)
        total = torch.cat([(part - self.mean).square().sum(1).to(x.dtype) for part in x.split(_ROWS)])
        outside = (total - inside).clamp_min(0) / self.residual
        return volume - 0.5 * (outside + (d - p) * math.log(2 * math.pi * self.residual))


def structured_components(values: Tensor, n: int) -> int:
    """How many principal components carry structure, from the sorted eigenvalues of the covariance of n samples.

    Eigenvalues below the edge that pure noise of the median level would reach (Marchenko-Pastur) are discarded; of the
    others the effective rank, exp of the entropy of their shares of the variance, says how many matter.
    """
    d = len(values)
    level = float(values[: max(1, min(n - 1, d))].median())
    edge = 1.05 * level * (1 + math.sqrt(d / n)) ** 2
    signal = values[values > edge]
    if len(signal) == 0:
        return 1
    shares = signal / signal.sum()
    return min(_MOST, math.ceil(float(torch.exp(-(shares * shares.log()).sum())) - 1e-9))


def _centred(x: Tensor, mean: Tensor) -> Tensor:
    """Scatter of a block of rows around the mean, ``(d, d)`` in float64."""
    rows = (x - mean).to(x.dtype)
    return (rows.T @ rows).double()
