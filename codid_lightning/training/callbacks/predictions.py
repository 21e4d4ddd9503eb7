"""Predictions as files: a table per test set, with the representations beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from codid_lightning.training.runs import replacing


class PredictionWriter(Callback):
    """Writes `<split>.csv` (index, predicted value, its probability, cluster) and `<split>.npz` (representations).

    If the data come from a file of the user's, the table also has each sample's row in that file.

    Args:
        directory: Where the files go.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.parts: dict[int, list[dict[str, Any]]] = {}

    def on_predict_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the batch's predictions on the CPU."""
        part = {k: [p.cpu() for p in v] if isinstance(v, list) else v.cpu() for k, v in outputs.items()}
        self.parts.setdefault(dataloader_idx, []).append(part)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the predictions of all ranks, and write two files per split."""
        parts = self.parts
        if trainer.world_size > 1:
            shares: list[Any] = [None] * trainer.world_size
            torch.distributed.all_gather_object(shares, self.parts)
            parts = {split: [p for share in shares for p in share[split]] for split in self.parts}
        if trainer.is_global_zero:
            self.directory.mkdir(parents=True, exist_ok=True)
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            for split, of_split in parts.items():
                self._write(data.test_names[split], of_split, data)
        self.parts = {}

    def _write(self, split: str, parts: list[dict[str, Any]], data: Any) -> None:
        index = torch.cat([p["index"] for p in parts])
        order = index.argsort()
        columns: dict[str, Any] = {"index": index[order].numpy()}
        if (rows := data.datasets[split].rows) is not None:
            columns["row"] = rows[index[order]].numpy()
        for q, name in enumerate(data.attribute_names):
            probability, value = torch.cat([p["probabilities"][q] for p in parts])[order].max(1)
            columns[name] = np.array(data.value_names[q])[value.numpy()]
            columns[f"{name}_probability"] = probability.float().numpy()
        if "cluster" in parts[0]:
            columns["cluster"] = _sorted(parts, "cluster", order).numpy()
        with replacing(self.directory / f"{split}.csv") as path:
            pd.DataFrame(columns).to_csv(path, index=False)
        with replacing(self.directory / f"{split}.npz") as path, path.open("wb") as file:
            np.savez_compressed(file, index=columns["index"], z=_sorted(parts, "z", order).float().numpy())


def _sorted(parts: list[dict[str, Any]], key: str, order: Tensor) -> Tensor:
    return torch.cat([p[key] for p in parts])[order]
