"""CoDID: coordinated disentanglement with iterative mode discovery.

Hu and Chen, "Coordinated Disentanglement with Iterative Mode Discovery Under Hidden Correlations", ICML 2026.
The training step is Algorithm 1, its updates in order. Clusters come from the `ModeDiscovery` callback.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.optim import Optimizer

from codid_lightning.clustering import Clustering
from codid_lightning.errors import RunError
from codid_lightning.methods import checkpoints, stepping
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.codid.adaptation import (
    Adaptation,
    Belief,
    Content,
    adapt,
    fingerprint,
    turned_to,
)  # fmt: skip
from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.methods.codid.parts.alignments import Alignment, DiscriminatorAlignment, Encoding
from codid_lightning.methods.codid.parts.base import OptimizerSettings, Part
from codid_lightning.methods.codid.parts.content import ContentPart, known_others
from codid_lightning.methods.codid.parts.decoding import DecodedSamples
from codid_lightning.methods.codid.parts.harmonised import HarmonisedSamples
from codid_lightning.methods.codid.parts.mode_losses import ModeLoss, PredictModes
from codid_lightning.methods.codid.parts.prior import PriorInLogits, check_others, joint_others
from codid_lightning.methods.codid.parts.splits import LearnedSplits
from codid_lightning.methods.codid.saved_parts import parts_of_checkpoint
from codid_lightning.methods.codid.target import Target, View
from codid_lightning.methods.hardware import like_parameters
from codid_lightning.nn import distributed
from codid_lightning.nn.backbones import Backbone
from codid_lightning.nn.statistics import frozen_running_stats
from codid_lightning.nn.virtual import EncoderPass, KernelPass
from datamodules.base import Batch


class CoDID(DisentanglementModule):
    """Disentangles attributes under hidden correlations by discovering their modes while training.

    CoDID is composed of parts. The defaults are the paper's. Per batch, each update with its own optimizer: *inform*
    (encoder, predictors, decoder on L_info), *subcluster* (S on L_sc), and the alignment's updates: *discriminate* (D
    on L_wd with w = 1, N_d times), *weigh* (W on L_meta through one virtual encoder update) and *disentangle* (encoder
    on -L_wd with the learnt weights).

    On several devices all updates but inform use the global batch: representations are gathered, so pairs are shuffled
    over all ranks' samples, and the meta step averages the virtual update and L_meta over ranks. `trainer.global_step`
    counts batches. Mixed precision applies only to the inform step.

    Args:
        input_shape: Shape of one sample; linked from the data.
        attribute_sizes: Number of values of each attribute; linked from the data.
        test_names: Names of the test sets; linked from the data.
        test_attributes: Attributes whose test values occur in training; linked from the data.
        backbone: Encoder and decoder of the paper's architecture table; `auto` takes those that fit the input's shape.
            A name of torchvision or `timm/NAME` takes that network; `features`, a linear layer on trained features.
        latent_dim: Dimensions d of each representation.
        lr: Learning rate of encoder, predictors, decoder and subclustering net.
        reconstruction: Weight of the reconstruction loss (lambda_re).
        decay_from: Share of the epochs after which the learning rates of inform and disentangle fall linearly to zero;
            1 keeps them. The discriminator keeps its own, so that it follows an encoder that converges.
        targets: Attributes to disentangle; null is the first one.
        moded: Targets with modes to discover; null is all of them. The others are conditioned on their value.
        max_clusters: Slots under each value: the truncation level of the Dirichlet process.
        discovery: When, in what and how modes are found.
        mode_loss: How the inform step uses modes; null ignores them.
        alignment: What makes z_q independent of the other representations within clusters; null does nothing.
        splits: Who proposes splits; null leaves it to the mixture.
        decoding: Train z_1 on content that does not show the other attributes: `DecodedSamples`, or for tables
            `HarmonisedSamples`; null uses real samples.
        pi: What `PriorInLogits` assumes about the place of use: `uniform`, no correlation of modes with the other
            attributes; `train`, that of training; or a number between and beyond, with 0, 1 and -1 for none, training's
            and the reverse. `adapt` estimates it from unlabelled samples.
        weights: What a network for images starts from: `default`, the weights that torchvision or timm offer; a file
            with a state dict; or null. The inputs are then normalised as the weights expect.
        freeze: Keep these weights, and train a linear layer on the features.
    """

    part_names: ClassVar[tuple[str, ...]] = ("discovery", "mode_loss", "alignment", "splits", "decoding")

    def __init__(
        self,
        input_shape: tuple[int, ...],
        attribute_sizes: tuple[int, ...],
        test_names: tuple[str, ...] = ("test",),
        test_attributes: tuple[int, ...] = (0,),
        reconstruction: float = 1.1,
        backbone: Backbone = "auto",
        latent_dim: int = 128,
        lr: float = 1e-3,
        decay_from: float = 1.0,
        targets: list[int] | None = None,
        moded: list[int] | None = None,
        max_clusters: int = 16,
        discovery: ModeDiscovery = ModeDiscovery(),  # noqa: B008  (copied below)
        mode_loss: ModeLoss | None = PredictModes(),  # noqa: B008  (parts are immutable)
        alignment: Alignment | None = DiscriminatorAlignment(),  # noqa: B008
        splits: LearnedSplits | None = LearnedSplits(),  # noqa: B008
        decoding: DecodedSamples | HarmonisedSamples | ContentPart | None = None,
        pi: Literal["uniform", "train"] | float = "uniform",
        weights: str | None = None,
        freeze: bool | None = None,
    ) -> None:
        facts = (input_shape, attribute_sizes, test_names, test_attributes)
        plain = (backbone, latent_dim, lr, reconstruction)
        super().__init__(*facts, *plain, decay_from=decay_from, weights=weights, freeze=freeze)
        self.max_clusters = max_clusters
        self.discovery = copy.deepcopy(discovery)
        self.mode_loss, self.alignment, self.splits, self.decoding = mode_loss, alignment, splits, decoding
        self.dial = {"uniform": 0.0, "train": 1.0}[pi] if isinstance(pi, str) else float(pi)
        self.adaptation: Adaptation | None = None
        self._validation: list[tuple[Tensor, Tensor]] = []
        attributes = targets or [0]
        with_modes = attributes if moded is None else moded
        self._check_parts()
        parts = (alignment, mode_loss, getattr(alignment, "weights", None), splits)
        self.parts: list[Part] = [part for part in parts if part is not None]
        self.targets = nn.ModuleList(
            Target(q, self.attribute_sizes, latent_dim, max_clusters, q in with_modes, self.parts) for q in attributes
        )
        # Made last: the other networks start as they would without it.
        self.counterfactuals = None if decoding is None else decoding.build(tuple(input_shape), self.attribute_sizes)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # the other arguments are in kwargs
        cls, checkpoint_path: Any, map_location: Any = None, **kwargs: Any
    ) -> Self:
        """The model of a checkpoint, with the parts it was trained with. Nothing in the checkpoint is executed.

        Args:
            checkpoint_path: A path, or a file.
            map_location: Where tensors go, as in `torch.load`.
            **kwargs: Arguments that replace the checkpoint's, and those of Lightning's method.
        """
        saved = checkpoints.read(checkpoint_path)
        parts = parts_of_checkpoint(saved, given=kwargs)
        return super().load_from_checkpoint(checkpoint_path, map_location, **{**parts, **kwargs})

    # ----------------------------------------------------------------------------------------------- Algorithm 1

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Line 5 until clusters exist, then lines 16 to 21."""
        if self.counterfactuals is not None:
            self.counterfactuals.step(self, batch, batch_idx)
        self.inform(batch)
        started = self.current_epoch >= self.discovery.start and self.has_clusters
        if not started or (self.splits is None and self.alignment is None):
            return
        with frozen_running_stats(self.encoder), torch.autocast(self.device.type, enabled=False):
            encoding = self.encode(batch["x"])  # one pass for all that follows: the encoder moves last
            views = self.views(encoding.z, batch)
            if self.splits is not None:
                self.splits.step(self, views)
            if self.alignment is not None:
                self.alignment.step(self, batch, encoding, views)

    def inform(self, batch: Batch) -> None:
        """Encoder, predictors and decoder learn attributes, modes and data (Eq. 4, line 16)."""
        z = self.represent(batch)
        loss = self.informative_loss(z, batch)
        modes = None if self.mode_loss is None else self.mode_loss.additional_loss(self, z, batch)
        loss = loss if modes is None else loss + modes
        self.minimise(self.optimizer("inform"), distributed.scale_to_global_mean(loss, z))

    def forward(self, x: Tensor, others: Tensor | None = None) -> Tensor:
        """Representations z (B, Q, d).

        Args:
            x: Samples (B, ...).
            others: Values of all attributes but the first (B, Q - 1), which `model.decoding` may use. Where they are -1
                or not given, they are predicted.
        """
        if self.counterfactuals is not None:
            return self.counterfactuals.represent(self, x, others)
        z: Tensor = self.encoder(x)
        return z

    def represent(self, batch: Batch) -> Tensor:
        """Representations z (B, Q, d) of a batch, whose first attribute is not used."""
        z: Tensor = self(batch["x"], batch["a"][:, 1:])
        return z

    @torch.no_grad()
    def content(self, x: Tensor, others: Tensor | None = None) -> Tensor:
        """Content (B, p) of samples, which `model.decoding` finds; arguments as those of `forward`."""
        assert self.counterfactuals is not None  # noqa: S101
        z_rest = [network(x) for network in list(self.encoder.subnetworks)[1:]] if others is None else []
        return self.counterfactuals.features(x, known_others(self, z_rest, others))

    def informative_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Attribute prediction and reconstruction, and what `model.decoding` adds."""
        loss, found = super().informative_loss(z, batch), self.counterfactuals
        return loss if found is None else found.informative_loss(self, loss, batch)

    def attribute_loss(self, losses: Tensor, batch: Batch) -> Tensor:
        """One number of a batch's attribute losses (B, Q)."""
        if self.mode_loss is None:
            return super().attribute_loss(losses, batch)
        return self.mode_loss.attribute_loss(self, losses, batch)

    def training_logits(self, z: Tensor, a: Tensor) -> list[Tensor]:
        """Logits of every attribute, those of targets from the mode loss where it has its own."""
        own = self._logits_of_targets(z, a, training=True)
        return [own[q] if q in own else predictor(z[:, q]) for q, predictor in enumerate(self.predictors)]

    def encode(self, x: Tensor) -> Encoding:
        """Representations of the global batch, ready for virtual and real steps of the encoder."""
        return KernelPass(self.encoder, x) if KernelPass.serves(self.encoder) else EncoderPass(self.encoder, x)

    def views(self, z: Tensor, batch: Batch) -> list[View]:
        """The global batch as each target sees it, given its representations (B, Q, d)."""
        a, index = distributed.gather(batch["a"]), distributed.gather(batch["index"])
        with torch.no_grad():
            attribute_losses = self.attribute_losses(z, a)
        return [target.view(z, a, index, attribute_losses) for target in self.target_list]

    # ----------------------------------------------------------------------------------------------------- evaluation

    def attribute_logits(self, z: Tensor, a: Tensor) -> list[Tensor]:
        """Logits of every attribute, as believed of the place of use.

        Args:
            z: Representations (B, Q, d).
            a: Attributes (B, Q). Other attributes that are unknown, -1, are predicted.
        """
        logits = super().attribute_logits(z, a)
        predicted = torch.stack([own.argmax(1) for own in logits], dim=1)
        own = self._logits_of_targets(z, torch.where(a < 0, predicted, a), training=False)
        return [own.get(q, plain) for q, plain in enumerate(logits)]

    def _logits_of_targets(self, z: Tensor, a: Tensor, training: bool) -> dict[int, Tensor]:
        """Logits by attribute, of the targets for which the mode loss has its own."""
        if self.mode_loss is None:
            return {}
        logits_of = self.mode_loss.training_logits if training else self.mode_loss.evaluation_logits
        found = {t.attribute: logits_of(self, t, z[:, t.attribute], a) for t in self.target_list}
        return {q: logits for q, logits in found.items() if logits is not None}

    def belief(self, target: Target, content: Content) -> Belief:
        """What is believed about the place of use: as adapted for the first attribute, else as `pi` says."""
        if self.adaptation is not None and target.attribute == 0:
            return self.adaptation.belief.to(content.log_joint)
        return turned_to(self.dial, content)

    def sees_content(self, target: Target) -> bool:
        """Whether z_q of a target is computed from content, which does not show the other attributes."""
        found = self.counterfactuals
        return target.attribute == 0 and found is not None and found.content_only

    @torch.no_grad()
    def adapt(self, x: Tensor | Iterable[Tensor], others: Tensor | None = None, batch_size: int = 128) -> Adaptation:
        """Estimate from unlabelled samples of the place of use how modes and other attributes correlate there.

        Only predictions of the first attribute change. They use the result from now on; `adaptation = None` returns
        to `pi`.

        Args:
            x: Samples (N, ...), or batches of them.
            others: Values of all attributes but the first (N, Q - 1); None predicts them.
            batch_size: Samples that are encoded at once, if `x` is one tensor.

        Raises:
            RunError: The model has no `PriorInLogits` or no clusters, there are too few samples, or they do not fit.
        """
        target, loss = self.target_list[0], self.mode_loss
        if not isinstance(loss, PriorInLogits) or target.attribute != 0:
            raise RunError(
                "Adaptation needs a model with `model.mode_loss: PriorInLogits` for the first attribute, as "
                "configs/methods/codid_adaptive.yaml has."
            )
        if not target.ready:
            raise RunError("The model has no clusters yet: train it for more epochs than model.discovery.start.")
        if others is not None:
            check_others(others, self.attribute_sizes[1:], len(x if isinstance(x, Tensor) else others))
        z = self._representations(x.split(batch_size) if isinstance(x, Tensor) else x, others)
        known = known_others(self, list(z.unbind(1))[1:], None if others is None else others.to(self.device))
        check_others(known, self.attribute_sizes[1:], len(z))
        content = loss.content(self, target, z[:, 0])
        joint = joint_others(target, torch.cat([torch.zeros_like(known[:, :1]), known], dim=1))
        adapted = adapt(content, joint, others is not None)
        self.adaptation = replace(adapted, model=fingerprint(self.state_dict()))
        return self.adaptation

    def _representations(self, batches: Iterable[Tensor], others: Tensor | None) -> Tensor:
        """Representations z (N, Q, d) in evaluation mode, given the other attributes where they are known."""
        training, done, found = self.training, 0, []
        self.eval()
        try:
            for x in batches:
                known = None if others is None else others[done : done + len(x)].to(self.device)
                found.append(self(self._checked(like_parameters(x, self)), known))
                done += len(x)
        finally:
            self.train(training)
        z = torch.cat(found) if found else torch.zeros(0, len(self.attribute_sizes), self.latent_dim)
        if not z.isfinite().all():
            raise RunError("Some samples hold NaN or infinity, or numbers that are too large for the model.")
        return z

    def _checked(self, x: Tensor) -> Tensor:
        """Samples of the shape of the training samples."""
        given, shape = tuple(x.shape[1:]), tuple(self.hparams["input_shape"])
        if given != shape:
            raise RunError(f"The samples have shape {given}; the model was trained on {shape}.")
        return x

    # ------------------------------------------------------------------------------------------------ mode discovery

    @property
    def target_list(self) -> list[Target]:
        """The targets, typed."""
        return list(self.targets)  # type: ignore[arg-type]

    def mode_targets(self) -> list[Target]:
        """Targets with modes to discover."""
        return [target for target in self.target_list if target.moded]

    @property
    def has_clusters(self) -> bool:
        """Whether all targets with modes have clusters."""
        return all(target.ready for target in self.target_list)

    def selectable(self) -> bool:
        """Whether there are clusters and, with `model.decoding`, its gate has decided. The rest is pre-training."""
        return self.has_clusters and (self.counterfactuals is None or self.counterfactuals.judged)

    def configure_callbacks(self) -> list[Callback]:
        """Gate and mode discovery come with the method. A `ModeDiscovery` given to the trainer has priority."""
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        given = [callback for callback in callbacks if isinstance(callback, ModeDiscovery)]
        self.discovery = given[0] if given else self.discovery
        gate = [] if self.counterfactuals is None else self.counterfactuals.callbacks()
        own = [self.discovery] if self.mode_targets() and not given else []
        return [*gate, *super().configure_callbacks(), *own]

    def adopt(
        self, target: Target, found: Clustering, z: Tensor, reset_heads: bool = False, restart: bool = False
    ) -> None:
        """Take over new clusters of a target: labels, and the heads' rows with their Adam moments (line 13).

        Args:
            target: The target.
            found: Its clusters.
            z: Its representations (N, d) of all training samples.
            reset_heads: Re-initialise all heads when any cluster changed.
            restart: Re-initialise all networks if these are the first clusters.
        """
        first = not target.ready
        optimizers: list[Optimizer] = self.trainer.optimizers
        target.adopt(found, z, optimizers, reset_heads)
        if first and restart:
            self._reinitialise(optimizers)
        if self.mode_loss is not None:
            self.mode_loss.clusters_known(self, adopted=True)

    def _reinitialise(self, optimizers: list[Optimizer]) -> None:
        kept = set() if self.counterfactuals is None else set(self.counterfactuals.modules())
        stepping.reinitialise((module for module in self.modules() if module not in kept), optimizers)

    def training_attributes(self) -> Tensor:
        """Attributes (N, Q) of the whole training set."""
        a: Tensor = self.trainer.datamodule.datasets["train"].a  # type: ignore[attr-defined]
        return a.to(self.device)

    # ---------------------------------------------------------------------------------------------------- optimizers

    def configure_optimizers(self) -> list[Optimizer]:
        """One Adam per step of Algorithm 1, in the order of `optimizer_names`."""
        heads = [] if self.mode_loss is None else [n for t in self.target_list for n in self.mode_loss.networks(t)]
        decoder = [] if self.decoder is None else [self.decoder]
        settings = {"inform": OptimizerSettings([self.encoder, self.predictors, *heads, *decoder], self.lr)}
        for part in [*self.parts, *([] if self.decoding is None else [self.decoding])]:
            settings |= part.optimizers(self)
        self.optimizer_names = list(settings)
        return [
            self.adam([p for network in s.networks for p in network.parameters()], s.lr, s.momentum)
            for s in settings.values()
        ]

    def encoder_optimizers(self) -> list[Optimizer]:
        """Those of inform and, where it has its own, disentangle."""
        return [self.optimizer(name) for name in ("inform", "disentangle") if name in self.optimizer_names]

    def optimizer(self, name: str) -> Optimizer:
        """The optimizer of one step."""
        found: Optimizer = self.trainer.optimizers[self.optimizer_names.index(name)]
        return found

    # ---------------------------------------------------------------------------------------------------------- hooks

    def on_fit_start(self) -> None:
        """Check the schedule, and prepare `model.decoding`."""
        super().on_fit_start()
        if self.counterfactuals is not None:
            fast = self.trainer.fast_dev_run  # type: ignore[attr-defined]
            datasets = self.trainer.datamodule.datasets  # type: ignore[attr-defined]
            self.counterfactuals.start(datasets, None if fast else self.trainer.max_epochs)

    def schedule_problem(self, epochs: int) -> str | None:
        """A run that ends before its first clustering is no CoDID."""
        start = self.discovery.start
        if not self.mode_targets() or not 0 < epochs <= start:  # -1 is without end
            return None
        return (
            f"model.discovery.start is {start} and trainer.max_epochs is {epochs}: the run ends before its first "
            f"clustering. Raise trainer.max_epochs above {start}, or lower model.discovery.start below {epochs}."
        )

    def on_train_start(self) -> None:
        """Clusters are known from the start in a resumed run, and where no target has modes."""
        if self.mode_loss is not None and self.target_list[0].ready:
            self.mode_loss.clusters_known(self, adopted=False)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Seed the randomness that all ranks share: every rank shuffles and swaps the global batch alike."""
        super().on_train_batch_start(batch, batch_idx)
        self.generator = torch.Generator(self.device).manual_seed(self.step_seed(batch_idx))
        if self.counterfactuals is not None:
            self.counterfactuals.generator = torch.Generator(self.device).manual_seed(self.step_seed(batch_idx, -1))

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Metrics on validation data, and what a mode loss needs to calibrate itself."""
        z = self.represent(batch)
        self.score("val", z, batch)
        sample = None if self.mode_loss is None else self.mode_loss.calibration_sample(self, z, batch["a"])
        if sample is not None:
            self._validation.append(sample)

    def on_validation_epoch_end(self) -> None:
        """Log metrics, and calibrate."""
        super().on_validation_epoch_end()
        kept, self._validation = self._validation, []
        if kept and self.mode_loss is not None and not self.trainer.sanity_checking:
            logits, a = (distributed.gather(torch.cat(parts)) for parts in zip(*kept, strict=True))
            self.mode_loss.calibrate(self, logits, a)

    def on_train_epoch_end(self) -> None:
        """Log the epoch's losses."""
        if self.alignment is not None:
            self.alignment.epoch_end(self)
        if self.counterfactuals is not None:
            self.log_dict(self.counterfactuals.gate_metrics)
        super().on_train_epoch_end()

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        """Probabilities, representations and, once there are clusters, the most likely one of the first target."""
        outputs = super().predict_step(batch, batch_idx, dataloader_idx)
        target = self.target_list[0]
        if target.moded and target.ready and target.predicts_modes:
            outputs["cluster"] = target.most_likely_cluster(outputs["z"][:, target.attribute])
        return outputs

    def _check_parts(self) -> None:
        given = self.discovery.n_clusters
        if max([given] if isinstance(given, int) else given) > self.max_clusters:
            raise ValueError(
                f"model.discovery.n_clusters is {given}; it must not exceed model.max_clusters, {self.max_clusters}."
            )
