"""Snapshots: small files with representations and clusters at each refinement. Figures are drawn from them."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from codid_lightning.clustering import ModesPerValue
from codid_lightning.errors import RunError
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.metrics.base import subsample
from codid_lightning.training.runs import replacing

if TYPE_CHECKING:
    from codid_lightning.methods.codid.module import CoDID
    from codid_lightning.methods.codid.target import Target

FOLDER = "snapshots"
UNKNOWN = -1
TEXT = ("moves", "names")  # fields stored as JSON


@dataclass(frozen=True)
class Snapshot:
    """Representations and clusters of n training samples for one target, at the start of an epoch.

    Cluster labels are -1 before the first clustering. `kind` says what happened at the start of this epoch: `fit` (the
    first clustering), `merge`, `split`, or nothing (empty). It is `end` in the snapshot after the last epoch.
    """

    epoch: int
    kind: str
    attribute: int
    max_clusters: int  # slot id = value * max_clusters + k
    z: np.ndarray  # (n, d) representations
    a: np.ndarray  # (n, Q)
    mode: np.ndarray  # (n,) true modes
    before: np.ndarray  # (n,) clusters before the refinement
    cluster: np.ndarray  # (n,) clusters after it
    half: np.ndarray  # (n,) subcluster (0 or 1) within `before`, by the subclustering net
    mixture_cluster: np.ndarray  # (n,) clusters by the mixture, after a refinement on z without merges or splits
    mixture_half: np.ndarray  # (n,) subcluster (0 or 1) within `mixture_cluster`, by the mixture
    divergence: np.ndarray  # (p,) for random pairs of samples in one cluster: divergence of their pair weights
    same_mode: np.ndarray  # (p,) for the same pairs: whether the two samples have the same true mode
    moves: list[dict[str, Any]]  # proposals: value, kind, slots, log_hastings, accepted, reason
    names: dict[str, Any]  # names of the `attributes`, of the `values` of each, and of the first attribute's `modes`

    def write(self, directory: Path) -> Path:
        """Save as `epoch<e>-a<q>.npz`. The file is complete, or it is not written."""
        directory.mkdir(parents=True, exist_ok=True)
        arrays = {name: value for name, value in vars(self).items() if name not in TEXT}
        arrays |= {name: np.array(json.dumps(getattr(self, name))) for name in TEXT}
        path = directory / f"epoch{self.epoch:04d}-a{self.attribute + 1}.npz"
        with replacing(path) as part, part.open("wb") as file:
            np.savez_compressed(file, **arrays)
        return path

    @classmethod
    def read(cls, path: Path) -> Snapshot:
        """Load what `write` saved."""
        with np.load(path, allow_pickle=False) as stored:
            arrays: dict[str, Any] = {name: stored[name] for name in stored.files}
        arrays |= {name: int(arrays[name]) for name in ("epoch", "attribute", "max_clusters")}
        arrays |= {"kind": str(arrays["kind"]), **{name: json.loads(str(arrays[name])) for name in TEXT}}
        return cls(**arrays)


def read_snapshots(run: Path, attribute: int = 0) -> list[Snapshot]:
    """All snapshots of one attribute in a run directory, ordered by epoch."""
    return [Snapshot.read(path) for path in sorted((run / FOLDER).glob(f"epoch*-a{attribute + 1}.npz"))]


class Snapshots(Callback):
    """Saves a `Snapshot` of each target with modes at every refinement and at the end of training.

    It reads the clusters before they are refined, and again after the first batch of the epoch. So this callback must
    come before `ModeDiscovery` in the trainer's callbacks. Callbacks of a config come before it.

    Args:
        max_samples: Largest number of training samples to save. All snapshots have the same samples.
        every: Epochs between additional snapshots; null saves none.
        pairs: Largest number of pairs of samples whose weights are compared.
        directory: Folder for the files; default: `snapshots` in the run directory.
    """

    def __init__(
        self, max_samples: int = 2000, every: int | None = None, pairs: int = 5000, directory: str | None = None
    ) -> None:
        self.max_samples, self.every, self.pairs, self.directory = max_samples, every, pairs, directory
        self._seen: dict[int, dict[str, Any]] = {}  # by target: the state before the refinement

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Raise if the method has no clusters."""
        if not _targets(pl_module):
            method = type(pl_module).__name__
            raise RunError(
                f"Snapshots show clusters, and {method} has none: use them with CoDID and its variants, or leave out "
                "-c configs/callbacks/snapshots.yaml."
            )

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Record the state before the clusters are refined."""
        if batch_idx > 0:
            return
        module: CoDID = pl_module  # type: ignore[assignment]
        due = _discovery(trainer).due(trainer.current_epoch, module)
        if due is not None or (self.every is not None and trainer.current_epoch % self.every == 0):
            self._take(trainer, module, due or "")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the refined clusters, and save."""
        if self._seen:
            self._save(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the final state."""
        self._take(trainer, pl_module, "end")  # type: ignore[arg-type]
        self._save(trainer, pl_module)

    @torch.no_grad()
    def _take(self, trainer: Trainer, module: CoDID, kind: str) -> None:
        discovery = _discovery(trainer)
        z, a, mode, _ = discovery.encode(trainer, module)
        (chosen,) = subsample(self.max_samples, 0, torch.arange(len(z), device=z.device))
        for target in _targets(module):
            q = target.attribute
            state: dict[str, Any] = {"epoch": trainer.current_epoch, "kind": kind, "attribute": q}
            state |= {"max_clusters": target.slots, "z": z[chosen, q].half(), "a": a[chosen], "mode": mode[chosen, q]}
            state["chosen"] = chosen
            state["before"] = target.labels[chosen].long() if target.ready else torch.full_like(chosen, UNKNOWN)
            state |= self._halves(discovery, module, target, z[:, q], a[:, q], chosen)
            state |= self._weights(module, target, z, a, mode[:, q])
            self._seen[q] = state

    def _halves(
        self, discovery: ModeDiscovery, module: CoDID, target: Target, z: Tensor, values: Tensor, chosen: Tensor
    ) -> dict[str, Tensor]:
        """The two subclusters of each cluster, by the subclustering net and by the mixture."""
        names = ("half", "mixture_cluster", "mixture_half")
        found = {name: torch.full_like(values, UNKNOWN) for name in names}
        if target.ready:
            if module.splits is not None:
                found["half"] = module.splits.subcluster_probs(target, z, values).argmax(1)
            if target.attribute in discovery.modes:  # only the deciding rank has the mixtures
                clusters, halves = follow(discovery.modes[target.attribute], z, values)
                found |= {"mixture_cluster": clusters, "mixture_half": halves}
        return {name: tensor[chosen] for name, tensor in found.items()}

    def _weights(self, module: CoDID, target: Target, z: Tensor, a: Tensor, mode: Tensor) -> dict[str, Tensor]:
        """For random pairs of samples in one cluster: divergence of their weights, and whether modes are the same."""
        nothing = {"divergence": torch.empty(0), "same_mode": torch.empty(0, dtype=torch.bool)}
        if not target.ready or module.alignment is None:
            return nothing
        (index,) = subsample(512, 1, torch.arange(len(z), device=z.device))
        view = target.view(z[index], a[index], index, module.attribute_losses(z[index], a[index]))
        found = module.alignment.weight_divergence(target, view)
        if found is None:
            return nothing
        divergence, together = found
        true = target.compared(view).table.pad(mode[index], fill=UNKNOWN)
        same = true[:, :, None] == true[:, None, :]
        pair = together & torch.ones_like(together).triu(1) & (true >= 0)[:, :, None] & (true >= 0)[:, None, :]
        kept = subsample(self.pairs, 2, divergence[pair], same[pair])
        return {"divergence": kept[0].half(), "same_mode": kept[1]}

    def _save(self, trainer: Trainer, module: LightningModule) -> None:
        seen, self._seen = self._seen, {}
        if not trainer.is_global_zero:
            return
        for target in _targets(module):
            if target.attribute not in seen:
                continue
            state = seen[target.attribute]
            chosen = state.pop("chosen")
            state["cluster"] = target.labels[chosen].long() if target.ready else torch.full_like(chosen, UNKNOWN)
            arrays: dict[str, Any] = {k: v.cpu().numpy() if isinstance(v, Tensor) else v for k, v in state.items()}
            moves = _moves(_discovery(trainer).history, state["epoch"], target.attribute)
            Snapshot(**arrays, moves=moves, names=_names(trainer)).write(self._folder(trainer))

    def _folder(self, trainer: Trainer) -> Path:
        if self.directory is not None:
            return Path(self.directory)
        checkpoints: Path | str | None = getattr(trainer.checkpoint_callback, "dirpath", None)
        return (Path(checkpoints).parent if checkpoints else Path(trainer.default_root_dir)) / FOLDER


@torch.no_grad()
def follow(modes: ModesPerValue, z: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Clusters and subclusters by the mixtures after a refinement on `z`. `modes` does not change: copies do."""
    clusters, halves = torch.zeros_like(values), torch.zeros_like(values)
    for value, clusterer in enumerate(modes.clusterers):
        here = values == value
        moved = copy.deepcopy(clusterer).refine(z[here])
        clusters[here] = value * modes.max_clusters + moved.labels_
        halves[here] = moved.sub_probs_.argmax(1)
    return clusters, halves


def _moves(history: Sequence[dict[str, Any]], epoch: int, attribute: int) -> list[dict[str, Any]]:
    """The proposed merges or splits of one epoch."""
    found = [note["moves"] for note in history if (note["epoch"], note["attribute"]) == (epoch, attribute)]
    return list(found[-1]) if found else []


def _names(trainer: Trainer) -> dict[str, Any]:
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    return {"attributes": data.attribute_names, "values": data.value_names, "modes": data.mode_names}


def _targets(module: LightningModule) -> list[Target]:
    return module.mode_targets() if isinstance(module, DisentanglementModule) else []


def _discovery(trainer: Trainer) -> ModeDiscovery:
    found = next((c for c in trainer.callbacks if isinstance(c, ModeDiscovery)), None)  # type: ignore[attr-defined]
    if found is None:
        raise RunError("Snapshots need CoDID's ModeDiscovery among the trainer's callbacks.")
    return found
