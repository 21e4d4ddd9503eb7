import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.mixture import BayesianGaussianMixture
from torch import Tensor

from codid_lightning.clustering.features import QuadraticFeatures
from codid_lightning.clustering.niw import NIW, Moments, cholesky, empirical_prior

FAMILIES = ("full", "diag", "spherical")


def moments(x: Tensor, family: str) -> Moments:
    """Moments of one cluster, straight from their definition."""
    centred = x - x.mean(0)
    scatter = {"full": centred.T @ centred, "diag": centred.square().sum(0), "spherical": centred.square().sum()}
    return Moments(torch.tensor([float(len(x))]).double(), x.mean(0)[None], scatter[family][None])


def some_prior(family: str, d: int, seed: int = 0) -> NIW:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(d, d + 2, generator=generator, dtype=torch.float64)
    psi = {"full": root @ root.T, "diag": root.square().sum(1), "spherical": root.square().sum()}[family]
    return NIW(torch.randn(d, generator=generator, dtype=torch.float64), 0.7, psi, d + 1.5)


def posterior(prior: NIW, x: Tensor, family: str) -> tuple[Tensor, float, Tensor, float]:
    """Textbook update of the prior by samples, one at a time."""
    mean, kappa, psi, nu = prior.mean, prior.kappa, prior.psi, prior.nu
    for row in x:
        shift = row - mean
        spread = {"full": torch.outer(shift, shift), "diag": shift.square(), "spherical": shift.square().sum()}[family]
        psi = psi + kappa / (kappa + 1) * spread
        mean = (kappa * mean + row) / (kappa + 1)
        kappa, nu = kappa + 1, nu + (len(row) if family == "spherical" else 1)
    return mean, kappa, psi, nu


def log_predictive(row: Tensor, mean: Tensor, kappa: float, psi: Tensor, nu: float, family: str) -> float:
    """Log density of the next sample: a Student t."""
    d, widen = len(row), (kappa + 1) / kappa
    if family == "full":
        shape = (psi * widen / (nu - d + 1)).numpy()
        return float(stats.multivariate_t.logpdf(row.numpy(), mean.numpy(), shape, df=nu - d + 1))
    if family == "diag":
        return float(stats.t.logpdf(row.numpy(), nu, mean.numpy(), np.sqrt(psi.numpy() * widen / nu)).sum())
    return float(stats.multivariate_t.logpdf(row.numpy(), mean.numpy(), np.eye(d) * float(psi) * widen / nu, df=nu))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 4), (7, 2), (30, 5), (4, 9)])
def test_log_marginal_is_the_product_of_predictives(family, n, d):
    x = 2 * torch.randn(n, d, generator=torch.Generator().manual_seed(n), dtype=torch.float64) + 1
    prior = some_prior(family, d)
    expected = sum(log_predictive(x[i], *posterior(prior, x[:i], family), family) for i in range(n))
    assert float(prior.log_marginal(moments(x, family))) == pytest.approx(expected, abs=1e-8, rel=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_empty_cluster_has_marginal_one(family):
    shape = [3] * (2 - FAMILIES.index(family))
    empty = Moments(torch.zeros(1).double(), torch.zeros(1, 3).double(), torch.zeros(1, *shape).double())
    assert float(some_prior(family, 3).log_marginal(empty)) == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_map_estimate_is_the_mode_of_the_posterior(family):
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    prior, data = some_prior(family, 3), moments(x, family)
    means, covariances = prior.map_estimate(data)

    def log_posterior(mean: Tensor, covariance: Tensor) -> Tensor:
        matrix = covariance
        if family != "full":
            matrix = torch.diag(covariance.expand(3))
        likelihood = torch.distributions.MultivariateNormal(mean, matrix).log_prob(x).sum()
        return likelihood + prior.log_density(mean[None], covariance[None])[0]

    at_mode = [means[0].clone().requires_grad_(), covariances[0].clone().requires_grad_()]
    for gradient in torch.autograd.grad(log_posterior(*at_mode), at_mode):
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-9, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_moments_of_unions_are_those_of_the_joined_samples(family):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    merged = moments(x[:6], family).merged(moments(x[6:], family))
    for name in ("n", "mean", "scatter"):
        torch.testing.assert_close(getattr(merged, name), getattr(moments(x, family), name))


@pytest.mark.parametrize("family", FAMILIES)
def test_posterior_agrees_with_scikit_learns_bayesian_mixture(family):
    generator = np.random.default_rng(0)
    x = np.concatenate([generator.normal(size=(150, 3)) * [1, 2, 0.5], generator.normal(size=(90, 3)) + 6])
    width = {"full": 2 * np.eye(3), "diag": np.full(3, 2.0), "spherical": 2.0}[family]
    reference = BayesianGaussianMixture(
        n_components=2, covariance_type=family, covariance_prior=width, mean_prior=np.ones(3), mean_precision_prior=0.3,
        degrees_of_freedom_prior=5.0, reg_covar=0, tol=1e-12, max_iter=1000, random_state=0,
    ).fit(x)  # fmt: skip
    features = QuadraticFeatures(torch.from_numpy(x), family)
    data = features.moments(torch.from_numpy(reference.predict_proba(x)))
    coordinates = 3 if family == "spherical" else 1  # scikit-learn averages over them
    prior = NIW(torch.ones(3).double(), 0.3, coordinates * torch.as_tensor(width).double(), 5.0)
    freedom = torch.from_numpy(reference.degrees_of_freedom_).reshape(-1, *[1] * (data.scatter.ndim - 1))
    expected = torch.from_numpy(reference.covariances_) * freedom * coordinates
    torch.testing.assert_close(prior.scatter(data), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(prior.map_estimate(data)[0], torch.from_numpy(reference.means_), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_empirical_prior_follows_the_scale_of_the_data(family):
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x[::3] += 9
    centred = x - x.mean(0)
    labels = (x[:, 0] > 4).long()

    def read(scale: float) -> NIW:
        features = QuadraticFeatures(centred * scale, family)
        return empirical_prior(features.to_moments(features.group_sums(labels, 2)), floor=0)

    one, thousand = read(1), read(1000)
    assert one.nu == thousand.nu
    assert one.kappa == pytest.approx(thousand.kappa)
    torch.testing.assert_close(one.psi * 1e6, thousand.psi)
    assert 0.5 < float(one.psi.mean() if family != "full" else one.psi.diagonal().mean()) / one.nu < 2


def test_empirical_prior_is_stronger_where_clusters_agree_than_where_they_differ():
    generator = torch.Generator().manual_seed(4)
    centres = 20 * torch.randn(8, 6, generator=generator, dtype=torch.float64)
    labels = torch.arange(8).repeat_interleave(30)
    noise = torch.randn(240, 6, generator=generator, dtype=torch.float64)

    def strength(widths: Tensor) -> float:
        features = QuadraticFeatures(centres[labels] + noise * widths[labels, None], "full")
        return empirical_prior(features.to_moments(features.group_sums(labels, 8))).nu

    assert strength(torch.ones(8).double()) == 4 * 8
    assert strength(torch.logspace(-2, 2, 8).double()) < 4 * 8


@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical"])
def test_without_points_a_cluster_is_as_wide_as_the_others(covariance_type):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(300, 4, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 2.0, 3.0, 4.0])
    features = QuadraticFeatures(x, covariance_type)
    clusters = features.to_moments(features.group_sums(torch.zeros(300, dtype=torch.long), 1))
    prior = empirical_prior(clusters, psi_scale=1.5)
    nothing = Moments(torch.zeros(1).double(), torch.zeros(1, 4).double(), torch.zeros_like(clusters.scatter))
    within = clusters.scatter / (299 * (4 if covariance_type == "spherical" else 1))
    torch.testing.assert_close(prior.map_estimate(nothing)[1], 1.5 * within, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("covariance_type", ["full", "diag", "spherical"])
@pytest.mark.parametrize("clusters", [1, 5])
def test_in_units_of_the_samples_the_prior_does_not_shrink_with_the_clusters(covariance_type, clusters):
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    x = (x - x.mean(0)) * torch.tensor([1.0, 2.0, 3.0, 4.0])
    labels = (x[:, 3].argsort().argsort() * clusters) // 300  # slices, each much narrower than all samples together
    features = QuadraticFeatures(x, covariance_type)
    prior = empirical_prior(
        features.to_moments(features.group_sums(labels, clusters)), psi_scale=0.2, nu=50, floor=0, unit="samples"
    )
    variance = 0.2 * np.cov(x.numpy().T, bias=True).trace()
    expected = variance * {"full": np.eye(4), "diag": np.ones(4), "spherical": 1.0}[covariance_type]
    shape = {"full": (1, 4, 4), "diag": (1, 4), "spherical": (1,)}[covariance_type]
    nothing = Moments(torch.zeros(1).double(), torch.zeros(1, 4).double(), torch.zeros(shape).double())
    torch.testing.assert_close(prior.map_estimate(nothing)[1][0], torch.as_tensor(expected, dtype=torch.float64))
    assert prior.nu == 50


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prior_worth_countless_samples_is_a_gaussian_of_known_width(family):
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64) + 1
    nu, variance, kappa = 1e9, 0.7, 0.4
    psi = nu * variance * {"full": torch.eye(3), "diag": torch.ones(3), "spherical": torch.tensor(1.0)}[family].double()
    prior = NIW(torch.zeros(3).double(), kappa, psi, nu)
    covariance = variance * (np.eye(6) + np.ones((6, 6)) / kappa)  # of a coordinate's samples, their mean unknown
    expected = sum(stats.multivariate_normal.logpdf(x[:, j].numpy(), np.zeros(6), covariance) for j in range(3))
    assert float(prior.log_marginal(moments(x, family))) == pytest.approx(expected, abs=1e-5)


def test_cholesky_helps_only_matrices_that_need_it():
    good, flat = torch.eye(3).double() * 4, torch.ones(3, 3).double()
    factors = cholesky(torch.stack([good, flat]))
    assert torch.equal(factors[0], torch.eye(3).double() * 2)
    torch.testing.assert_close(factors[1] @ factors[1].T, flat, atol=1e-6, rtol=0)
    assert math.isfinite(float(factors[1].diagonal().log().sum()))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_cholesky_of_no_numbers_is_an_error_not_a_loop(bad):
    with pytest.raises(ValueError, match="not finite"):
        cholesky(torch.stack([torch.eye(2), torch.full((2, 2), bad)]))
