"""MMD: the same distribution of z_1 under every value of a_2, measured by kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from codid_lightning.methods.baselines.environments import AlignmentModule, Environments, gram_distances


def rbf_mixture(z: Tensor) -> Tensor:
    """Mean of five Gaussian kernels whose squared widths are 1/4 to 4 times the median squared distance, (B, B)."""
    squared = gram_distances(z @ z.T).clamp(min=0)
    rows, columns = torch.triu_indices(len(z), len(z), offset=1, device=z.device)
    median = squared.detach()[rows, columns].median() if len(rows) else squared.new_ones(())
    widths = median.clamp(min=1e-12) * 2.0 ** torch.arange(-2, 3, device=z.device)
    return (-squared / widths[:, None, None]).exp().mean(0)


class MMD(AlignmentModule):
    """Aligns z_1 across the values of a_2 by the maximum mean discrepancy.

    Gretton et al., "A Kernel Two-Sample Test", JMLR 2012, Eq. 3 (the unbiased estimate, which does not
    depend on the size of the environments); for domain generalisation Li et al., CVPR 2018.
    """

    title = "MMD"

    def distances(self, z1: Tensor, environments: Environments) -> Tensor:
        """Squared MMD between all pairs of environments, without the kernel of a sample with itself."""
        counts = environments.counts
        sums = environments.pair_sums(rbf_mixture(z1))
        means = sums / torch.outer(counts, counts).clamp(min=1)
        within = (sums.diagonal() - counts) / (counts * (counts - 1)).clamp(min=1)
        return gram_distances(means.diagonal_scatter(within))
