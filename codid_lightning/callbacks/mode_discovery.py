"""Mode discovery between epochs: encode, cluster, decide once, adopt everywhere."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from codid_lightning import distributed
from codid_lightning.clustering import Clustering, ModesPerValue
from codid_lightning.metrics.clustering import mode_scores
from codid_lightning.metrics.information import joint_labels

if TYPE_CHECKING:
    from codid_lightning.codid import CoDID
    from codid_lightning.targets import Target

Due = Literal["fit", "merge", "split"]


class ModeDiscovery(Callback):
    """Finds the modes under every value of CoDID's targets and keeps refining them (Algorithm 1, lines 8 to 14).

    At the first batch of an epoch that is due, the training set is encoded in evaluation mode, each rank its share;
    rank 0 clusters and decides, all ranks adopt the same decision. Merges are proposed at even and splits at odd
    iterations. `history` keeps every refinement: counts, scores and all proposals with their log Hastings ratios.
    """

    def __init__(self) -> None:
        self.iteration = 0
        self.last_epoch = -1
        self.history: list[dict[str, Any]] = []
        self.modes: dict[int, ModesPerValue] = {}
        self._restored: dict[int, dict[str, Any]] = {}

    # ---------------------------------------------------------------------------------------------------------- when

    def due(self, epoch: int, module: CoDID) -> Due | None:
        """What happens at the start of an epoch (counted from 0)."""
        since = epoch - module.pretrain_epochs
        if since == 0:
            return "fit"
        if module.cluster_every is None or since < 0 or since % module.cluster_every or not module.modes_move:
            return None
        if module.cluster_until is not None and since >= module.cluster_until:
            return None
        return "split" if (since // module.cluster_every) % 2 else "merge"

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Refine before an epoch's first batch; a run resumed inside the epoch does not repeat it."""
        module: CoDID = pl_module  # type: ignore[assignment]
        due = self.due(trainer.current_epoch, module)
        if due is None or batch_idx > 0 or self.last_epoch == trainer.current_epoch:
            return
        self.last_epoch = trainer.current_epoch
        self.iteration = 0 if due == "fit" else self.iteration + 1
        torch.manual_seed(module.step_seed())
        z, a, mode, content = self.encode(trainer, module)
        for target in module.target_list:
            if target.moded:
                self.discover(trainer, module, target, due, z, a, mode, content)

    # ----------------------------------------------------------------------------------------------------------- what

    @torch.no_grad()
    def encode(self, trainer: Trainer, module: CoDID) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Representations (N, Q, d), attributes and modes (N, Q) of the whole training set, in index order.

        Last comes its content (N, p), where modes are looked for in that.
        """
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if not hasattr(data, "encode_dataloader"):
            raise TypeError(
                "CoDID clusters the whole training set: give the trainer an AttributeDataModule (or any data module "
                "with an `encode_dataloader` of the training set in index order) instead of bare loaders."
            )
        loader = data.encode_dataloader()
        training = module.training
        module.eval()
        columns: tuple[Tensor, ...] = ()
        filled = 0
        for batch in loader:
            batch = trainer.strategy.batch_to_device(batch, module.device)
            content = module.content(batch["x"])
            parts = [module.mode_view(batch["x"]).float(), batch["a"], batch["mode"]]
            parts += [] if content is None else [content.float()]
            # One table from the start: joining parts would hold everything twice. Rows of other ranks stay untouched.
            columns = columns or tuple(p.new_empty(len(loader.dataset), *p.shape[1:]) for p in parts)
            for column, part in zip(columns, parts, strict=True):
                column[filled : filled + len(part)] = part
            filled += len(parts[0])
        module.train(training)
        z, a, mode, *others = (distributed.gather(column[:filled]) for column in columns)
        return z, a, mode, others[0] if others else None

    def discover(
        self,
        trainer: Trainer,
        module: CoDID,
        target: Target,
        due: Due,
        z: Tensor,
        a: Tensor,
        mode: Tensor,
        content: Tensor | None,
    ) -> None:
        """Cluster one target's representations, let everybody adopt the result and note what happened."""
        own = z[:, target.attribute]
        decision = self.decide(module, target, due, own, a, mode, content) if trainer.is_global_zero else None
        found: Clustering = trainer.strategy.broadcast(decision)  # type: ignore[assignment]
        if content is not None:
            found = found.measured_in(own)
        module.adopt(target, found)
        self._note(trainer, module, target, due, found, a, mode)

    def decide(
        self, module: CoDID, target: Target, due: Due, own: Tensor, a: Tensor, mode: Tensor, content: Tensor | None
    ) -> Clustering:
        """The clusters from now on; moves are accepted at random, so one rank decides for all."""
        q = target.attribute
        values = a[:, q]
        modes = self.modes_of(module, target, search=content is not None)
        z = own if content is None else module.mode_features(content, a, q)
        if due == "fit":
            return modes.fit(z, values, mode[:, q])
        halves = self.halves(module, target, own, values) if due == "split" else None
        return modes.refine(z, values, due, halves)

    @torch.no_grad()
    def halves(self, module: CoDID, target: Target, z: Tensor, values: Tensor) -> Tensor | None:
        """Split proposals of the subclustering net (N, 2), where it decides."""
        if module.split_by != "subcluster_net":
            return None
        parts = zip(z.split(4096), values.split(4096), target.labels.split(4096), strict=True)
        return torch.cat([target.halves(*part) for part in parts])

    def modes_of(self, module: CoDID, target: Target, search: bool = False) -> ModesPerValue:
        """The clusterers of a target, made on first use; `search` has them look for all clusters at once."""
        q = target.attribute
        if q not in self.modes:
            given = module.n_clusters
            counts = [given] * target.values if isinstance(given, int) else list(given)
            if len(counts) != target.values:
                raise ValueError(
                    f"model.n_clusters has {len(counts)} entries, attribute {q + 1} has {target.values} values: give "
                    "one number for all values or one per value."
                )
            self.modes[q] = ModesPerValue(module.clusterer, counts, target.slots, search)
            if q in self._restored:
                self.modes[q].load_state_dict(self._restored.pop(q))
        return self.modes[q]

    def _note(
        self, trainer: Trainer, module: CoDID, target: Target, due: Due, found: Clustering, a: Tensor, mode: Tensor
    ) -> None:
        q = target.attribute
        others = joint_labels(*(a[:, j] for j in range(a.shape[1]) if j != q))
        scores = mode_scores(found.labels.to(a.device), mode[:, q], a[:, q], others)
        accepted = sum(move.accepted for move in found.moves)
        scores |= {"modes/proposed": float(len(found.moves)), "modes/accepted": float(accepted)}
        prefix = "modes/" if q == 0 else f"modes/a{q + 1}/"
        module.mode_metrics.update({name.replace("modes/", prefix): score for name, score in scores.items()})
        counts = found.active.sum(1).tolist()
        self.history.append(
            {
                "epoch": trainer.current_epoch,
                "iteration": self.iteration,
                "attribute": q,
                "kind": due,
                "counts": counts,
                "scores": scores,
                "moves": [{**asdict(move), "slots": list(move.slots)} for move in found.moves],
            }
        )
        proposals = f", {accepted} of {len(found.moves)} {due}s accepted" if due != "fit" else ""
        quality = f", NMI with true modes {scores['modes/nmi']:.2f}" if "modes/nmi" in scores else ""
        rank_zero_info(f"Epoch {trainer.current_epoch}: clusters under each value {counts}{proposals}{quality}.")

    # ---------------------------------------------------------------------------------------------------- checkpoint

    def state_dict(self) -> dict[str, Any]:
        """Where the iterations stand, with the mixtures to go on from."""
        mixtures = {q: modes.state_dict() for q, modes in self.modes.items()}
        return {
            "iteration": self.iteration,
            "last_epoch": self.last_epoch,
            "history": self.history,
            "modes": {**self._restored, **mixtures},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint; the mixtures are rebuilt when they are needed."""
        self.iteration, self.last_epoch = state_dict["iteration"], state_dict["last_epoch"]
        self.history = state_dict["history"]
        self._restored = dict(state_dict["modes"])
