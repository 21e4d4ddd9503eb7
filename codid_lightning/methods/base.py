"""The parent of all methods: networks, attribute losses, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from lightning import LightningModule
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer

from codid_lightning.errors import DivergenceError, RunError
from codid_lightning.methods import checkpoints, stepping
from codid_lightning.methods.batchnorm import RecomputeBatchNorm
from codid_lightning.methods.lightning_adapter import count_batch
from codid_lightning.methods.losses import reconstruction_loss
from codid_lightning.methods.scores import SplitScores
from codid_lightning.methods.stepping import LossMeter
from codid_lightning.metrics.groups import CellAccuracy
from codid_lightning.nn import distributed
from codid_lightning.nn.adam import FusedAdam
from codid_lightning.nn.backbones import Backbone, Decoder, Encoder
from datamodules.base import Batch, seed_of

if TYPE_CHECKING:
    from codid_lightning.methods.codid.target import Target

FINITE_CHECK_INTERVAL = 20  # batches between two checks of the losses: each check waits for the device


class DisentanglementModule(LightningModule):
    """Encoder, predictors, optional decoder, their losses and metrics. A method adds `penalty`.

    Every method steps its optimizers itself (`minimise`). Randomness inside a step is a function of (seed, epoch,
    batch, rank), so a resumed run repeats an uninterrupted one exactly.

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
        decay_from: Share of the epochs after which the encoder's learning rate falls linearly to zero; 1 keeps it.
    """

    variational: ClassVar[bool] = False
    needs_decoder: ClassVar[bool] = False
    part_names: ClassVar[tuple[str, ...]] = ()  # arguments that are objects rather than plain values

    minimise = staticmethod(stepping.minimise)
    step = staticmethod(stepping.step)

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
        self.save_hyperparameters(ignore=list(self.part_names))
        self.attribute_sizes, self.test_names = tuple(attribute_sizes), tuple(test_names)
        self.latent_dim, self.lr, self.reconstruction, self.strength = latent_dim, lr, reconstruction, strength
        self.decay_from = decay_from
        shape, attributes = tuple(input_shape), len(self.attribute_sizes)
        self.encoder = Encoder(backbone, shape, attributes, latent_dim, self.variational)
        self.predictors = nn.ModuleList(nn.Linear(latent_dim, size) for size in self.attribute_sizes)
        build_decoder = reconstruction > 0 or self.needs_decoder
        self.decoder = Decoder(backbone, shape, attributes, latent_dim) if build_decoder else None
        self.metrics = nn.ModuleDict({"val": SplitScores("val", self.attribute_sizes, range(attributes))})
        for name in self.test_names:
            self.metrics[name] = SplitScores(name, self.attribute_sizes, test_attributes)
        self.cells = CellAccuracy(self.attribute_sizes)
        self.losses = LossMeter()
        self._seed: int | None = None

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
        """One number of a batch's attribute losses (B, Q): every sample counts the same (Eq. 1)."""
        return losses.sum(1).mean()

    def informative_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Attribute prediction and, if its weight is positive, reconstruction (Eq. 4 without modes)."""
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
        """What a method adds to the informative loss, times `strength`. Most baselines write only this."""
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
        self.minimise(self.trainer.optimizers[0], distributed.scale_to_global_mean(loss, z))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Metrics on validation data, which carry the training correlations."""
        self.cells.update(self._evaluate("val", batch), batch["a"])

    def mode_targets(self) -> list[Target]:
        """Attributes whose modes the method discovers; most methods discover none."""
        return []

    def selectable(self) -> bool:
        """Whether the model of this epoch may be selected by validation data: whether its method has begun."""
        return True

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Metrics per test set and attribute."""
        self._evaluate(self.test_names[dataloader_idx], batch)

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        """Probabilities of every attribute and the representations."""
        z = self(batch["x"])
        probabilities = [predictor(z[:, q]).softmax(1) for q, predictor in enumerate(self.predictors)]
        return {"index": batch["index"], "a": batch["a"], "probabilities": probabilities, "z": z}

    def configure_callbacks(self) -> list[Callback]:
        """Recompute BatchNorm statistics at the end of epochs, unless the trainer has such a callback already."""
        given: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        return [] if any(isinstance(c, RecomputeBatchNorm) for c in given) else [RecomputeBatchNorm()]

    def configure_optimizers(self) -> Any:
        """Adam on everything."""
        return self.adam(self.parameters(), self.lr)

    @staticmethod
    def adam(parameters: Any, lr: float, momentum: float = 0.9) -> Optimizer:
        """Adam, in its fused form: one kernel for all parameters."""
        return FusedAdam(parameters, lr, betas=(momentum, 0.999))

    def encoder_optimizers(self) -> list[Optimizer]:
        """The optimizers that move the encoder: for most methods the first one."""
        return self.trainer.optimizers[:1]

    # --------------------------------------------------------------------------------------------------------- hooks

    def on_fit_start(self) -> None:
        """Take the seed, unless it came with a checkpoint; check the precision; print the global batch size."""
        if self.trainer.precision == "16-mixed":
            raise RunError(
                "trainer.precision is 16-mixed. Its loss scaling does not apply to methods with several steps per "
                "batch: use bf16-mixed or 32-true."
            )
        problem = self.schedule_problem(self.trainer.max_epochs or 0)
        if problem is not None and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            rank_zero_warn(problem)  # a fit may be meant to be continued; `training.fit` raises
        if self._seed is None:
            self._seed = torch.initial_seed()
        self._print_global_batch_size()

    def schedule_problem(self, epochs: int) -> str | None:
        """Why the method cannot do its work in so many epochs; None if it can."""
        return None

    def _print_global_batch_size(self) -> None:
        size = getattr(self.trainer.datamodule, "batch_size", None)  # type: ignore[attr-defined]
        ranks = self.trainer.world_size
        if ranks > 1 and size is not None:
            self.print(
                f"{ranks} devices with data.batch_size {size} each: a step uses {ranks * size} samples. To use as many "
                f"as one device, divide data.batch_size by {ranks}."
            )

    def on_train_epoch_start(self) -> None:
        """Lower the encoder's learning rate after `decay_from`."""
        epochs = max(self.trainer.max_epochs or 0, 0)  # -1 is without end
        stepping.decay_learning_rates(self.encoder_optimizers(), self.current_epoch, epochs, self.decay_from)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed the step, so that it does not depend on what ran before, and count the batch."""
        if batch_idx == 0:  # resumed after an epoch's last batch, the meter still holds that epoch
            self.losses = LossMeter()
        self.losses.batch = batch_idx
        count_batch(self.trainer)
        seed = self.step_seed(batch_idx, self.global_rank)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed formats stack traces for devices not in use
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def step_seed(self, *keys: int) -> int:
        """Seed of something random in the current epoch; other keys give another seed."""
        return seed_of(self._seed or 0, self.current_epoch, *keys)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Keep BatchNorm's running statistics equal on all ranks, and check the losses at intervals."""
        if self.trainer.world_size > 1:
            statistics = [*self.encoder.buffers(), *(self.decoder.buffers() if self.decoder is not None else ())]
            distributed.average_in_place([b for b in statistics if b.is_floating_point()])
        if batch_idx % FINITE_CHECK_INTERVAL == 0 or self.trainer.is_last_batch:
            self._check_finite()

    def on_train_epoch_end(self) -> None:
        """Log the epoch's mean losses."""
        self.log_dict({f"train/{k}": v for k, v in self.losses.means().items()}, sync_dist=self.trainer.world_size > 1)

    def on_validation_epoch_end(self) -> None:
        """Log validation metrics, also over cells of attributes, which model selection may use."""
        self.log_dict(self.metrics["val"].compute())  # type: ignore[operator]
        cells = {f"val/{name}": value for name, value in self.cells.compute().items() if value.isfinite()}
        self.log_dict(cells)
        self.cells.reset()

    def on_test_epoch_end(self) -> None:
        """Log the metrics of all test sets."""
        for name in self.test_names:
            self.log_dict(self.metrics[name].compute())  # type: ignore[operator]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the seed, the running losses and the parts. Raise rather than save after a loss was not finite."""
        self._check_finite()
        losses = distributed.gather_plain(self.losses.state())  # each rank continues with its own
        parts = {name: checkpoints.describe(getattr(self, name)) for name in self.part_names}
        checkpoint["codid"] = {"schema": checkpoints.FORMAT, "seed": self._seed, "losses": losses, "parts": parts}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint fits, and restore the seed and the running losses."""
        checkpoints.check_fits(self, checkpoint)
        checkpoints.check_data(self, checkpoint)
        state = checkpoint["codid"]
        self._seed = state["seed"]
        losses = state["losses"] if isinstance(state["losses"], list) else [state["losses"]]  # formerly rank 0's only
        self.losses.load(losses[self.global_rank] if self.global_rank < len(losses) else {})

    # ------------------------------------------------------------------------------------------------------- helpers

    def _evaluate(self, split: str, batch: Batch) -> Tensor:
        """Update a split's metrics; the predicted values of the first attribute (B,)."""
        z = self(batch["x"])
        logits = [predictor(z[:, q]) for q, predictor in enumerate(self.predictors)]
        self.metrics[split].update(logits, batch["a"])  # type: ignore[operator]
        predicted: Tensor = logits[0].argmax(1)
        return predicted

    def _check_finite(self) -> None:
        """Raise if a loss is not finite, however many batches ago that began."""
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
