"""Data sets as LightningDataModules: every sample comes with its attributes and, where known, its mode."""

from datamodules.base import AttributeDataModule, AttributeDataset, Batch, DataError
from datamodules.colored import CMNIST, CFashionMNIST, ColoredDigits
from datamodules.correlated import CorrelatedDataModule

__all__ = [
    "CMNIST",
    "AttributeDataModule",
    "AttributeDataset",
    "Batch",
    "CFashionMNIST",
    "ColoredDigits",
    "CorrelatedDataModule",
    "DataError",
]
