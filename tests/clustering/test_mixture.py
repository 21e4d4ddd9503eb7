import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.mixture import GaussianMixture
from torch import Tensor

from codid_lightning.clustering.features import QuadraticFeatures
from codid_lightning.clustering.mixture import MapEM, principal_cut, spread_labels
from codid_lightning.clustering.niw import NIW, empirical_prior

FAMILIES = ("full", "diag", "spherical")


def overlapping(n: int = 400, d: int = 3, k: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=generator)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) * torch.linspace(0.5, 2, d)
    x = x + 2 * torch.randn(k, d, generator=generator, dtype=torch.float64)[labels]
    return x - x.mean(0), labels


def flat_prior(d: int, family: str) -> NIW:
    """A prior under which MAP is maximum likelihood."""
    psi = torch.zeros([d, d][: 2 - FAMILIES.index(family)], dtype=torch.float64)
    return NIW(torch.zeros(d).double(), 1e-12, psi, -3.0 if family == "diag" else -(d + 2.0))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=15, deadline=None)
@given(n=st.integers(5, 120), d=st.integers(1, 6), k=st.integers(1, 6), seed=st.integers(0, 999))
def test_log_posterior_never_falls(family, n, d, k, seed):
    x, labels = overlapping(n, d, k, seed)
    features = QuadraticFeatures(x, family)
    labels = labels.unique(return_inverse=True)[1]
    clusters = features.to_moments(features.group_sums(labels, int(labels.max()) + 1))
    _, probs, objectives = MapEM(features, empirical_prior(clusters), 1.0).run(clusters, 20, -torch.inf)
    assert len(objectives) == 20
    assert (np.diff(objectives) > -1e-7 * n).all()
    torch.testing.assert_close(probs.sum(1), torch.ones(n).double())


@pytest.mark.parametrize("family", FAMILIES)
def test_em_under_a_flat_prior_is_scikit_learns(family):
    x, labels = overlapping()
    features = QuadraticFeatures(x, family)
    start = features.to_moments(features.group_sums(labels, 3))
    em = MapEM(features, flat_prior(3, family), 1.0)
    means, covariances = em.prior.map_estimate(start)
    precisions = torch.linalg.inv(covariances) if family == "full" else 1 / covariances
    reference = GaussianMixture(
        3, covariance_type=family, reg_covar=0, tol=0, max_iter=30,
        weights_init=em.weights(start), means_init=means, precisions_init=precisions,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="converge"):
        reference.fit(x.numpy())
    found, probs, _ = em.run(start, 31, -torch.inf)
    np.testing.assert_allclose(probs, reference.predict_proba(x.numpy()), atol=1e-8)
    np.testing.assert_allclose(em.prior.map_estimate(found)[0], reference.means_, atol=1e-8)
    np.testing.assert_allclose(em.prior.map_estimate(found)[1], reference.covariances_, atol=1e-8)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_pass_gives_densities_and_statistics(family, dtype):
    """Blocks of features against the definitions, with more samples than one block holds."""
    x, labels = overlapping(9000, 12)
    features = QuadraticFeatures(x.to(dtype), family)
    clusters = features.to_moments(features.group_sums(labels, 3))
    em = MapEM(features, empirical_prior(clusters, floor=1e-6), 1.0)
    probs, log_likelihood, sums = features.assign(em.coefficients(clusters))
    means, covariances = em.prior.map_estimate(clusters)
    logs = []
    for weight, mean, covariance in zip(em.weights(clusters), means, covariances, strict=True):
        matrix = covariance.numpy() if family == "full" else np.diag(np.broadcast_to(covariance, 12))
        logs.append(float(weight.log()) + stats.multivariate_normal.logpdf(x.numpy(), mean.numpy(), matrix))
    expected = np.logaddexp.reduce(logs)
    precision = 1e-3 if dtype == torch.float32 else 1e-9
    np.testing.assert_allclose(log_likelihood, expected, atol=precision)
    np.testing.assert_allclose(probs, np.exp(logs - expected).T, atol=precision)
    following = features.to_moments(sums)
    np.testing.assert_allclose(following.mean, (probs.double().T @ x) / probs.double().sum(0)[:, None], atol=precision)
    assert following.n.dtype == torch.float64


@pytest.mark.parametrize("family", FAMILIES)
def test_own_scores_and_group_sums_by_brute_force(family):
    x, labels = overlapping(300, 4)
    features = QuadraticFeatures(x, family)
    phi = torch.cat(list(features), 1)
    weights = torch.rand(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums = features.group_sums(labels, 3, weights)
    torch.testing.assert_close(sums, torch.stack([(phi * weights * (labels == c)).sum(1) for c in range(3)]))
    own = features.own_scores(sums, labels)
    torch.testing.assert_close(own, (sums[labels] * phi.T).sum(1))


def test_halves_find_the_two_parts_of_every_cluster():
    generator = torch.Generator().manual_seed(0)
    cluster = torch.arange(1200) % 3
    side = torch.arange(1200) // 3 % 2
    x = 0.3 * torch.randn(1200, 2, generator=generator, dtype=torch.float64)
    x[:, 0] += 20.0 * cluster
    x[:, 1] += 4.0 * side
    features = QuadraticFeatures(x - x.mean(0), "full")
    clusters = features.to_moments(features.group_sums(cluster, 3))
    first = MapEM(features, empirical_prior(clusters), 1.0).subcluster_probs(cluster, 3, 10, 1e-3)
    for c in range(3):
        found = first[cluster == c].round().long()
        agree = (found == side[cluster == c]).double().mean()
        assert agree in (0, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_clusters_are_cut_across_their_widest_side(family):
    """Also if the covariance family does not contain it; each of three clusters is widest along another coordinate."""
    generator = torch.Generator().manual_seed(0)
    cluster = torch.arange(900) % 3
    x = torch.randn(900, 3, generator=generator, dtype=torch.float64) * (1 + 9 * torch.eye(3).double()[cluster])
    features = QuadraticFeatures(x, family)
    cut = principal_cut(x, cluster, features.to_moments(features.group_sums(cluster, 3)))
    for c in range(3):
        along = x[cluster == c, c]
        agree = ((along > along.mean()) == cut[cluster == c].bool()).double().mean()
        assert agree > 0.9 or agree < 0.1


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 60), distinct=st.integers(1, 60), k=st.integers(1, 70), lloyd=st.integers(0, 3))
def test_initial_labels_are_populated_and_no_more_than_distinct_samples(n, distinct, k, lloyd):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(distinct, 2, generator=generator)[torch.arange(n) % distinct]
    labels = spread_labels(x, k, generator, lloyd=lloyd)
    assert labels.unique().tolist() == list(range(int(labels.max()) + 1))
    assert int(labels.max()) < min(k, n, distinct)
