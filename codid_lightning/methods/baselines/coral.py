"""CORAL: the same mean and covariance of z_1 under every value of a_2."""

from __future__ import annotations

import torch
from torch import Tensor

from codid_lightning.methods.baselines.environments import AlignmentModule, Environments, gram_distances


class CORAL(AlignmentModule):
    """Aligns the first two moments of z_1 between any two values of a_2.

    Sun & Saenko, "Deep CORAL", ECCV Workshops 2016, Eq. 1, plus the distance of the means.
    """

    title = "CORAL"

    def distances(self, z1: Tensor, environments: Environments) -> Tensor:
        """||difference of means||^2 + ||difference of covariances||_F^2 / (4 d^2).

        The inner product of two covariances is a sum of squared inner products of their centred samples, so that no
        covariance has to be computed.
        """
        means = environments.means(z1)
        centred = z1 - environments.member @ means
        freedom = (environments.counts - 1).clamp(min=1)
        covariances = environments.pair_sums((centred @ centred.T).square()) / torch.outer(freedom, freedom)
        return gram_distances(means @ means.T) + gram_distances(covariances) / (4 * z1.shape[1] ** 2)
