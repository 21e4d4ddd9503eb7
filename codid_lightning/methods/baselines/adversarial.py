"""Adversarial methods: an adversary estimates a dependence between representations, the encoder reduces it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.nn import distributed
from codid_lightning.nn.adam import FusedAdam
from datamodules.base import Batch

HIDDEN = 512  # hidden units of every adversary, as in the paper's discriminator


def adversary_mlp(in_features: int, out_features: int) -> nn.Module:
    """Two layers, as the paper's discriminator."""
    return nn.Sequential(nn.Linear(in_features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, out_features))


class AdversarialModule(DisentanglementModule):
    """The adversary minimises `adversary_loss`, the encoder maximises it, in separate steps.

    A method implements `build_adversary` and `adversary_loss`, and `penalty` if the encoder minimises another loss.

    Args:
        adversary_lr: Learning rate of the adversary.
        adversary_steps: Steps of the adversary per step of the encoder.
        **kwargs: Of `DisentanglementModule`.
    """

    def __init__(self, adversary_lr: float = 1e-3, adversary_steps: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.adversary_lr, self.adversary_steps = adversary_lr, adversary_steps
        self.adversary = self.build_adversary()

    def build_adversary(self) -> nn.Module:
        """The adversary network."""
        raise NotImplementedError

    def adversary_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Loss of the adversary, given representations (B, Q, d)."""
        raise NotImplementedError

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """Loss of the encoder: by default the negative loss of the adversary."""
        return -self.adversary_loss(z, batch)

    def encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Representations for training, and their loss of attribute prediction."""
        z = self(batch["x"])
        return z, self.informative_loss(z, batch)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Steps of the adversary on fixed representations, then one of all other networks."""
        main, adversary = self.trainer.optimizers
        z, informative = self.encode(batch)
        for _ in range(self.adversary_steps):
            loss = self.adversary_loss(z.detach(), batch)
            self.losses.add("adversary", loss)
            self.minimise(adversary, distributed.scale_to_global_mean(loss, z))
        self.minimise(main, distributed.scale_to_global_mean(informative + self.weighted_penalty(z, batch), z))

    def configure_optimizers(self) -> list[Optimizer]:
        """One Adam for the adversary, one for everything else."""
        adversary = list(self.adversary.parameters())
        main = [p for name, p in self.named_parameters() if not name.startswith("adversary.")]
        return [self.adam(main, self.lr), self.adam(adversary, self.adversary_lr)]

    @staticmethod
    def adam(parameters: Any, lr: float, momentum: float = 0.0) -> Optimizer:
        """Adam without momentum: with momentum, adversary and encoder circle around their equilibrium.

        Gidel et al., "Negative Momentum for Improved Game Dynamics", AISTATS 2019.
        """
        return FusedAdam(parameters, lr, betas=(momentum, 0.999))

    def others(self, z: Tensor, q: int = 0) -> Tensor:
        """z_-q: all representations but the q-th, side by side, (B, (Q - 1) d)."""
        return z[:, [r for r in range(z.shape[1]) if r != q]].flatten(1)
