"""From a table to a model without shortcuts: candidates, a choice without test data, proof on test data."""

from codid_lightning.analysis.auto.model import AutoModel
from codid_lightning.analysis.auto.search import AutoResult, auto

__all__ = ["AutoModel", "AutoResult", "auto"]
