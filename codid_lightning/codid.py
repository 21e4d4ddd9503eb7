"""CoDID: coordinated disentanglement with iterative mode discovery.

Hu and Chen, "Coordinated Disentanglement with Iterative Mode Discovery Under Hidden Correlations", ICML 2026.
The training step is Algorithm 1, its five updates in order; clusters come from the `ModeDiscovery` callback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer

from codid_lightning import distributed
from codid_lightning.clustering import DPGMM, Clusterer, Clustering, KMeans, TrueModes
from codid_lightning.losses import (
    discrimination_loss,
    isotropic_loss,
    reconstruction_loss,
    shuffle_within,
    weight_alignment_loss,
)
from codid_lightning.metrics.groups import CellAccuracy
from codid_lightning.module import DisentanglementModule
from codid_lightning.networks.backbones import Backbone
from codid_lightning.networks.statistics import resting_statistics
from codid_lightning.networks.virtual import EncoderPass, KernelPass
from codid_lightning.targets import Marginals, Sharing, Target, View
from datamodules.base import Batch

CLUSTERERS = {cls.__name__: cls for cls in (DPGMM, KMeans, TrueModes)}  # what a checkpoint may name
Encoding = EncoderPass | KernelPass

OPPONENTS = ("discriminator", "disentangle")  # the steps that play against each other
SMALLEST_SPREAD = 1e-4  # standard deviation of pair weights below which they are all the same


class CoDID(DisentanglementModule):
    """Disentangles attributes under hidden correlations by discovering their modes while training.

    Per batch, each update with its own optimizer: *inform* (encoder, predictors, decoder on L_info), *subcluster*
    (S on L_sc), *discriminate* (D on L_wd with w = 1, N_d times), *weigh* (W on L_meta through one virtual encoder
    update) and *disentangle* (encoder on -L_wd with the learned weights).

    On several devices the batch of steps two to five is the global one: representations are gathered, so marginals
    are drawn from all ranks' samples, and the meta step averages the virtual update and L_meta over ranks. All
    gradients equal those of one device with the same global batch. `trainer.global_step` counts batches. Of a mixed
    precision only the inform step makes use.

    Args:
        input_shape: Shape of one sample; linked from the data.
        attribute_sizes: Number of values of each attribute; linked from the data.
        test_names: Names of the test sets; linked from the data.
        test_attributes: Attributes whose test values occur in training; linked from the data.
        backbone: Encoder and decoder of the paper's architecture table.
        latent_dim: Dimensions d of each representation.
        lr: Learning rate of encoder, predictors, decoder and subclustering net.
        reconstruction: Weight of the reconstruction loss (lambda_re).
        strength: Weight of -L_wd in the disentangle step.
        decay_from: Share of the epochs after which the learning rates of inform and disentangle fall linearly towards
            zero; 1 keeps them. The discriminator keeps its own, so that it follows an encoder that settles.
        targets: Attributes to disentangle.
        moded: Targets with modes to discover; null means all of them. The others are conditioned on their value.
        clusterer: How modes are found under each value; null is a DPGMM started from `n_clusters`.
        n_clusters: Initial clusters under each value of a target, one number for all values or one per value.
        max_clusters: Slots under each value: the truncation level of the Dirichlet process.
        discriminator_lr: Learning rate of the discriminators (l_d).
        discriminator_steps: Discriminator updates per batch (N_d).
        weight_lr: Learning rate of the weight net.
        mode_prediction: Weight of the mode prediction loss (lambda_mp).
        meta_reconstruction: Weight of reconstruction in the meta loss (lambda_mr).
        weight_alignment: Weight of the weight alignment loss (lambda_wa).
        meta_lr: Step of the virtual encoder update (beta); null is `lr`.
        virtual_step: The virtual update descends L_wd as Eq. 7 is written, or ascends it as the real one does.
        weight_scale: Scale weights to mean 1 within each cluster of the batch, or leave the sigmoid's output.
        disentangle_lr: Learning rate of a separate Adam for the disentangle step; null shares inform's.
        adversarial_momentum: Momentum (Adam's beta_1) of discriminator and, where it has its own Adam, disentangle.
            With it opponents circle around the point where they should meet (Gidel et al., AISTATS 2019).
        pretrain_epochs: Epochs before the first clustering (N_ptr).
        cluster_every: Epochs between refinements (N_cl); null clusters once.
        cluster_until: Epochs after pre-training during which clusters are refined (N_it); null is to the end.
        discrimination: No discrimination loss, the plain one (L_d) or the weighted one (L_wd).
        split_by: Whether the subclustering net or the mixture alone proposes how clusters are split.
        sharing: Which clusters share a discriminator: those of one value, none (-ID) or all (-SD).
        reconfigure: When clusters change, adapt their rows only or re-initialise the heads (-UA).
        restart: Re-initialise everything once clusters are known and train from scratch (-km).
        exact: Leave all gradients to automatic differentiation. The closed forms used otherwise give the same numbers
            up to rounding, several times faster.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        attribute_sizes: tuple[int, ...],
        test_names: tuple[str, ...] = ("test",),
        test_attributes: tuple[int, ...] = (0,),
        backbone: Backbone = "mlp",
        latent_dim: int = 128,
        lr: float = 1e-3,
        reconstruction: float = 1.1,
        strength: float = 1.0,
        decay_from: float = 1.0,
        targets: list[int] | None = None,
        moded: list[int] | None = None,
        clusterer: Clusterer | None = None,
        n_clusters: int | list[int] = 4,
        max_clusters: int = 16,
        discriminator_lr: float = 3e-4,
        discriminator_steps: int = 15,
        weight_lr: float = 1e-3,
        mode_prediction: float = 0.3,
        meta_reconstruction: float = 1.0,
        weight_alignment: float = 0.3,
        meta_lr: float | None = None,
        virtual_step: Literal["descend", "ascend"] = "descend",
        weight_scale: Literal["cluster", "none"] = "cluster",
        disentangle_lr: float | None = None,
        adversarial_momentum: float = 0.9,
        pretrain_epochs: int = 20,
        cluster_every: int | None = 5,
        cluster_until: int | None = 30,
        discrimination: Literal["none", "plain", "weighted"] = "weighted",
        split_by: Literal["subcluster_net", "mixture"] = "subcluster_net",
        sharing: Sharing = "value",
        reconfigure: Literal["partial", "full"] = "partial",
        restart: bool = False,
        exact: bool = False,
    ) -> None:
        super().__init__(
            input_shape,
            attribute_sizes,
            test_names,
            test_attributes,
            backbone,
            latent_dim,
            lr,
            reconstruction,
            strength,
            decay_from,
        )
        _check_counts(n_clusters, max_clusters, discriminator_steps, pretrain_epochs, cluster_every)
        if not 0 <= adversarial_momentum < 1:
            raise ValueError(f"model.adversarial_momentum is {adversarial_momentum}; it must be from 0 to below 1.")
        self.clusterer_given = clusterer is not None
        self.clusterer = clusterer if clusterer is not None else DPGMM()
        self.n_clusters, self.max_clusters = n_clusters, max_clusters
        self.discriminator_lr, self.discriminator_steps = discriminator_lr, discriminator_steps
        self.weight_lr, self.disentangle_lr, self.adversarial_momentum = weight_lr, disentangle_lr, adversarial_momentum
        self.mode_prediction, self.meta_reconstruction = mode_prediction, meta_reconstruction
        self.weight_alignment = weight_alignment
        self.meta_lr = (lr if meta_lr is None else meta_lr) * (1 if virtual_step == "descend" else -1)
        self.normalise_weights = weight_scale == "cluster"
        self.pretrain_epochs, self.cluster_every, self.cluster_until = pretrain_epochs, cluster_every, cluster_until
        self.discrimination, self.split_by = discrimination, split_by
        self.reconfigure, self.restart, self.exact = reconfigure, restart, exact
        self.mode_metrics: dict[str, float] = {}
        attributes = targets or [0]
        with_modes = attributes if moded is None else moded
        self.targets = nn.ModuleList(
            Target(q, self.attribute_sizes, latent_dim, max_clusters, q in with_modes, sharing) for q in attributes
        )
        # Clusters of validation samples are the mode predictor's: it has to be trained.
        self.cells_by_cluster = attributes[0] == 0 and 0 in with_modes and mode_prediction > 0
        if self.cells_by_cluster:
            self.cells = CellAccuracy(self.attribute_sizes, num_groups=self.attribute_sizes[0] * max_clusters)

    # ----------------------------------------------------------------------------------------------- Algorithm 1

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Line 5 until clusters exist, then lines 16 to 21."""
        self.inform(batch)
        if not all(target.ready for target in self.target_list) or self.current_epoch < self.pretrain_epochs:
            return
        if self.split_by == "mixture" and self.discrimination == "none":
            return
        with resting_statistics(self.encoder), torch.autocast(self.device.type, enabled=False):
            encoding = self.encode(batch["x"])  # one pass for all that follows; the encoder rests until `disentangle`
            views = self.views(encoding.z, batch)
            if self.split_by == "subcluster_net":
                self.subcluster(views)
            if self.discrimination == "none":
                return
            self.discriminate(views)
            pairs = self.marginals(views)
            if self.discrimination == "weighted" and any(target.moded for target in self.target_list):
                self.weigh(batch, encoding, views, pairs)
            self.disentangle(encoding, views, pairs)

    def inform(self, batch: Batch) -> None:
        """Encoder, predictors and decoder learn what attributes, modes and data look like (Eq. 4, line 16)."""
        z = self(batch["x"])
        loss = self.informative_loss(z, batch)
        for target in self.target_list:
            if target.moded and target.ready and self.mode_prediction > 0:
                mode_loss = target.mode_losses(z[:, target.attribute], batch["index"])[0].mean()
                self.losses.add("mode_prediction", mode_loss)
                loss = loss + self.mode_prediction * mode_loss
        self.minimise(self.optimizer("inform"), distributed.part(loss, z))

    def subcluster(self, views: list[View]) -> None:
        """The subclustering net learns the mixture's halves, corrected by how W weighs the pairs (Eq. 11, line 16)."""
        for target, view in zip(self.target_list, views, strict=True):
            if not target.moded:
                continue
            own = view.own.detach()
            halves = target.halves(own, view.table, view.slot)
            loss = isotropic_loss(halves, own, target.follow_halves(view)[view.slot])
            self.losses.add("isotropic", loss)
            if self.discrimination == "weighted":
                divergence, together = target.weight_divergence(view)
                alignment = weight_alignment_loss(view.table.spread(halves[:, 0]), divergence, together)
                self.losses.add("weight_alignment", alignment)
                loss = loss + self.weight_alignment * alignment
            self.minimise(self.optimizer("subcluster"), loss, parameters=target.subcluster_net, reduce=False)

    def discriminate(self, views: list[View]) -> None:
        """Discriminators learn to tell joint from shuffled pairs, N_d times (Eq. 5 with w = 1, lines 17 to 19)."""
        for target, view in zip(self.target_list, views, strict=True):
            parameters = list(target.discriminator.parameters())
            permutations = shuffle_within(view.slot, self.generator, self.discriminator_steps)
            for loss, gradients in self.discriminator_gradients(target, view, permutations):
                self.step(self.optimizer("discriminator"), parameters, gradients, reduce=False)
                self.losses.add("discriminator", loss)

    def weigh(self, batch: Batch, encoding: Encoding, views: list[View], pairs: list[Marginals]) -> None:
        """Weight nets learn to trust the shuffled pairs whose alignment keeps z informative (Eq. 8, line 20)."""
        slope, _ = self.discrimination_slope(encoding, views, pairs, self.weights(views, pairs))
        loss = self.meta_loss(encoding.moved(slope, self.meta_lr), batch)
        self.losses.add("meta", loss)
        self.minimise(self.optimizer("weigh"), distributed.part(loss, batch["x"]))

    def disentangle(self, encoding: Encoding, views: list[View], pairs: list[Marginals]) -> None:
        """The encoder makes joint and weighted shuffled pairs alike (Eq. 5 with w, maximised, line 21)."""
        weights = [None if w is None else w.detach() for w in self.weights(views, pairs)]
        for w in weights:
            if w is not None:
                self.losses.add("weight_spread", w.std(correction=0))
        slope, loss = self.discrimination_slope(encoding, views, pairs, weights)
        self.losses.add("discrimination", loss)
        name = "inform" if self.disentangle_lr is None else "disentangle"
        self.step(self.optimizer(name), encoding.parameters, encoding.gradients(-self.strength * slope))

    # ------------------------------------------------------------------------------------------------- their parts

    @property
    def target_list(self) -> list[Target]:
        """The targets, typed."""
        return list(self.targets)  # type: ignore[arg-type]

    def views(self, z: Tensor, batch: Batch) -> list[View]:
        """Each target's arrangement of the global batch, given its representations (B, Q, d)."""
        a, index = distributed.gather(batch["a"]), distributed.gather(batch["index"])
        with torch.no_grad():
            attribute_losses = self.attribute_losses(z, a)
        views = [target.view(z, a, index, attribute_losses) for target in self.target_list]
        if not self.exact:
            for target, view in zip(self.target_list, views, strict=True):
                view.pairs = target.lay_out(view)
        return views

    def encode(self, x: Tensor) -> Encoding:
        """Representations of the global batch, ready for virtual and real steps of the encoder."""
        fast = not self.exact and KernelPass.serves(self.encoder)
        return KernelPass(self.encoder, x) if fast else EncoderPass(self.encoder, x)

    def discriminator_gradients(
        self, target: Target, view: View, permutations: Tensor
    ) -> Iterator[tuple[Tensor, Sequence[Tensor]]]:
        """Loss and gradients of a target's discriminator for one permutation after the other."""
        if view.pairs is not None:
            yield from target.discriminator.updates(view.pairs, permutations)
            return
        own, rest = view.own.detach(), view.rest.detach()
        for permutation in permutations:
            joint = target.discriminate(own, rest, view)
            marginal = target.discriminate(own, rest[permutation], view)
            loss = discrimination_loss(joint, marginal, partnered=view.partnered)
            yield loss, torch.autograd.grad(loss, list(target.discriminator.parameters()))

    def marginals(self, views: list[View]) -> list[Marginals]:
        """Each target's shuffled pairs, for the encoder."""
        return [
            target.marginals(view, shuffle_within(view.slot, self.generator))
            for target, view in zip(self.target_list, views, strict=True)
        ]

    def weights(self, views: list[View], pairs: list[Marginals]) -> list[Tensor | None]:
        """Learned weights of each target's marginal pairs; None where all count alike."""
        return [
            target.weigh(view, marginals, self.normalise_weights)
            if target.moded and self.discrimination == "weighted"
            else None
            for target, view, marginals in zip(self.target_list, views, pairs, strict=True)
        ]

    def discrimination_slope(
        self, encoding: Encoding, views: list[View], pairs: list[Marginals], weights: list[Tensor | None]
    ) -> tuple[Tensor, Tensor]:
        """Gradient (B, Q, d) of L_wd with respect to z, differentiable in the weights, and L_wd itself."""
        if self.exact:
            loss = self.discrimination_loss(views, pairs, weights)
            return torch.autograd.grad(loss, encoding.z, create_graph=True)[0], loss
        slopes, losses = zip(
            *(
                target.slope(view, marginals, w)
                for target, view, marginals, w in zip(self.target_list, views, pairs, weights, strict=True)
            ),
            strict=True,
        )
        return torch.stack(slopes).sum(0), torch.stack(losses).sum()

    def discrimination_loss(self, views: list[View], pairs: list[Marginals], weights: list[Tensor | None]) -> Tensor:
        """L_wd (Eq. 5), summed over targets; clusters without a pair in the batch contribute nothing."""
        total = views[0].own.new_zeros(())
        for target, view, marginals, w in zip(self.target_list, views, pairs, weights, strict=True):
            joint = target.discriminate(view.own, view.rest, view)
            marginal = target.discriminate(view.own, view.rest.index_select(0, marginals.permutation), view)
            total = total + discrimination_loss(joint, marginal, w, view.partnered)
        return total

    def meta_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """L_meta (Eq. 8): what the moved representations still tell of the attribute and the data."""
        losses = self.attribute_losses(z, batch["a"])
        loss = torch.stack([losses[:, t.attribute].mean() for t in self.target_list if t.moded]).sum()
        if self.decoder is not None and self.meta_reconstruction > 0:
            with resting_statistics(self.decoder):
                loss = loss + self.meta_reconstruction * reconstruction_loss(self.decoder(z), batch["x"])
        return loss

    # ------------------------------------------------------------------------------------------------ mode discovery

    def configure_callbacks(self) -> list[Callback]:
        """Mode discovery comes with the method, unless the trainer was given one of its own."""
        from codid_lightning.callbacks.mode_discovery import ModeDiscovery

        given = any(isinstance(callback, ModeDiscovery) for callback in self.trainer.callbacks)  # type: ignore[attr-defined]
        needed = not given and any(target.moded for target in self.target_list)
        return [*super().configure_callbacks(), *([ModeDiscovery()] if needed else [])]

    def mode_view(self, x: Tensor) -> Tensor:
        """Representations (B, Q, d) of samples x as modes are looked for in."""
        z: Tensor = self(x)
        return z

    @property
    def modes_move(self) -> bool:
        """Whether training moves what modes are looked for in, so that they are worth another look."""
        return True

    def content(self, x: Tensor) -> Tensor | None:
        """What of samples x, (B, p), modes are looked for in instead; nothing by default."""
        return None

    def mode_features(self, content: Tensor, a: Tensor, attribute: int) -> Tensor:
        """Where clusters of an attribute are looked for, (N, k), given content (N, p) and attributes (N, Q)."""
        return content

    def adopt(self, target: Target, found: Clustering) -> None:
        """Take over new clusters of a target: labels, and the heads' rows with their Adam moments (line 13)."""
        first = not target.ready
        optimizers: list[Optimizer] = self.trainer.optimizers
        target.adopt(found, optimizers, reset=self.reconfigure == "full")
        if first and self.restart:
            self._start_again(optimizers)

    def _start_again(self, optimizers: list[Optimizer]) -> None:
        for module in self.modules():
            if callable(reset := getattr(module, "reset_parameters", None)):
                reset()
        for optimizer in optimizers:
            optimizer.state.clear()

    # ---------------------------------------------------------------------------------------------------- optimizers

    def configure_optimizers(self) -> list[Optimizer]:
        """One Adam per step of Algorithm 1, in the order of `optimizer_names`."""
        moded = [t for t in self.target_list if t.moded]
        heads = [self.encoder, self.predictors, *(t.mode_predictor for t in moded)]
        modules: dict[str, tuple[list[nn.Module], float]] = {
            "inform": ([*heads, *([self.decoder] if self.decoder is not None else [])], self.lr),
            "discriminator": ([t.discriminator for t in self.target_list], self.discriminator_lr),
        }
        if moded:
            modules["subcluster"] = ([t.subcluster_net for t in moded], self.lr)
            modules["weigh"] = ([t.weight_net for t in moded], self.weight_lr)
        if self.disentangle_lr is not None:
            modules["disentangle"] = ([self.encoder], self.disentangle_lr)
        self.optimizer_names = list(modules)
        momenta = [self.adversarial_momentum if name in OPPONENTS else 0.9 for name in modules]
        return [
            self.adam([p for m in group for p in m.parameters()], lr, momentum)
            for (group, lr), momentum in zip(modules.values(), momenta, strict=True)
        ]

    def encoder_optimizers(self) -> list[Optimizer]:
        """Those of inform and, where it has its own, disentangle."""
        return [self.optimizer(name) for name in ("inform", "disentangle") if name in self.optimizer_names]

    def optimizer(self, name: str) -> Optimizer:
        """The optimizer of one step."""
        found: Optimizer = self.trainer.optimizers[self.optimizer_names.index(name)]
        return found

    # ---------------------------------------------------------------------------------------------------------- hooks

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Randomness shared by all ranks beside each rank's own: everyone shuffles the global batch alike."""
        super().on_train_batch_start(batch, batch_idx)
        self.generator = torch.Generator(self.device).manual_seed(self.step_seed(batch_idx))

    def on_train_epoch_end(self) -> None:
        """Log the epoch's losses and the scores of the clusters in use; say if W has come to weigh all pairs alike."""
        spread = self.losses.mean("weight_spread")
        if spread is not None and spread < SMALLEST_SPREAD:
            rank_zero_warn(
                f"The weight net weighs all pairs alike (train/weight_spread {float(spread):.1e}): correlations within "
                "clusters are no longer told apart. Lower model.weight_lr or model.strength."
            )
        super().on_train_epoch_end()
        self.log_dict(self.mode_metrics)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the scores of the clusters in use, and the clusterer's name and plain arguments."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["codid"]["modes"] = self.mode_metrics
        name = type(self.clusterer).__name__
        if name in CLUSTERERS:
            checkpoint["codid"]["clusterer"] = {"name": name, "arguments": self.clusterer.get_params(deep=False)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the scores of the clusters in use, and the clusterer unless another was given."""
        super().on_load_checkpoint(checkpoint)
        state = checkpoint["codid"]
        self.mode_metrics, kept = state["modes"], state.get("clusterer", {})
        if not self.clusterer_given and kept.get("name") in CLUSTERERS:
            self.clusterer = CLUSTERERS[kept["name"]](**kept["arguments"])

    def groups(self, z: Tensor, a: Tensor) -> Tensor:
        """The cluster of a_1's own value that is the likeliest by the mode predictor, once there are any."""
        target = self.target_list[0]
        if not self.cells_by_cluster:
            return a[:, 0]
        if not target.ready:
            return a[:, 0] * target.slots
        own = torch.arange(target.values, device=a.device).repeat_interleave(target.slots) == a[:, :1]
        log_probs: Tensor = target.mode_predictor(z[:, 0], target.active.flatten())
        return log_probs.masked_fill(~own, -torch.inf).argmax(1)

    def predict_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Any]:
        """Probabilities, representations and, once there are clusters, the most likely one of the first target."""
        outputs = super().predict_step(batch, batch_idx, dataloader_idx)
        target = self.target_list[0]
        if target.moded and target.ready:
            log_probs = target.mode_predictor(outputs["z"][:, target.attribute], target.active.flatten())
            outputs["cluster"] = log_probs.argmax(1)
        return outputs


def _check_counts(
    n_clusters: int | list[int], max_clusters: int, discriminator_steps: int, pretrain_epochs: int, every: int | None
) -> None:
    counts = [n_clusters] if isinstance(n_clusters, int) else n_clusters
    if min(counts) < 1 or max(counts) > max_clusters:
        raise ValueError(f"model.n_clusters is {n_clusters}; it must be from 1 to model.max_clusters, {max_clusters}.")
    for name, value in {"discriminator_steps": discriminator_steps, "cluster_every": every}.items():
        if value is not None and value < 1:
            raise ValueError(f"model.{name} is {value}; it must be positive.")
    if pretrain_epochs < 0:
        raise ValueError(f"model.pretrain_epochs is {pretrain_epochs}; it must not be negative.")
