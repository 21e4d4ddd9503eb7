"""Effects of sites on the columns of a table, estimated given the mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Generator, Tensor

from codid_lightning.clustering.features import QuadraticFeatures
from codid_lightning.clustering.mixture import spread_labels
from codid_lightning.clustering.niw import NIW, Moments

Array = NDArray[Any]
Effects = Literal["affine", "shift", "none"]

_BURN_IN = 5  # iterations of EM before the maps move, so that components have found their place
_GROWTH, _STAGE = 1.5, 15  # factor between numbers of components on the way to the last, and iterations with each
_PATIENCE = 3  # numbers of components that may be less likely in a row
_MIN_ROWS_TO_DIVIDE = 20  # rows of a site under a value, of which some are left out
_MIN_ROWS_FOR_SCALE = 8  # a site with fewer rows is shifted only
_ROWS_PER_COMPONENT = 10  # at least, on average
_PSEUDO_COUNT = 0.1  # of every component at every site
_PRIOR_NU, _PRIOR_KAPPA = 1.0, 0.01  # in rows; with nu the prior of a variance weighs four rows


class Harmonizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Removes the effects of sites, scanners or batches from a table. Modes that a site prefers do not bias it.

    As in ComBat (Johnson, Li and Rabinovic, Biostatistics 2007), every site shifts and scales every column. ComBat
    compares all rows of the sites. If a site has other rows than the others, it takes the difference for an effect of
    the site. Here, rows come from a mixture of Gaussians under each value of the covariate. All sites share its
    components, but each site has its own weights. So effects are estimated given the component, and the share of a
    component may differ freely. With one component and no covariate this is ComBat's location and scale, without its
    shrinkage.

    EM looks for the maximum of the posterior density; all its steps are in closed form. It begins with one component,
    and with the maps found it begins again with half as many more, up to the number under which rows that were left out
    are likeliest. With many components from the start, each of them would follow a site, and nothing would be left to
    compare. Sites with fewer than 8 rows, and columns that are constant at a site, are shifted only.

    Args:
        components: Most components under each value of the covariate; fewer where it has less than 10 rows for each.
        effects: What a site does to a column: `affine` is shift and scale; `shift`; or `none`, for comparison.
        reference: The site to which all rows are mapped; default: the mean over sites as in ComBat. There, the average
            row is moved by no more than the sites' effects at it, and the sites' mean squared scale is one.
        validation_fraction: Share of rows left out to choose the number of components by likelihood; 0 uses the most.
        max_iter: Largest number of iterations of EM.
        tol: EM stops if the log posterior per row increases by less.
        seed: Seed of the initial components.

    Learned:
        sites_: Names of the sites, ``(E,)``.
        covariates_: Values of the covariate, ``(A,)``.
        shift_, scale_: The map ``shift_ + scale_ * x`` of each site, ``(E, d)``.
        n_components_: Number K of components under each value.
        means_, variances_: Components after the map, one ``(K, d)`` under each value of the covariate.
        weights_: Their shares at each site, one ``(E, K)`` under each value.
        objectives_: Log posterior density, up to a constant, at every iteration.
    """

    sites_: Array
    covariates_: Array
    n_components_: list[int]
    shift_: Array
    scale_: Array
    means_: list[Array]
    variances_: list[Array]
    weights_: list[Array]
    objectives_: list[float]

    def __init__(
        self,
        components: int = 50,
        effects: Effects = "affine",
        reference: Any = None,
        validation_fraction: float = 0.1,
        max_iter: int = 100,
        tol: float = 1e-4,
        seed: int = 0,
    ) -> None:
        self.components = components
        self.effects = effects
        self.reference = reference
        self.validation_fraction = validation_fraction
        self.max_iter = max_iter
        self.tol = tol
        self.seed = seed

    def fit(self, X: Any, site: Any = None, covariates: Any = None) -> Self:
        """Estimate the effects of sites.

        Args:
            X: Rows ``(N, d)``.
            site: Site of each row, ``(N,)``, of any type; default: a single site.
            covariates: What must be kept, ``(N,)``: a label such as a diagnosis. Each value has its own components.
        """
        self._check_arguments()
        x = self._read(X, reset=True)
        self.sites_, site_index = _numbered(site, len(x), "site")
        self.covariates_, value_index = _numbered(covariates, len(x), "covariates")
        if self.reference is not None and self.reference not in self.sites_:
            known = ", ".join(map(str, self.sites_))
            raise ValueError(f"reference is {self.reference}; it must be one of the sites: {known}.")
        # In an order that depends on the rows alone, random draws are the same for every order and naming of sites.
        order = np.lexsort(np.round(x, 12).T)
        rows, places, values = (torch.from_numpy(part[order]) for part in (x, site_index, value_index))
        units = _Units.of(rows, values * len(self.sites_) + places)
        mixture, self.objectives_ = _grown(units.scaled(rows), values, places, self)
        mixture.retarget(self._target())
        self._publish(mixture, units)
        return self

    def transform(self, X: Any, site: Any = None) -> Array:
        """Rows ``(N, d)`` without the effect of their site ``(N,)``; covariates are not needed."""
        x = self._read(X, reset=False)
        index = self._site_index(site, len(x))
        mapped: Array = (self.shift_[index] + self.scale_[index] * x).astype(x.dtype)
        return mapped

    def inverse_transform(self, X: Any, site: Any = None) -> Array:
        """Rows ``(N, d)`` that `transform` returned, as they would be measured at a site ``(N,)``."""
        x = self._read(X, reset=False)
        index = self._site_index(site, len(x))
        mapped: Array = ((x - self.shift_[index]) / self.scale_[index]).astype(x.dtype)
        return mapped

    def fit_transform(self, X: Any, site: Any = None, covariates: Any = None) -> Array:
        """`fit`, and rows without the effects of their sites."""
        return self.fit(X, site, covariates).transform(X, site)

    def fit_site(self, X: Any, site: Any) -> Self:
        """Add a site that was not in the training data, from rows ``(N, d)`` of it without covariates.

        The components stay as they are. The site's weights and map are estimated.
        """
        x = self._read(X, reset=False)
        if site in self.sites_:
            raise ValueError(f"Site {site} is known already; sites are {', '.join(map(str, self.sites_))}.")
        rows, zero = torch.from_numpy(x), torch.zeros(len(x), dtype=torch.long)
        units = _Units.of(rows, zero)
        known = _Component.joined(self._components(units))
        mixture = _unfitted(units.scaled(rows), zero, zero, self.effects)
        mixture.use_components(known)
        mixture.run(self.max_iter, self.tol)
        shift, scale = units.unscaled_map(mixture.shift, mixture.scale)
        self.shift_, self.scale_ = np.append(self.shift_, shift, 0), np.append(self.scale_, scale, 0)
        ends = np.cumsum([len(means) for means in self.means_])[:-1]
        parts = np.split(mixture.components[0].log_weights[0].exp().numpy(), ends)
        self.weights_ = [np.append(w, [p / p.sum()], 0) for w, p in zip(self.weights_, parts, strict=True)]
        self.sites_ = np.append(self.sites_, site)
        return self

    def score_samples(self, X: Any, site: Any = None, covariates: Any = None) -> Array:
        """Log density ``(N,)`` of rows ``(N, d)`` as measured, given their site and covariate."""
        x = self._read(X, reset=False)
        index = self._site_index(site, len(x))
        value = self._value_index(covariates, len(x))
        shift, scale = torch.from_numpy(self.shift_), torch.from_numpy(self.scale_)
        components = self._components(None)
        density = torch.empty(len(x), dtype=torch.float64)
        for cell in _cells(torch.from_numpy(x).double(), torch.from_numpy(value), torch.from_numpy(index)):
            own = components[cell.value].coefficients(cell, shift[cell.site], scale[cell.site])
            density[cell.rows] = cell.features.assign(own)[1]
        return density.numpy()

    def score(self, X: Any, site: Any = None, covariates: Any = None) -> float:
        """Mean log density of rows."""
        return float(self.score_samples(X, site, covariates).mean())

    # --------------------------------------------------------------------------------------------------------- helpers

    def _check_arguments(self) -> None:
        if not 0 <= self.validation_fraction <= 0.5:
            raise ValueError(f"validation_fraction is {self.validation_fraction}; it must lie between 0 and 0.5.")
        for name in ("components", "max_iter"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.effects not in get_args(Effects):
            raise ValueError(f"effects is {self.effects!r}; it must be one of {', '.join(get_args(Effects))}.")

    def _read(self, X: Any, reset: bool) -> Array:
        if not reset:
            check_is_fitted(self)
        checked: Array = validate_data(self, X, dtype=[np.float64, np.float32], reset=reset)
        return checked

    def _site_index(self, site: Any, n: int) -> NDArray[np.int64]:
        if site is None and len(self.sites_) > 1:
            raise ValueError(f"The effects of {len(self.sites_)} sites were fitted; give the site of each row.")
        return _positions(self.sites_, site, n, "Site {} was not fitted; `fit_site` adds a site.")

    def _value_index(self, covariates: Any, n: int) -> NDArray[np.int64]:
        return _positions(self.covariates_, covariates, n, "Covariate {} did not occur in training.")

    def _target(self) -> int | None:
        return None if self.reference is None else int(np.flatnonzero(self.sites_ == self.reference)[0])

    def _publish(self, mixture: _Mixture, units: _Units) -> None:
        self.shift_, self.scale_ = units.unscaled_map(mixture.shift, mixture.scale)
        spread, center = units.spread, units.center
        self.means_ = [(center + spread * c.means).numpy() for c in mixture.components]
        self.variances_ = [(spread**2 * c.variances).numpy() for c in mixture.components]
        self.weights_ = [c.log_weights.exp().numpy() for c in mixture.components]
        self.n_components_ = [len(means) for means in self.means_]
        self.n_iter_ = len(self.objectives_)

    def _components(self, units: _Units | None) -> list[_Component]:
        """The components, in some units or those of the rows."""
        tables = zip(self.means_, self.variances_, self.weights_, strict=True)
        tensors = ([torch.from_numpy(part) for part in parts] for parts in tables)
        found = [_Component(means, variances, weights.log()) for means, variances, weights in tensors]
        if units is not None:
            for c in found:
                c.move(1 / units.spread, -units.center / units.spread)
        return found


# ------------------------------------------------------------------------------------------------------------- labels


def _numbered(labels: Any, n: int, name: str) -> tuple[Array, NDArray[np.int64]]:
    """The distinct labels, and the number of each row's; without labels all rows have the same."""
    given = np.zeros(n, dtype=np.int64) if labels is None else np.asarray(labels)
    if given.shape != (n,):
        raise ValueError(f"{name} has {len(given)} entries, X has {n} rows: give one label for each row.")
    known, index = np.unique(given, return_inverse=True)
    return known, index.astype(np.int64)


def _positions(known: Array, labels: Any, n: int, unknown: str) -> NDArray[np.int64]:
    """Numbers of labels; raise at the first label that is not known."""
    if labels is None:
        return np.zeros(n, dtype=np.int64)
    names, index = _numbered(labels, n, "The labels")
    place = {name: i for i, name in enumerate(known.tolist())}
    for name in names.tolist():
        if name not in place:
            raise ValueError(unknown.format(name) + f" Known are {', '.join(map(str, known))}.")
    return np.array([place[name] for name in names.tolist()], dtype=np.int64)[index]


class _Units(NamedTuple):
    """Centre and deviation of each column within cells. Fits take place in these units."""

    center: Tensor  # (d,)
    spread: Tensor  # (d,)

    @classmethod
    def of(cls, x: Tensor, cell: Tensor) -> _Units:
        mean, variance, counts = _moments(x.double(), cell)
        share = counts / counts.sum()
        center = share @ mean
        spread = (share @ variance).sqrt()
        for other in ((share @ (mean - center).square()).sqrt(), torch.ones_like(spread)):
            spread = torch.where(
                spread > 1e-9 * (center.abs() + other), spread, other
            )  # not the rounding of a constant
        return cls(center, spread)

    def scaled(self, x: Tensor) -> Tensor:
        return ((x.double() - self.center) / self.spread).to(x.dtype)

    def unscaled_map(self, shift: Tensor, scale: Tensor) -> tuple[Array, Array]:
        """The same maps for rows that are not scaled."""
        return (self.center + self.spread * shift - scale * self.center).numpy(), scale.numpy()


def _moments(x: Tensor, group: Tensor, groups: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Means and variances (G, d) and numbers of rows (G,) of each group; zero for a group without rows."""
    counts = group.bincount(minlength=groups).to(x)
    size = counts.clamp_min(1)[:, None]
    mean = x.new_zeros(len(counts), x.shape[1]).index_add_(0, group, x) / size
    square = (x - mean[group]).square()
    return mean, torch.zeros_like(mean).index_add_(0, group, square) / size, counts


# ------------------------------------------------------------------------------------------------------------------ EM


class _Cell(NamedTuple):
    """Rows of one site under one value of the covariate."""

    value: int
    site: int
    rows: Tensor
    features: QuadraticFeatures


def _cells(x: Tensor, values: Tensor, places: Tensor) -> list[_Cell]:
    found = []
    for value, site in torch.stack([values, places], 1).unique(dim=0).tolist():
        rows = ((values == value) & (places == site)).nonzero()[:, 0]
        found.append(_Cell(value, site, rows, QuadraticFeatures(x[rows], "diag")))
    return found


@dataclass
class _Component:
    """The components under one value of the covariate, after the map."""

    means: Tensor  # (K, d)
    variances: Tensor  # (K, d)
    log_weights: Tensor  # (E, K)

    @classmethod
    def joined(cls, values: Sequence[_Component]) -> _Component:
        """The components of all values, at a site whose weights are not known yet."""
        means, variances = torch.cat([v.means for v in values]), torch.cat([v.variances for v in values])
        weights = torch.cat([v.log_weights.exp().mean(0) for v in values]) / len(values)
        return cls(means, variances, weights.log()[None])

    def move(self, scale: Tensor, shift: Tensor) -> None:
        """Move all components by an affine map of each column."""
        self.means, self.variances = scale * self.means + shift, scale**2 * self.variances

    def coefficients(self, cell: _Cell, shift: Tensor, scale: Tensor) -> Tensor:
        """Log of weight times density of rows as measured at a site, linear in their features."""
        means, variances = (self.means - shift) / scale, self.variances / scale**2
        return cell.features.coefficients(self.log_weights[cell.site], means, variances)


@dataclass
class _Mixture:
    """Mixtures whose components are shared by sites, the sites' weights and maps, and EM for all of these.

    The map of site e is ``shift[e] + scale[e] * x``. One affine map of everything leaves the likelihood as it is; the
    prior keeps it in place until `retarget` chooses it.
    """

    cells: list[_Cell]
    components: list[_Component]
    shift: Tensor  # (E, d)
    scale: Tensor  # (E, d)
    movable: Tensor  # (E, d) which shifts are estimated
    scalable: Tensor  # (E, d) which scales are estimated
    fixed: bool = False  # whether means and variances are known

    def use_components(self, known: _Component) -> None:
        """Begin with components that stay, mapping the mean of the rows to theirs."""
        self.components, self.fixed = [known], True
        mean = self.cells[0].features.x.double().mean(0)
        target = known.log_weights[0].exp() @ known.means - self.scale * mean
        self.shift = torch.where(self.movable, target, self.shift)

    def draw_components(self, x: Tensor, values: Tensor, places: Tensor, components: int, seed: int) -> None:
        """Begin with components of the rows after the maps, drawn apart from each other under each value."""
        y, labels = self.shift[places] + self.scale[places] * x.double(), torch.zeros_like(values)
        sites, d = self.shift.shape
        self.components = []
        for value in range(int(values.max()) + 1):
            rows = (values == value).nonzero()[:, 0]
            k = max(1, min(components, len(rows) // _ROWS_PER_COMPONENT))
            labels[rows] = spread_labels(y[rows], k, Generator().manual_seed(seed), lloyd=3)
            k = int(labels[rows].max()) + 1
            self.components.append(_Component(y.new_zeros(k, d), y.new_zeros(k, d), y.new_zeros(sites, k)))
        counts = [len(c.means) for c in self.components]
        sums = [c.features.group_sums(labels[c.rows], counts[c.value]) for c in self.cells]
        self.update_weights(sums)
        self.update_components(sums)

    @property
    def prior(self) -> NIW:
        """Weak, at the units of the columns."""
        d = self.shift.shape[1]
        weight = torch.full((d,), _PRIOR_NU + 3, dtype=torch.float64)
        return NIW(torch.zeros(d, dtype=torch.float64), _PRIOR_KAPPA, weight, _PRIOR_NU)

    def run(self, iterations: int, tol: float) -> list[float]:
        """Iterate EM; the log posterior density, up to a constant, before every iteration."""
        rows, objectives = sum(len(cell.rows) for cell in self.cells), list[float]()
        for iteration in range(iterations):
            log_likelihood, sums = self.expect(self.cells)
            objectives.append(log_likelihood + self.log_prior())
            if iteration > _BURN_IN + 1 and objectives[-1] - objectives[-2] < tol * rows:
                break
            self.update_weights(sums)
            if not self.fixed:
                self.update_components(sums)
            if iteration >= _BURN_IN:
                self.update_maps(sums)
        return objectives

    def expect(self, cells: list[_Cell]) -> tuple[float, list[Tensor]]:
        """Log likelihood of cells, and summed features (K, 1 + 2 d) of each."""
        total, sums = 0.0, []
        for cell in cells:
            own = self.components[cell.value].coefficients(cell, self.shift[cell.site], self.scale[cell.site])
            _, log_likelihood, found = cell.features.assign(own)
            total += float(log_likelihood.sum(dtype=torch.float64))
            sums.append(found)
        return total, sums

    def log_prior(self) -> float:
        """Log prior density of all that EM estimates, up to a constant."""
        total = sum(float(_PSEUDO_COUNT * c.log_weights.sum()) for c in self.components)
        return total + sum(float(self.prior.log_density(c.means, c.variances).sum()) for c in self.components)

    def update_weights(self, sums: list[Tensor]) -> None:
        """Shares of components at each site."""
        counts = [torch.zeros_like(c.log_weights) for c in self.components]
        for cell, found in zip(self.cells, sums, strict=True):
            counts[cell.value][cell.site] = found[:, 0]
        for c, n in zip(self.components, counts, strict=True):
            c.log_weights = ((n + _PSEUDO_COUNT) / (n + _PSEUDO_COUNT).sum(1, keepdim=True)).log()

    def update_components(self, sums: list[Tensor]) -> None:
        """Means and variances of the rows after the map, of all sites together."""
        d = self.shift.shape[1]
        totals = [torch.zeros(len(c.means), 1 + 2 * d, dtype=torch.float64) for c in self.components]
        for cell, found in zip(self.cells, sums, strict=True):
            totals[cell.value] += mapped_sums(found, self.shift[cell.site], self.scale[cell.site])
        for c, total in zip(self.components, totals, strict=True):
            n, first, second = total[:, 0], total[:, 1 : d + 1], total[:, d + 1 :]
            mean = first / n.clamp_min(1e-300)[:, None]
            c.means, c.variances = self.prior.map_estimate(Moments(n, mean, (second - first * mean).clamp_min(0)))

    def update_maps(self, sums: list[Tensor]) -> None:
        """Shift and scale of each site, given the components."""
        d = self.shift.shape[1]
        totals = torch.zeros(5, *self.shift.shape, dtype=torch.float64)
        rows = torch.zeros(len(self.shift), 1, dtype=torch.float64)
        for cell, found in zip(self.cells, sums, strict=True):
            c, n, first, second = self.components[cell.value], found[:, :1], found[:, 1 : d + 1], found[:, d + 1 :]
            terms = n / c.variances, first / c.variances, second / c.variances
            toward = n * c.means / c.variances, first * c.means / c.variances
            totals[:, cell.site] += torch.stack([part.sum(0) for part in (*terms, *toward)])
            rows[cell.site] += n.sum()
        self.shift, self.scale = best_maps(totals, rows, self)

    def retarget(self, site: int | None) -> None:
        """Move everything so that a site's rows stay as they are, or else the mean over sites as in ComBat."""
        share, mean = self.rows_of_sites()
        self.complete_scales(share, mean)
        scale, shift = 1 / self.scale, -self.shift / self.scale  # from content to rows as measured
        if site is None:
            average = share @ (self.shift + self.scale * mean)
            k = (share @ scale.square()).sqrt()
            h = share @ (scale * average + shift) - k * average
        else:
            k, h = scale[site], shift[site]
        self.shift, self.scale = k * self.shift + h, k * self.scale
        for c in self.components:
            c.move(k, h)

    def complete_scales(self, share: Tensor, mean: Tensor) -> None:
        """Give sites whose scale cannot be estimated that of the mean site; the mean of their rows stays in place."""
        weight = share[:, None] * self.scalable
        average = (weight.sum(0) / (weight / self.scale**2).sum(0)).sqrt()
        scale = torch.where(self.movable & ~self.scalable & self.scalable.any(0), average, self.scale)
        self.shift, self.scale = self.shift + (self.scale - scale) * mean, scale

    def rows_of_sites(self) -> tuple[Tensor, Tensor]:
        """Share (E,) and mean (E, d) of the rows of each site."""
        rows, sums = torch.zeros(len(self.shift), 1).double(), torch.zeros_like(self.shift)
        for cell in self.cells:
            rows[cell.site] += len(cell.rows)
            sums[cell.site] += cell.features.x.sum(0, dtype=torch.float64)
        return (rows / rows.sum())[:, 0], sums / rows


def mapped_sums(sums: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """Summed features [n, x, x^2] (K, 1 + 2 d) after a map of x."""
    d = len(shift)
    n, first, second = sums[:, :1], sums[:, 1 : d + 1], sums[:, d + 1 :]
    moved = shift * n + scale * first
    return torch.cat([n, moved, shift**2 * n + 2 * shift * scale * first + scale**2 * second], 1)


def best_maps(totals: Tensor, rows: Tensor, now: _Mixture) -> tuple[Tensor, Tensor]:
    """The likeliest shift a and scale b of each site and column, both in closed form.

    The expected log density is ``n log b - (P a^2 + 2 Px a b + Pxx b^2 - 2 T a - 2 Tx b) / 2``, where P, Px and Pxx are
    sums of 1, x and x^2 over variances, and T and Tx the same with the means as a factor. The best a is (T - Px b) / P.
    What remains is ``n log b - Q b^2 / 2 + L b``.
    """
    p, px, pxx, t, tx = totals
    quadratic, linear = pxx - px**2 / p, tx - t * px / p
    best = (linear + (linear**2 + 4 * quadratic * rows).sqrt()) / (2 * quadratic)
    scale = torch.where(now.scalable, best, now.scale)
    return torch.where(now.movable, (t - px * scale) / p, now.shift), scale


# --------------------------------------------------------------------------------------------------------------- start


def _grown(x: Tensor, values: Tensor, places: Tensor, settings: Harmonizer) -> tuple[_Mixture, list[float]]:
    """EM with ever more components; every number begins with the maps of the one before."""
    numbers = _numbers(settings.components)
    if len(numbers) > 1 and settings.validation_fraction > 0:
        numbers = _numbers(_likeliest_number(x, values, places, settings))
    mixture = _unfitted(x, values, places, settings.effects)
    for k in numbers[:-1]:
        mixture.draw_components(x, values, places, k, settings.seed)
        mixture.run(min(_STAGE, settings.max_iter), settings.tol)
    mixture.draw_components(x, values, places, numbers[-1], settings.seed)
    return mixture, mixture.run(settings.max_iter, settings.tol)


def _numbers(last: int) -> list[int]:
    """Numbers of components on the way to the last."""
    numbers = [1]
    while numbers[-1] < last:
        numbers.append(min(last, max(numbers[-1] + 1, int(numbers[-1] * _GROWTH))))
    return numbers


def _likeliest_number(x: Tensor, values: Tensor, places: Tensor, settings: Harmonizer) -> int:
    """The number of components under which rows of every large cell that were left out are likeliest."""
    cell = values * (int(places.max()) + 1) + places
    large = cell.bincount()[cell] >= _MIN_ROWS_TO_DIVIDE
    left_out = large & (torch.arange(len(x)) % max(2, round(1 / settings.validation_fraction)) == 0)
    if not left_out.any():
        return settings.components
    x_in, values_in, places_in = (part[~left_out] for part in (x, values, places))
    mixture = _unfitted(x_in, values_in, places_in, settings.effects)
    other_cells = _cells(x[left_out], values[left_out], places[left_out])
    scores = dict[int, float]()
    for k in _numbers(settings.components):
        mixture.draw_components(x_in, values_in, places_in, k, settings.seed)
        mixture.run(_STAGE, settings.tol)
        scores[k] = mixture.expect(other_cells)[0]
        if max(scores.values()) > max(list(scores.values())[-_PATIENCE:]):
            break
    return max(scores, key=lambda k: scores[k])


def _unfitted(x: Tensor, values: Tensor, places: Tensor, effects: Effects) -> _Mixture:
    """Maps that agree in location and scale within values; no components yet."""
    movable = torch.full((int(places.max()) + 1, x.shape[1]), effects != "none")
    shift, scale, spread = _first_maps(x.double(), values, places)
    enough = places.bincount() >= _MIN_ROWS_FOR_SCALE
    scalable = movable & enough[:, None] & (spread > 1e-6) & (effects == "affine")
    scale = torch.where(scalable, scale, 1.0)
    return _Mixture(_cells(x, values, places), [], torch.where(movable, shift, 0.0), scale, movable, scalable)


def _first_maps(x: Tensor, values: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Shift, scale and spread (E, d) of each site within values, as if each value had one mean."""
    sites = int(places.max()) + 1
    cell = values * sites + places
    mean, variance, counts = _moments(x, cell, sites * (int(values.max()) + 1))
    counts, mean, variance = (part.unflatten(0, (-1, sites)) for part in (counts, mean, variance))
    of_site, of_value = (counts / counts.sum(0))[..., None], (counts / counts.sum(1, keepdim=True))[..., None]
    spread = (of_site * variance).sum(0).sqrt()
    scale = 1 / spread.clamp_min(1e-6)
    scaled, shift = scale * mean, torch.zeros_like(scale)
    for _ in range(_STAGE):  # least squares of values and sites, in turn
        center = (of_value * (scaled + shift)).sum(1, keepdim=True)  # (A, 1, d)
        shift = (of_site * (center - scaled)).sum(0)
    return shift, scale, spread
