"""CoDID and its baselines: disentangled representations under hidden correlations."""

from codid_lightning.baselines import *  # noqa: F403
from codid_lightning.baselines import __all__ as _baselines
from codid_lightning.callbacks.mode_discovery import ModeDiscovery
from codid_lightning.clustering import DPGMM, KMeans, TrueModes
from codid_lightning.codid import CoDID
from codid_lightning.methods import *  # noqa: F403
from codid_lightning.methods import __all__ as _methods
from codid_lightning.module import DisentanglementModule

__version__ = "0.1.0"
__all__ = ["DPGMM", "CoDID", "DisentanglementModule", "KMeans", "ModeDiscovery", "TrueModes", *_baselines, *_methods]
