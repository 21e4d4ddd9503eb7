"""Mode discovery between epochs: encode, cluster, decide once, adopt everywhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from codid_lightning.clustering import DPGMM, Clusterer, Clustering, ModesPerValue, TrueModes
from codid_lightning.methods.codid.mode_checks import problems
from codid_lightning.methods.codid.parts.sources import ModeSource, Representation
from codid_lightning.methods.hardware import to_module
from codid_lightning.methods.lightning_adapter import inform
from codid_lightning.metrics.clustering import mode_scores
from codid_lightning.metrics.information import joint_labels
from codid_lightning.nn import distributed

if TYPE_CHECKING:
    from codid_lightning.methods.codid.module import CoDID
    from codid_lightning.methods.codid.target import Target

Due = Literal["fit", "merge", "split"]


class Encoded(NamedTuple):
    """The whole training set in index order."""

    z: Tensor  # (N, Q, d) representations
    a: Tensor  # (N, Q) attributes
    mode: Tensor  # (N, Q) true modes, -1 where unknown
    content: Tensor | None  # (N, p) where modes are looked for in something else than z


@dataclass(eq=False)
class ModeDiscovery(Callback):
    """Finds the modes under every value of CoDID's targets and refines them (Algorithm 1, lines 8 to 14).

    Before the first batch of an epoch that is due, the training set is encoded in evaluation mode, each rank its share.
    Rank 0 clusters and decides; all ranks adopt its decision. Merges are proposed at even and splits at odd iterations.
    `history` keeps every refinement: counts, scores and all proposals with their log Hastings ratios.

    CoDID brings a `ModeDiscovery` of its own. Give another one as `model.discovery` in a config, as
    `CoDID(discovery=...)`, or as `Trainer(callbacks=[ModeDiscovery(...)])`, which has priority.

    Args:
        start: Epoch of the first clustering, counted from 0: the number of pre-training epochs (N_ptr).
        every: Epochs between refinements (N_cl); null clusters once.
        until: Epochs after `start` during which clusters are refined (N_it); null is to the end.
        source: The features that are clustered.
        clusterer: How modes are found under each value; null is a `DPGMM`.
        n_clusters: Initial clusters under each value of a target: one number for all values, or one per value.
        restart: Re-initialise all networks but the autoencoder after the first clustering, and train from scratch
            (CoDID-km).
        reset_heads: Re-initialise all heads when a cluster splits or merges, instead of adapting its rows (CoDID-UA).
        min_cluster_size: Clusters with fewer samples are no modes; they are merged into the nearest one by its mean in
            the clustered features. 0 keeps all; a warning names those with fewer than 10 samples.
    """

    start: int = 20
    every: int | None = 5
    until: int | None = 30
    source: ModeSource = Representation()  # noqa: RUF009  (immutable)
    clusterer: Clusterer | None = None
    n_clusters: int | list[int] = 4
    restart: bool = False
    reset_heads: bool = False
    min_cluster_size: int = 0

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"model.discovery.start is {self.start}; it must not be negative.")
        if self.every is not None and self.every < 1:
            raise ValueError(f"model.discovery.every is {self.every}; it must be positive.")
        counts = [self.n_clusters] if isinstance(self.n_clusters, int) else self.n_clusters
        if not counts or min(counts) < 1:
            raise ValueError(f"model.discovery.n_clusters is {self.n_clusters}; it must be positive.")
        if self.min_cluster_size < 0:
            raise ValueError(f"model.discovery.min_cluster_size is {self.min_cluster_size}; it must not be negative.")
        self.iteration = 0
        self.last_epoch = -1
        self.searched = False  # whether modes have been looked for; if not, every value is one cluster
        self.history: list[dict[str, Any]] = []
        self.scores: dict[str, float] = {}  # of the clusters in use, as they are logged
        self.modes: dict[int, ModesPerValue] = {}
        self._restored: dict[int, dict[str, Any]] = {}

    # ---------------------------------------------------------------------------------------------------------- when

    def due(self, epoch: int, module: CoDID) -> Due | None:
        """What happens at the start of an epoch (counted from 0)."""
        since = epoch - self.start
        if since == 0:
            return "fit"
        if self.every is None or since < 0 or since % self.every or not self.source.needs_refinement(module):
            return None
        if self.until is not None and since >= self.until:
            return None
        if not self.searched and self.source.shows_modes(module):
            return "fit"
        return "split" if (since // self.every) % 2 else "merge"

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Cluster before an epoch's first batch. A run resumed inside the epoch does not repeat it."""
        module: CoDID = pl_module  # type: ignore[assignment]
        due = self.due(trainer.current_epoch, module)
        if due is None or batch_idx > 0 or self.last_epoch == trainer.current_epoch:
            return
        self.last_epoch = trainer.current_epoch
        self.iteration = 0 if trainer.current_epoch == self.start else self.iteration + 1
        self.searched = self.source.shows_modes(module)
        torch.manual_seed(module.step_seed())
        encoded = self.encode(trainer, module)
        for target in module.mode_targets():
            self.discover(trainer, module, target, due, encoded)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the scores of the clusters in use."""
        pl_module.log_dict(self.scores)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget the module, which Lightning's logging functions hold: the module holds its discovery, too."""
        for name in ("log", "log_dict"):
            vars(self).pop(name, None)

    # ----------------------------------------------------------------------------------------------------------- what

    @torch.no_grad()
    def encode(self, trainer: Trainer, module: CoDID) -> Encoded:
        """Representations, attributes, modes and content of the whole training set."""
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
            batch = to_module(trainer, module, batch)
            content = self.source.content(module, batch["x"])
            parts = [self.source.representations(module, batch["x"]), batch["a"], batch["mode"]]
            parts += [] if content is None else [content]
            # One table from the start: joining parts would hold everything twice. Rows of other ranks stay untouched.
            columns = columns or tuple(p.new_empty(len(loader.dataset), *p.shape[1:]) for p in parts)
            for column, part in zip(columns, parts, strict=True):
                column[filled : filled + len(part)] = part
            filled += len(parts[0])
        module.train(training)
        z, a, mode, *others = (distributed.gather(column[:filled]) for column in columns)
        return Encoded(z, a, mode, others[0] if others else None)

    def discover(self, trainer: Trainer, module: CoDID, target: Target, due: Due, encoded: Encoded) -> None:
        """Cluster one target's samples, let all ranks adopt the result, and record it."""
        decision = self.decide(module, target, due, encoded) if trainer.is_global_zero else None
        decided: Clustering = trainer.strategy.broadcast(decision)  # type: ignore[assignment]
        found = decided.to(module.device)  # it comes with the device of rank 0
        z = encoded.z[:, target.attribute]
        if encoded.content is not None:
            found = found.with_means_in(z)
        first = not target.ready or bool((target.active.sum(1) == 1).all())
        module.adopt(target, found, z, reset_heads=self.reset_heads, restart=self.restart)
        if first:  # every refinement would repeat it
            self._warn(target, found, encoded.a)
        self._note(trainer, target, due, found, encoded)

    def decide(self, module: CoDID, target: Target, due: Due, encoded: Encoded) -> Clustering:
        """The clusters from now on. Moves are accepted at random, so one rank decides for all."""
        q, a, content = target.attribute, encoded.a, encoded.content
        own, values = encoded.z[:, q], encoded.a[:, q]
        if due == "fit":
            return self._first(target, encoded)
        modes = self.modes_of(target, search=content is not None, found=self.searched)
        features = own if content is None else self.source.features(content, a, q)
        proposed = self.proposed_halves(module, target, own, values) if due == "split" else None
        return modes.refine(features, values, due, proposed)

    def _first(self, target: Target, encoded: Encoded) -> Clustering:
        """Clusters from scratch. If every value is one cluster so far, they are its parts."""
        q, a, content = target.attribute, encoded.a, encoded.content
        for kept in (self.modes, self._restored):
            kept.pop(q, None)
        given = None if content is None else self.source.partition(content, a, q)
        features = encoded.z[:, q] if content is None or given is not None else self.source.features(content, a, q)
        modes = self.modes_of(target, search=content is not None, found=self.searched, given=given is not None)
        found = modes.fit(features, a[:, q], encoded.mode[:, q] if given is None else given)
        single = target.ready and bool((target.active.sum(1) == 1).all())
        return found.as_parts_of(target.active) if single else found

    def proposed_halves(self, module: CoDID, target: Target, z: Tensor, values: Tensor) -> Tensor | None:
        """Split proposals (N, K, 2) of the subclustering net; None where the mixture proposes its own."""
        return None if module.splits is None else module.splits.propose(target, z, values)

    def modes_of(self, target: Target, search: bool = False, found: bool = True, given: bool = False) -> ModesPerValue:
        """The clusterers of a target, made on first use.

        Args:
            target: The target.
            search: Whether the first fit searches the number of clusters.
            found: Whether there are modes to find; otherwise every value is one cluster.
            given: Whether the source has found the clusters.
        """
        q = target.attribute
        if q not in self.modes:
            wanted = self.n_clusters if found else 1
            counts = [wanted] * target.values if isinstance(wanted, int) else list(wanted)
            if len(counts) != target.values:
                raise ValueError(
                    f"model.discovery.n_clusters has {len(counts)} entries, attribute {q + 1} has {target.values} "
                    "values: give one number for all values or one per value."
                )
            clusterer = TrueModes() if given else DPGMM() if self.clusterer is None else self.clusterer
            self.modes[q] = ModesPerValue(clusterer, counts, target.slots, search, self.min_cluster_size)
            if q in self._restored:
                self.modes[q].load_state_dict(self._restored.pop(q))
        return self.modes[q]

    def _warn(self, target: Target, found: Clustering, a: Tensor) -> None:
        """Report clusters that are no modes, and small ones that were merged."""
        q = target.attribute
        for problem in problems(found, _others(a, q), self.min_cluster_size, q):
            rank_zero_warn(problem)
        absorbed = self.modes[q].absorbed if q in self.modes else []  # on the rank that clusters
        for value, count in enumerate(absorbed):
            if count:
                inform(
                    f"{count} clusters under value {value} of attribute {q + 1} had fewer than {self.min_cluster_size} "
                    "samples and were merged into the nearest."
                )

    def _note(self, trainer: Trainer, target: Target, due: Due, found: Clustering, encoded: Encoded) -> None:
        q, a = target.attribute, encoded.a
        scores = mode_scores(found.labels.to(a.device), encoded.mode[:, q], a[:, q], _others(a, q))
        accepted = sum(move.accepted for move in found.moves)
        scores |= {"modes/proposed": float(len(found.moves)), "modes/accepted": float(accepted)}
        prefix = "modes/" if q == 0 else f"modes/a{q + 1}/"
        self.scores.update({name.replace("modes/", prefix): score for name, score in scores.items()})
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
        inform(f"Epoch {trainer.current_epoch + 1}: clusters under each value {counts}{proposals}{quality}.")

    # ---------------------------------------------------------------------------------------------------- checkpoint

    @property
    def state_key(self) -> str:
        """The same key for all settings, so that a `ModeDiscovery` with other settings can continue a checkpoint."""
        return "ModeDiscovery"

    def state_dict(self) -> dict[str, Any]:
        """Number of the iteration, history and scores, and the mixtures to continue from."""
        mixtures = {q: modes.state_dict() for q, modes in self.modes.items()}
        return {
            "iteration": self.iteration,
            "last_epoch": self.last_epoch,
            "searched": self.searched,
            "history": self.history,
            "scores": self.scores,
            "modes": {**self._restored, **mixtures},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a checkpoint; the mixtures are rebuilt when they are needed."""
        self.iteration, self.last_epoch = state_dict["iteration"], state_dict["last_epoch"]
        self.searched = state_dict.get("searched", self.last_epoch >= 0)
        self.history, self.scores = state_dict["history"], state_dict.get("scores", {})
        self._restored = dict(state_dict["modes"])


def _others(a: Tensor, attribute: int) -> Tensor:
    """Joint value (N,) of all attributes (N, Q) but one."""
    return joint_labels(*(a[:, j] for j in range(a.shape[1]) if j != attribute))
