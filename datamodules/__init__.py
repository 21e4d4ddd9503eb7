"""Data sets as LightningDataModules: every sample comes with its attributes and, where known, its mode."""

from datamodules.base import AttributeDataModule, AttributeDataset, Batch, DataError
from datamodules.colored import CMNIST, CFashionMNIST, ColoredDigits
from datamodules.correlated import CorrelatedDataModule
from datamodules.toy import Toy, ToyFourAttributes, ToyNineModes

__all__ = [
    "CMNIST",
    "AttributeDataModule",
    "AttributeDataset",
    "Batch",
    "CFashionMNIST",
    "ColoredDigits",
    "CorrelatedDataModule",
    "DataError",
    "Toy",
    "ToyFourAttributes",
    "ToyNineModes",
]
