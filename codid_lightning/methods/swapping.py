"""Counterfactuals: samples as they would look under other values of the other attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.optim import Optimizer

from codid_lightning import distributed
from codid_lightning.module import DisentanglementModule
from codid_lightning.networks.autoencoder import ConditionalAutoencoder, Likelihood
from codid_lightning.networks.statistics import resting_statistics
from codid_lightning.runs import RunError
from datamodules.base import Batch

MOST_DECODINGS = 32  # of one sample in evaluation


class SwappingModule(DisentanglementModule):
    """Learns to change all attributes but the first, and trains z_1 on changed samples if that worked. Ours.

    For the first `autoencoder_epochs` an autoencoder that is told the other attributes learns beside the method, which
    trains as it would without. Then the `SwapGate` looks at swapped validation data. If it refuses, the method goes on
    as it was. If it accepts, z_1 is from then on computed from decoded samples: in training under values of the other
    attributes that are drawn anew each time, all combinations that occur in training being equally likely, and in
    evaluation as the mean over these combinations. What remains of the other attributes in z_1 then depends on nothing.
    No mode label is used; evaluation needs no attribute at all.

    Training on real samples beside their counterfactuals (`train_on: both`) does not do: a network tells decoded
    samples from real ones and learns one shortcut for either. With BatchNorm statistics of real samples it predicts
    little better than before.

    Args:
        autoencoder_epochs: Epochs the autoencoder learns for, before counterfactuals are used.
        autoencoder_lr: Its learning rate.
        autoencoder_kl: Weight of the KL divergence of its latent from the standard Gaussian. It grows from 0 over the
            first half of the autoencoder's epochs: on little data the latent otherwise never comes to be used.
        likelihood: What it takes x for given the latent; null is `bernoulli` for images and `gaussian` otherwise.
        train_on: What z_1 sees once the gate has opened: `decoded` samples alone, `both` real samples and, as a batch
            of their own for BatchNorm, the same samples under other values, or `real` samples alone, which leaves the
            autoencoder to those who look for modes in its latent.
        **kwargs: Of the method.
    """

    occurring: Tensor  # (V,) bool, values of the other attributes that occur in training, side by side

    def __init__(
        self,
        autoencoder_epochs: int = 5,
        autoencoder_lr: float = 2e-3,
        autoencoder_kl: float = 0.2,
        likelihood: Likelihood | None = None,
        train_on: Literal["decoded", "both", "real"] = "decoded",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in {"autoencoder_epochs": autoencoder_epochs, "autoencoder_lr": autoencoder_lr}.items():
            if value <= 0:
                raise ValueError(f"model.{name} is {value}; it must be positive.")
        if autoencoder_kl < 0:
            raise ValueError(f"model.autoencoder_kl is {autoencoder_kl}; it must not be negative.")
        if len(self.attribute_sizes) < 2:
            raise ValueError("The data has one attribute; counterfactuals need another one to change.")
        self.autoencoder_epochs, self.autoencoder_lr = autoencoder_epochs, autoencoder_lr
        self.autoencoder_kl, self.train_on = autoencoder_kl, train_on
        values = sum(self.attribute_sizes[1:])
        # Made last: the other networks start as they would without it, and a refused swap costs nothing.
        self.autoencoder = ConditionalAutoencoder(tuple(self.hparams["input_shape"]), values, likelihood)
        self.register_buffer("occurring", torch.zeros(values, dtype=torch.bool))
        self.gate_metrics: dict[str, float] = {}

    # ------------------------------------------------------------------------------------------------------ swapping

    @property
    def swapping(self) -> bool:
        """Whether the gate has opened."""
        return self.gate_metrics.get("gate/accepted", 0.0) > 0

    def occurring_values(self) -> list[Tensor]:
        """Values of each other attribute that occur in training."""
        return [mask.nonzero()[:, 0] for mask in self.occurring.split(list(self.attribute_sizes[1:]))]

    def combinations(self) -> int:
        """How many combinations of the other attributes' values there are."""
        return prod(len(values) for values in self.occurring_values())

    def combination(self, number: Tensor) -> Tensor:
        """Values of the other attributes (B, Q - 1) in combinations given by number (B,), from 0."""
        columns = []
        for values in reversed(self.occurring_values()):
            columns.append(values[number % len(values)])
            number = number // len(values)
        return torch.stack(columns[::-1], dim=1)

    def others_than(self, a: Tensor, offset: Tensor) -> Tensor:
        """Values of the other attributes (B, Q - 1) in other combinations than those of samples.

        Args:
            a: Attributes of the samples (B, Q).
            offset: How many combinations to go on from each sample's own (B,), from 1 to one less than there are: if
                that is random, all others are equally likely.
        """
        number = torch.zeros_like(a[:, 0])
        for q, values in enumerate(self.occurring_values(), start=1):
            number = number * len(values) + torch.searchsorted(values, a[:, q].contiguous())
        return self.combination((number + offset) % self.combinations())

    def condition(self, values: Tensor) -> Tensor:
        """Values of the other attributes (B, Q - 1), one-hot side by side (B, V)."""
        parts = [F.one_hot(values[:, q], size) for q, size in enumerate(self.attribute_sizes[1:])]
        return torch.cat(parts, dim=1).float()

    @torch.no_grad()
    def swap(self, x: Tensor, values: Tensor) -> Tensor:
        """Samples x (B, ...) as they would look under values of the other attributes (B, Q - 1)."""
        with torch.autocast(self.device.type, enabled=False):
            swapped: Tensor = self.autoencoder(x.to(self._working_dtype), self.condition(values))
        return swapped.to(x)

    # -------------------------------------------------------------------------------------------- forward and losses

    def forward(self, x: Tensor) -> Tensor:
        """Representations z (B, Q, d); once the gate has opened, z_1 is that of decoded samples."""
        if not self.swapping or self.train_on != "decoded":
            return super().forward(x)
        first, *others = self.encoder.subnetworks
        own = first(self.randomised(x)) if self.training else self.averaged(x)
        return torch.stack([own, *(network(x) for network in others)], dim=1)

    def randomised(self, x: Tensor) -> Tensor:
        """Samples x (B, ...) under random values of the other attributes."""
        return self.swap(x, self.combination(self._random_numbers(x, 0)))

    def averaged(self, x: Tensor) -> Tensor:
        """The mean z_1 (B, d) of samples x over the combinations of the other attributes' values."""
        return _mean(self.encoder.subnetworks[0](decoded) for decoded in self.decodings(x))

    def decodings(self, x: Tensor) -> Iterator[Tensor]:
        """Samples x (B, ...) under every combination of the other attributes' values.

        Of more than `MOST_DECODINGS` combinations, so many evenly spaced ones stand for all.
        """
        count = self.combinations()
        chosen = torch.linspace(0, count - 1, min(count, MOST_DECODINGS), device=x.device).round().long()
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            latent, _ = self.autoencoder.encode(x.to(self._working_dtype))
        for values in self.combination(chosen):
            with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
                decoded = self.autoencoder.render(latent, self.condition(values[None]).expand(len(x), -1))
            yield decoded.to(x)

    @torch.no_grad()
    def symmetrised_latent(self, x: Tensor) -> Tensor:
        """The mean latent (B, p) of all decodings of samples x: it cannot show which of them the sample was."""
        with torch.autocast(self.device.type, enabled=False):
            return _mean(
                self.autoencoder.encode(decoded.to(self._working_dtype))[0].flatten(1) for decoded in self.decodings(x)
            )

    def informative_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """The method's own; where real samples stay, its mean with the counterfactuals'."""
        loss = super().informative_loss(z, batch)
        if not self.swapping or self.train_on != "both":
            return loss
        return (loss + self.counterfactual_loss(batch)) / 2

    def counterfactual_loss(self, batch: Batch) -> Tensor:
        """Cross-entropy of a_1 on the batch's counterfactuals, normalised by themselves."""
        first = self.encoder.subnetworks[0]
        x = self.swap(batch["x"], self.others_than(batch["a"], self._random_numbers(batch["x"], 1)))
        with resting_statistics(first):
            loss = F.cross_entropy(self.predictors[0](first(x)), batch["a"][:, 0])
        self.losses.add("counterfactual", loss)
        return loss

    def autoencoder_loss(self, batch: Batch, kl_weight: float) -> Tensor:
        """Negative log-likelihood plus weighted KL divergence, summed over dimensions, the mean over samples.

        The Gaussian's variance is the one that makes the global batch likeliest, a constant to the gradient: errors
        count in units of what is not explained yet, whatever the scale of the data (Rybkin et al., "Simple and
        Effective VAE Training with Calibrated Decoders", ICML 2021).
        """
        x, shape = batch["x"].to(self._working_dtype), self.autoencoder.latent_shape
        noise = self._draw(x, lambda n: torch.randn(n, *shape, generator=self.swap_generator, device=x.device))
        error, divergence = self.autoencoder.losses(x, self.condition(batch["a"][:, 1:]), noise.to(x))
        if self.autoencoder.likelihood == "gaussian":
            size = prod(self.autoencoder.input_shape)
            variance = distributed.average([distributed.part(error.detach().mean(), x)])[0] / size
            error = error / (2 * variance).clamp_min(1e-12)
        self.losses.add("autoencoder", error.mean())
        self.losses.add("autoencoder_kl", divergence.mean())
        return (error + kl_weight * divergence).mean()

    def autoencode(self, batch: Batch, batch_idx: int) -> None:
        """One step of the autoencoder."""
        learnt = self.current_epoch + batch_idx / self.trainer.num_training_batches
        kl_weight = self.autoencoder_kl * min(1.0, 2 * learnt / self.autoencoder_epochs)
        with torch.autocast(self.device.type, enabled=False):
            loss = self.autoencoder_loss(batch, kl_weight)
        self.minimise(self.trainer.optimizers[-1], distributed.part(loss, batch["x"]))

    def autoencoder_optimizer(self) -> Optimizer:
        """Adam of the autoencoder; a method puts it last."""
        return self.adam(self.autoencoder.parameters(), self.autoencoder_lr)

    # ---------------------------------------------------------------------------------------------------------- hooks

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """The autoencoder's step while it learns, and the method's."""
        if self.current_epoch < self.autoencoder_epochs:
            self.autoencode(batch, batch_idx)
        super().training_step(batch, batch_idx)

    def configure_callbacks(self) -> list[Callback]:
        """The gate comes with the method, before anything that builds on its verdict."""
        from codid_lightning.callbacks.swap_gate import SwapGate

        return [SwapGate(), *super().configure_callbacks()]

    def on_fit_start(self) -> None:
        """Look which values there are to swap, and refuse inputs the autoencoder's likelihood does not know."""
        super().on_fit_start()
        train = self.trainer.datamodule.datasets["train"]  # type: ignore[attr-defined]
        columns = list(enumerate(self.attribute_sizes))[1:]
        counts = [train.a[:, q].bincount(minlength=size) for q, size in columns]
        self.occurring = (torch.cat(counts) > 0).to(self.device)
        some = train[torch.arange(min(len(train), 1000))]["x"]
        if self.autoencoder.likelihood == "bernoulli" and not 0 <= float(some.min()) <= float(some.max()) <= 1:
            raise RunError(
                f"The images have values from {float(some.min()):.3g} to {float(some.max()):.3g}, not in [0, 1]: set "
                "model.likelihood to gaussian."
            )
        epochs = self.trainer.max_epochs
        if epochs is not None and 0 < epochs <= self.autoencoder_epochs and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            rank_zero_warn(
                f"model.autoencoder_epochs is {self.autoencoder_epochs}, trainer.max_epochs {epochs}: no epoch is left "
                "to train on counterfactuals."
            )

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Randomness of noise and swaps that all ranks share."""
        super().on_train_batch_start(batch, batch_idx)
        self.swap_generator = torch.Generator(self.device).manual_seed(self.step_seed(batch_idx, -1))

    def on_train_epoch_end(self) -> None:
        """Log the gate's scores with the losses."""
        super().on_train_epoch_end()
        self.log_dict(self.gate_metrics)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the gate's verdict."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["codid"]["gate"] = self.gate_metrics

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the gate's verdict."""
        super().on_load_checkpoint(checkpoint)
        self.gate_metrics = checkpoint["codid"]["gate"]

    # -------------------------------------------------------------------------------------------------------- helpers

    @property
    def _working_dtype(self) -> torch.dtype:
        return next(self.autoencoder.parameters()).dtype

    def _random_numbers(self, rows: Tensor, low: int) -> Tensor:
        """Numbers of combinations (B,) from `low`, one for each row."""
        high, generator = self.combinations(), self.swap_generator
        return self._draw(rows, lambda n: torch.randint(low, high, (n,), generator=generator, device=rows.device))

    @staticmethod
    def _draw(rows: Tensor, draw: Callable[[int], Tensor]) -> Tensor:
        """This rank's rows of what is drawn for all ranks' rows, which are one batch to the generator."""
        if distributed.world_size() == 1:
            return draw(len(rows))
        counts, rank = distributed.row_counts(rows), torch.distributed.get_rank()
        return draw(sum(counts))[sum(counts[:rank]) :][: len(rows)]


def _mean(parts: Iterable[Tensor]) -> Tensor:
    """The mean of tensors that come one after the other."""
    total, count = torch.zeros(()), 0
    for count, part in enumerate(parts, start=1):
        total = part if count == 1 else total + part
    return total / count
