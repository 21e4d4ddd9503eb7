"""A training to look at: clusters, moves, weights and representations at refinements, confusions and a final table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torchmetrics.classification import MulticlassConfusionMatrix

from codid_lightning import runs
from codid_lightning.boards import Board, Disk, boards_of
from codid_lightning.callbacks.mode_discovery import ModeDiscovery
from codid_lightning.codid import CoDID
from codid_lightning.figures import board as figures
from codid_lightning.losses import shuffle_within
from codid_lightning.metrics.base import subsample
from codid_lightning.module import DisentanglementModule
from codid_lightning.targets import Target

FOLDER = "figures"
_MOVES = ("epoch", "attribute", "value", "kind", "clusters", "log_hastings", "accepted", "reason")


class Dashboard(Callback):
    """Shows what a training does, wherever its loggers can: Weights & Biases, TensorBoard, or else files.

    Losses, metrics and clustering scores are logged by the methods themselves. It only looks: a training with it ends
    with the same numbers as one without, and a dashboard that fails is given up with a warning.

    Args:
        max_samples: Training samples in t-SNE images and weight histograms, the same ones each time.
        images: Draw t-SNE images; each takes a few seconds.
        checkpoint: Upload the last checkpoint, too.
        directory: Where files go if no logger shows figures; default: `figures` beside the run's checkpoints.
    """

    def __init__(
        self, max_samples: int = 1000, images: bool = True, checkpoint: bool = False, directory: str | None = None
    ) -> None:
        self.max_samples, self.images, self.checkpoint, self.directory = max_samples, images, checkpoint, directory
        self.boards: list[Board] = []
        self.shown = 0  # refinements
        self.confusions: dict[tuple[int, int], MulticlassConfusionMatrix] = {}

    # ------------------------------------------------------------------------------------------------------- training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find out where to show things, and keep the config."""
        self.shown = len(_history(trainer))
        run = self._run(trainer)
        if trainer.is_global_zero and run is not None and (run / runs.CONFIG).is_file():
            config = runs.read_config(run)
            self._show(trainer, lambda board: board.config(config))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Show a refinement after the first batch with its clusters."""
        history = _history(trainer)
        if len(history) == self.shown or not trainer.is_global_zero:
            return
        new, self.shown = history[self.shown :], len(history)
        self._log(trainer, {name: value for note in new for name, value in _counts(note, trainer).items()})
        rows = _moves(history, trainer)
        if rows:
            self._show(trainer, lambda board: board.table("moves", _MOVES, rows))
        ratios = {note["kind"]: np.array([move["log_hastings"] for move in note["moves"]]) for note in new}
        ratios = {kind: values[np.isfinite(values)] for kind, values in ratios.items()}
        if found := {kind: values for kind, values in ratios.items() if len(values)}:
            self._show(trainer, lambda board: board.histograms("log_hastings", found))
        self._look(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the final representations, and keep the checkpoint if asked to."""
        if not trainer.is_global_zero:
            return
        self._look(trainer, pl_module)
        path = Path(getattr(trainer.checkpoint_callback, "last_model_path", "") or _best_path(trainer))
        if self.checkpoint and path.is_file():
            run = self._run(trainer)
            name = "-".join(run.parts[-3:]) if run is not None else type(pl_module).__name__
            self._show(trainer, lambda board: board.checkpoint(path, name[-128:]))

    @torch.no_grad()
    def _look(self, trainer: Trainer, module: LightningModule) -> None:
        """Representations and weights of some training samples."""
        if not isinstance(module, DisentanglementModule):
            return
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        train = data.datasets["train"]
        (index,) = subsample(self.max_samples, 0, torch.arange(len(train)))
        training = module.training
        module.eval()
        try:
            z = torch.cat([module(train[part]["x"].to(module.device)) for part in index.split(1024)]).float()
            a, mode, index = train.a[index].to(z.device), train.mode[index], index.to(z.device)
            clusters = _clusters(module, a, index)
            if self.images:
                self._draw_embeddings(trainer, z, a, mode, clusters)
            if isinstance(module, CoDID) and module.discrimination == "weighted":
                self._show_weights(trainer, module, z, a, index)
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
        """Weights of pairs shuffled within clusters, by cluster and by the values that came with the shuffled part."""
        losses = module.attribute_losses(z, a)
        generator = torch.Generator(z.device).manual_seed(0)
        found: dict[str, np.ndarray] = {}
        for target in module.target_list:
            if target.moded and target.ready:
                view = target.view(z, a, index, losses)
                pairs = target.marginals(view, shuffle_within(view.slot, generator))
                weights = target.weigh(view, pairs, module.normalise_weights)
                names = _pair_names(trainer, target, view.slot, a[pairs.permutation])
                found |= {name: weights[inside].cpu().numpy() for name, inside in names.items()}
        if found:
            self._show(trainer, lambda board: board.histograms("weights", found))

    # ----------------------------------------------------------------------------------------------------------- test

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count predictions of every test set."""
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
        """Count one batch."""
        if isinstance(pl_module, DisentanglementModule):
            z = pl_module(batch["x"])
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
        """On all boards; one that fails is given up for files, and the training goes on."""
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


def _history(trainer: Trainer) -> list[dict[str, Any]]:
    """The refinements so far."""
    found = next((c for c in trainer.callbacks if isinstance(c, ModeDiscovery)), None)  # type: ignore[attr-defined]
    return [] if found is None else found.history


def _clusters(module: DisentanglementModule, a: Tensor, index: Tensor) -> dict[int, Tensor]:
    targets = module.target_list if isinstance(module, CoDID) else []
    return {t.attribute: t.slot_of(a, index) for t in targets if t.moded and t.ready}


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


def _counts(note: dict[str, Any], trainer: Trainer) -> dict[str, float]:
    """Clusters under each value, and what became of the proposals, of one refinement."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    q, kind = note["attribute"], note["kind"]
    names = [f"clusters/{data.attribute_names[q]}={value}" for value in data.value_names[q]]
    counts = {name: float(count) for name, count in zip(names, note["counts"], strict=True)}
    if kind == "fit":
        return counts
    accepted = sum(move["accepted"] for move in note["moves"])
    prefix = f"moves/{data.attribute_names[q]}/{kind}"
    return counts | {f"{prefix}_accepted": float(accepted), f"{prefix}_refused": float(len(note["moves"]) - accepted)}


def _moves(history: list[dict[str, Any]], trainer: Trainer) -> list[list[Any]]:
    """Every proposal so far, a row each."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    return [
        [
            note["epoch"],
            data.attribute_names[note["attribute"]],
            data.value_names[note["attribute"]][move["value"]],
            move["kind"],
            "+".join(map(str, move["slots"])),
            float(move["log_hastings"]),
            bool(move["accepted"]),
            move["reason"],
        ]
        for note in history
        for move in note["moves"]
    ]


def _best_path(trainer: Trainer) -> str:
    return str(getattr(trainer.checkpoint_callback, "best_model_path", ""))
