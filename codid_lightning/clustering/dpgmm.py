"""Dirichlet-process Gaussian mixture with split and merge moves."""

from __future__ import annotations

from typing import Self

import torch
from torch import Generator, Tensor

from codid_lightning.clustering.base import Array, Clusterer, cluster_means, half_means
from codid_lightning.clustering.features import QuadraticFeatures
from codid_lightning.clustering.mixture import MapEM, kmeans_plus_plus, principal_cut
from codid_lightning.clustering.moves import MoveKind, Proposal, propose_merges, propose_splits
from codid_lightning.clustering.niw import NIW, CovarianceType
from codid_lightning.clustering.projection import Projection


class DPGMM(Clusterer):
    """Dirichlet-process Gaussian mixture that finds its number of clusters by splits and merges.

    Args:
        n_clusters: Clusters to start from, drawn by k-means++.
        max_clusters: Truncation level; splits beyond it are refused.
        covariance_type: ``full``, ``diag`` or ``spherical``.
        concentration: Concentration alpha of GEM(alpha).
        kappa: How many samples the prior mean is worth.
        nu: How many samples the prior covariance is worth; default p + 2 in p dimensions.
        psi_scale: Variance a cluster is expected to have, in units of the variance of all samples.
        n_components: Principal components to cluster in; default those above the noise.
        max_rounds: Most rounds of splits and merges of a fit.
        n_iter: EM iterations before each proposal.
        neighbours: With how many nearest clusters each cluster may be proposed to merge.
        deterministic: Accept a move exactly if its Hastings ratio exceeds one.
        tol: Gain per sample below which EM stops.
        seed: Seed of initial labels and acceptances.
    """

    def __init__(
        self,
        n_clusters: int = 1,
        max_clusters: int = 64,
        covariance_type: CovarianceType = "full",
        concentration: float = 1.0,
        kappa: float = 0.01,
        nu: float | None = None,
        psi_scale: float = 0.05,
        n_components: int | None = None,
        max_rounds: int = 30,
        n_iter: int = 10,
        neighbours: int = 3,
        deterministic: bool = False,
        tol: float = 1e-3,
        seed: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.max_clusters = max_clusters
        self.covariance_type = covariance_type
        self.concentration = concentration
        self.kappa = kappa
        self.nu = nu
        self.psi_scale = psi_scale
        self.n_components = n_components
        self.max_rounds = max_rounds
        self.n_iter = n_iter
        self.neighbours = neighbours
        self.deterministic = deterministic
        self.tol = tol
        self.seed = seed

    def fit(self, X: Array, y: Array | None = None, *, initial_labels: Array | None = None) -> Self:
        """Find the clusters of samples ``(N, d)``; ``y`` is ignored.

        Args:
            X: Samples.
            y: Ignored.
            initial_labels: Clusters to start from instead of k-means++, ``(N,)``.
        """
        x = self._read(X, reset=True)
        generator = Generator().manual_seed(self.seed)
        em = self._prepare(x)
        if initial_labels is None:
            labels = kmeans_plus_plus(em.features.x, min(self.n_clusters, self.max_clusters, len(x)), generator)
        else:
            labels = torch.as_tensor(initial_labels, device=x.device).unique(return_inverse=True)[1]
        probs = torch.nn.functional.one_hot(labels).to(em.features.x.dtype)
        probs = self._expectation(em, probs)[0]
        proposals: list[Proposal] = []
        for _ in range(self.max_rounds):
            accepted = False
            for move in ("split", "merge"):
                halves = self._halves(em, probs)
                probs, _, made = self._move(em, probs, halves, move, generator)
                probs = self._expectation(em, probs)[0]
                proposals += made
                accepted |= any(p.accepted for p in made)
            if not accepted:
                break
        parents = torch.eye(probs.shape[1], dtype=torch.float64, device=x.device)
        return self._finish(X, x, em, probs, self._halves(em, probs), parents, proposals, generator)

    def refine(self, X: Array, move: MoveKind | None = None, subcluster_probs: Array | None = None) -> Self:
        """Follow the moved samples from the last responsibilities and, on request, propose one round of moves."""
        x = self._read_again(X)
        generator = Generator()
        generator.set_state(torch.as_tensor(self.generator_state_))
        em = self._prepare(x)
        probs, kept = self._expectation(em, torch.as_tensor(self.probs_).to(em.features.x))
        parents = torch.eye(self.n_clusters_, dtype=torch.float64, device=x.device)[kept]
        proposals: list[Proposal] = []
        if move is not None:
            if move == "split" and subcluster_probs is not None:
                halves = torch.as_tensor(subcluster_probs).to(em.features.x)[:, 0]
            else:
                halves = self._halves(em, probs)
            probs, lineage, proposals = self._move(em, probs, halves, move, generator)
            probs, kept = self._expectation(em, probs)
            parents = lineage[kept] @ parents
        return self._finish(X, x, em, probs, self._halves(em, probs), parents, proposals, generator)

    def predict_proba(self, X: Array) -> Array:
        """Cluster probabilities ``(N, K)`` of samples ``(N, d)``."""
        probs = self._score(X)[0]
        return probs if isinstance(X, Tensor) else probs.cpu().numpy()

    def score_samples(self, X: Array) -> Array:
        """Log density of each sample, ``(N,)``."""
        density = self._score(X)[1]
        return density if isinstance(X, Tensor) else density.cpu().numpy()

    def _score(self, X: Array) -> tuple[Tensor, Tensor]:
        x = self._read(X, reset=False)
        projection = self._projection()
        features = QuadraticFeatures(projection(x), self.covariance_type)
        probs, log_density, _ = features.assign(self.coefficients_)
        return probs, log_density + projection.log_correction(x)

    def _projection(self) -> Projection:
        return Projection(self.center_, self.basis_, self.scale_, self.residual_)

    def _prepare(self, x: Tensor) -> MapEM:
        """Project the samples and set the prior relative to their variance."""
        projection = Projection.fit(x, self.n_components)
        self.center_, self.basis_ = projection.mean, projection.basis
        self.scale_, self.residual_ = projection.scale, projection.residual
        features = QuadraticFeatures(projection(x), self.covariance_type)
        return MapEM(features, self._prior(features.x), self.concentration)

    def _prior(self, x: Tensor) -> NIW:
        p = x.shape[1]
        nu = float(p + 2 if self.nu is None else self.nu)
        unit = torch.ones((), dtype=torch.float64, device=x.device)
        shape = {"full": torch.eye(p).to(unit), "diag": unit.expand(p), "spherical": unit}[self.covariance_type]
        return NIW(torch.zeros(p).to(unit), self.kappa, self.psi_scale * nu * shape, nu)

    def _expectation(self, em: MapEM, probs: Tensor) -> tuple[Tensor, Tensor]:
        """EM from given responsibilities; returns the new ones and which clusters are left."""
        kept = torch.arange(probs.shape[1], device=probs.device)
        while True:
            moments = em.features.moments(em.features.sums(probs))
            probs, _, self.bounds_ = em.run(moments, self.n_iter, self.tol)
            populated = torch.bincount(probs.argmax(1), minlength=len(kept)) > 0
            if populated.all():
                return probs, kept
            kept, probs = kept[populated], probs[:, populated]
            probs = probs / probs.sum(1, keepdim=True)

    def _halves(self, em: MapEM, probs: Tensor) -> Tensor:
        labels, k = probs.argmax(1), probs.shape[1]
        member = torch.nn.functional.one_hot(labels, k).to(probs.dtype)
        moments = em.features.moments(em.features.sums(member))
        return em.halves(labels, k, principal_cut(em.features.x, labels, moments), self.n_iter)

    def _move(
        self, em: MapEM, probs: Tensor, halves: Tensor, move: MoveKind, generator: Generator
    ) -> tuple[Tensor, Tensor, list[Proposal]]:
        """Propose one round of moves; returns responsibilities and parents of the new clusters, and the proposals."""
        dice = None if self.deterministic else generator
        k = probs.shape[1]
        member = torch.nn.functional.one_hot(probs.argmax(1), k).to(probs.dtype)
        whole = em.features.sums(member)
        lineage = torch.eye(k, dtype=torch.float64, device=probs.device)
        if move == "split":
            first, second = em.split_moments(member, whole, halves.round())
            made = propose_splits(em.prior, self.concentration, first, second, self.max_clusters - k, dice)
            chosen = torch.tensor([p.clusters[0] for p in made if p.accepted], dtype=torch.long, device=probs.device)
            children = probs[:, chosen] * (1 - halves[:, None])
            probs = probs.index_copy(1, chosen, probs[:, chosen] * halves[:, None])
            return torch.cat([probs, children], 1), torch.cat([lineage, lineage[chosen]]), made
        moments = em.features.moments(whole)
        made = propose_merges(em.prior, self.concentration, moments, self.neighbours, dice) if k > 1 else []
        gone = []
        for left, right in (p.clusters for p in made if p.accepted):
            keep, drop = (left, right) if moments.n[left] >= moments.n[right] else (right, left)
            lineage[keep, [keep, drop]] = moments.n[[keep, drop]] / moments.n[[keep, drop]].sum()
            probs[:, keep] += probs[:, drop]
            gone.append(drop)
        stay = [c for c in range(k) if c not in gone]
        return probs[:, stay], lineage[stay], made

    def _finish(
        self,
        X: Array,
        x: Tensor,
        em: MapEM,
        probs: Tensor,
        halves: Tensor,
        parents: Tensor,
        proposals: list[Proposal],
        generator: Generator,
    ) -> Self:
        """Publish what was learned."""
        moments = em.features.moments(em.features.sums(probs))
        self.coefficients_ = em.coefficients(moments)
        probs, _, _ = em.features.assign(self.coefficients_)
        labels = probs.argmax(1)
        sub_probs = torch.stack([halves, 1 - halves], 1)
        self.n_clusters_ = probs.shape[1]
        self.generator_state_ = generator.get_state()
        self.moves_ = tuple(proposals)
        return self._publish(
            X,
            labels_=labels,
            probs_=probs,
            sub_probs_=sub_probs,
            weights_=moments.n / moments.n.sum(),
            means_=cluster_means(x, probs),
            sub_means_=half_means(x, labels, sub_probs, self.n_clusters_),
            parents_=parents,
        )
