"""Data sets as LightningDataModules: every sample comes with its attributes and, where known, its mode."""

from datamodules.base import AttributeDataModule, AttributeDataset, Batch, DataError
from datamodules.correlated import CorrelatedDataModule

__all__ = ["AttributeDataModule", "AttributeDataset", "Batch", "CorrelatedDataModule", "DataError"]
