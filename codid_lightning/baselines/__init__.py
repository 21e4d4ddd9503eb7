"""The methods CoDID is compared with, on the same backbone."""

from codid_lightning.baselines.base import Base

__all__ = ["Base"]
