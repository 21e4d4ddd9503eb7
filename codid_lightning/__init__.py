"""CoDID and its baselines: disentangled representations under hidden correlations."""

from codid_lightning.baselines import Base
from codid_lightning.module import DisentanglementModule

__version__ = "0.1.0"
__all__ = ["Base", "DisentanglementModule"]
