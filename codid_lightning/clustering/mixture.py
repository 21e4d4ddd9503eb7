"""MAP-EM of a Gaussian mixture and of a two-component mixture inside each cluster, and initial clusters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from codid_lightning.clustering.features import QuadraticFeatures
from codid_lightning.clustering.niw import NIW, Moments

_MAX_SEED_SAMPLES = 10_000  # initial centres are drawn from at most this many samples


@dataclass(frozen=True)
class MapEM:
    """EM for the MAP estimate of a truncated Dirichlet-process mixture on fixed data.

    Args:
        features: The data.
        prior: Prior of each cluster's mean and covariance.
        concentration: Concentration alpha of the Dirichlet process.
    """

    features: QuadraticFeatures
    prior: NIW
    concentration: float

    def weights(self, moments: Moments) -> Tensor:
        """Mode of the cluster weights, ``(K,)``.

        If the sticks of GEM are truncated after the last cluster, the mode is proportional to the counts. The rest,
        (alpha - 1) / (N + alpha - 1), belongs to clusters that do not exist yet.
        """
        return moments.n / (moments.n.sum() + max(self.concentration - 1, 0))

    def coefficients(self, moments: Moments) -> Tensor:
        """M-step: log of weight times density of each cluster, as linear functions of the features."""
        return self.features.coefficients(self.weights(moments).log(), *self.prior.map_estimate(moments))

    def run(self, moments: Moments, iterations: int, tol: float) -> tuple[Moments, Tensor, list[float]]:
        """Iterate until the objective per sample gains less than ``tol``.

        Returns:
            Moments of the last M-step, responsibilities ``(N, K)`` of the E-step after it, and the log posterior
            density, up to a constant, at every iteration.
        """
        objectives: list[float] = []
        following, count = moments, self.features.count
        for _ in range(max(1, iterations)):
            moments = following
            prior = self.prior.log_density(*self.prior.map_estimate(moments))
            responsibilities, log_likelihood, sums = self.features.assign(self.coefficients(moments))
            if self.features.weights is not None:
                log_likelihood = log_likelihood * self.features.weights
            objectives.append(float(log_likelihood.sum(dtype=torch.float64) + prior.sum()))
            following = self.features.to_moments(sums)
            if len(objectives) > 1 and objectives[-1] - objectives[-2] < tol * count:
                break
        return moments, responsibilities, objectives

    def subcluster_probs(self, labels: Tensor, k: int, iterations: int, tol: float) -> Tensor:
        """Probability ``(N,)`` of the first component of the two-component mixture inside each sample's cluster.

        The mixtures start from halves along the principal axis. All are fitted in one batched EM, until the mean change
        of the probabilities is below ``tol``. Samples are sorted by cluster, so that a block has few clusters.
        """
        labels, order = labels.sort(stable=True)
        inside = replace(self, features=self.features.part(order))
        sums = inside.features.group_sums(labels, k)
        first = principal_cut(inside.features.x, labels, inside.features.to_moments(sums))
        for _ in range(iterations):
            one, two = inside.subcluster_moments(labels, sums, first)
            alive = (one.n > 1) & (two.n > 1)
            if not alive.any():
                break
            ratio = torch.zeros_like(sums)
            ratio[alive] = inside._joint(one[alive]) - inside._joint(two[alive])
            score = torch.sigmoid(inside.features.own_scores(ratio, labels))
            former, first = first, torch.where(alive[labels], score, first)
            if float((first - former).abs().mean()) < tol:
                break
        return torch.empty_like(first).index_copy_(0, order, first)

    def subcluster_moments(self, labels: Tensor, sums: Tensor, first: Tensor) -> tuple[Moments, Moments]:
        """Moments of the two halves of each cluster; ``sums`` are the whole clusters' summed features."""
        one = self.features.group_sums(labels, len(sums), first)
        return self.features.to_moments(one), self.features.to_moments(sums - one)

    def _joint(self, moments: Moments) -> Tensor:
        return self.features.coefficients(moments.n.log(), *self.prior.map_estimate(moments))


def principal_cut(x: Tensor, labels: Tensor, clusters: Moments) -> Tensor:
    """Indicator ``(N,)`` of the half of each sample along the axis of largest variance of its cluster."""
    if clusters.scatter.ndim == 3:
        axes = torch.linalg.eigh(clusters.scatter).eigenvectors[:, :, -1]
    else:
        scatter = clusters.scatter
        if scatter.ndim == 1:  # a shared variance does not show the widest coordinate
            features = QuadraticFeatures(x, "diag")
            scatter = features.to_moments(features.group_sums(labels, len(scatter))).scatter
        axes = torch.zeros_like(clusters.mean).scatter_(1, scatter.argmax(1, keepdim=True), 1)
    offsets = (axes * clusters.mean).sum(1).to(x.dtype)
    along = (x @ axes.T.to(x.dtype)).gather(1, labels[:, None])[:, 0]
    side: Tensor = along > offsets[labels]
    return side.to(x.dtype)


def spread_labels(
    x: Tensor,
    k: int,
    generator: Generator,
    start: Tensor | None = None,
    lloyd: int = 0,
    weights: Tensor | None = None,
) -> Tensor:
    """Initial labels ``(N,)``: the nearest of k centres drawn by k-means++, without empty clusters.

    Args:
        x: Samples ``(N, d)``.
        k: Number of centres, fewer if there are fewer distinct samples.
        generator: Draws the centres.
        start: Centres to draw further ones in addition to, ``(k0, d)``.
        lloyd: Number of k-means iterations after the draw.
        weights: How often each sample counts, ``(N,)``; default: once.
    """
    chosen = torch.randperm(len(x), generator=generator)[:_MAX_SEED_SAMPLES].to(x.device)
    if weights is not None:
        chosen = chosen[weights[chosen] > 0]
    drawn, counts = x[chosen], x.new_ones((), dtype=torch.float64) if weights is None else weights[chosen].double()
    centres = list(drawn[:1] if start is None else start.to(x.dtype))
    distances = torch.stack([(drawn - c).square().sum(1) for c in centres]).amin(0)
    while len(centres) < k and float(distances.max()) > 0:
        cumulated = (distances.double() * counts).cumsum(0)
        chance = torch.rand((), generator=generator, dtype=torch.float64).to(x.device)
        centre = drawn[torch.searchsorted(cumulated, chance * cumulated[-1]).clamp_max(len(drawn) - 1)]
        centres.append(centre)
        distances = torch.minimum(distances, (drawn - centre).square().sum(1))
    table = torch.stack(centres)
    for _ in range(lloyd):
        labels = _nearest(drawn, table)
        if weights is None:
            sizes = torch.bincount(labels, minlength=len(table)).clamp_min(1)
            table = torch.zeros_like(table).index_add_(0, labels, drawn) / sizes[:, None]
        else:
            sizes = torch.bincount(labels, weights=counts, minlength=len(table)).clamp_min(1e-12)
            table = torch.zeros_like(table).index_add_(0, labels, drawn * counts[:, None].to(x)) / sizes[:, None].to(x)
    populated: Tensor = _nearest(x, table).unique(return_inverse=True)[1]
    return populated


def _nearest(x: Tensor, centres: Tensor) -> Tensor:
    half_norms = 0.5 * centres.square().sum(1)
    return torch.cat([(half_norms - part @ centres.T).argmin(1) for part in x.split(1 << 14)])
