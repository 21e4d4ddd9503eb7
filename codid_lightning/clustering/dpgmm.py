"""Dirichlet-process Gaussian mixture with split and merge moves."""

from __future__ import annotations

from typing import Any, NamedTuple, Self, get_args

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Generator, Tensor

from codid_lightning.clustering.base import Array, Clusterer, cluster_means, one_hot, subcluster_means, torch_threads
from codid_lightning.clustering.density import MixtureDensity
from codid_lightning.clustering.features import QuadraticFeatures, feature_width
from codid_lightning.clustering.history import Round, plot_history
from codid_lightning.clustering.mixture import MapEM, spread_labels
from codid_lightning.clustering.moves import (
    MoveKind,
    Proposal,
    agglomerate,
    log_joint,
    propose_merges,
    propose_splits,
    settle,
)
from codid_lightning.clustering.niw import CovarianceType, Moments, PsiUnit, empirical_prior
from codid_lightning.clustering.overlap import overlapping_groups
from codid_lightning.clustering.projection import Projection

_MAX_DOUBLE = 1 << 21  # up to this number, features are in float64 for any input
_MAX_DOUBLE_DIMS = 16  # so are full covariances up to this dimension: their widths may differ by orders of magnitude
_OVERLAP_DRAWS = 5000
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

    ``fit`` draws ``n_clusters`` centres, adds centres up to a fine clustering, merges clusters by the Hastings ratio
    down to one, and keeps the likeliest level. Then it alternates merge and split proposals, each followed by EM, until
    one round of both changes nothing. A cluster that is the most probable one of no sample is removed. Clusters with no
    more samples than dimensions are kept only if the partition without them is less likely. At the end, Gaussians that
    overlap become the components of one cluster (``max_overlap``).

    Args:
        n_clusters: Clusters to start from.
        max_clusters: Largest number of clusters (truncation level).
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
        max_iter: Largest number of EM iterations after each round.
        tol: EM stops if the log posterior per sample increases by less.
        neighbours: Number of nearest clusters with which a cluster may be proposed to merge.
        deterministic: Accept a move exactly if its Hastings ratio exceeds one.
        random_state: Seed of the initial centres and of random acceptances, as scikit-learn understands it.
        max_overlap: Largest estimated probability that a sample of one cluster is assigned to another. ``fit`` joins
            Gaussians that overlap more to one cluster of several components; None: every Gaussian is a cluster.
        every_level: Whether ``fit`` considers every level of the merging of the fine clustering (with more samples per
            cluster than dimensions), or only those at which no merge has a Hastings ratio above one.
        fineness: Size of the fine clustering, in units of ``max_clusters``.
        n_init: Number of searches from different centres; the one with the highest log joint probability is kept.
        warm_start: Whether ``fit`` starts from the clusters of the last fit instead of drawn centres.
        n_jobs: Number of threads; default: torch's own setting.

    Learned besides what every clusterer learns: ``weights_`` ``(K,)``, ``covariances_`` ``(K, d, d)``,
    ``component_cluster_`` (the cluster of each Gaussian, if some were joined, else None), ``objectives_`` (log
    posterior density, up to a constant, over the iterations of the last EM), ``n_iter_`` (their number),
    ``converged_`` (whether the last EM stopped by ``tol``), ``history_`` (the rounds of moves).
    """

    component_cluster_: Tensor | None = None
    history_: tuple[Round, ...] = ()

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
        max_iter: int = 10,
        tol: float = 1e-3,
        neighbours: int = 8,
        deterministic: bool = False,
        random_state: int | None = 0,
        max_overlap: float | None = 0.1,
        every_level: bool = True,
        fineness: int = 2,
        n_init: int = 1,
        warm_start: bool = False,
        n_jobs: int | None = None,
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
        self.max_iter = max_iter
        self.tol = tol
        self.neighbours = neighbours
        self.deterministic = deterministic
        self.random_state = random_state
        self.max_overlap = max_overlap
        self.every_level = every_level
        self.fineness = fineness
        self.n_init = n_init
        self.warm_start = warm_start
        self.n_jobs = n_jobs

    def fit(
        self,
        X: Array,
        y: Array | None = None,
        sample_weight: Array | None = None,
        *,
        initial_labels: Array | None = None,
    ) -> Self:
        """Find the clusters of samples.

        Args:
            X: Samples ``(N, d)``.
            y: Ignored.
            sample_weight: How often each sample counts, ``(N,)``; default: once.
            initial_labels: Clusters to start from, ``(N,)``, instead of drawn centres.
        """
        if self.psi_unit not in get_args(PsiUnit):
            raise ValueError(f"psi_unit is {self.psi_unit!r}; it must be one of {', '.join(get_args(PsiUnit))}.")
        if self.n_init < 1:
            raise ValueError(f"n_init is {self.n_init}; it must be at least 1.")
        if self.warm_start and initial_labels is None and hasattr(self, "inner_means_"):
            initial_labels = self.predict(X)
        x = self._read(X, reset=True)
        generator = self._generator()
        with torch_threads(self.n_jobs):
            features = self._project(x, _weights(sample_weight, x))
            found = [self._search(features, generator, initial_labels) for _ in range(self.n_init)]
            fitted, rounds = (
                max(found, key=lambda each: self._log_joint(features, each[0].probs)) if found[1:] else found[0]
            )
            self.history_ = tuple(rounds)
            parents = torch.eye(fitted.probs.shape[1]).to(x.device, torch.float64)
            proposals = [p for r in rounds for p in r.proposals]
            group = None
            if self.max_overlap is not None and self.max_rounds > 0:
                fitted = _ordered(fitted, cluster_means(x, fitted.probs.to(x.dtype)))
                group = overlapping_groups(fitted.probs, self.max_overlap)
            return self._finish(X, x, fitted, None, parents, proposals, generator, group)

    def _generator(self) -> Generator:
        if isinstance(self.random_state, int | np.integer):
            return Generator().manual_seed(int(self.random_state))
        return Generator().manual_seed(int(check_random_state(self.random_state).randint(2**31 - 1)))

    def _search(
        self, features: QuadraticFeatures, generator: Generator, initial_labels: Array | None
    ) -> tuple[_Fitted, list[Round]]:
        """One search: a mixture, and the rounds of moves that led to it."""
        labels = self._start(features, generator, initial_labels)
        if self.max_rounds > 0:
            labels = self._explore(features, labels, generator)
        fitted, _ = self._follow(features, one_hot(labels, int(labels.max()) + 1, features.x.dtype))
        rounds: list[Round] = []
        quiet = 0
        for t in range(self.max_rounds):
            move: MoveKind = "split" if t % 2 else "merge"
            before = fitted.probs.shape[1]
            probs, _, made, _ = self._propose(features, fitted.probs, move, generator)
            quiet = 0 if any(p.accepted for p in made) else quiet + 1
            if quiet == 0:
                fitted, _ = self._follow(features, probs)
            rounds.append(Round(move, before, fitted.probs.shape[1], tuple(made)))
            if quiet == 2:
                break
        if self.max_rounds > 0:
            fitted = self._dissolve(features, fitted)
        return fitted, rounds

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
        halves, before = None, fitted.probs.shape[1]
        if move is not None:
            given = None if subcluster_probs is None else self._first_halves(subcluster_probs, kept).to(features.x)
            probs, lineage, proposals, halves = self._propose(features, fitted.probs, move, generator, given)
            if any(p.accepted for p in proposals):
                fitted, kept = self._follow(features, probs)
                parents, halves = lineage[kept] @ parents, None
        if move is not None:
            self.history_ += (Round(move, before, fitted.probs.shape[1], tuple(proposals)),)
        return self._finish(X, x, fitted, halves, parents, proposals, generator)

    def partial_fit(self, X: Array, y: Array | None = None) -> Self:
        """Learn from one more batch of a stream of samples.

        The clusters of the batch join those of the batches before: their moments are concatenated, and merged by the
        Hastings ratio. Samples of former batches are not kept; ``labels_`` and the like are of this batch. The first
        call decides the projection of samples in many dimensions.

        Args:
            X: Samples ``(N, d)``.
            y: Ignored.
        """
        if not hasattr(self, "stream_n_"):
            self.fit(X)
            features = self._features(self._projection()(self._read(X, reset=False)))
            return self._keep(features.moments(self._component_probs(X).to(features.x)))
        x = self._read(X, reset=False)
        generator = Generator()
        generator.set_state(torch.as_tensor(self.generator_state_))
        features = self._features(self._projection()(x))
        fitted, rounds = self._search(features, generator, None)
        new, old = features.moments(fitted.probs), Moments(self.stream_n_, self.stream_mean_, self.stream_scatter_)
        clusters = old.joined(new)
        while True:
            em = self._em(features, clusters)
            merged = settle(em.prior, self.concentration, clusters, self.neighbours)
            if len(merged.n) == len(clusters.n):
                break
            clusters = merged
        em = self._em(features, clusters)
        probs, _, _ = features.assign(em.coefficients(clusters))
        self.history_ += tuple(rounds)
        parents = torch.eye(probs.shape[1]).to(x.device, torch.float64)
        proposals = [p for r in rounds for p in r.proposals]
        group = None if self.max_overlap is None else self._overlaps(em, clusters, generator, self.max_overlap)
        self._finish(X, x, _Fitted(em, clusters, probs), None, parents, proposals, generator, group)
        return self._keep(clusters)

    def _overlaps(self, em: MapEM, clusters: Moments, generator: Generator, limit: float) -> Tensor:
        """Groups of components by draws from them: a batch may have no samples of some."""
        estimate = em.prior.map_estimate(clusters)
        density = MixtureDensity(self._projection(), self.covariance_type, em.weights(clusters), *estimate)
        drawn, _ = density.sample(_OVERLAP_DRAWS, generator)
        return overlapping_groups(density.evaluate(drawn, double=True)[0], limit)

    def _keep(self, clusters: Moments) -> Self:
        self.stream_n_, self.stream_mean_, self.stream_scatter_ = clusters.n, clusters.mean, clusters.scatter
        return self

    def _first_halves(self, subcluster_probs: Array, kept: Tensor) -> Tensor:
        """Probability of the first subcluster of the clusters that are left, ``(N, K)``."""
        probs = torch.as_tensor(subcluster_probs)[..., 0]
        return probs[:, kept] if probs.ndim == 2 else probs[:, None].expand(-1, len(kept))

    def predict_proba(self, X: Array) -> Array:
        """Cluster probabilities ``(N, K)`` of samples ``(N, d)``."""
        probs = self._component_probs(X)
        return self._return(X, probs if self.component_cluster_ is None else _grouped(probs, self.component_cluster_))

    def score_samples(self, X: Array) -> Array:
        """Log density ``(N,)`` of samples ``(N, d)``."""
        x = self._read(X, reset=False)
        return self._return(X, self._density().evaluate(x, self._in_double(x))[1])

    def score(self, X: Array, y: Array | None = None) -> float:
        """Mean log density of samples ``(N, d)``; ``y`` is ignored."""
        return float(torch.as_tensor(self.score_samples(X)).mean(dtype=torch.float64))

    def bic(self, X: Array) -> float:
        """Bayesian information criterion on samples ``(N, d)``; lower is better."""
        total = float(torch.as_tensor(self.score_samples(X)).sum(dtype=torch.float64))
        return -2 * total + self._density().parameters() * float(np.log(len(X)))

    def sample(self, n_samples: int = 1) -> tuple[Array, Array]:
        """Draw samples ``(n, d)`` from the mixture, and the clusters ``(n,)`` they are of."""
        check_is_fitted(self)
        x, component = self._density().sample(n_samples, self._generator())
        labels = component if self.component_cluster_ is None else self.component_cluster_[component]
        return (x, labels) if isinstance(self.probs_, Tensor) else (x.cpu().numpy(), labels.cpu().numpy())

    def plot_history(self, axes: Any = None) -> Any:
        """Draw the log Hastings ratios of ``history_`` and the number of clusters over the rounds."""
        check_is_fitted(self)
        return plot_history(self.history_, axes)

    @property
    def covariances_(self) -> Array:
        """Covariances in the space of the samples, ``(K, d, d)``; of joined Gaussians, that of their mixture."""
        density = self._density()
        covariances, group = density.full_covariances(), self.component_cluster_
        if group is not None:
            k = int(group.max()) + 1
            share, means = one_hot(group, k, density.weights.dtype) * density.weights[:, None], density.full_means()
            share = share / share.sum(0)
            apart = means - (share.T @ means)[group]
            covariances = covariances + apart[:, :, None] * apart[:, None, :]
            covariances = torch.einsum("jk,jab->kab", share.to(covariances), covariances)
        return covariances if isinstance(self.probs_, Tensor) else covariances.cpu().numpy()

    def _projection(self) -> Projection:
        return Projection(self.center_, self.basis_, self.scale_, self.residual_)

    def _density(self) -> MixtureDensity:
        weights = torch.as_tensor(self.weights_) if self.component_cluster_ is None else self.component_weights_
        return MixtureDensity(
            self._projection(), self.covariance_type, weights, self.inner_means_, self.inner_covariances_
        )

    def _component_probs(self, X: Array) -> Tensor:
        x = self._read(X, reset=False)
        return self._density().evaluate(x, self._in_double(x))[0]

    def _in_double(self, x: Tensor) -> bool:
        p = self.basis_.shape[1]
        small = len(x) * feature_width(p, self.covariance_type) <= _MAX_DOUBLE
        return small or (self.covariance_type == "full" and p <= _MAX_DOUBLE_DIMS)

    def _project(self, x: Tensor, weights: Tensor | None = None) -> QuadraticFeatures:
        projection = Projection.fit(x, self.n_components, weights)
        self.center_, self.basis_ = projection.mean, projection.basis
        self.scale_, self.residual_ = projection.scale, projection.residual
        return self._features(projection(x), weights)

    def _features(self, y: Tensor, weights: Tensor | None = None) -> QuadraticFeatures:
        return QuadraticFeatures(y.double() if self._in_double(y) else y, self.covariance_type, weights)

    def _em(self, features: QuadraticFeatures, clusters: Moments) -> MapEM:
        """EM with the prior estimated from the current clusters or from all samples."""
        rounding = 1e-9 if features.x.dtype == torch.float64 else 1e-6
        prior = empirical_prior(clusters, self.psi_scale, self.kappa, self.nu, rounding, self.psi_unit)
        return MapEM(features, prior, self.concentration)

    def _start(self, features: QuadraticFeatures, generator: Generator, initial_labels: Array | None) -> Tensor:
        if initial_labels is None:
            k = min(self.n_clusters, self.max_clusters)
            return spread_labels(features.x, k, generator, weights=features.weights)
        labels = torch.as_tensor(initial_labels, device=features.x.device)
        if labels.shape != (len(features.x),):
            raise ValueError(f"initial_labels must have shape ({len(features.x)},), got {tuple(labels.shape)}.")
        populated: Tensor = labels.unique(return_inverse=True)[1]
        return populated

    def _explore(self, features: QuadraticFeatures, labels: Tensor, generator: Generator) -> Tensor:
        """Compute a fine clustering and merge it: this finds clusters that no single split into two finds."""
        n, k = int(features.count), int(labels.max()) + 1
        centres = features.to_moments(features.group_sums(labels, k)).mean
        leaves = min(self.fineness * self.max_clusters, max(k, n // 4))
        labels = spread_labels(features.x, leaves, generator, centres, 3, features.weights)
        fine = features.to_moments(features.group_sums(labels, int(labels.max()) + 1))
        merged, _ = agglomerate(
            fine,
            lambda c: self._em(features, c).prior,
            self.concentration,
            self.neighbours,
            n // (features.x.shape[1] + 1) if self.every_level else 0,
            self.max_clusters,
        )
        return merged[labels]

    def _follow(self, features: QuadraticFeatures, probs: Tensor) -> tuple[_Fitted, Tensor]:
        """EM from given responsibilities; returns the mixture and the indices of the remaining clusters."""
        kept = torch.arange(probs.shape[1], device=probs.device)
        while True:
            clusters = features.moments(probs)
            em = self._em(features, clusters)
            clusters, probs, self.objectives_ = em.run(clusters, self.max_iter, self.tol)
            populated = features.sizes(probs.argmax(1), len(kept)) > 0
            if populated.all():
                return _Fitted(em, clusters, probs), kept
            kept, probs = kept[populated], probs[:, populated]
            probs = probs / probs.sum(1, keepdim=True)

    def _dissolve(self, features: QuadraticFeatures, fitted: _Fitted) -> _Fitted:
        """Assign the samples of clusters with no more samples than dimensions to the others, if that is likelier."""
        labels, k = fitted.probs.argmax(1), fitted.probs.shape[1]
        solid = features.sizes(labels, k) > features.x.shape[1]
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
            halves = em.subcluster_probs(labels, k, self.max_iter, _HALVES_TOL)
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
        group: Tensor | None = None,
    ) -> Self:
        """Set the learned attributes.

        ``first`` is the probability of the first subcluster, if known; ``group`` the cluster of each component.
        """
        em, clusters, probs = fitted
        weights = em.weights(clusters)
        self.inner_means_, self.inner_covariances_ = em.prior.map_estimate(clusters)
        self.n_iter_ = len(self.objectives_)
        self.converged_ = self.n_iter_ < max(1, self.max_iter)
        self.component_cluster_ = None
        if group is not None and int(group.max()) + 1 < len(group):
            self.component_cluster_, self.component_weights_ = group, weights
            probs, weights = _grouped(probs, group), _grouped(weights[None], group)[0]
            parents = torch.eye(probs.shape[1]).to(parents)
        labels, k = probs.argmax(1), probs.shape[1]
        first = em.subcluster_probs(labels, k, self.max_iter, _HALVES_TOL) if first is None else first
        halves = torch.stack([first, 1 - first], 1).to(x.dtype)
        self.n_clusters_ = k
        self.generator_state_ = generator.get_state()
        self.moves_ = tuple(proposals)
        probs = probs.to(x.dtype)
        return self._publish(
            X,
            labels_=labels,
            probs_=probs,
            sub_probs_=halves,
            weights_=weights,
            means_=cluster_means(x, probs),
            sub_means_=subcluster_means(x, labels, halves, k),
            parents_=parents,
        )


def _weights(sample_weight: Array | None, x: Tensor) -> Tensor | None:
    """Checked weights of samples, or None if all are one."""
    if sample_weight is None:
        return None
    weights = torch.as_tensor(np.asarray(sample_weight) if not isinstance(sample_weight, Tensor) else sample_weight)
    weights = weights.to(x.device, torch.float64)
    if weights.ndim == 0:
        weights = weights.expand(len(x))
    if weights.shape != (len(x),):
        raise ValueError(f"sample_weight must have shape ({len(x)},), got {tuple(weights.shape)}.")
    if not weights.isfinite().all() or (weights < 0).any():
        raise ValueError("sample_weight must be finite and not negative.")
    if not weights.any():
        raise ValueError("sample_weight is zero for all samples.")
    return None if (weights == 1).all() else weights


def _ordered(fitted: _Fitted, means: Tensor) -> _Fitted:
    """The same mixture with its components numbered along the first coordinate, whatever the order of the samples."""
    order = means[:, 0].argsort(stable=True)
    return _Fitted(fitted.em, fitted.clusters[order], fitted.probs[:, order])


def _grouped(values: Tensor, group: Tensor) -> Tensor:
    """Columns ``(..., J)`` summed over the components of each cluster, ``(..., K)``."""
    return values @ one_hot(group, int(group.max()) + 1, values.dtype)


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
