"""Dirichlet-process Gaussian mixture with split and merge moves."""

from __future__ import annotations

from typing import NamedTuple, Self, get_args

import torch
from torch import Generator, Tensor

from codid_lightning.clustering.base import Array, Clusterer, cluster_means, one_hot, subcluster_means
from codid_lightning.clustering.features import QuadraticFeatures, feature_width
from codid_lightning.clustering.mixture import MapEM, spread_labels
from codid_lightning.clustering.moves import MoveKind, Proposal, agglomerate, log_joint, propose_merges, propose_splits
from codid_lightning.clustering.niw import CovarianceType, Moments, PsiUnit, empirical_prior
from codid_lightning.clustering.projection import Projection

_MAX_DOUBLE = 1 << 21  # up to this number, features are in float64 for any input
_MAX_DOUBLE_DIMS = 16  # so are full covariances up to this dimension: their widths may differ by orders of magnitude
_HALVES_TOL = 0.01  # subclusters are only proposals and need no exact fit


class _Fitted(NamedTuple):
    """A mixture after EM: the moments that give its parameters, and its responsibilities."""

    em: MapEM
    clusters: Moments
    probs: Tensor


class DPGMM(Clusterer):
    """Dirichlet-process Gaussian mixture that finds its number of clusters by splits and merges.

    The model is that of the paper's appendix "Preliminaries": weights from GEM(alpha), means and covariances from a
    normal-inverse-Wishart prior; clusters are split and merged by their Hastings ratios. The defaults need no labels
    and no tuning. In more than 16 dimensions, samples are projected to principal components
    (``structured_components``). The prior is estimated from the current clusters (``empirical_prior``).

    ``fit`` draws ``n_clusters`` centres, adds centres up to a fine clustering, and merges clusters by the Hastings
    ratio. Then it alternates merge and split proposals, each followed by EM, until one round of both changes nothing. A
    cluster that is the most probable one of no sample is removed. Clusters with no more samples than dimensions are
    kept only if the partition without them is less likely.

    Args:
        n_clusters: Clusters to start from.
        max_clusters: Largest number of clusters (truncation level), also the size of the fine clustering.
        covariance_type: ``full``, ``diag`` or ``spherical``.
        concentration: Concentration alpha of GEM(alpha).
        psi_scale: Expected variance of a cluster, in units of W: the mode of the prior is psi_scale * W. A larger value
            gives fewer and wider clusters. It matters if clusters have few samples compared with the number of
            dimensions or with ``nu``.
        psi_unit: Definition of W. ``clusters``: the pooled within-cluster covariance of the current clusters.
            ``samples``: the variance of all samples summed over dimensions, the same in all directions, which does not
            depend on the clusters.
        kappa: Weight of the prior mean, in samples; default: from the spread of the cluster means.
        nu: Weight of the prior covariance, in samples; default: by marginal likelihood.
        n_components: Number of principal components to cluster in; default: ``structured_components``.
        max_rounds: Largest number of rounds of moves in ``fit``; 0 keeps the ``n_clusters`` clusters.
        n_iter: Largest number of EM iterations after each round.
        tol: EM stops if the log posterior per sample increases by less.
        neighbours: Number of nearest clusters with which a cluster may be proposed to merge.
        deterministic: Accept a move exactly if its Hastings ratio exceeds one.
        seed: Seed of the initial centres and of random acceptances.

    Learned besides what every clusterer learns: ``weights_`` ``(K,)``, ``covariances_`` ``(K, d, d)``,
    ``objectives_`` (log posterior density, up to a constant, over the iterations of the last EM).
    """

    def __init__(
        self,
        n_clusters: int = 1,
        max_clusters: int = 100,
        covariance_type: CovarianceType = "full",
        concentration: float = 1.0,
        psi_scale: float = 1.0,
        psi_unit: PsiUnit = "clusters",
        kappa: float | None = None,
        nu: float | None = None,
        n_components: int | None = None,
        max_rounds: int = 20,
        n_iter: int = 10,
        tol: float = 1e-3,
        neighbours: int = 8,
        deterministic: bool = False,
        seed: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.max_clusters = max_clusters
        self.covariance_type = covariance_type
        self.concentration = concentration
        self.psi_scale = psi_scale
        self.psi_unit = psi_unit
        self.kappa = kappa
        self.nu = nu
        self.n_components = n_components
        self.max_rounds = max_rounds
        self.n_iter = n_iter
        self.tol = tol
        self.neighbours = neighbours
        self.deterministic = deterministic
        self.seed = seed

    def fit(self, X: Array, y: Array | None = None, *, initial_labels: Array | None = None) -> Self:
        """Find the clusters of samples.

        Args:
            X: Samples ``(N, d)``.
            y: Ignored.
            initial_labels: Clusters to start from, ``(N,)``, instead of drawn centres.
        """
        if self.psi_unit not in get_args(PsiUnit):
            raise ValueError(f"psi_unit is {self.psi_unit!r}; it must be one of {', '.join(get_args(PsiUnit))}.")
        x = self._read(X, reset=True)
        generator = Generator().manual_seed(self.seed)
        features = self._project(x)
        labels = self._start(features, generator, initial_labels)
        if self.max_rounds > 0:
            labels = self._explore(features, labels, generator)
        fitted, _ = self._follow(features, one_hot(labels, int(labels.max()) + 1, features.x.dtype))
        proposals: list[Proposal] = []
        quiet = 0
        for t in range(self.max_rounds):
            probs, _, made, _ = self._propose(features, fitted.probs, "split" if t % 2 else "merge", generator)
            proposals += made
            quiet = 0 if any(p.accepted for p in made) else quiet + 1
            if quiet == 2:
                break
            if quiet == 0:
                fitted, _ = self._follow(features, probs)
        if self.max_rounds > 0:
            fitted = self._dissolve(features, fitted)
        parents = torch.eye(fitted.probs.shape[1]).to(x.device, torch.float64)
        return self._finish(X, x, fitted, None, parents, proposals, generator)

    def refine(self, X: Array, move: MoveKind | None = None, subcluster_probs: Array | None = None) -> Self:
        """Cluster the moved samples, starting from the last responsibilities; optionally propose one round of moves.

        Args:
            X: The samples of the last call, in the same order, ``(N, d)``.
            move: Kind of the moves to propose.
            subcluster_probs: Probabilities of the subclusters for proposed splits, in each cluster of the last call,
                ``(N, K, 2)``, or in whichever cluster a sample comes to be in, ``(N, 2)``; default: a two-component
                mixture inside each cluster.
        """
        x = self._read_again(X)
        generator = Generator()
        generator.set_state(torch.as_tensor(self.generator_state_))
        features = self._project(x)
        fitted, kept = self._follow(features, torch.as_tensor(self.probs_).to(features.x))
        parents = torch.eye(self.n_clusters_).to(x.device, torch.float64)[kept]
        proposals: list[Proposal] = []
        halves = None
        if move is not None:
            given = None if subcluster_probs is None else self._first_halves(subcluster_probs, kept).to(features.x)
            probs, lineage, proposals, halves = self._propose(features, fitted.probs, move, generator, given)
            if any(p.accepted for p in proposals):
                fitted, kept = self._follow(features, probs)
                parents, halves = lineage[kept] @ parents, None
        return self._finish(X, x, fitted, halves, parents, proposals, generator)

    def _first_halves(self, subcluster_probs: Array, kept: Tensor) -> Tensor:
        """Probability of the first subcluster of the clusters that are left, ``(N, K)``."""
        probs = torch.as_tensor(subcluster_probs)[..., 0]
        return probs[:, kept] if probs.ndim == 2 else probs[:, None].expand(-1, len(kept))

    def predict_proba(self, X: Array) -> Array:
        """Cluster probabilities ``(N, K)`` of samples ``(N, d)``."""
        return self._return(X, self._evaluate(X)[0])

    def score_samples(self, X: Array) -> Array:
        """Log density ``(N,)`` of samples ``(N, d)``."""
        return self._return(X, self._evaluate(X)[1])

    @property
    def covariances_(self) -> Array:
        """Covariances in the space of the samples, ``(K, d, d)``."""
        inner = self.inner_covariances_
        if inner.ndim < 3:
            inner = torch.diag_embed(inner.reshape(len(inner), -1).expand_as(self.inner_means_))
        basis, scale, residual = self.basis_, self.scale_, self.residual_
        outside = torch.eye(len(basis)).to(basis) - basis @ basis.T
        covariances = scale**2 * basis @ inner @ basis.T + residual * outside
        return covariances if isinstance(self.probs_, Tensor) else covariances.cpu().numpy()

    def _evaluate(self, X: Array) -> tuple[Tensor, Tensor]:
        """Cluster probabilities and log densities of samples."""
        x = self._read(X, reset=False)
        projection = Projection(self.center_, self.basis_, self.scale_, self.residual_)
        features = self._features(projection(x))
        weights = torch.as_tensor(self.weights_)
        probs, density, _ = features.assign(
            features.coefficients(weights.log(), self.inner_means_, self.inner_covariances_)
        )
        return probs.to(x.dtype), density.to(x.dtype) + projection.log_volume(x)

    def _project(self, x: Tensor) -> QuadraticFeatures:
        projection = Projection.fit(x, self.n_components)
        self.center_, self.basis_ = projection.mean, projection.basis
        self.scale_, self.residual_ = projection.scale, projection.residual
        return self._features(projection(x))

    def _features(self, y: Tensor) -> QuadraticFeatures:
        small = len(y) * feature_width(y.shape[1], self.covariance_type) <= _MAX_DOUBLE
        thin = self.covariance_type == "full" and y.shape[1] <= _MAX_DOUBLE_DIMS
        return QuadraticFeatures(y.double() if small or thin else y, self.covariance_type)

    def _em(self, features: QuadraticFeatures, clusters: Moments) -> MapEM:
        """EM with the prior estimated from the current clusters or from all samples."""
        rounding = 1e-9 if features.x.dtype == torch.float64 else 1e-6
        prior = empirical_prior(clusters, self.psi_scale, self.kappa, self.nu, rounding, self.psi_unit)
        return MapEM(features, prior, self.concentration)

    def _start(self, features: QuadraticFeatures, generator: Generator, initial_labels: Array | None) -> Tensor:
        if initial_labels is None:
            return spread_labels(features.x, min(self.n_clusters, self.max_clusters), generator)
        labels = torch.as_tensor(initial_labels, device=features.x.device)
        if labels.shape != (len(features.x),):
            raise ValueError(f"initial_labels must have shape ({len(features.x)},), got {tuple(labels.shape)}.")
        populated: Tensor = labels.unique(return_inverse=True)[1]
        return populated

    def _explore(self, features: QuadraticFeatures, labels: Tensor, generator: Generator) -> Tensor:
        """Compute a fine clustering and merge it: this finds clusters that no single split into two finds."""
        n, k = len(labels), int(labels.max()) + 1
        centres = features.to_moments(features.group_sums(labels, k)).mean
        leaves = min(self.max_clusters, max(k, n // 4))
        labels = spread_labels(features.x, leaves, generator, centres, lloyd=3)
        fine = features.to_moments(features.group_sums(labels, int(labels.max()) + 1))
        merged, _ = agglomerate(fine, lambda c: self._em(features, c).prior, self.concentration, self.neighbours)
        return merged[labels]

    def _follow(self, features: QuadraticFeatures, probs: Tensor) -> tuple[_Fitted, Tensor]:
        """EM from given responsibilities; returns the mixture and the indices of the remaining clusters."""
        kept = torch.arange(probs.shape[1], device=probs.device)
        while True:
            clusters = features.moments(probs)
            em = self._em(features, clusters)
            clusters, probs, self.objectives_ = em.run(clusters, self.n_iter, self.tol)
            populated = torch.bincount(probs.argmax(1), minlength=len(kept)) > 0
            if populated.all():
                return _Fitted(em, clusters, probs), kept
            kept, probs = kept[populated], probs[:, populated]
            probs = probs / probs.sum(1, keepdim=True)

    def _dissolve(self, features: QuadraticFeatures, fitted: _Fitted) -> _Fitted:
        """Assign the samples of clusters with no more samples than dimensions to the others, if that is likelier."""
        labels, k = fitted.probs.argmax(1), fitted.probs.shape[1]
        solid = torch.bincount(labels, minlength=k) > features.x.shape[1]
        if solid.all() or not solid.any():
            return fitted
        rest, _ = self._follow(features, fitted.probs[:, solid] * solid[labels, None])
        return rest if self._log_joint(features, rest.probs) > self._log_joint(features, fitted.probs) else fitted

    def _log_joint(self, features: QuadraticFeatures, probs: Tensor) -> float:
        clusters = features.to_moments(features.group_sums(probs.argmax(1), probs.shape[1]))
        return log_joint(self._em(features, clusters).prior, self.concentration, clusters)

    def _propose(
        self,
        features: QuadraticFeatures,
        probs: Tensor,
        move: MoveKind,
        generator: Generator,
        given: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, list[Proposal], Tensor | None]:
        """One round of moves: responsibilities and parents of the new clusters, proposals, subclusters if fitted.

        ``given`` are probabilities of the first subcluster of every cluster, ``(N, K)``.
        """
        labels, k = probs.argmax(1), probs.shape[1]
        sums = features.group_sums(labels, k)
        clusters = features.to_moments(sums)
        em = self._em(features, clusters)
        dice = None if self.deterministic else generator
        if move == "merge":
            made = propose_merges(em.prior, self.concentration, clusters, self.neighbours, dice) if k > 1 else []
            return *_merge(probs, clusters.n, [p.clusters for p in made if p.accepted]), made, None
        if given is None:
            halves = em.subcluster_probs(labels, k, self.n_iter, _HALVES_TOL)
            firsts = halves[:, None].expand_as(probs)
        else:
            halves, firsts = given.gather(1, labels[:, None])[:, 0], given
        first, second = em.subcluster_moments(labels, sums, halves.round())
        made = propose_splits(em.prior, self.concentration, first, second, self.max_clusters - k, dice)
        after = _split(probs, firsts, [p.clusters[0] for p in made if p.accepted])
        return *after, made, halves if given is None else None

    def _finish(
        self,
        X: Array,
        x: Tensor,
        fitted: _Fitted,
        first: Tensor | None,
        parents: Tensor,
        proposals: list[Proposal],
        generator: Generator,
    ) -> Self:
        """Set the learned attributes; ``first`` is the probability of the first subcluster, if known."""
        em, clusters, probs = fitted
        labels, k = probs.argmax(1), probs.shape[1]
        first = em.subcluster_probs(labels, k, self.n_iter, _HALVES_TOL) if first is None else first
        halves = torch.stack([first, 1 - first], 1).to(x.dtype)
        self.n_clusters_ = k
        self.inner_means_, self.inner_covariances_ = em.prior.map_estimate(clusters)
        self.generator_state_ = generator.get_state()
        self.moves_ = tuple(proposals)
        probs = probs.to(x.dtype)
        return self._publish(
            X,
            labels_=labels,
            probs_=probs,
            sub_probs_=halves,
            weights_=em.weights(clusters),
            means_=cluster_means(x, probs),
            sub_means_=subcluster_means(x, labels, halves, k),
            parents_=parents,
        )


def _split(probs: Tensor, firsts: Tensor, chosen: list[int]) -> tuple[Tensor, Tensor]:
    """Responsibilities and parents after splits: the first child in its parent's place, the second at the end.

    ``firsts`` are probabilities of the first subcluster of every cluster, ``(N, K)``.
    """
    lineage = torch.eye(probs.shape[1]).to(probs.device, torch.float64)
    index = torch.tensor(chosen, dtype=torch.long, device=probs.device)
    first, second = probs[:, index] * firsts[:, index], probs[:, index] * (1 - firsts[:, index])
    return torch.cat([probs.index_copy(1, index, first), second], 1), torch.cat([lineage, lineage[index]])


def _merge(probs: Tensor, sizes: Tensor, pairs: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Responsibilities and parents after merges: a merged cluster takes the place of its larger part."""
    lineage = torch.eye(probs.shape[1]).to(probs.device, torch.float64)
    stay = torch.ones(probs.shape[1], dtype=torch.bool, device=probs.device)
    probs = probs.clone()
    for pair in pairs:
        small, large = sorted(pair, key=lambda cluster: float(sizes[cluster]))
        lineage[large, [small, large]] = sizes[[small, large]] / sizes[[small, large]].sum()
        probs[:, large] += probs[:, small]
        stay[small] = False
    return probs[:, stay], lineage[stay]
