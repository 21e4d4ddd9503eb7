import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from codid_lightning.clustering import DPGMM, KMeans


def separated(n: int, k: int, d: int, seed: int = 0, distance: float = 16) -> tuple[np.ndarray, np.ndarray]:
    """Unit Gaussians of different sizes, at least six standard deviations apart."""
    generator = np.random.default_rng(seed)
    means: list[np.ndarray] = []
    while len(means) < k:
        mean = generator.normal(size=d) * distance * np.sqrt((1 if d > 8 else k) / (2 * d))
        if all(np.linalg.norm(mean - other) > 8 for other in means):
            means.append(mean)
    y = np.sort(generator.choice(k, n, p=0.5 / k + 0.5 * generator.dirichlet(np.ones(k))))
    return (np.stack(means)[y] + generator.normal(size=(n, d))).astype(np.float32), y


@pytest.mark.parametrize("d", [2, 10, 128])
@pytest.mark.parametrize("k", [1, 3, 9])
@pytest.mark.parametrize("doubled", [False, True])
def test_number_of_clusters_is_recovered(d, k, doubled):
    x, y = separated(1500, k, d, seed=d)
    found = DPGMM(n_clusters=2 * k if doubled else 1).fit(x)
    assert found.n_clusters_ == k
    assert adjusted_rand_score(y, found.labels_) > 0.999


@pytest.mark.parametrize("family", ["diag", "spherical"])
def test_number_of_clusters_is_recovered_by_every_family(family):
    x, y = separated(1500, 5, 4)
    found = DPGMM(covariance_type=family).fit(x)
    assert found.n_clusters_ == 5
    assert adjusted_rand_score(y, found.labels_) > 0.999


def test_a_large_gaussian_stays_one_cluster():
    x = np.random.default_rng(0).normal(size=(20_000, 3)).astype(np.float32)
    assert DPGMM().fit(x).n_clusters_ == 1


@pytest.mark.parametrize("d", [2, 40])
def test_partition_does_not_depend_on_place_unit_rotation_or_order(d):
    x, y = separated(900, 4, d)
    x = x.astype(np.float64)
    generator = np.random.default_rng(1)
    order = generator.permutation(len(x))
    rotation = np.linalg.qr(generator.normal(size=(d, d)))[0]
    for changed, truth in [(x + 1000, y), (x * 1e-5, y), (x * 1e5, y), (x @ rotation, y), (x[order], y[order])]:
        assert adjusted_rand_score(truth, DPGMM().fit(changed).labels_) == 1


def test_translation_moves_parameters_and_nothing_else():
    x, _ = separated(600, 3, 3)
    x = np.round(x.astype(np.float64) * 2**10) / 2**10  # so that adding 8 is exact
    here, there = DPGMM().fit(x), DPGMM().fit(x + 8)
    np.testing.assert_array_equal(here.labels_, there.labels_)
    np.testing.assert_allclose(here.means_ + 8, there.means_, atol=1e-9)
    np.testing.assert_allclose(here.covariances_, there.covariances_, atol=1e-9)
    np.testing.assert_allclose(here.score_samples(x), there.score_samples(x + 8), atol=1e-8)


CHANGES = ("order of samples", "order of coordinates", "place", "unit", "names of clusters")
ANY_SAMPLES = {
    "n": st.integers(4, 60),
    "d": st.integers(1, 6),
    "k": st.integers(1, 5),
    "family": st.sampled_from(["full", "diag", "spherical"]),
    "change": st.sampled_from(CHANGES),
    "seed": st.integers(0, 2**20),
}


def followed(x: np.ndarray, start: np.ndarray, family: str) -> np.ndarray:
    """Labels after a round of splits and one of merges, from given clusters."""
    model = DPGMM(max_rounds=0, deterministic=True, covariance_type=family).fit(x, initial_labels=start)
    return model.refine(x, move="split").refine(x, move="merge").labels_


def check_same_clusters(n: int, d: int, k: int, family: str, change: str, seed: int) -> None:
    """Samples without any structure to rely on are clustered alike however they are written down."""
    generator = np.random.default_rng(seed)
    x = generator.standard_t(4, size=(n, d)) + 4 * generator.integers(3, size=(n, 1))
    x = np.round(x * 2**10) / 2**10  # so that moving and scaling are exact
    start, order, coordinates = generator.integers(k, size=n), generator.permutation(n), generator.permutation(d)
    expected = followed(x, start, family)
    found = {
        "order of samples": lambda: followed(x[order], start[order], family)[np.argsort(order)],
        "order of coordinates": lambda: followed(x[:, coordinates], start, family),
        "place": lambda: followed(x + 64, start, family),
        "unit": lambda: followed(x / 512, start, family),
        "names of clusters": lambda: followed(x, 7 - 3 * start, family),
    }[change]()
    assert adjusted_rand_score(expected, found) == 1


test_any_samples_are_clustered_alike_however_they_are_written = settings(max_examples=100, deadline=None)(
    given(**ANY_SAMPLES)(check_same_clusters)
)


def test_same_seed_same_result():
    x = np.random.default_rng(0).standard_t(3, size=(800, 4))
    one, two = DPGMM(random_state=5).fit(x), DPGMM(random_state=5).fit(x)
    np.testing.assert_array_equal(one.probs_, two.probs_)
    assert one.moves_ == two.moves_


@pytest.mark.parametrize(("d", "n_components"), [(3, None), (40, None), (6, 2)])
def test_densities_are_those_of_the_published_mixture(d, n_components):
    x, _ = separated(500, 3, d)
    x = x.astype(np.float64)
    model = DPGMM(n_components=n_components).fit(x)
    reference = GaussianMixture(model.n_clusters_)
    inner = model.inner_means_ @ model.basis_.T * model.scale_ + model.center_
    reference.weights_, reference.means_, reference.covariances_ = model.weights_, inner.numpy(), model.covariances_
    reference.precisions_cholesky_ = np.linalg.inv(np.linalg.cholesky(model.covariances_)).transpose(0, 2, 1)
    np.testing.assert_allclose(model.score_samples(x), reference.score_samples(x), rtol=1e-8)
    np.testing.assert_allclose(model.predict_proba(x), reference.predict_proba(x), atol=1e-8)
    np.testing.assert_array_equal(model.predict(x), model.labels_)
    np.testing.assert_allclose(model.weights_.sum(), 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_and_torch_give_the_same_in_their_own_kind(dtype):
    x, _ = separated(400, 3, 5)
    x = x.astype(dtype)
    from_numpy, from_torch = DPGMM().fit(x), DPGMM().fit(torch.from_numpy(x))
    for name in ("labels_", "probs_", "sub_probs_", "means_", "sub_means_", "weights_", "covariances_", "parents_"):
        array, tensor = getattr(from_numpy, name), getattr(from_torch, name)
        assert isinstance(array, np.ndarray)
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_array_equal(array, tensor.numpy())
    assert from_numpy.probs_.dtype == from_numpy.predict_proba(x).dtype == from_numpy.means_.dtype == dtype
    assert isinstance(from_torch.predict(torch.from_numpy(x)), torch.Tensor)
    assert isinstance(from_numpy.score_samples(x), np.ndarray)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_other_dtypes_are_clustered_in_float32(dtype):
    x, y = separated(400, 3, 5)
    assert adjusted_rand_score(y, DPGMM().fit(torch.from_numpy(x).mul(4).to(dtype)).labels_) == 1


def test_initial_labels_start_the_search_and_zero_rounds_keep_them():
    x, y = separated(600, 4, 3)
    kept = DPGMM(max_rounds=0).fit(x, initial_labels=y * 7 - 3)
    assert adjusted_rand_score(y, kept.labels_) == 1
    with pytest.raises(ValueError, match=r"initial_labels must have shape \(600,\)"):
        DPGMM().fit(x, initial_labels=y[:-1])


def test_subcluster_probabilities_from_outside_steer_the_splits():
    """Four blobs in a square: whoever proposes says along which side to cut."""
    generator = np.random.default_rng(0)
    corner = np.arange(800) % 4
    x = np.stack([corner % 2, corner // 2], 1) * 20 + generator.normal(size=(800, 2))
    for side in (corner % 2, corner // 2):
        model = DPGMM(max_rounds=0).fit(x)
        model.refine(x, move="split", subcluster_probs=np.stack([side, 1 - side], 1))
        assert model.n_clusters_ == 2
        assert adjusted_rand_score(side, model.labels_) == 1
        assert model.parents_.tolist() == [[1], [1]]


def test_a_useless_split_from_outside_is_rejected():
    x, _ = separated(600, 1, 2)
    model = DPGMM(max_rounds=0).fit(x)
    model.refine(x, move="split", subcluster_probs=np.eye(2)[np.random.default_rng(0).integers(2, size=600)])
    assert [(p.kind, p.accepted) for p in model.moves_] == [("split", False)]
    assert model.moves_[0].log_hastings < 0


def test_samples_that_changed_their_cluster_are_halved_as_their_new_cluster_is():
    """Two clusters; before the split, samples of the second one come to lie in the upper half of the first one."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(900, 2)) + np.where(np.arange(900) < 500, 0, 60)[:, None]
    model = DPGMM(max_rounds=0, deterministic=True).fit(x, initial_labels=(np.arange(900) >= 500).astype(int))
    upper = (np.arange(900) % 2 == 0) & (np.arange(900) < 500)
    moved = (np.arange(900) >= 500) & (np.arange(900) < 700)
    x = np.where(moved[:, None], generator.normal(size=(900, 2)), x)
    x[upper | moved, 1] += 12  # those samples and half of the first cluster
    in_first, in_second = np.where(upper | moved, 0.9, 0.1), np.where(np.arange(900) % 2, 0.9, 0.1)
    first = np.stack([in_first, in_second], 1)
    model.refine(x, move="split", subcluster_probs=np.stack([first, 1 - first], 2))
    (split,) = (p for p in model.moves_ if p.clusters == (0,))
    assert split.accepted
    assert len(np.unique(model.labels_[upper | moved])) == 1
    assert not np.isin(model.labels_[~(upper | moved)], model.labels_[upper | moved]).any()
    own = np.where(np.arange(900) < 500, in_first, in_second)  # what was given before: halves of the former cluster
    former = DPGMM(max_rounds=0, deterministic=True).fit(x, initial_labels=(np.arange(900) >= 700).astype(int))
    former.refine(x, move="split", subcluster_probs=np.stack([own, 1 - own], 1))
    (mixed,) = (p for p in former.moves_ if p.clusters == (0,))
    assert mixed.log_hastings < split.log_hastings / 2, "halves of another cluster cut this one at random"


def test_parents_of_splits_merges_and_survivors():
    x, y = separated(900, 3, 2, seed=3)
    model = DPGMM(max_rounds=0).fit(x, initial_labels=np.minimum(y, 1))
    model.refine(x, move="split")
    assert model.n_clusters_ == 3
    assert model.parents_.tolist() == [[1, 0], [0, 1], [0, 1]]
    halved = np.where((y == 0) & (x[:, 0] > np.median(x[y == 0, 0])), 3, y)
    model = DPGMM(max_rounds=0, max_iter=1, deterministic=True).fit(x, initial_labels=halved)
    sizes = np.bincount(model.labels_)
    model.refine(x, move="merge")
    assert model.n_clusters_ == 3
    merged = np.flatnonzero((model.parents_ > 0).sum(1) == 2)
    assert len(merged) == 1
    np.testing.assert_allclose(model.parents_.sum(1), 1)
    np.testing.assert_allclose(model.parents_[merged[0], [0, 3]], sizes[[0, 3]] / sizes[[0, 3]].sum(), atol=0.02)
    survivors = np.delete(model.parents_, merged, 0)
    assert ((survivors == 0) | (survivors == 1)).all()


def test_refine_follows_moving_samples():
    x, _ = separated(900, 4, 20)
    model = DPGMM().fit(x)
    before = model.labels_
    rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 20)))[0].astype(np.float32)
    np.testing.assert_array_equal(model.refine(x @ rotation * 3 + 5).labels_, before)
    assert model.parents_.tolist() == np.eye(4).tolist()
    with pytest.raises(ValueError, match="X has 899 samples; refine needs the 900 samples of the last call"):
        model.refine(x[:-1])


def test_state_dict_continues_bit_for_bit():
    x = np.random.default_rng(0).standard_t(3, size=(500, 3))
    original = DPGMM(n_clusters=6, max_rounds=0).fit(x)
    buffer = io.BytesIO()
    torch.save(original.state_dict(), buffer)
    buffer.seek(0)
    resumed = DPGMM(n_clusters=6, max_rounds=0)
    resumed.load_state_dict(torch.load(buffer, weights_only=True))
    for move in ("split", "merge", None, "split"):
        original.refine(x, move=move)
        resumed.refine(x, move=move)
        assert original.moves_ == resumed.moves_
        for name in ("labels_", "probs_", "sub_probs_", "means_", "parents_"):
            np.testing.assert_array_equal(getattr(original, name), getattr(resumed, name))


def test_more_clusters_than_the_truncation_raise():
    x, _ = separated(900, 6, 2)
    model = DPGMM(max_clusters=4).fit(x)
    assert model.n_clusters_ <= 4


def test_psi_scale_widens_clusters():
    x = np.random.default_rng(0).normal(size=(40, 3))
    x[:20] += 4
    found = [DPGMM(psi_scale=scale, max_rounds=0).fit(x).covariances_[0].trace() for scale in (0.1, 1, 10)]
    assert found == sorted(found)
    assert DPGMM(psi_scale=100).fit(x).n_clusters_ == 1


def paired(distance: float, n: int = 1200) -> tuple[np.ndarray, np.ndarray]:
    """Three groups two apart, each of two tight halves at a distance; noise 0.02. Samples and their groups."""
    generator = np.random.default_rng(0)
    group, half = generator.integers(3, size=n), generator.integers(2, size=n)
    x = np.stack([2.0 * group, distance * half], axis=1) + 0.02 * generator.normal(size=(n, 2))
    return x, group


@pytest.mark.parametrize("scale", [1e-3, 1, 1e3])
@pytest.mark.parametrize("start", [1, 6])
def test_in_units_of_the_samples_a_gap_counts_by_its_share_of_their_spread(scale, start):
    x, group = paired(distance=0.4)
    x = scale * x + 7 * scale
    assert DPGMM(n_clusters=start).fit(x).n_clusters_ == 6, "a gap of twenty times the noise"
    found = DPGMM(n_clusters=start, psi_unit="samples", psi_scale=0.1, nu=1000).fit(x)
    assert found.n_clusters_ == 3
    assert adjusted_rand_score(group, found.labels_) == 1
    narrow = DPGMM(n_clusters=start, psi_unit="samples", psi_scale=1e-4, nu=1000).fit(x)
    assert narrow.n_clusters_ == 6


def test_psi_unit_is_one_of_two():
    with pytest.raises(ValueError, match="psi_unit is 'sample'"):
        DPGMM(psi_unit="sample").fit(paired(distance=1)[0])


@pytest.mark.parametrize("family", ["spherical", "diag"])
def test_covariances_of_every_family_are_matrices_close_to_the_samples(family):
    x, y = separated(900, 3, 2)
    model = DPGMM(covariance_type=family).fit(x)
    assert model.covariances_.shape == (3, 2, 2)
    for covariance, mean in zip(model.covariances_, model.means_, strict=True):
        own = x[y == y[((x - mean) ** 2).sum(1).argmin()]]
        np.testing.assert_allclose(covariance, np.cov(own.T), atol=0.25)
        assert covariance[0, 1] == pytest.approx(0, abs=1e-6)


def test_a_search_proposes_merges_and_splits_in_turn():
    x, _ = separated(600, 3, 2)
    model = DPGMM(max_rounds=2).fit(x)
    kinds = [move.kind for move in model.moves_]
    assert kinds == sorted(kinds)  # merges in the first round, splits in the second
    assert set(kinds) == {"merge", "split"}


def test_the_last_two_clusters_merge_if_they_are_one():
    x, _ = separated(600, 1, 2)
    model = DPGMM(max_rounds=0).fit(x, initial_labels=np.arange(600) % 2)
    assert model.n_clusters_ == 2
    assert model.refine(x, move="merge").n_clusters_ == 1


@pytest.mark.parametrize("shape", [(6,), (6, 2, 2), (0, 2), (6, 0)])
def test_tensors_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"Expected samples of shape \(N, d\)"):
        DPGMM().fit(torch.zeros(shape))


@pytest.mark.parametrize("model", [KMeans(n_clusters=3), DPGMM()], ids=lambda model: type(model).__name__)
def test_new_samples_belong_to_the_nearest_of_separated_clusters(model):
    x, _ = separated(600, 3, 2)
    model.fit(x)
    new = model.means_ + 0.1
    probs = model.predict_proba(new)
    assert probs.shape == (3, model.n_clusters_)
    np.testing.assert_allclose(probs, np.eye(3), atol=1e-3)
