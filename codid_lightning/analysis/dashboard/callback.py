"""A callback that shows a training: clusters, moves, weights and representations, confusions and a final table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from codid_lightning.analysis.dashboard import figures
from codid_lightning.analysis.dashboard.boards import Board, Disk, boards_of
from codid_lightning.analysis.dashboard.refinements import MOVE_COLUMNS, cluster_counts, history_of, move_rows
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.hardware import to_module
from codid_lightning.metrics.base import subsample
from codid_lightning.training import runs
from codid_lightning.training.identity import shareable

if TYPE_CHECKING:
    from codid_lightning.methods.codid.module import CoDID
    from codid_lightning.methods.codid.target import Target

FOLDER = "figures"


class Dashboard(Callback):
    """Show a training on its loggers' dashboards (Weights & Biases, TensorBoard), or in files if there is none.

    Methods log losses, metrics and clustering scores themselves. This callback does not change the training: its
    results are the same with and without it. If a dashboard fails, a warning is given and files are written instead.

    Args:
        max_samples: Number of training samples in t-SNE images and weight histograms, the same ones each time.
        images: Draw t-SNE images; each takes a few seconds.
        checkpoint: Also upload the last checkpoint.
        directory: Folder for files if no logger shows figures; default: `figures` beside the run's checkpoints.
    """

    def __init__(
        self, max_samples: int = 1000, images: bool = True, checkpoint: bool = False, directory: str | None = None
    ) -> None:
        self.max_samples, self.images, self.checkpoint, self.directory = max_samples, images, checkpoint, directory
        self.boards: list[Board] = []
        self.shown = 0  # refinements shown so far
        self.confusions: dict[tuple[int, int], MulticlassConfusionMatrix] = {}

    # ------------------------------------------------------------------------------------------------------- training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the config."""
        self.shown = len(history_of(trainer))
        run = self._run(trainer)
        if trainer.is_global_zero and run is not None and (run / runs.CONFIG).is_file():
            config = shareable(runs.read_config(run))
            self._show(trainer, lambda board: board.config(config))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Show a refinement after the first batch that used its clusters."""
        history = history_of(trainer)
        if len(history) == self.shown or not trainer.is_global_zero:
            return
        new, self.shown = history[self.shown :], len(history)
        self._log(trainer, {name: value for note in new for name, value in cluster_counts(note, trainer).items()})
        rows = move_rows(history, trainer)
        if rows:
            self._show(trainer, lambda board: board.table("moves", MOVE_COLUMNS, rows))
        ratios = {note["kind"]: np.array([move["log_hastings"] for move in note["moves"]]) for note in new}
        ratios = {kind: values[np.isfinite(values)] for kind, values in ratios.items()}
        if found := {kind: values for kind, values in ratios.items() if len(values)}:
            self._show(trainer, lambda board: board.histograms("log_hastings", found))
        self._show_samples(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the final representations, and upload the checkpoint if `checkpoint` is set."""
        if not trainer.is_global_zero:
            return
        self._show_samples(trainer, pl_module)
        path = Path(getattr(trainer.checkpoint_callback, "last_model_path", "") or _best_path(trainer))
        if self.checkpoint and path.is_file():
            run = self._run(trainer)
            name = "-".join(run.parts[-3:]) if run is not None else type(pl_module).__name__
            self._show(trainer, lambda board: board.checkpoint(path, name[-128:]))

    @torch.no_grad()
    def _show_samples(self, trainer: Trainer, module: LightningModule) -> None:
        """Show representations and weights of some training samples."""
        if not isinstance(module, DisentanglementModule):
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        train = data.datasets["train"]
        (index,) = subsample(self.max_samples, 0, torch.arange(len(train)))
        training = module.training
        module.eval()
        try:
            parts = (to_module(trainer, module, train[part]) for part in index.split(1024))
            z = torch.cat([module.represent(part) for part in parts]).float()
            a, mode, index = train.a[index].to(z.device), train.mode[index], index.to(z.device)
            clusters = _clusters(module, a, index)
            if self.images:
                self._draw_embeddings(trainer, z, a, mode, clusters)
            if module.mode_targets() and getattr(module, "alignment", None) is not None:
                self._show_weights(trainer, module, z, a, index)  # type: ignore[arg-type]
        finally:
            module.train(training)

    def _draw_embeddings(
        self, trainer: Trainer, z: Tensor, a: Tensor, mode: Tensor, clusters: dict[int, Tensor]
    ) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        for q in sorted({0, *clusters}):
            labelings = {f"cluster of {data.attribute_names[q]}": clusters[q].cpu().numpy()} if q in clusters else {}
            if (mode[:, q] >= 0).all():
                labelings["true mode"] = mode[:, q].cpu().numpy()
            labelings |= {name: a[:, j].cpu().numpy() for j, name in enumerate(data.attribute_names)}
            figure = figures.embedding(z[:, q].cpu().numpy(), labelings)
            self._show(trainer, lambda board, q=q, figure=figure: board.figure(f"tsne/z{q + 1}", figure))  # type: ignore[misc]

    def _show_weights(self, trainer: Trainer, module: CoDID, z: Tensor, a: Tensor, index: Tensor) -> None:
        """Show weights of pairs shuffled within clusters, by cluster and by the attributes of the shuffled part."""
        losses = module.attribute_losses(z, a)
        generator = torch.Generator(z.device).manual_seed(0)
        found: dict[str, np.ndarray] = {}
        for target in module.mode_targets():
            if target.ready:
                view = target.view(z, a, index, losses)
                sampled = (
                    None if module.alignment is None else module.alignment.sampled_weights(target, view, generator)
                )
                if sampled is not None:
                    weights, permutation = sampled
                    names = _pair_names(trainer, target, view.slot, a[permutation])
                    found |= {name: weights[inside].cpu().numpy() for name, inside in names.items()}
        if found:
            self._show(trainer, lambda board: board.histograms("weights", found))

    # ----------------------------------------------------------------------------------------------------------- test

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start a confusion matrix for every test set and attribute."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        self.confusions = {
            (i, q): MulticlassConfusionMatrix(data.attribute_sizes[q]).to(pl_module.device)
            for i in range(len(data.test_names))
            for q in data.test_attributes
        }

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add one batch to the confusion matrices."""
        if isinstance(pl_module, DisentanglementModule):
            z = pl_module.represent(batch)
            for (split, q), matrix in self.confusions.items():
                if split == dataloader_idx:
                    matrix.update(pl_module.predictors[q](z[:, q]), batch["a"][:, q])

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the confusions and the final table."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        counted = {key: matrix.compute().cpu().numpy() for key, matrix in self.confusions.items()}  # on all ranks
        if not trainer.is_global_zero:
            return
        for (split, q), counts in counted.items():
            test, attribute = data.test_names[split], data.attribute_names[q]
            figure = figures.confusion(counts, data.value_names[q], f"{attribute}, {test}")
            name = f"confusion/{test}/{attribute}"
            self._show(trainer, lambda board, name=name, figure=figure: board.figure(name, figure))  # type: ignore[misc]
        rows = [[name, float(value)] for name, value in sorted(trainer.callback_metrics.items())]
        self._show(trainer, lambda board: board.table("results", ("metric", "value"), rows))

    # -------------------------------------------------------------------------------------------------------- showing

    def _log(self, trainer: Trainer, values: dict[str, float]) -> None:
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)

    def _show(self, trainer: Trainer, show: Callable[[Board], None]) -> None:
        """Show on all boards; one that fails is replaced by files, and the training continues."""
        if not self.boards:
            self.boards = boards_of(trainer, self._folder(trainer))
        for board in list(self.boards):
            try:
                show(board)
            except Exception as error:
                if isinstance(board, Disk):
                    raise
                rank_zero_warn(
                    f"{type(board).__name__} failed ({error}): figures go to {self._folder(trainer)} instead."
                )
                self.boards.remove(board)
                if not self.boards:
                    self.boards = [Disk(trainer, self._folder(trainer))]
                    show(self.boards[0])

    def _run(self, trainer: Trainer) -> Path | None:
        checkpoints: Path | str | None = getattr(trainer.checkpoint_callback, "dirpath", None)
        return Path(checkpoints).parent if checkpoints else None

    def _folder(self, trainer: Trainer) -> Path:
        if self.directory is not None:
            return Path(self.directory)
        return (self._run(trainer) or Path(trainer.default_root_dir)) / FOLDER


def _clusters(module: DisentanglementModule, a: Tensor, index: Tensor) -> dict[int, Tensor]:
    return {t.attribute: t.slot_of(a, index) for t in module.mode_targets() if t.ready}


def _pair_names(trainer: Trainer, target: Target, slots: Tensor, partners: Tensor) -> dict[str, Tensor]:
    """Masks (B,) of pairs by cluster (B,) and by the partner's values (B, Q) of each other attribute."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    q, found = target.attribute, {}
    for slot in slots.unique().tolist():
        value, cluster = divmod(slot, target.slots)
        for j in (j for j in range(partners.shape[1]) if j != q):
            for other in partners[slots == slot, j].unique().tolist():
                own = f"{data.attribute_names[q]}={data.value_names[q][value]} cluster {cluster}"
                name = f"{own}, {data.attribute_names[j]}={data.value_names[j][other]}"
                found[name] = (slots == slot) & (partners[:, j] == other)
    return found


def _best_path(trainer: Trainer) -> str:
    return str(getattr(trainer.checkpoint_callback, "best_model_path", ""))
