"""Everything that can be trained: CoDID, its parts, and the methods it is compared with."""

from codid_lightning.errors import hidden_datamodules

if hidden := hidden_datamodules():
    raise ImportError(hidden)
