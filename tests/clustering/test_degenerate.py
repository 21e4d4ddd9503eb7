import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from codid_lightning.clustering import DPGMM, KMeans, ModesPerValue

FAMILIES = ("full", "diag", "spherical")


def check_sound(model: DPGMM, x: np.ndarray) -> None:
    n, k = len(x), model.n_clusters_
    assert 1 <= k <= len(np.unique(x, axis=0))
    assert model.probs_.shape == (n, k)
    np.testing.assert_allclose(model.probs_.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(model.sub_probs_.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(model.parents_.sum(1), 1, atol=1e-9)
    assert np.unique(model.labels_).tolist() == list(range(k))
    for name in ("probs_", "sub_probs_", "means_", "sub_means_", "weights_", "covariances_"):
        assert np.isfinite(getattr(model, name)).all(), name
    assert np.isfinite(model.score_samples(x)).all()
    np.testing.assert_array_equal(model.predict(x), model.labels_)


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 24),
    distinct=st.integers(1, 40),
    rank=st.integers(0, 24),
    scale=st.sampled_from([1e-6, 1e-2, 1.0, 1e3, 1e6]),
    start=st.integers(1, 50),
    family=st.sampled_from(FAMILIES),
    single=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_any_shape_scale_rank_and_repetition(n, d, distinct, rank, scale, start, family, single, seed):
    """Repeated samples, more dimensions than samples, flat directions, more clusters than samples: finite and sound."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(distinct, min(rank, d))) @ generator.normal(size=(min(rank, d), d))
    x = (scale * x + generator.normal() * scale)[generator.integers(distinct, size=n)]
    x = x.astype(np.float32 if single else np.float64)
    model = DPGMM(n_clusters=start, covariance_type=family, random_state=seed).fit(x)
    check_sound(model, x)
    for move in ("split", "merge"):
        check_sound(model.refine(x, move=move), x)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("d", [1, 3, 40])
def test_identical_samples_are_one_cluster(family, d):
    x = np.full((50, d), 3.7)
    model = DPGMM(n_clusters=5, covariance_type=family).fit(x)
    assert model.n_clusters_ == 1
    np.testing.assert_allclose(model.means_, x[:1])


@pytest.mark.parametrize("family", FAMILIES)
def test_two_far_piles_are_two_clusters(family):
    x = np.repeat([[0.0, 0.0], [1e6, 1e6]], 50, axis=0) + np.random.default_rng(0).normal(size=(100, 2))
    model = DPGMM(covariance_type=family).fit(x)
    assert model.n_clusters_ == 2
    assert len(np.unique(model.labels_[:50])) == len(np.unique(model.labels_[50:])) == 1


def test_one_sample():
    model = DPGMM(n_clusters=3).fit(np.ones((1, 4)))
    assert model.labels_.tolist() == [0]
    check_sound(model, np.ones((1, 4)))


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_raise(kind, bad):
    x = np.ones((20, 2))
    x[[3, 5], 1] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        DPGMM().fit(kind(x))


def test_finite_samples_whose_sum_overflows_are_read():
    x = torch.full((10, 2), 3e38)
    assert DPGMM()._read(x, reset=True) is not None


def test_fewer_samples_than_clusters_under_a_value():
    a = torch.tensor([0] * 3 + [1] * 60)
    z = torch.randn(63, 2, generator=torch.Generator().manual_seed(0))
    for clusterer in (DPGMM(), KMeans()):
        modes = ModesPerValue(clusterer, n_clusters=[5, 5], max_clusters=8)
        found = modes.fit(z, a)
        assert 1 <= int(found.active[0].sum()) <= 3
        for move in ("merge", "split"):
            found = modes.refine(z, a, move)
            assert torch.isfinite(found.means).all()
            assert torch.equal(found.labels // 8, a)


def test_empty_clusters_are_removed_and_parents_say_so():
    """A cluster whose samples moved into another one is nobody's choice any more."""
    x = np.random.default_rng(0).normal(size=(300, 2))
    x[200:] += 40
    labels = np.repeat([0, 1, 2], [197, 3, 100])
    model = DPGMM(max_rounds=0, max_iter=1).fit(x, initial_labels=labels)
    moved = x.copy()
    moved[197:200] = x[:3]
    for _ in range(30):
        former = model.n_clusters_
        model.refine(moved)
        assert model.parents_.shape == (model.n_clusters_, former)
        check_sound(model, moved)


@pytest.mark.parametrize("seed", range(100))
def test_moves_settle_and_never_undo_each_other_within_a_round(seed):
    """Alternating rounds on still samples end, and a round proposes one kind of move, each cluster taking part once."""
    generator = np.random.default_rng(seed)
    x = generator.standard_t(4, size=(150, 2)) + 4 * generator.integers(3, size=(150, 1))
    model = DPGMM(n_clusters=5, max_rounds=0, deterministic=True, random_state=seed).fit(x)
    counts = []
    for t in range(20):
        move = "split" if t % 2 else "merge"
        model.refine(x, move=move)
        counts.append(model.n_clusters_)
        assert {p.kind for p in model.moves_} <= {move}
        taken = [c for p in model.moves_ if p.accepted for c in p.clusters]
        assert len(taken) == len(set(taken))
    assert len(set(counts[-4:])) == 1, counts


def _peak(n: int, d: int) -> tuple[float, int]:
    """Megabytes a fit adds to the peak memory of a process of its own, and how many clusters it finds."""
    program = f"""
import numpy as np, torch
from codid_lightning.clustering import DPGMM
generator = np.random.default_rng(0)
y = generator.integers(4, size={n})
x = generator.standard_normal(({n}, {d}), dtype=np.float32)
x += 12 * generator.standard_normal((4, {d}), dtype=np.float32)[y]
def peak():  # not ru_maxrss, which begins at the peak of the process that started this one
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
DPGMM().fit(x[:1000])
before = peak()
model = DPGMM().fit(x)
print((peak() - before) / 1024, model.n_clusters_)
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=900)
    megabytes, k = out.stdout.split()
    return float(megabytes), int(k)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_samples_in_memory_linear_in_their_number():
    quarter, few = _peak(250_000, 8)
    whole, many = _peak(1_000_000, 8)
    assert few == many == 4
    assert 0 < whole < 5 * quarter
    assert whole < 1_000_000 * 8 * 4 * 60 / 2**20  # dozens of copies of the samples, not thousands


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_512_dimensions():
    assert _peak(20_000, 512)[1] == 4
