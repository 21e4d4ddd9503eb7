"""Decoding: train z_1 on samples decoded under random values of the other attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from codid_lightning.errors import RunError
from codid_lightning.methods.codid.parts.base import OptimizerSettings
from codid_lightning.methods.codid.parts.content import ContentInputs, ContentPart
from codid_lightning.methods.codid.parts.gate import SwapGate
from codid_lightning.nn import distributed
from codid_lightning.nn.autoencoder import ConditionalAutoencoder, Likelihood
from codid_lightning.nn.statistics import frozen_running_stats
from datamodules.base import Batch

if TYPE_CHECKING:
    from codid_lightning.methods.codid.module import CoDID

MAX_DECODINGS = 32  # of one sample in evaluation


@dataclass(frozen=True)
class DecodedSamples(ContentPart):
    """Decode samples under random values of all attributes but the first, and train z_1 on them. Ours.

    For the first `epochs` a conditional autoencoder learns beside the method, which trains as it would without it. Its
    decoder gets the other attributes as an input. Then the `SwapGate` checks swapped validation data. If the check
    fails, training continues on real samples. If it succeeds, z_1 is computed from decoded samples: in training under
    random values of the other attributes, all combinations that occur being equally likely; in evaluation as the mean
    over these combinations. So z_1 cannot depend on the other attributes of a sample. No mode label is used, and
    evaluation needs no attribute.

    Training on real samples beside decoded ones (`train_on: both`) does not help: a network separates decoded samples
    from real ones and learns one shortcut for either.

    Args:
        epochs: Epochs the autoencoder learns for, before decoded samples are used.
        lr: Its learning rate.
        kl: Weight of the KL divergence of its latent from the standard Gaussian. It grows from 0 over the first half
            of `epochs`: on little data the latent otherwise stays unused.
        likelihood: Distribution of x given the latent; null is `bernoulli` for images and `gaussian` otherwise.
        train_on: What z_1 is trained on after the check succeeded: `decoded` samples; `both` real samples and, as a
            batch of their own for BatchNorm, samples under other values; or `real` samples, which leaves the
            autoencoder to a mode source.
    """

    epochs: int = 5
    lr: float = 2e-3
    kl: float = 0.2
    likelihood: Likelihood | None = None
    train_on: Literal["decoded", "both", "real"] = "decoded"

    def __post_init__(self) -> None:
        for name, value in {"epochs": self.epochs, "lr": self.lr}.items():
            if value <= 0:
                raise ValueError(f"model.decoding.{name} is {value}; it must be positive.")
        if self.kl < 0:
            raise ValueError(f"model.decoding.kl is {self.kl}; it must not be negative.")

    def build(self, input_shape: tuple[int, ...], attribute_sizes: tuple[int, ...]) -> Counterfactuals:
        """The autoencoder and what is known about it."""
        return Counterfactuals(self, input_shape, attribute_sizes)

    def optimizers(self, codid: CoDID) -> dict[str, OptimizerSettings]:
        """One for the autoencoder."""
        assert isinstance(codid.counterfactuals, Counterfactuals)  # noqa: S101
        return {"autoencoder": OptimizerSettings([codid.counterfactuals.autoencoder], self.lr)}


class Counterfactuals(ContentInputs):
    """Samples as they would look under other values of all attributes but the first.

    Args:
        settings: Settings of the autoencoder and of its use.
        input_shape: Shape of one sample.
        attribute_sizes: Number of values of each attribute.
    """

    occurring: Tensor  # (V,) bool, values of the other attributes that occur in training, side by side

    def __init__(
        self, settings: DecodedSamples, input_shape: tuple[int, ...], attribute_sizes: tuple[int, ...]
    ) -> None:
        super().__init__()
        if len(attribute_sizes) < 2:
            raise ValueError("model.decoding needs a second attribute to change; the data has one attribute.")
        self.settings, self.attribute_sizes = settings, attribute_sizes
        values = sum(attribute_sizes[1:])
        self.autoencoder = ConditionalAutoencoder(input_shape, values, settings.likelihood)
        self.register_buffer("occurring", torch.zeros(values, dtype=torch.bool))

    @property
    def train_on(self) -> Literal["decoded", "both", "real"]:
        """What z_1 is trained on now."""
        return self.settings.train_on if self.accepted else "real"

    @property
    def content_only(self) -> bool:
        """Whether z_1 is computed from decoded samples alone."""
        return self.train_on == "decoded"

    # -------------------------------------------------------------------------------------- values of the others

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
        """Values of the other attributes (B, Q - 1) in other combinations than those of the samples.

        Args:
            a: Attributes of the samples (B, Q).
            offset: Steps (B,) from each sample's own combination, from 1 to the number of combinations minus one. If
                they are random, all other combinations are equally likely.
        """
        number = torch.zeros_like(a[:, 0])
        for q, values in enumerate(self.occurring_values(), start=1):
            number = number * len(values) + torch.searchsorted(values, a[:, q].contiguous())
        return self.combination((number + offset) % self.combinations())

    def condition(self, values: Tensor) -> Tensor:
        """Values of the other attributes (B, Q - 1), one-hot side by side (B, V)."""
        parts = [F.one_hot(values[:, q], size) for q, size in enumerate(self.attribute_sizes[1:])]
        return torch.cat(parts, dim=1).to(self._dtype)

    # ------------------------------------------------------------------------------------------------------ samples

    @torch.no_grad()
    def swap(self, x: Tensor, values: Tensor) -> Tensor:
        """Samples x (B, ...) as they would look under values of the other attributes (B, Q - 1)."""
        with torch.autocast(x.device.type, enabled=False):
            swapped: Tensor = self.autoencoder(x.to(self._dtype), self.condition(values))
        return swapped.to(x)

    def own_representation(self, first: nn.Module, x: Tensor, others: Tensor) -> Tensor:
        """z_1 (B, d) of decoded samples: under random values in training, the mean over all values in evaluation."""
        if not self.training:
            return self.averaged(first, x)
        z: Tensor = first(self.randomised(x))
        return z

    def features(self, x: Tensor, others: Tensor) -> Tensor:
        """The symmetrised latent (B, p)."""
        return self.symmetrised_latent(x)

    def randomised(self, x: Tensor) -> Tensor:
        """Samples x (B, ...) under random values of the other attributes."""
        return self.swap(x, self.combination(self._random_numbers(x, 0)))

    def averaged(self, first: nn.Module, x: Tensor) -> Tensor:
        """The mean z_1 (B, d) of samples x over the combinations of the other attributes' values."""
        return _mean(first(decoded) for decoded in self.decodings(x))

    def decodings(self, x: Tensor) -> Iterator[Tensor]:
        """Samples x (B, ...) under every combination of the other attributes' values.

        If there are more than `MAX_DECODINGS` combinations, so many evenly spaced ones are used.
        """
        count = self.combinations()
        chosen = torch.linspace(0, count - 1, min(count, MAX_DECODINGS), device=x.device).round().long()
        with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
            latent, _ = self.autoencoder.encode(x.to(self._dtype))
        for values in self.combination(chosen):
            with torch.no_grad(), torch.autocast(x.device.type, enabled=False):
                decoded = self.autoencoder.render(latent, self.condition(values[None]).expand(len(x), -1))
            yield decoded.to(x)

    @torch.no_grad()
    def symmetrised_latent(self, x: Tensor) -> Tensor:
        """The mean latent (B, p) of all decodings of samples x. It is the same whichever decoding x is."""
        with torch.autocast(x.device.type, enabled=False):
            return _mean(self.autoencoder.encode(d.to(self._dtype))[0].flatten(1) for d in self.decodings(x))

    # ------------------------------------------------------------------------------------------------------- losses

    def informative_loss(self, codid: CoDID, loss: Tensor, batch: Batch) -> Tensor:
        """With `train_on: both`, the mean with the counterfactuals' loss."""
        return (loss + self.counterfactual_loss(codid, batch)) / 2 if self.train_on == "both" else loss

    def counterfactual_loss(self, codid: CoDID, batch: Batch) -> Tensor:
        """Cross-entropy of a_1 on the batch's counterfactuals, which BatchNorm normalises by themselves."""
        first = codid.encoder.subnetworks[0]
        x = self.swap(batch["x"], self.others_than(batch["a"], self._random_numbers(batch["x"], 1)))
        with frozen_running_stats(first):
            loss = F.cross_entropy(codid.predictors[0](first(x)), batch["a"][:, 0])
        codid.losses.add("counterfactual", loss)
        return loss

    def autoencoder_loss(self, codid: CoDID, batch: Batch, kl_weight: float) -> Tensor:
        """Negative log-likelihood plus weighted KL divergence, summed over dimensions, the mean over samples.

        The Gaussian's variance is the one that makes the global batch most likely, a constant to the gradient. So
        errors count in units of what is not explained yet, whatever the scale of the data (Rybkin et al., "Simple and
        Effective VAE Training with Calibrated Decoders", ICML 2021).
        """
        x, shape = batch["x"].to(self._dtype), self.autoencoder.latent_shape
        noise = self._draw(x, lambda n: torch.randn(n, *shape, generator=self.generator, device=x.device))
        error, divergence = self.autoencoder.losses(x, self.condition(batch["a"][:, 1:]), noise.to(x))
        if self.autoencoder.likelihood == "gaussian":
            size = prod(self.autoencoder.input_shape)
            mean = distributed.scale_to_global_mean(error.detach().mean(), x)
            variance = distributed.average([mean])[0] / size
            error = error / (2 * variance).clamp_min(1e-12)
        codid.losses.add("autoencoder", error.mean())
        codid.losses.add("autoencoder_kl", divergence.mean())
        return (error + kl_weight * divergence).mean()

    def step(self, codid: CoDID, batch: Batch, batch_idx: int) -> None:
        """One step of the autoencoder, while it learns."""
        if codid.current_epoch >= self.settings.epochs:
            return
        learnt = codid.current_epoch + batch_idx / codid.trainer.num_training_batches
        kl_weight = self.settings.kl * min(1.0, 2 * learnt / self.settings.epochs)
        with torch.autocast(batch["x"].device.type, enabled=False):
            loss = self.autoencoder_loss(codid, batch, kl_weight)
        codid.minimise(codid.optimizer("autoencoder"), distributed.scale_to_global_mean(loss, batch["x"]))

    # -------------------------------------------------------------------------------------------------------- state

    def start(self, datasets: Mapping[str, Any], max_epochs: int | None) -> None:
        """Record which values occur in the training set, and check that the autoencoder can be trained on it."""
        train = datasets["train"]
        columns = list(enumerate(self.attribute_sizes))[1:]
        counts = [train.a[:, q].bincount(minlength=size) for q, size in columns]
        self.occurring = (torch.cat(counts) > 0).to(self.occurring.device)
        some = train[torch.arange(min(len(train), 1000))]["x"]
        if self.autoencoder.likelihood == "bernoulli" and not 0 <= float(some.min()) <= float(some.max()) <= 1:
            raise RunError(
                f"The images have values from {float(some.min()):.3g} to {float(some.max()):.3g}, not in [0, 1]: set "
                "model.decoding.likelihood to gaussian."
            )
        if max_epochs is not None and 0 < max_epochs <= self.settings.epochs:
            rank_zero_warn(
                f"model.decoding.epochs is {self.settings.epochs}, trainer.max_epochs {max_epochs}: no epoch is left "
                "to train on decoded samples."
            )

    def callbacks(self) -> list[Callback]:
        """The gate."""
        return [SwapGate()]

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.autoencoder.parameters()).dtype

    def _random_numbers(self, rows: Tensor, low: int) -> Tensor:
        """Numbers of combinations (B,) from `low`, one for each row."""
        high, generator = self.combinations(), self.generator
        return self._draw(rows, lambda n: torch.randint(low, high, (n,), generator=generator, device=rows.device))

    @staticmethod
    def _draw(rows: Tensor, draw: Callable[[int], Tensor]) -> Tensor:
        """This rank's rows of what is drawn for the rows of all ranks together."""
        if distributed.world_size() == 1:
            return draw(len(rows))
        counts, rank = distributed.row_counts(rows), torch.distributed.get_rank()
        return draw(sum(counts))[sum(counts[:rank]) :][: len(rows)]


def _mean(parts: Iterable[Tensor]) -> Tensor:
    """The mean of the tensors of an iterator."""
    total, count = torch.zeros(()), 0
    for count, part in enumerate(parts, start=1):
        total = part if count == 1 else total + part
    return total / count
