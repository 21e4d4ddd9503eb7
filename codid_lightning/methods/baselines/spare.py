"""SPARE: groups are found early in training by clustering the outputs, then small groups are drawn more often."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.cluster import KMeans
from torch import Tensor

from codid_lightning.methods.baselines.two_stages import UpsamplingModule
from codid_lightning.metrics.clustering import silhouette


class SPARE(UpsamplingModule):
    """Draws samples in inverse proportion to the size of their cluster among the early outputs of their class.

    Yang et al., "Identifying Spurious Biases Early in Training through the Lens of Simplicity Bias", AISTATS 2024
    (arXiv 2023), Algorithm 1: the outputs of each class are clustered by k-means, their number of clusters has the
    highest silhouette, and a sample's weight is (1 / size of its cluster)^power. The power is 1 where the silhouette
    shows well separated groups, else `power`. Every class is drawn equally often, as in the authors' package. The first
    share of the epochs is plain training (T_init, in the paper 2 of 20 on colored digits); as in the authors'
    experiments, a new network has the rest.

    Args:
        first_stage: Share of the epochs before the outputs are clustered.
        power: Power of the weights in a class whose silhouette is below `separated` (lambda).
        separated: Silhouette from which groups count as separated.
        max_clusters: Largest number of clusters of a class.
        **kwargs: Of `DisentanglementModule`.
    """

    title = "SPARE"

    def __init__(
        self,
        first_stage: float = 0.1,
        power: float = 2.0,
        separated: float = 0.9,
        max_clusters: int = 5,
        **kwargs: Any,
    ) -> None:
        super().__init__(first_stage, **kwargs)
        if max_clusters < 2:
            raise ValueError(f"model.max_clusters is {max_clusters}; it must be 2 or more.")
        self.power, self.separated, self.max_clusters = power, separated, max_clusters

    def identify(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Weights that add up to 1 in every class."""
        weights = torch.zeros(len(labels))
        for value in labels.unique():
            own = labels == value
            clusters, score = best_clusters(logits[own], self.max_clusters)
            size = clusters.bincount()[clusters].float()
            weight = size ** (-1.0 if score >= self.separated else -self.power)
            weights[own] = weight / weight.sum()
        return weights


def best_clusters(x: Tensor, most: int) -> tuple[Tensor, float]:
    """The k-means clusters (N,) with the highest silhouette for 2 to `most` clusters, and that silhouette.

    Fewer than three different points are one cluster.
    """
    best, highest = torch.zeros(len(x), dtype=torch.long), -1.0
    distinct = len(x.unique(dim=0))
    for count in range(2, min(most, distinct - 1) + 1):
        fitted = KMeans(count, random_state=int(torch.randint(2**31, ()))).fit(x.double().numpy())
        found = torch.as_tensor(fitted.labels_).long()
        score = silhouette(x, found)
        if score > highest:
            best, highest = found, score
    return best, highest
