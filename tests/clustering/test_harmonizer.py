"""Site effects estimated given the mode: against ComBat's formulas, planted effects and the estimator contract."""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from codid_lightning.clustering import Harmonizer
from tests.tables import modes_at_sites

Array = NDArray[Any]


def combat(x: Array, site: Array, reference: int | None = None) -> Array:
    """Location and scale of Johnson, Li and Rabinovic (Biostatistics 2007) without covariates and shrinkage."""
    sites, size = np.unique(site, return_counts=True)
    mean = np.stack([x[site == e].mean(0) for e in sites])
    variance = np.stack([x[site == e].var(0) for e in sites])
    share = size / size.sum()
    to_mean, to_variance = share @ mean, share @ variance
    if reference is not None:
        to_mean, to_variance = mean[reference], variance[reference]
    row = np.searchsorted(sites, site)
    return (x - mean[row]) / np.sqrt(variance[row]) * np.sqrt(to_variance) + to_mean


def unlike_sites(rng: np.random.Generator, rows: int = 300, sites: int = 3, columns: int = 4) -> tuple[Array, Array]:
    site = rng.choice(sites, rows, p=np.arange(1, sites + 1) / np.arange(1, sites + 1).sum())
    offset, scale = rng.normal(size=(sites, columns)), rng.uniform(0.5, 2, (sites, columns))
    return (rng.normal(size=(rows, columns)) * scale[site] + offset[site]) * [1, 10, 0.1, 1] + [0, 5, 1, -3], site


@pytest.mark.parametrize("reference", [None, 1])
def test_one_component_is_combats_location_and_scale(reference):
    x, site = unlike_sites(np.random.default_rng(0))
    found = Harmonizer(components=1, reference=reference).fit_transform(x, site)
    np.testing.assert_allclose(found, combat(x, site, reference), rtol=1e-6, atol=1e-8)


def test_planted_effects_are_found_under_a_hidden_correlation_where_combat_is_biased():
    table = modes_at_sites(3000, seed=1, columns=8)
    found = Harmonizer(components=10, reference=0).fit(table.x, table.site, table.value)
    content = found.transform(table.x, table.site)
    own, plain = (np.abs(c - table.content).mean() for c in (content, combat(table.x, table.site, reference=0)))
    assert own < 0.06
    assert plain > 0.4  # it takes the modes that a site prefers for an effect of the site
    within = np.concatenate([combat(table.x[v], table.site[v], 0) - table.content[v] for v in table.rows_of_values()])
    assert np.abs(within).mean() > 0.4  # also if it is given a_1
    np.testing.assert_allclose(found.scale_[1], 1 / table.scale[1], atol=0.06)
    np.testing.assert_allclose(found.shift_[1], -table.offset[1] / table.scale[1], atol=0.15)


@pytest.mark.parametrize("columns", [4, 8])
def test_the_number_of_components_is_close_to_that_of_the_modes(columns):
    table = modes_at_sites(3000, seed=2, columns=columns)
    found = Harmonizer().fit(table.x, table.site, table.value)
    assert all(3 <= count <= 9 for count in found.n_components_)  # 3 and 2 modes, and none of the 50 it may have
    everything = Harmonizer(components=20, validation_fraction=0).fit(table.x, table.site, table.value)
    assert everything.n_components_ == [20, 20]


def test_shift_alone_keeps_the_scale():
    table = modes_at_sites(2000, seed=2, scales=False)
    found = Harmonizer(components=4, effects="shift", reference=0).fit(table.x, table.site, table.value)
    assert np.all(found.scale_ == 1)
    np.testing.assert_allclose(found.shift_[1], -table.offset[1], atol=0.12)


def test_without_effects_rows_stay_and_are_likelier_where_there_are_none():
    table = modes_at_sites(2000, seed=3, offsets=False, scales=False)
    held_out = modes_at_sites(2000, seed=4, offsets=False, scales=False)
    none, affine = (
        Harmonizer(3, effects=e, validation_fraction=0).fit(table.x, table.site, table.value)
        for e in ("none", "affine")
    )
    np.testing.assert_allclose(none.transform(table.x, table.site), table.x)
    scores = [h.score_samples(held_out.x, held_out.site, held_out.value).mean() for h in (none, affine)]
    assert scores[0] > scores[1]
    assert np.abs(affine.transform(table.x, table.site) - table.x).mean() < 0.06


def test_several_sites_are_mapped_to_their_mean():
    table = modes_at_sites(4000, seed=5, sites=4)
    found = Harmonizer(components=4).fit(table.x, table.site, table.value)
    share = np.bincount(table.site) / len(table.site)
    np.testing.assert_allclose(share @ (1 / found.scale_**2), 1)  # as in ComBat
    content = found.transform(table.x, table.site)
    slope = np.array([np.polyfit(table.content[:, j], content[:, j], 1)[0] for j in range(content.shape[1])])
    residual = content - table.content * slope
    assert (residual - residual.mean(0)).std() < 0.1
    np.testing.assert_allclose(found.inverse_transform(content, table.site), table.x)


@pytest.mark.parametrize("components", [1, 4, 30])
def test_the_posterior_density_never_falls(components):
    table = modes_at_sites(600, seed=6, sites=3)
    path = (
        Harmonizer(components, tol=0.0, max_iter=40, validation_fraction=0)
        .fit(table.x, table.site, table.value)
        .objectives_
    )
    assert len(path) == 40
    assert np.diff(path).min() > -1e-9 * np.abs(path).max()
    assert path[-1] > path[6] + 1  # also after the maps have begun to move


def test_neither_order_nor_names_matter():
    table, rng = modes_at_sites(500, seed=7, sites=3), np.random.default_rng(0)
    first = Harmonizer(components=3).fit(table.x, table.site, table.value)
    rows = rng.permutation(len(table.x))
    again = Harmonizer(components=3).fit(table.x[rows], table.site[rows], table.value[rows])
    np.testing.assert_allclose(again.shift_, first.shift_, rtol=1e-8)
    names = np.array(["c", "a", "b"])
    named = Harmonizer(components=3).fit(table.x, names[table.site], np.array(["yes", "no"])[table.value])
    assert named.sites_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(named.scale_, first.scale_[[1, 2, 0]], rtol=1e-6)
    np.testing.assert_allclose(
        named.transform(table.x, names[table.site]), first.transform(table.x, table.site), rtol=1e-5, atol=1e-6
    )


def test_single_precision_gives_the_same_up_to_rounding():
    table = modes_at_sites(1000, seed=8)
    double, single = (Harmonizer(components=3).fit(table.x.astype(t), table.site, table.value) for t in ("f8", "f4"))
    content = single.transform(table.x.astype("f4"), table.site)
    assert content.dtype == np.float32
    np.testing.assert_allclose(content, double.transform(table.x, table.site), atol=0.01)


def test_density_is_that_of_the_mixture_in_the_units_of_the_site():
    table = modes_at_sites(400, seed=9)
    found = Harmonizer(components=2).fit(table.x, table.site, table.value)
    content = found.transform(table.x, table.site)
    expected = np.empty(len(content))
    for i, (y, e, v) in enumerate(zip(content, table.site, table.value, strict=True)):
        exponent = -0.5 * ((y - found.means_[v]) ** 2 / found.variances_[v] + np.log(2 * np.pi * found.variances_[v]))
        expected[i] = np.log(found.weights_[v][e] @ np.exp(exponent.sum(1))) + np.log(found.scale_[e]).sum()
    np.testing.assert_allclose(found.score_samples(table.x, table.site, table.value), expected, rtol=1e-6)
    np.testing.assert_allclose([w.sum(1) for w in found.weights_], 1)


class TestWhatIsMissing:
    def test_a_site_never_seen_is_named(self):
        table = modes_at_sites(200, seed=0)
        found = Harmonizer(components=2).fit(table.x, table.site, table.value)
        with pytest.raises(ValueError, match=r"Site 7 .*fit_site"):
            found.transform(table.x[:2], [0, 7])

    def test_a_site_never_seen_is_estimated_from_its_own_rows_without_covariates(self):
        table = modes_at_sites(4000, seed=10, sites=3)
        known = table.site < 2
        found = Harmonizer(components=4, reference=0).fit(table.x[known], table.site[known], table.value[known])
        found.fit_site(table.x[~known], 2)
        error = found.transform(table.x[~known], [2] * int((~known).sum())) - table.content[~known]
        assert np.abs(error).mean() < 0.15
        assert found.sites_.tolist() == [0, 1, 2]
        assert found.score_samples(table.x, table.site, table.value).shape == (len(table.x),)
        with pytest.raises(ValueError, match="Site 2 is known already"):
            found.fit_site(table.x[~known], 2)

    def test_sites_are_needed_if_there_are_several(self):
        table = modes_at_sites(200, seed=0)
        found = Harmonizer(components=2).fit(table.x, table.site)
        with pytest.raises(ValueError, match=r"2 sites.*give the site"):
            found.transform(table.x)

    def test_an_unknown_reference_is_named(self):
        table = modes_at_sites(200, seed=0)
        with pytest.raises(ValueError, match=r"reference is 5.*0, 1"):
            Harmonizer(reference=5).fit(table.x, table.site)

    def test_an_unknown_covariate_is_named(self):
        table = modes_at_sites(200, seed=0)
        found = Harmonizer(components=2).fit(table.x, table.site, table.value)
        with pytest.raises(ValueError, match="Covariate 3 did not occur"):
            found.score_samples(table.x[:1], [0], [3])

    @pytest.mark.parametrize("name", ["site", "covariates"])
    def test_lengths_are_checked(self, name):
        table = modes_at_sites(200, seed=0)
        given = {"site": table.site, "covariates": table.value}
        with pytest.raises(ValueError, match=f"{name} has 3 entries, X has 200 rows"):
            Harmonizer().fit(table.x, **{**given, name: [0, 1, 0]})

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"components": 0}, "components is 0"),
            ({"effects": "all"}, "effects is 'all'"),
            ({"max_iter": 0}, "max_iter is 0"),
            ({"validation_fraction": 0.9}, "validation_fraction is 0.9"),
        ],
    )
    def test_arguments_are_checked(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            Harmonizer(**arguments).fit(np.eye(4), [0, 0, 1, 1])

    def test_constants_and_a_site_with_one_row(self):
        table = modes_at_sites(200, seed=0)
        x = np.column_stack([table.x, np.full(200, 3.0), table.site.astype(float)])  # constant, and constant by site
        site = table.site.copy()
        site[0] = 2
        found = Harmonizer(components=2).fit(x, site, table.value)
        content = found.transform(x, site)
        assert np.isfinite(content).all()
        np.testing.assert_allclose(content[:, -2], 3)
        np.testing.assert_allclose(found.scale_[2], 1)  # one row has no scale: that of the mean site
        assert np.ptp(content[1:, -1]) < 0.1  # what differs between sites alone is removed

    def test_a_covariate_that_a_site_does_not_have(self):
        table = modes_at_sites(1000, seed=0)
        keep = (table.site == 0) | (table.value == 0)
        found = Harmonizer(components=4, reference=0).fit(table.x[keep], table.site[keep], table.value[keep])
        error = found.transform(table.x, table.site) - table.content
        assert np.abs(error).mean() < 0.15


def test_26000_rows_take_seconds():
    table = modes_at_sites(26_000, seed=0, columns=30)
    begin = time.process_time()
    Harmonizer(50, validation_fraction=0).fit(table.x.astype("f4"), table.site, table.value)
    assert time.process_time() - begin < 30  # about 6 on one core at rest


def test_a_copy_and_a_pickle_are_as_good():
    table = modes_at_sites(200, seed=0)
    found = Harmonizer(components=2).fit(table.x, table.site, table.value)
    again = clone(found).fit(table.x, table.site, table.value)
    loaded = pickle.loads(pickle.dumps(found))
    for other in (again, loaded):
        assert np.array_equal(other.transform(table.x, table.site), found.transform(table.x, table.site))


class OneSite(Harmonizer):
    """scikit-learn's checks know no sites: their labels are not given on."""

    def fit(self, X: Array, y: Array | None = None) -> OneSite:
        super().fit(X)
        return self

    def fit_transform(self, X: Array, y: Array | None = None) -> Array:
        return self.fit(X).transform(X)

    def score(self, X: Array, y: Array | None = None) -> float:
        return super().score(X)


@parametrize_with_checks([OneSite(components=2, max_iter=5)])
def test_estimator_contract(estimator, check):
    check(estimator)
