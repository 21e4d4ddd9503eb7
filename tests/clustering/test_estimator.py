"""What a user of scikit-learn expects of DPGMM besides fit and predict, and that Gaussians that overlap are joined."""

from __future__ import annotations

import pickle

import joblib
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from benchmarks.clustering_sets import deep_features
from codid_lightning.clustering import DPGMM, KMeans, ModesPerValue
from codid_lightning.clustering.legacy import upgrade_arguments
from codid_lightning.clustering.overlap import overlapping_groups
from tests.clustering.test_dpgmm import separated


def confusion(probs: np.ndarray) -> np.ndarray:
    """Misclassification probabilities by definition: of the mass of row's component, the share labelled as column."""
    labels, k = probs.argmax(1), probs.shape[1]
    return np.array([[probs[labels == j, i].sum() / probs[:, i].sum() for j in range(k)] for i in range(k)])


def nested(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two groups, each a narrow and a wide Gaussian around one mean: one cluster of two components each."""
    generator = np.random.default_rng(seed)
    y, wide = generator.integers(2, size=3000), generator.random(3000) < 0.5
    return generator.normal(size=(3000, 3)) * np.where(wide, 2, 0.7)[:, None] + 20 * y[:, None], y


def test_groups_are_what_joining_the_most_confused_pair_by_hand_gives():
    generator = np.random.default_rng(0)
    for _ in range(20):
        probs = generator.dirichlet(np.full(6, 0.15), size=200)
        parts, table = [{i} for i in range(6)], probs
        while len(parts) > 1:
            share = np.maximum(confusion(table), confusion(table).T)
            np.fill_diagonal(share, 0)
            if share.max() <= 0.2:
                break
            i, j = sorted(np.unravel_index(share.argmax(), share.shape))
            parts[i] |= parts.pop(j)
            table = np.stack([probs[:, sorted(part)].sum(1) for part in parts], 1)
        given = torch.from_numpy(probs.copy())
        found = overlapping_groups(given, 0.2).tolist()
        np.testing.assert_array_equal(given, probs)  # not changed
        assert {frozenset(np.flatnonzero(np.array(found) == g).tolist()) for g in set(found)} == set(
            map(frozenset, parts)
        )


def test_gaussians_that_overlap_are_one_cluster_of_several_components():
    x, y = nested()
    apart, joined = DPGMM(max_overlap=None).fit(x), DPGMM().fit(x)
    assert apart.n_clusters_ > 2
    assert apart.component_cluster_ is None
    assert joined.n_clusters_ == 2
    assert adjusted_rand_score(y, joined.labels_) > 0.99
    np.testing.assert_array_equal(joined.predict(x), joined.labels_)
    np.testing.assert_allclose(joined.predict_proba(x), joined.probs_, atol=1e-9)
    np.testing.assert_allclose(joined.score_samples(x), apart.score_samples(x), atol=1e-9)
    for k in range(2):
        np.testing.assert_allclose(joined.covariances_[k], np.cov(x[y == k].T), rtol=0.15, atol=0.5)
    followed = joined.refine(x)
    assert followed.n_clusters_ == 2
    assert followed.component_cluster_ is None


def test_modes_per_value_keep_one_gaussian_per_cluster():
    x, _ = nested()
    modes = ModesPerValue(DPGMM(), n_clusters=[1], max_clusters=8, search=True)
    modes.fit(torch.from_numpy(x), torch.zeros(len(x), dtype=torch.long))
    assert modes.clusterers[0].n_clusters_ > 2


def test_merging_does_not_run_away_from_many_clusters_that_overlap():
    """Every merge widens the prior and makes the next likelier; where merging stops is far too coarse."""
    x, y = deep_features(2500, 50, 32, 0.7, seed=5)
    stops, levels = (DPGMM(every_level=every, fineness=1, max_overlap=None).fit(x) for every in (False, True))
    assert stops.n_clusters_ + 5 < levels.n_clusters_ < 50
    assert adjusted_rand_score(y, stops.labels_) + 0.05 < adjusted_rand_score(y, levels.labels_)


def test_weights_count_as_repetitions():
    x, _ = separated(300, 3, 2)
    weights = np.random.default_rng(0).integers(0, 4, size=len(x))
    weighted, repeated = DPGMM().fit(x, sample_weight=weights), DPGMM().fit(np.repeat(x, weights, axis=0))
    assert weighted.n_clusters_ == repeated.n_clusters_ == 3
    np.testing.assert_allclose(weighted.weights_, repeated.weights_, atol=1e-6)
    np.testing.assert_allclose(weighted.covariances_, repeated.covariances_, atol=1e-5)
    np.testing.assert_allclose(weighted.predict_proba(x), repeated.predict_proba(x), atol=1e-6)
    with pytest.raises(ValueError, match=r"sample_weight must have shape \(300,\)"):
        DPGMM().fit(x, sample_weight=weights[1:])
    with pytest.raises(ValueError, match="not negative"):
        DPGMM().fit(x, sample_weight=-weights)


def test_a_stream_is_clustered_batch_by_batch():
    x, y = separated(1500, 5, 3)
    order = np.argsort(y, kind="stable")  # clusters appear one after the other
    model = DPGMM()
    for part in np.array_split(order, 5):
        model.partial_fit(x[part])
    assert model.n_clusters_ == 5
    assert adjusted_rand_score(y, model.predict(x)) > 0.99
    np.testing.assert_allclose(np.sort(model.weights_), np.sort(np.bincount(y) / len(y)), atol=0.02)
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(x[:, :2])


def test_draws_score_and_criterion_are_those_of_the_mixture():
    x, _ = separated(2000, 3, 4)
    x = x.astype(np.float64)
    model = DPGMM().fit(x)
    drawn, labels = model.sample(4000)
    assert adjusted_rand_score(labels, model.predict(drawn)) > 0.99
    np.testing.assert_allclose(drawn.mean(0), x.mean(0), atol=0.5)
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(x.T), rtol=0.1, atol=1.5)
    assert model.score(x) == pytest.approx(model.score_samples(x).mean())
    reference = GaussianMixture(model.n_clusters_, random_state=0).fit(x)
    assert model.bic(x) == pytest.approx(reference.bic(x), rel=0.01)


def test_the_state_of_the_last_em():
    x, _ = separated(600, 3, 3)
    model = DPGMM().fit(x)
    assert model.converged_
    assert 1 < model.n_iter_ == len(model.objectives_) < 10
    assert not DPGMM(max_iter=1, max_rounds=0).fit(x).converged_


def test_a_warm_start_keeps_the_clusters():
    x, y = separated(600, 4, 3)
    model = DPGMM(warm_start=True, max_rounds=0).fit(x, initial_labels=y)
    np.testing.assert_array_equal(model.fit(x).labels_, model.labels_)
    assert model.n_clusters_ == 4
    assert model.set_params(warm_start=False).fit(x).n_clusters_ == 1


def test_of_several_searches_the_likeliest_is_kept():
    x = np.random.default_rng(0).standard_t(3, size=(400, 2))
    alone = DPGMM(n_clusters=6, max_rounds=0).fit(x)
    several = DPGMM(n_clusters=6, max_rounds=0, n_init=8).fit(x)

    def joint(model: DPGMM) -> float:
        return model._log_joint(model._project(torch.from_numpy(x)), torch.from_numpy(model.probs_))

    assert joint(several) > joint(alone)
    with pytest.raises(ValueError, match="n_init is 0"):
        DPGMM(n_init=0).fit(x)


@pytest.mark.parametrize("random_state", [3, np.random.RandomState(0), None])
def test_random_states_of_scikit_learn(random_state):
    x, y = separated(300, 3, 2)
    assert adjusted_rand_score(y, DPGMM(random_state=random_state).fit(x).labels_) > 0.99


def test_names_of_transformed_columns():
    x, _ = separated(300, 3, 2)
    table = DPGMM().set_output(transform="pandas").fit_transform(x)
    assert table.columns.tolist() == ["dpgmm0", "dpgmm1", "dpgmm2"]
    np.testing.assert_allclose(table.sum(axis=1), 1)


@pytest.mark.parametrize("keep", ["pickle", "joblib"])
def test_a_stored_model_goes_on_as_the_original(keep, tmp_path):
    x, _ = nested()
    model = DPGMM().fit(x)
    if keep == "pickle":
        again = pickle.loads(pickle.dumps(model))
    else:
        joblib.dump(model, tmp_path / "model")
        again = joblib.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))
    assert again.history_ == model.history_
    np.testing.assert_array_equal(again.refine(x, move="split").labels_, model.refine(x, move="split").labels_)


def test_history_and_its_picture():
    x, _ = nested()
    model = DPGMM().fit(x)
    assert [p for r in model.history_ for p in r.proposals] == list(model.moves_)
    assert model.history_[0].kind == "merge"
    model.refine(x, move="split")
    assert model.history_[-1].proposals == model.moves_
    axes = model.plot_history()
    points = sum(len(c.get_offsets()) for c in axes.collections)
    assert points == sum(np.isfinite(p.log_hastings) for r in model.history_ for p in r.proposals)
    plt.close("all")


def test_threads_are_given_back():
    before = torch.get_num_threads()
    DPGMM(n_jobs=1).fit(separated(300, 3, 2)[0])
    assert torch.get_num_threads() == before


def test_arguments_of_before_have_other_names():
    old = {"seed": 3, "n_iter": 4, "nu": 7}
    new = {"random_state": 3, "max_iter": 4, "nu": 7}
    for path in ("DPGMM", "codid_lightning.clustering.DPGMM", "codid_lightning.clustering.dpgmm.DPGMM"):
        assert upgrade_arguments(path, old) == new
    assert DPGMM(**new).get_params()["random_state"] == 3
    assert (
        upgrade_arguments("codid_lightning.KMeans", {"seed": 1})
        == {"random_state": 1}
        == {"random_state": KMeans(random_state=1).random_state}
    )
    assert upgrade_arguments("mine.DPGMM", old) == old
