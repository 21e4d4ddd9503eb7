"""The methods CoDID is compared with, on the same backbone."""

from codid_lightning.baselines.a_cmi import ACMI
from codid_lightning.baselines.base import Base
from codid_lightning.baselines.coda import CODA
from codid_lightning.baselines.coral import CORAL
from codid_lightning.baselines.dann import DANN
from codid_lightning.baselines.diosc import DIOSC
from codid_lightning.baselines.dts import DTS
from codid_lightning.baselines.hfs import HFS
from codid_lightning.baselines.id_facevc import IDFaceVC
from codid_lightning.baselines.ide_vc import IDEVC
from codid_lightning.baselines.irm import IRM
from codid_lightning.baselines.mi import MI
from codid_lightning.baselines.mmd import MMD
from codid_lightning.baselines.rex import REx

__all__ = [
    "ACMI",
    "CODA",
    "CORAL",
    "DANN",
    "DIOSC",
    "DTS",
    "HFS",
    "IDEVC",
    "IRM",
    "MI",
    "MMD",
    "Base",
    "IDFaceVC",
    "REx",
]
