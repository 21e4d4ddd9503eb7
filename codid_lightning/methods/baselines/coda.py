"""CODA: predictions stay correct for recombined representations."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.metrics.permutation import shuffle_within
from codid_lightning.nn.backbones import Decoder
from codid_lightning.nn.statistics import frozen_running_stats
from datamodules.base import Batch


class CODA(DisentanglementModule):
    """Trains on samples decoded from one sample's z_1 and another's z_-1.

    Ou & Zhang, "CODA: A Correlation-Oriented Disentanglement and Augmentation Modeling Scheme for Better Resisting
    Subpopulation Shifts", NeurIPS 2024: the synthesis and the consistency loss, without its sample weights. With
    x' = R(z_1i, z_-1j) and z' = F(x'): sum_q CE(C_q(z'_q), a'_q) + KL(C_q of the part || C_q(z'_q)).
    It needs `reconstruction` > 0: otherwise the decoder does not learn to generate samples.

    Args:
        decoder: `backbone`: the decoder of the backbone, as in the paper's comparison. `convolutional`: the decoder of
            `ConditionalAutoencoder`.
        **kwargs: Of `DisentanglementModule`.
    """

    title = "CODA"
    needs_decoder = True

    def __init__(self, decoder: Literal["backbone", "convolutional"] = "backbone", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if decoder == "convolutional":
            shape = tuple(self.hparams["input_shape"])
            self.decoder = Decoder("convolutional", shape, len(self.attribute_sizes), self.latent_dim)

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy with the labels of the parts, and divergence from the predictions for the parts."""
        permutation = shuffle_within(torch.zeros_like(batch["a"][:, 0]))
        mixed = torch.cat([z[:, :1], z[permutation, 1:]], dim=1)
        labels = torch.cat([batch["a"][:, :1], batch["a"][permutation, 1:]], dim=1)
        with frozen_running_stats(self):  # the running statistics are of real samples only
            again = self(cast(Decoder, self.decoder)(mixed))
        cross_entropy = self.attribute_losses(again, labels).sum(1).mean()
        return cross_entropy + self.inconsistency(mixed.detach(), again)

    def inconsistency(self, parts: Tensor, again: Tensor) -> Tensor:
        """KL divergence of the predictions for synthetic samples from the predictions for their parts."""
        divergences = []
        for q, predictor in enumerate(self.predictors):
            before, after = predictor(parts[:, q]).log_softmax(1).detach(), predictor(again[:, q]).log_softmax(1)
            divergences.append(F.kl_div(after, before, log_target=True, reduction="batchmean"))
        return torch.stack(divergences).sum()
