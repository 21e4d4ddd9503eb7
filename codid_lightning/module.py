"""The parent of all methods: networks, attribute losses, metrics, optimizer steps."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from lightning import LightningModule
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from codid_lightning import distributed
from codid_lightning.callbacks.statistics import SettledStatistics
from codid_lightning.losses import reconstruction_loss
from codid_lightning.metrics.groups import CellAccuracy
from codid_lightning.networks.backbones import Backbone, Decoder, Encoder
from codid_lightning.optimizer import FusedAdam
from codid_lightning.runs import CheckpointError, RunError
from datamodules.base import AttributeDataModule, Batch, seed_of

SCHEMA = 3  # of what a method adds to a checkpoint
WATCHED = 20  # batches between two looks at the losses: each look waits for the device


class DivergenceError(RuntimeError):
    """A training loss is no longer finite."""


class DisentanglementModule(LightningModule):
    """Encoder, predictors, optional decoder, their losses and metrics. A method adds `penalty`.

    Randomness inside a step is a function of (seed, epoch, batch, rank), so a resumed run repeats an
    uninterrupted one exactly.

    Every method takes its steps itself, most of them one (`minimise`): what Lightning does around a step of its own
    costs as much as a small network's forward pass.

    Args:
        input_shape: Shape of one sample; linked from the data.
        attribute_sizes: Number of values of each attribute; linked from the data.
        test_names: Names of the test sets; linked from the data.
        test_attributes: Attributes whose test values occur in training; the others have no test metrics.
        backbone: Encoder and decoder of the paper's architecture table.
        latent_dim: Dimensions d of each representation.
        lr: Learning rate of encoder, predictors and decoder.
        reconstruction: Weight of the reconstruction loss (lambda_re); 0 builds no decoder.
        strength: Weight of the method's penalty.
        decay_from: Share of the epochs after which the encoder's learning rate falls linearly towards zero; 1 keeps it.
            Against an adversary the last steps otherwise decide what is evaluated.
    """

    variational: ClassVar[bool] = False
    needs_decoder: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep the signature that Lightning looks up, and otherwise puts together, at every batch."""
        super().__init_subclass__(**kwargs)
        cls.training_step.__signature__ = inspect.signature(cls.training_step)  # type: ignore[attr-defined]

    def __init__(
        self,
        input_shape: tuple[int, ...],
        attribute_sizes: tuple[int, ...],
        test_names: tuple[str, ...] = ("test",),
        test_attributes: tuple[int, ...] = (0,),
        backbone: Backbone = "mlp",
        latent_dim: int = 128,
        lr: float = 1e-3,
        reconstruction: float = 0.0,
        strength: float = 1.0,
        decay_from: float = 1.0,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        _check_ranges(latent_dim, lr, reconstruction, decay_from)
        self.save_hyperparameters(ignore=["clusterer"])
        self.attribute_sizes, self.test_names = tuple(attribute_sizes), tuple(test_names)
        self.latent_dim, self.lr, self.reconstruction, self.strength = latent_dim, lr, reconstruction, strength
        self.decay_from = decay_from
        shape, attributes = tuple(input_shape), len(self.attribute_sizes)
        self.encoder = Encoder(backbone, shape, attributes, latent_dim, self.variational)
        self.predictors = nn.ModuleList(nn.Linear(latent_dim, size) for size in self.attribute_sizes)
        build_decoder = reconstruction > 0 or self.needs_decoder
        self.decoder = Decoder(backbone, shape, attributes, latent_dim) if build_decoder else None
        self.metrics = nn.ModuleDict({"val": self._metrics("val", range(attributes))})
        for name in self.test_names:
            self.metrics[name] = self._metrics(name, test_attributes)
        self.cells = CellAccuracy(self.attribute_sizes)
        self.losses = LossMeter()
        self._seed: int | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Let Lightning note which hook runs, eighteen times a batch, without a search for parameters in the note."""
        if name == "_current_fx_name":
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)

    # ------------------------------------------------------------------------------------------- forward and losses

    def forward(self, x: Tensor) -> Tensor:
        """Representations z (B, Q, d); a variational encoder's mean."""
        z: Tensor = self.encoder(x)
        return z[..., : self.latent_dim] if self.variational else z

    def attribute_losses(self, z: Tensor, a: Tensor) -> Tensor:
        """Cross-entropy of each attribute from its own representation, (B, Q); summed over Q it is Eq. 1."""
        losses = [
            F.cross_entropy(predictor(z[:, q]), a[:, q], reduction="none")
            for q, predictor in enumerate(self.predictors)
        ]
        return torch.stack(losses, dim=1)

    def attribute_loss(self, losses: Tensor, batch: Batch) -> Tensor:
        """One number of a batch's attribute losses (B, Q): every sample counts alike (Eq. 1)."""
        return losses.sum(1).mean()

    def informative_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Attribute prediction and, where asked for, reconstruction (Eq. 4 without modes)."""
        losses = self.attribute_losses(z, batch["a"])
        attribute_loss = self.attribute_loss(losses, batch)
        self.losses.add("attribute", attribute_loss)
        self.losses.add("attribute_a1", losses.detach()[:, 0].mean())
        if self.reconstruction <= 0 or self.decoder is None:
            return attribute_loss
        reconstruction = reconstruction_loss(self.decoder(z), batch["x"])
        self.losses.add("reconstruction", reconstruction)
        return attribute_loss + self.reconstruction * reconstruction

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """What a method adds to the informative loss, times `strength`; the one method most baselines write."""
        raise NotImplementedError

    def weighted_penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """`penalty` times `strength`, in full precision: many penalties are differences of nearly equal means."""
        with torch.autocast(self.device.type, enabled=False):
            penalty = self.penalty(z.float(), batch)
        self.losses.add("penalty", penalty)
        return self.strength * penalty

    # --------------------------------------------------------------------------------------------------------- steps

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Attribute, reconstruction and penalty in one step; adversarial methods override it."""
        z = self(batch["x"])
        loss = self.informative_loss(z, batch) + self.weighted_penalty(z, batch)
        self.minimise(self.trainer.optimizers[0], distributed.part(loss, z))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Metrics on validation data, which carry the training correlations."""
        z, predictions = self._evaluate("val", batch)
        self.cells.update(predictions, batch["a"], self.groups(z, batch["a"]))

    def groups(self, z: Tensor, a: Tensor) -> Tensor:
        """What is crossed with other attributes to the cells of `val/balanced_acc` and `val/worst_acc`: a_1 (B,)."""
        return a[:, 0]

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Metrics per test set and attribute."""
        self._evaluate(self.test_names[dataloader_idx], batch)

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        """Probabilities of every attribute and the representations."""
        z = self(batch["x"])
        probabilities = [predictor(z[:, q]).softmax(1) for q, predictor in enumerate(self.predictors)]
        return {"index": batch["index"], "a": batch["a"], "probabilities": probabilities, "z": z}

    def configure_callbacks(self) -> list[Callback]:
        """What every method is evaluated with, unless the trainer was given one of its own."""
        given: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        return [] if any(isinstance(c, SettledStatistics) for c in given) else [SettledStatistics()]

    def configure_optimizers(self) -> Any:
        """Adam on everything."""
        return self.adam(self.parameters(), self.lr)

    @staticmethod
    def adam(parameters: Any, lr: float, momentum: float = 0.9) -> Optimizer:
        """Adam, in its fused form: one kernel for all parameters."""
        return FusedAdam(parameters, lr, betas=(momentum, 0.999))

    # ----------------------------------------------------------------------------------------------- optimizer steps

    def minimise(
        self, optimizer: Optimizer, loss: Tensor, parameters: nn.Module | None = None, reduce: bool = True
    ) -> None:
        """One step of `optimizer` down `loss`; nothing but its parameters moves or receives a gradient.

        Args:
            optimizer: The optimizer to step.
            loss: What to minimise.
            parameters: Network to restrict the step to; by default all the optimizer holds.
            reduce: Average gradients over ranks; off for losses that every rank computes alike.
        """
        moving = (
            [p for group in optimizer.param_groups for p in group["params"]]
            if parameters is None
            else list(parameters.parameters())
        )
        self.step(optimizer, moving, torch.autograd.grad(loss, moving, allow_unused=True), reduce)

    @staticmethod
    def step(
        optimizer: Optimizer, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None], reduce: bool = True
    ) -> None:
        """Apply gradients, averaged over ranks unless they are already the same on all of them.

        Gradients are computed with `autograd.grad` rather than `manual_backward`: a step sees its own parameters
        only, and DDP's reducer, which expects every parameter in every backward, stays out of the way.
        """
        filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
        if reduce:
            filled = distributed.average(filled)
        for parameter, gradient in zip(parameters, filled, strict=True):
            parameter.grad = gradient
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None

    # --------------------------------------------------------------------------------------------------------- hooks

    def on_fit_start(self) -> None:
        """Take the run's seed, unless a checkpoint brought it, and refuse a precision that cannot work."""
        if self.trainer.precision == "16-mixed":
            raise RunError(
                "trainer.precision is 16-mixed, whose scaling of losses the steps of a batch go past: "
                "use bf16-mixed or 32-true."
            )
        if self._seed is None:
            self._seed = torch.initial_seed()

    def on_train_epoch_start(self) -> None:
        """Lower the encoder's learning rate once `decay_from` has passed."""
        epochs = max(self.trainer.max_epochs or 0, 0)  # -1 is without end
        start = self.decay_from * epochs
        if start < self.current_epoch < epochs:
            left = (epochs - self.current_epoch) / (epochs - start)
            for group in (group for optimizer in self.encoder_optimizers() for group in optimizer.param_groups):
                group["lr"] = group.setdefault("initial_lr", group["lr"]) * left  # both are in the checkpoint

    def encoder_optimizers(self) -> list[Optimizer]:
        """The optimizers that move the encoder: for most methods the first one."""
        return self.trainer.optimizers[:1]

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Make the step's randomness independent of everything that ran before it, and count the batch.

        Batches are what `trainer.global_step` counts, whatever the number of optimizers and their steps.
        """
        if batch_idx == 0:  # resumed after an epoch's last batch, the meter still holds that epoch
            self.losses = LossMeter()
        self.losses.batch = batch_idx
        steps = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        steps.increment_ready()
        steps.increment_completed()
        seed = self.step_seed(batch_idx, self.global_rank)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed formats stack traces for devices not in use
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def step_seed(self, *keys: int) -> int:
        """Seed of something random in the current epoch, told apart by further numbers."""
        return seed_of(self._seed or 0, self.current_epoch, *keys)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Keep BatchNorm's running statistics equal on all ranks, and look after the losses now and then."""
        if self.trainer.world_size > 1:
            statistics = [*self.encoder.buffers(), *(self.decoder.buffers() if self.decoder is not None else ())]
            distributed.average_in_place([b for b in statistics if b.is_floating_point()])
        if batch_idx % WATCHED == 0 or self.trainer.is_last_batch:
            self._check_finite()

    def on_train_epoch_end(self) -> None:
        """Log the epoch's mean losses."""
        self.log_dict({f"train/{k}": v for k, v in self.losses.means().items()}, sync_dist=self.trainer.world_size > 1)

    def on_validation_epoch_end(self) -> None:
        """Log validation metrics, also over cells of attributes: what model selection may use."""
        self._log_metrics("val")
        cells = {f"val/{name}": value for name, value in self.cells.compute().items() if value.isfinite()}
        self.log_dict(cells)
        self.cells.reset()

    def on_test_epoch_end(self) -> None:
        """Log the metrics of all test sets."""
        for name in self.test_names:
            self._log_metrics(name)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the seed and the running losses of an epoch that is not over; refuse to keep networks gone astray."""
        self._check_finite()
        losses = distributed.gather_plain(self.losses.state())  # each rank goes on with its own
        checkpoint["codid"] = {"schema": SCHEMA, "seed": self._seed, "losses": losses}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of something else, and restore the seed and the running losses."""
        self._check_fits(checkpoint)
        self._check_data(checkpoint)
        state = checkpoint["codid"]
        self._seed = state["seed"]
        losses = state["losses"] if isinstance(state["losses"], list) else [state["losses"]]  # once only the first's
        self.losses.load(losses[self.global_rank] if self.global_rank < len(losses) else {})

    # ------------------------------------------------------------------------------------------------------- helpers

    def _metrics(self, split: str, attributes: Sequence[int]) -> nn.ModuleDict:
        collections = {}
        for q in attributes:
            size, prefix = self.attribute_sizes[q], f"{split}/" if q == 0 else f"{split}/a{q + 1}/"
            metrics: dict[str, Metric | MetricCollection] = {
                "acc": MulticlassAccuracy(size, average="micro"),
                "f1": MulticlassF1Score(size, average="macro"),
            }
            collections[str(q)] = MetricCollection(metrics, prefix=prefix)
        return nn.ModuleDict(collections)

    def _evaluate(self, split: str, batch: Batch) -> tuple[Tensor, Tensor]:
        """Update a split's metrics; representations (B, Q, d) and the predicted values of the first attribute (B,)."""
        z = self(batch["x"])
        logits = [predictor(z[:, q]) for q, predictor in enumerate(self.predictors)]
        for q, metrics in self.metrics[split].items():  # type: ignore[operator]
            metrics.update(logits[int(q)], batch["a"][:, int(q)])
        return z, logits[0].argmax(1)

    def _log_metrics(self, split: str) -> None:
        for metrics in self.metrics[split].values():  # type: ignore[operator]
            self.log_dict(metrics.compute())
            metrics.reset()

    def _check_fits(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint is of this method, of sizes and a format known here; else say in what it differs."""
        schema = checkpoint.get("codid", {}).get("schema")
        if schema != SCHEMA:
            origin = "another program" if schema is None else "another version of codid-lightning"
            raise CheckpointError(f"The checkpoint is of {origin}; it cannot be loaded here.")
        own = self.state_dict()
        kept = {k: v for k, v in checkpoint["state_dict"].items() if isinstance(v, Tensor)}
        shapes = {k: v.shape for k, v in own.items() if isinstance(v, Tensor)}
        if shapes == {k: v.shape for k, v in kept.items()}:
            return
        hparams, given = checkpoint.get("hyper_parameters", {}), dict(self.hparams)
        changes = [f"model.{k} was {v}, is {given[k]}" for k, v in hparams.items() if str(given.get(k, v)) != str(v)]
        what = "; ".join(changes) or "it is of another method"
        raise CheckpointError(f"The checkpoint does not fit the model: {what}. Give the config it was trained with.")

    def _check_data(self, checkpoint: dict[str, Any]) -> None:
        """Data of another class get no state to compare with from Lightning, which keeps it by the class's name."""
        data = getattr(self._trainer, "datamodule", None)
        if isinstance(data, AttributeDataModule) and type(data).__qualname__ not in checkpoint:
            for state in checkpoint.values():
                if isinstance(state, dict) and "value_names" in state:
                    data.refuse_other_labels(state)

    def _check_finite(self) -> None:
        """Stop if a loss is not finite, however many batches ago that began."""
        bad = self.losses.read()
        if bad is not None:
            name, batch = bad
            checkpoint = getattr(self.trainer.checkpoint_callback, "best_model_path", "") or "none"
            raise DivergenceError(
                f"The {name} loss is not finite at epoch {self.current_epoch}, batch {batch}. "
                f"Last good checkpoint: {checkpoint}. Lower model.lr or the weight of that loss."
            )


def _check_ranges(latent_dim: int, lr: float, reconstruction: float, decay_from: float) -> None:
    for name, value in {"latent_dim": latent_dim, "lr": lr}.items():
        if value <= 0:
            raise ValueError(f"model.{name} is {value}; it must be positive.")
    if reconstruction < 0:
        raise ValueError(f"model.reconstruction is {reconstruction}; it must not be negative.")
    if not 0 <= decay_from <= 1:
        raise ValueError(f"model.decay_from is {decay_from}; it must be a share of the epochs, from 0 to 1.")


class LossMeter:
    """Running means of named losses. Values stay on their device, unread, until someone asks for them.

    They are added up one by one in the order they came, so it does not matter how often they are read.
    """

    def __init__(self) -> None:
        self.batch = 0  # the one whose losses are being added
        self.sums: dict[str, float] = {}
        self.counts: dict[str, int] = {}
        self._unread: list[tuple[str, int, Tensor]] = []

    def add(self, name: str, value: Tensor) -> None:
        """Count one more value of the loss `name`."""
        self._unread.append((name, self.batch, value.detach()))

    def read(self) -> tuple[str, int] | None:
        """Add up what came since the last time; name and batch of the first value that is not finite, if any."""
        if not self._unread:
            return None
        bad = None
        values = torch.stack([value.float() for _, _, value in self._unread]).tolist()
        for (name, batch, _), value in zip(self._unread, values, strict=True):
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.counts[name] = self.counts.get(name, 0) + 1
            if bad is None and not math.isfinite(value):
                bad = name, batch
        self._unread = []
        return bad

    def mean(self, name: str) -> float | None:
        """Mean of one loss so far, if there is any."""
        self.read()
        return self.sums[name] / self.counts[name] if name in self.sums else None

    def means(self) -> dict[str, float]:
        """Mean of each loss since the last call."""
        self.read()
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means

    def state(self) -> dict[str, tuple[float, int]]:
        """Sums and counts so far."""
        self.read()
        return {name: (total, self.counts[name]) for name, total in self.sums.items()}

    def load(self, state: dict[str, tuple[float, int]]) -> None:
        """Go on from `state`."""
        self.sums = {name: float(total) for name, (total, _) in state.items()}
        self.counts = {name: count for name, (_, count) in state.items()}
