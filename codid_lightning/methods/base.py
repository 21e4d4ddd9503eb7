"""The parent of all methods: networks, attribute losses, metrics."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
import torch.nn.functional as F
from lightning import LightningModule
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer

from codid_lightning.methods import checkpoints, checks, stepping
from codid_lightning.methods.batchnorm import RecomputeBatchNorm, SyncBatchNorm, average_over_ranks
from codid_lightning.methods.hardware import like_parameters
from codid_lightning.methods.lightning_adapter import count_batch
from codid_lightning.methods.losses import reconstruction_loss
from codid_lightning.methods.scores import Scores
from codid_lightning.methods.stepping import LossMeter
from codid_lightning.nn import distributed
from codid_lightning.nn.adam import FusedAdam
from codid_lightning.nn.backbones import Backbone, Decoder, Encoder
from datamodules.base import AttributeDataModule, Batch, derive_seed

if TYPE_CHECKING:
    from codid_lightning.methods.codid.target import Target


class DisentanglementModule(LightningModule):
    """Encoder, predictors, optional decoder, their losses and metrics. A method adds `penalty`.

    Every method steps its optimizers itself (`minimise`). Randomness inside a step is a function of (seed, epoch,
    batch, rank), so a resumed run repeats an uninterrupted one exactly.

    Args:
        input_shape: Shape of one sample; linked from the data.
        attribute_sizes: Number of values of each attribute; linked from the data.
        test_names: Names of the test sets; linked from the data.
        test_attributes: Attributes whose test values occur in training; the others have no test metrics.
        backbone: Encoder and decoder of the paper's architecture table; `auto` takes those that fit the input's shape.
            A name of torchvision or `timm/NAME` takes that network; `features`, a linear layer on trained features.
        latent_dim: Dimensions d of each representation.
        lr: Learning rate of encoder, predictors and decoder.
        reconstruction: Weight of the reconstruction loss (lambda_re); 0 builds no decoder.
        strength: Weight of the method's penalty.
        decay_from: Share of the epochs after which the encoder's learning rate falls linearly to zero; 1 keeps it.
        weights: What a network for images starts from: `default`, the weights that torchvision or timm offer; a file
            with a state dict; or null. The inputs are then normalised as the weights expect.
        freeze: Keep these weights, and train a linear layer on the features.
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
        backbone: Backbone = "auto",
        latent_dim: int = 128,
        lr: float = 1e-3,
        reconstruction: float = 0.0,
        strength: float = 1.0,
        decay_from: float = 1.0,
        weights: str | None = None,
        freeze: bool | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        checks.check_ranges(latent_dim, lr, reconstruction, decay_from)
        # Without the frame, Lightning keeps its own in a local variable: a cycle that holds the module and its callers.
        self.save_hyperparameters(ignore=list(self.part_names), frame=inspect.currentframe())
        self.attribute_sizes, self.test_names = tuple(attribute_sizes), tuple(test_names)
        self.latent_dim, self.lr, self.reconstruction, self.strength = latent_dim, lr, reconstruction, strength
        self.decay_from = decay_from
        shape, attributes = tuple(input_shape), len(self.attribute_sizes)
        self.encoder = Encoder(backbone, shape, attributes, latent_dim, self.variational, weights, bool(freeze))
        self.predictors = nn.ModuleList(nn.Linear(latent_dim, size) for size in self.attribute_sizes)
        build_decoder = reconstruction > 0 or self.needs_decoder
        self.decoder = Decoder(backbone, shape, attributes, latent_dim) if build_decoder else None
        self.scores = Scores(self.attribute_sizes, self.test_names, test_attributes)
        self.losses = LossMeter()
        self._seed: int | None = None

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # the other arguments are in kwargs
        cls, checkpoint_path: Any, map_location: Any = None, **kwargs: Any
    ) -> Self:
        """The model of a checkpoint. Nothing that the checkpoint names is imported or called.

        Args:
            checkpoint_path: A path, or a file.
            map_location: Where tensors go, as in `torch.load`.
            **kwargs: Arguments that replace the checkpoint's, and those of Lightning's method.
        """
        checkpoints.check_hyperparameters(checkpoints.read(checkpoint_path))
        return super().load_from_checkpoint(checkpoint_path, map_location, **{**kwargs, "weights_only": True})

    # ------------------------------------------------------------------------------------------- forward and losses

    def forward(self, x: Tensor) -> Tensor:
        """Representations z (B, Q, d); a variational encoder's mean."""
        z: Tensor = self.encoder(x)
        return z[..., : self.latent_dim] if self.variational else z

    def represent(self, batch: Batch) -> Tensor:
        """Representations z (B, Q, d) of a batch."""
        z: Tensor = self(batch["x"])
        return z

    def attribute_losses(self, z: Tensor, a: Tensor) -> Tensor:
        """Cross-entropy of each attribute from its own representation, (B, Q); summed over Q it is Eq. 1."""
        logits = self.training_logits(z, a)
        return torch.stack([F.cross_entropy(own, a[:, q], reduction="none") for q, own in enumerate(logits)], dim=1)

    def attribute_logits(self, z: Tensor, a: Tensor) -> list[Tensor]:
        """Logits (B, values) of every attribute in evaluation, given representations (B, Q, d).

        Args:
            z: Representations.
            a: Attributes (B, Q). A prediction of one attribute may use what is known about the others, never its own.
        """
        return [predictor(z[:, q]) for q, predictor in enumerate(self.predictors)]

    def training_logits(self, z: Tensor, a: Tensor) -> list[Tensor]:
        """Logits (B, values) of every attribute in training, given representations (B, Q, d)."""
        return DisentanglementModule.attribute_logits(self, z, a)

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
            penalty = self.penalty(like_parameters(z, self), batch)
        self.losses.add("penalty", penalty)
        return self.strength * penalty

    # --------------------------------------------------------------------------------------------------------- steps

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Attribute, reconstruction and penalty in one step; adversarial methods override it."""
        z = self.represent(batch)
        loss = self.informative_loss(z, batch) + self.weighted_penalty(z, batch)
        self.minimise(self.trainer.optimizers[0], distributed.scale_to_global_mean(loss, z))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Metrics on validation data, which carry the training correlations."""
        self.score("val", self.represent(batch), batch)

    def mode_targets(self) -> list[Target]:
        """Attributes whose modes the method discovers; most methods discover none."""
        return []

    def selectable(self) -> bool:
        """Whether the model of this epoch may be selected by validation data: whether its method has begun."""
        return True

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Metrics per test set and attribute."""
        self.score(self.test_names[dataloader_idx], self.represent(batch), batch)

    def score(self, split: str, z: Tensor, batch: Batch) -> None:
        """Count a batch for the scores of a split, given its representations."""
        self.scores.update(split, self.attribute_logits(z, batch["a"]), batch)

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        """Probabilities of every attribute and the representations."""
        z = self.represent(batch)
        probabilities = [logits.softmax(1) for logits in self.attribute_logits(z, batch["a"])]
        return {"index": batch["index"], "a": batch["a"], "probabilities": probabilities, "z": z}

    def configure_callbacks(self) -> list[Callback]:
        """Normalise over all devices, and recompute the statistics after epochs; the trainer's callbacks come first."""
        given: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        own: list[Callback] = [SyncBatchNorm(), RecomputeBatchNorm()]
        return [callback for callback in own if not any(isinstance(g, type(callback)) for g in given)]

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

    def setup(self, stage: str) -> None:
        """Check that the method works with the trainer's strategy and precision, and take the precision on.

        Lightning converts a model after it has loaded a checkpoint, whose float64 would then be rounded to float32.
        """
        checks.check_trainer(self.trainer, training=stage == "fit")
        self.trainer.precision_plugin.convert_module(self)

    def on_fit_start(self) -> None:
        """Take seed and weights, unless they came with a checkpoint; print the global batch size."""
        problem = self.schedule_problem(self.trainer.max_epochs or 0)
        if problem is not None and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            rank_zero_warn(problem)  # a fit may be meant to be continued; `training.fit` raises
        if self._seed is None:
            if isinstance(self.encoder, Encoder):  # a user's own brings its weights
                self.encoder.load_weights()
            self._seed = self.trainer.strategy.broadcast(torch.initial_seed())  # ranks share pairs and shuffles
        notice = checks.global_batch_size_notice(self.trainer)
        if notice is not None:
            self.print(notice)

    def schedule_problem(self, epochs: int) -> str | None:
        """Why the method cannot do its work in so many epochs; None if it can."""
        return None

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
        stepping.seed_generators(self.step_seed(batch_idx, self.global_rank), self.device)

    def step_seed(self, *keys: int) -> int:
        """Seed of something random in the current epoch; other keys give another seed."""
        return derive_seed(self._seed or 0, self.current_epoch, *keys)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Keep BatchNorm's running statistics equal on all ranks, and check the losses at intervals."""
        if self.trainer.world_size > 1:
            average_over_ranks(self.encoder, self.decoder)
        if batch_idx % checks.FINITE_CHECK_INTERVAL == 0 or self.trainer.is_last_batch:
            checks.check_finite(self.losses, self.trainer)

    def on_train_epoch_end(self) -> None:
        """Log the epoch's mean losses."""
        self.log_dict({f"train/{k}": v for k, v in self.losses.means().items()}, sync_dist=self.trainer.world_size > 1)

    def on_validation_epoch_start(self) -> None:
        """Read the reference partition of the data, if there is one."""
        data = self._own_data()
        partition = None if data is None else data.reference_cells()
        self.scores.cells.start(None if partition is None else partition.to(self.device))

    def _own_data(self) -> AttributeDataModule | None:
        """The data of the trainer; None where it has other loaders."""
        data = getattr(self.trainer, "datamodule", None)
        return data if isinstance(data, AttributeDataModule) else None

    def on_validation_epoch_end(self) -> None:
        """Log validation metrics, also over cells, which model selection may use."""
        self.log_dict(self.scores.compute("val"))

    def on_test_epoch_start(self) -> None:
        """Read how often each combination of attributes occurs in training."""
        data = self._own_data()
        train = None if data is None else data.datasets.get("train")  # rows to predict have none
        self.scores.start_tests(None if train is None else train.a)

    def on_test_epoch_end(self) -> None:
        """Log the metrics of all test sets."""
        for name in self.test_names:
            self.log_dict(self.scores.compute(name))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the seed, the running losses and the parts. Raise rather than save after a loss was not finite."""
        checks.check_finite(self.losses, self.trainer)
        checkpoints.add_state(self, checkpoint, self._seed)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint fits, and restore the seed and the running losses."""
        self._seed = checkpoints.restore_state(self, checkpoint)
