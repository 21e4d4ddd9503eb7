"""Mode discovery, usable without Lightning: ``from codid_lightning.clustering import DPGMM``."""

from codid_lightning.clustering.base import Clusterer
from codid_lightning.clustering.dpgmm import DPGMM
from codid_lightning.clustering.given import KMeans, TrueModes
from codid_lightning.clustering.harmonizer import Harmonizer
from codid_lightning.clustering.niw import NIW
from codid_lightning.clustering.per_value import Clustering, ModesPerValue, Move

__all__ = ["DPGMM", "NIW", "Clusterer", "Clustering", "Harmonizer", "KMeans", "ModesPerValue", "Move", "TrueModes"]
