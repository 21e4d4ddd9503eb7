"""Every penalty against an independent computation of the same quantity."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, special, stats
from scipy.spatial.distance import directed_hausdorff
from sklearn.metrics import r2_score
from torch.distributions import Normal, kl_divergence

from codid_lightning.methods import baselines
from codid_lightning.methods.baselines.coda import CODA
from codid_lightning.methods.baselines.coral import CORAL
from codid_lightning.methods.baselines.dann import DANN
from codid_lightning.methods.baselines.diosc import contrastive_loss, weak_augmentation
from codid_lightning.methods.baselines.dts import DTS
from codid_lightning.methods.baselines.environments import Environments
from codid_lightning.methods.baselines.hfs import support_distance, unit_spread
from codid_lightning.methods.baselines.id_facevc import IDFaceVC, contrastive_upper_bound, gaussian_nll
from codid_lightning.methods.baselines.ide_vc import standard_normal_divergence, unexplained_variance
from codid_lightning.methods.baselines.irm import IRM
from codid_lightning.methods.baselines.mi import MI
from codid_lightning.methods.baselines.mmd import MMD
from codid_lightning.methods.baselines.rex import REx
from codid_lightning.metrics.permutation import shuffle_within


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def make(method, sizes=(2, 3), latent_dim=5, **kwargs):
    torch.manual_seed(0)
    return method(input_shape=(4,), attribute_sizes=sizes, latent_dim=latent_dim, **kwargs)


def make_batch(*columns, x=None):
    a = torch.tensor(columns).T
    return {"x": torch.randn(len(a), 4) if x is None else x, "a": a}


def random_batch(size, sizes=(2, 3), seed=0):
    generator = torch.Generator().manual_seed(seed)
    a = torch.stack([torch.randint(n, (size,), generator=generator) for n in sizes], dim=1)
    return {"x": torch.randn(size, 4, generator=generator), "a": a}


def mean_over_values_and_attributes(distance, z1, a, at_least=2):
    """Plain loops over the other attributes and all pairs of their values."""
    per_attribute = []
    for q in range(1, a.shape[1]):
        values = [v for v in np.unique(a[:, q]) if (a[:, q] == v).sum() >= at_least]
        pairs = [(v, w) for i, v in enumerate(values) for w in values[i + 1 :]]
        distances = [distance(z1[a[:, q] == v], z1[a[:, q] == w]) for v, w in pairs]
        per_attribute.append(np.mean(distances) if distances else 0.0)
    return np.mean(per_attribute)


def test_mmd_equals_double_loops():
    z, batch = torch.randn(20, 3, 5), random_batch(20, (2, 4, 3))
    points = z[:, 0].double().numpy()
    squared = [np.sum((p - q) ** 2) for i, p in enumerate(points) for q in points[i + 1 :]]
    median = np.quantile(squared, 0.5, method="lower")  # torch's, of an even number; numpy's own averages the two

    def kernel(p, q):
        return np.mean([math.exp(-np.sum((p - q) ** 2) / (median * width)) for width in (0.25, 0.5, 1, 2, 4)])

    def squared_mmd(x, y):
        within = [np.mean([kernel(p, q) for i, p in enumerate(s) for j, q in enumerate(s) if i != j]) for s in (x, y)]
        return sum(within) - 2 * np.mean([kernel(p, q) for p in x for q in y])

    expected = mean_over_values_and_attributes(squared_mmd, points, batch["a"].numpy())
    assert make(MMD, (2, 4, 3)).penalty(z, batch).item() == pytest.approx(expected, abs=2e-5)


def test_coral_equals_numpy_moments():
    z, batch = torch.randn(24, 3, 5) * 2 + 1, random_batch(24, (2, 4, 3))

    def distance(x, y):
        mean = np.sum((x.mean(0) - y.mean(0)) ** 2)
        covariance = np.sum((np.cov(x, rowvar=False) - np.cov(y, rowvar=False)) ** 2)
        return mean + covariance / (4 * x.shape[1] ** 2)

    expected = mean_over_values_and_attributes(distance, z[:, 0].double().numpy(), batch["a"].numpy())
    assert make(CORAL, (2, 4, 3)).penalty(z, batch).item() == pytest.approx(expected, rel=1e-4)


def test_irm_equals_finite_differences_of_a_dummy_scale():
    logits, labels = torch.randn(14, 3, dtype=torch.float64), torch.randint(3, (14,))
    environment = torch.tensor([0] * 6 + [1] * 7 + [3])  # 2 is empty, 3 has a single sample
    step = 1e-5
    per_sample = (
        F.cross_entropy((1 + step) * logits, labels, reduction="none")
        - F.cross_entropy((1 - step) * logits, labels, reduction="none")
    ) / (2 * step)
    expected = []
    for e in (0, 1):
        g = per_sample[environment == e]
        expected.append(np.mean([float(g[i] * g[j]) for i in range(len(g)) for j in range(len(g)) if i != j]))
    found = make(IRM).risk_penalty(logits.float(), labels, Environments(environment, 4))
    assert found.item() == pytest.approx(np.mean(expected), rel=1e-4)


def test_irm_estimates_the_squared_gradient_without_bias():
    torch.manual_seed(0)
    logits, labels = torch.randn(4000, 2), torch.randint(2, (4000,))
    model, few = make(IRM), []
    for part in range(0, 4000, 4):  # 1000 estimates from four samples each
        rows = slice(part, part + 4)
        few.append(model.risk_penalty(logits[rows], labels[rows], Environments(torch.zeros(4, dtype=torch.long), 1)))
    scale = torch.ones((), requires_grad=True)
    (gradient,) = torch.autograd.grad(F.cross_entropy(scale * logits, labels), scale)
    standard_error = torch.stack(few).std() / math.sqrt(len(few))
    assert abs(torch.stack(few).mean() - gradient**2) < 4 * standard_error


def test_rex_is_the_variance_of_risks():
    # Cross-entropy of the logits (0, log(k)) at label 0 is log(1 + k): risks chosen by hand.
    losses = torch.tensor([0.5, 1.5, 3.0, 2.0])
    logits = torch.stack([torch.zeros(4), (losses.exp() - 1).log()], dim=1)
    environments = Environments(torch.tensor([0, 0, 1, 3]), 4)  # risks 1, 3 and 2; value 2 is empty
    found = make(REx).risk_penalty(logits, torch.zeros(4, dtype=torch.long), environments)
    assert found.item() == pytest.approx(2 / 3, rel=1e-5)


def test_risk_penalties_ramp_up():
    model = make(REx, warmup_epochs=2.0)
    model.trainer = type("Progress", (), {"global_step": 6, "num_training_batches": 10})()
    assert model.ramp() == pytest.approx(0.25)
    model.trainer.global_step = 100
    assert model.ramp() == 1.0


@pytest.mark.parametrize("size", [2, 17])
def test_hfs_equals_scipys_hausdorff_distance(size):
    z1, z2 = torch.randn(size, 3), torch.randn(size, 4)
    combined = np.array([np.concatenate([p, q]) for p in z1.numpy() for q in z2.numpy()])
    real = torch.cat([z1, z2], dim=1).numpy()
    assert support_distance(z1, z2, "max").item() == pytest.approx(directed_hausdorff(combined, real)[0], rel=1e-4)
    nearest = [min(np.linalg.norm(c - r) for r in real) for c in combined]
    assert support_distance(z1, z2, "mean").item() == pytest.approx(np.mean(nearest), rel=1e-3)
    of_first_two = np.reshape(nearest, (size, size))[:, :2]
    assert support_distance(z1, z2, "mean", combinations=2).item() == pytest.approx(of_first_two.mean(), rel=1e-3)


def test_hfs_vanishes_on_a_factorised_support_and_ignores_scale():
    grid = torch.cartesian_prod(torch.arange(4.0), torch.arange(3.0))
    z1, z2 = unit_spread(grid[:, :1]), unit_spread(grid[:, 1:])
    assert support_distance(z1, z2, "max") < 2e-3
    line = torch.arange(6.0)[:, None]
    distances = [support_distance(unit_spread(s * line), unit_spread(line)) for s in (0.01, 1.0, 100.0)]
    assert torch.stack(distances).std() < 1e-4
    assert distances[0] > 0.5


def test_club_equals_the_mean_over_all_pairs():
    mean, log_variance, target = torch.randn(9, 4), torch.randn(9, 4), torch.randn(9, 4)
    log_q = Normal(mean[:, None], (0.5 * log_variance).exp()[:, None]).log_prob(target[None]).sum(2)  # (i, j)
    expected = log_q.diagonal().mean() - log_q.mean()
    assert contrastive_upper_bound(mean, log_variance, target).item() == pytest.approx(expected.item(), rel=1e-4)
    constant = 0.5 * 4 * math.log(2 * math.pi)
    nll = gaussian_nll(mean, log_variance, target) + constant
    assert nll.item() == pytest.approx(-log_q.diagonal().mean().item(), rel=1e-4)


def correlated_pairs(rho, size):
    z1 = torch.randn(size, 1)
    return torch.stack([z1, rho * z1 + (1 - rho**2) ** 0.5 * torch.randn(size, 1)], dim=1)


def train_adversary(model, draw):
    optimizer = torch.optim.Adam(model.adversary.parameters(), lr=3e-3)
    for _ in range(300):
        loss = model.adversary_loss(*draw(256))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_id_facevc_reaches_the_closed_form_for_gaussians():
    """With the true conditional the bound is rho^2 / (1 - rho^2), above the information -log(1 - rho^2) / 2."""
    rho, model = 0.8, make(IDFaceVC, (2, 2), latent_dim=1)
    train_adversary(model, lambda size: (correlated_pairs(rho, size), random_batch(size)))
    bound = model.penalty(correlated_pairs(rho, 20000), random_batch(20000)).item()
    assert bound == pytest.approx(rho**2 / (1 - rho**2), rel=0.1)
    assert bound > -0.5 * math.log(1 - rho**2)


def jensen_shannon_divergence(*rhos: float) -> float:
    """Between an even mixture of standard Gaussian pairs of correlations rhos and independent ones, by quadrature."""
    axis = np.linspace(-5, 5, 501)
    grid = np.stack(np.meshgrid(axis, axis), axis=2)
    p = np.mean([stats.multivariate_normal(cov=[[1, rho], [rho, 1]]).pdf(grid) for rho in rhos], axis=0)
    q = stats.multivariate_normal(cov=np.eye(2)).pdf(grid)
    density = 0.5 * (special.rel_entr(p, (p + q) / 2) + special.rel_entr(q, (p + q) / 2))
    return integrate.trapezoid(integrate.trapezoid(density, axis), axis)


def test_discriminator_reaches_the_jensen_shannon_divergence():
    rho = 0.9
    expected = 2 * math.log(2) - 2 * jensen_shannon_divergence(rho)
    model = make(MI, (2, 2), latent_dim=1)
    assert expected < 1.25  # far below 2 ln 2, the value of a discriminator that has learnt nothing
    train_adversary(model, lambda size: (correlated_pairs(rho, size), random_batch(size)))
    with torch.no_grad():
        found = model.adversary_loss(correlated_pairs(rho, 50000), random_batch(50000))
    assert found.item() == pytest.approx(expected, abs=0.02)


def test_conditional_discriminators_reach_the_mean_divergence_of_their_values():
    """Given a_1 = 0 the pairs are independent, given a_1 = 1, half of the samples, strongly correlated."""
    model = make(baselines.ACMI, (2, 2), latent_dim=1)

    def draw(size):
        batch = random_batch(size, (2, 2), seed=int(torch.randint(10**6, ())))
        z = torch.where(batch["a"][:, 0, None, None] == 1, correlated_pairs(0.95, size), correlated_pairs(0.0, size))
        return z, batch

    train_adversary(model, draw)
    with torch.no_grad():
        z, batch = draw(50000)
        given_a1 = model.pair_loss(model.adversary[0], z, 0, batch["a"][:, 0])
        given_a2 = model.pair_loss(model.adversary[1], z, 1, batch["a"][:, 1])
    assert given_a1.item() == pytest.approx(2 * math.log(2) - jensen_shannon_divergence(0.95), abs=0.02)
    assert given_a2.item() == pytest.approx(2 * math.log(2) - 2 * jensen_shannon_divergence(0.0, 0.95), abs=0.02)


def test_gradient_is_reversed_for_the_encoder():
    model, batch = make(DANN, (2, 3, 4)), random_batch(16, (2, 3, 4))
    z = torch.randn(16, 3, 5, requires_grad=True)
    hidden = model.adversary[0][0](z[:, 0]).relu()
    logits = hidden @ model.adversary[0][2].weight.T + model.adversary[0][2].bias
    parts, labels = (logits[:, :3], logits[:, 3:]), (batch["a"][:, 1], batch["a"][:, 2])
    cross_entropy = sum(F.cross_entropy(p, y) for p, y in zip(parts, labels, strict=True)) / 2
    (expected,) = torch.autograd.grad(cross_entropy, z, retain_graph=True)
    (found,) = torch.autograd.grad(model.penalty(z, batch), z)
    assert torch.allclose(found, -expected, atol=1e-7)
    assert found[:, 1:].abs().max() == 0, "only z_1 has a gradient"


def test_dts_hides_both_ways():
    model, batch = make(DTS), random_batch(16)
    z = torch.randn(16, 2, 5, requires_grad=True)
    (gradient,) = torch.autograd.grad(model.penalty(z, batch), z)
    assert (gradient.abs().amax((0, 2)) > 0).all()
    expected = [F.cross_entropy(model.adversary[q](z[:, q]), batch["a"][:, 1 - q]).item() for q in (0, 1)]
    assert model.adversary_loss(z, batch).item() == pytest.approx(np.mean(expected), rel=1e-5)


def test_unexplained_variance_is_one_minus_r_squared():
    target = torch.randn(200, 3) * torch.tensor([0.1, 1.0, 10.0]) + 5
    estimate = target + torch.randn(200, 3) * 0.05 * target.std(0)
    expected = 1 - r2_score(target.numpy(), estimate.numpy())
    assert unexplained_variance(estimate, target).item() == pytest.approx(expected, rel=1e-2)
    assert unexplained_variance(target.mean(0).expand(200, 3), target).item() == pytest.approx(1, rel=1e-3)


def test_prior_divergence_equals_torchs():
    mean, log_variance = torch.randn(6, 2, 3), torch.randn(6, 2, 3)
    expected = kl_divergence(Normal(mean, (0.5 * log_variance).exp()), Normal(0.0, 1.0)).sum((1, 2)).mean()
    assert standard_normal_divergence(mean, log_variance).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("decoder", ["backbone", "convolutional"])
def test_coda_equals_a_loop_over_recombined_samples(decoder):
    model, batch = make(CODA, (2, 3), decoder=decoder), random_batch(8)
    z = model(batch["x"]).detach()
    torch.manual_seed(3)
    found = model.penalty(z, batch).item()
    torch.manual_seed(3)
    partner = shuffle_within(torch.zeros(8, dtype=torch.long))
    again = model(model.decoder(torch.stack([z[:, 0], z[partner, 1]], dim=1)))
    total = 0.0
    for i, j in enumerate(partner.tolist()):
        for q, source in enumerate((i, j)):
            before = model.predictors[q](z[source, q]).softmax(0)
            after = model.predictors[q](again[i, q]).softmax(0)
            total -= after[batch["a"][source, q]].log().item()
            total += (before * (before / after).log()).sum().item()
    assert found == pytest.approx(total / 8, rel=1e-4)


def test_contrastive_loss_equals_loops():
    z, views, temperature = torch.randn(5, 2, 3), torch.randn(5, 2, 3), 0.5
    anchors = [(i, q) for i in range(5) for q in range(2)]
    expected = 0.0
    for i, q in anchors:
        similarity = {
            (j, r): math.exp(F.cosine_similarity(z[i, q], views[j, r], dim=0).item() / temperature) for j, r in anchors
        }
        expected -= math.log(similarity[i, q] / sum(similarity.values()))
    assert contrastive_loss(z, views, temperature).item() == pytest.approx(expected / 10, rel=1e-4)


@pytest.mark.parametrize("shape", [(3, 28, 28), (6, 128), (4,)])
def test_weak_augmentation_stays_close(shape):
    x = torch.rand(64, *shape)
    x[:, 0] = 0.0  # an absent colour, a silent sensor
    augmented = weak_augmentation(x)
    assert augmented.shape == x.shape
    assert not torch.equal(augmented, x)
    assert augmented[:, 0].abs().max() < 6 * 0.03 * x.std(), "what is absent stays absent"


def test_weak_augmentation_shifts_each_sample_by_itself():
    x = torch.zeros(200, 1, 28, 28)
    x[:, :, 14, 14] = 100.0
    places = weak_augmentation(x).flatten(1).argmax(1)
    rows, columns = places // 28, places % 28
    assert set(rows.tolist()) == set(columns.tolist()) == {13, 14, 15}


@pytest.mark.parametrize("name", baselines.__all__)
@pytest.mark.parametrize(
    "a2",
    [[0, 1, 2, 0, 1], [0, 1, 2, 3, 4], [2, 2, 2, 2, 2], [2, 2, 2, 2, 0]],
    ids=["one alone", "all alone", "a single value", "one apart"],
)
def test_penalty_is_finite_whatever_values_a_batch_holds(name, a2):
    method = getattr(baselines, name)
    model = make(method, (2, 6), **({"warmup_epochs": 0.0} if name in ("IRM", "REx") else {}))
    batch = make_batch([0, 1, 0, 1, 1], a2)
    z = torch.randn(5, 2, 5, requires_grad=True)
    penalty = model.penalty(z, batch)
    assert torch.isfinite(penalty)
    if penalty.requires_grad:
        (gradient,) = torch.autograd.grad(penalty, z, allow_unused=True)
        assert gradient is None or torch.isfinite(gradient).all()
