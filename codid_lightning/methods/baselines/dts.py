"""DTS: no attribute can be predicted from the representation of another."""

from __future__ import annotations

from codid_lightning.methods.baselines.dann import DANN


class DTS(DANN):
    """DANN in both directions: a_2 is removed from z_1, and a_1 from z_2.

    The group-level disentanglement of Li et al., "Towards Learning Disentangled Representations for Time Series",
    KDD 2022: the saddle point of sum_q CE(a_q from z_q) - strength * mean_{q, r != q} CE(a_r from z_q). Its
    total-correlation terms, which are for single latent factors, are left out.
    """

    title = "DTS"

    def sources(self) -> range:
        """All representations."""
        return range(len(self.attribute_sizes))
