"""Data sets as LightningDataModules: every sample comes with its attributes and, where known, its mode."""

from datamodules.base import AttributeDataModule, AttributeDataset, Batch, DataError
from datamodules.canine_bg import CanineBG
from datamodules.colored import CMNIST, CFashionMNIST, ColoredDigits
from datamodules.correlated import CorrelatedDataModule
from datamodules.cwru import CWRU
from datamodules.grouped import GroupedDataModule
from datamodules.hhar import HHAR
from datamodules.mfd import MFD
from datamodules.own import OwnArrays, OwnImages
from datamodules.realworld import RealWorld
from datamodules.toy import Toy, ToyFourAttributes, ToyNineModes
from datamodules.uci_har import UCIHAR

__all__ = [
    "CMNIST",
    "CWRU",
    "HHAR",
    "MFD",
    "UCIHAR",
    "AttributeDataModule",
    "AttributeDataset",
    "Batch",
    "CFashionMNIST",
    "CanineBG",
    "ColoredDigits",
    "CorrelatedDataModule",
    "DataError",
    "GroupedDataModule",
    "OwnArrays",
    "OwnImages",
    "RealWorld",
    "Toy",
    "ToyFourAttributes",
    "ToyNineModes",
]
