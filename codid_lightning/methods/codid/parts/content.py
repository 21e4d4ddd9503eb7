"""What z_1 is computed from: real samples, or content that does not show the other attributes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from codid_lightning.methods.codid.parts.base import Part
from datamodules.base import Batch

if TYPE_CHECKING:
    from codid_lightning.methods.codid.module import CoDID


@dataclass(frozen=True)
class ContentPart(Part, ABC):
    """How the other attributes are removed from what z_1 sees."""

    @abstractmethod
    def build(self, input_shape: tuple[int, ...], attribute_sizes: tuple[int, ...]) -> ContentInputs:
        """What learns to do it, for samples of a shape with attributes of these numbers of values."""


class ContentInputs(nn.Module, ABC):
    """Computes z_1 from content, once a gate on validation data has accepted this content."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_metrics: dict[str, float] = {}
        self.generator: torch.Generator | None = None

    @property
    def accepted(self) -> bool:
        """Whether the gate has accepted."""
        return self.gate_metrics.get("gate/accepted", 0.0) > 0

    @property
    def judged(self) -> bool:
        """Whether the gate has decided."""
        return bool(self.gate_metrics)

    @property
    def content_only(self) -> bool:
        """Whether z_1 is computed from content now."""
        return self.accepted

    @abstractmethod
    def own_representation(self, first: nn.Module, x: Tensor, others: Tensor) -> Tensor:
        """z_1 (B, d) of the content of samples x (B, ...).

        Args:
            first: The network of z_1.
            x: Samples.
            others: Values of all attributes but the first, (B, Q - 1).
        """

    @abstractmethod
    def features(self, x: Tensor, others: Tensor) -> Tensor:
        """Content (B, p) to look for modes in, given samples x (B, ...) and their other attributes (B, Q - 1)."""

    def represent(self, codid: CoDID, x: Tensor, others: Tensor | None) -> Tensor:
        """Representations (B, Q, d) of samples x, given their other attributes; None or -1 where unknown."""
        if not self.content_only:
            z: Tensor = codid.encoder(x)
            return z
        first, *rest = codid.encoder.subnetworks
        z_rest = [network(x) for network in rest]
        own = self.own_representation(first, x, known_others(codid, z_rest, others))
        return torch.stack([own, *z_rest], dim=1)

    def start(self, datasets: Mapping[str, Any], max_epochs: int | None) -> None:
        """Prepare for training on these splits."""

    def step(self, codid: CoDID, batch: Batch, batch_idx: int) -> None:
        """Learn from a batch, before the other networks do."""

    def informative_loss(self, codid: CoDID, loss: Tensor, batch: Batch) -> Tensor:
        """The loss of the inform step, given that of the representations."""
        return loss

    def callbacks(self) -> list[Callback]:
        """Callbacks that training needs."""
        return []

    def get_extra_state(self) -> dict[str, float]:
        """The decision of the gate."""
        return self.gate_metrics

    def set_extra_state(self, state: dict[str, float]) -> None:
        """Restore the decision of the gate."""
        self.gate_metrics = state


@torch.no_grad()
def known_others(codid: CoDID, z_rest: list[Tensor], others: Tensor | None) -> Tensor:
    """Values of all attributes but the first (B, Q - 1): those given, and predictions where they are unknown."""
    if others is not None and not (others < 0).any():
        return others
    predictors = list(codid.predictors)[1:]
    predicted = torch.stack([p(z).argmax(1) for p, z in zip(predictors, z_rest, strict=True)], dim=1)
    return predicted if others is None else torch.where(others < 0, predicted, others)
