"""Beliefs about the place of use, against brute force, SciPy and simulations with a known correlation."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from codid_lightning.errors import RunError
from codid_lightning.methods.codid.adaptation import (
    Adaptation,
    Content,
    Dial,
    ModePrior,
    Uniform,
    adapt,
    dial_intervals,
    fit_dial,
    fit_mode_prior,
    fit_temperature,
    turned_to,
)  # fmt: skip

VALUE = torch.tensor([0, 0, 0, 1, 1])  # of a_1, for five modes
PRIOR = torch.tensor([[0.06, 0.54, 0.06, 0.3, 0.04], [0.3, 0.04, 0.3, 0.06, 0.3]], dtype=torch.float64)
PRIOR = PRIOR / PRIOR.sum(1, keepdim=True)  # p(c | e), (E, C)
MARGINAL = PRIOR.mean(0)
CENTRES = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [-2.0, 1.0], [2.0, 2.0]], dtype=torch.float64)


def place(prior, n=400, seed=0, noise=0.9):
    """Content, other attribute and a_1 of samples of a place with p(c | e) = prior; the network is the exact one."""
    generator = torch.Generator().manual_seed(seed)
    others = torch.randint(2, (n,), generator=generator)
    mode = torch.multinomial(prior[others], 1, generator=generator)[:, 0]
    s = CENTRES[mode] + noise * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    log_s = -(s[:, None] - CENTRES).square().sum(2) / (2 * noise**2)
    joint = log_s[:, :, None] + (PRIOR.T / 2).log()  # p(s | c) p(c | e) p(e)
    joint = joint.flatten(1).log_softmax(1).view(n, 5, 2)
    return Content(joint, VALUE, PRIOR.log(), MARGINAL.log(), 2), others, VALUE[mode]


def reverse(prior):
    return prior.flip(0)


def accuracy(belief, content, others, a1):
    return float((belief.log_probs(content, others).argmax(1) == a1).double().mean())


# ---------------------------------------------------------------------------------------------------- what beliefs mean


def test_training_is_one_on_the_dial_and_gives_the_exact_posterior():
    content, others, _ = place(PRIOR)
    rows = torch.arange(len(content))
    exact = content.of_values(content.log_joint[rows, :, others]).log_softmax(1)
    assert torch.allclose(turned_to(1.0, content).log_probs(content, others), exact)
    assert torch.allclose(ModePrior(PRIOR.log()).log_probs(content, others), exact)


def test_zero_on_the_dial_is_no_correlation():
    content, others, _ = place(PRIOR)
    plain = content.of_values(content.clusters)
    assert torch.allclose(turned_to(0.0, content).log_probs(content, None), plain)
    zero = Dial(torch.zeros(2).double(), torch.zeros(2, 2).double())
    assert torch.allclose(zero.log_probs(content, others), plain)
    assert torch.allclose(ModePrior(MARGINAL.log().expand(2, -1)).log_probs(content, others), plain)


def test_a_network_without_pairs_turns_the_prior_of_clusters():
    content, others, _ = place(PRIOR)
    alone = Content(content.clusters[:, :, None], VALUE, PRIOR.log(), MARGINAL.log(), 2)
    assert isinstance(turned_to(1.0, alone), ModePrior)
    assert torch.allclose(
        turned_to(1.0, alone).log_probs(alone, others), turned_to(1.0, content).log_probs(content, others)
    )
    turned = turned_to(-1.0, alone).log_prior.exp()
    by_hand = MARGINAL.square() / PRIOR
    assert torch.allclose(turned, by_hand / by_hand.sum(1, keepdim=True))


def test_probabilities_of_the_others_agree_with_bayes():
    """With its own prior, a mode prior predicts e from s as the generating distribution does."""
    content, _, _ = place(PRIOR)
    shares = torch.tensor([0.5, 0.5], dtype=torch.float64)
    by_bayes = content.log_joint.logsumexp(1)
    assert torch.allclose(ModePrior(PRIOR.log()).log_others(content, shares), by_bayes.log_softmax(1))
    assert torch.allclose(turned_to(1.0, content).log_others(content, shares), by_bayes.log_softmax(1))


def test_a_belief_in_a_correlation_needs_the_other_attributes():
    content, _, _ = place(PRIOR)
    with pytest.raises(ValueError, match="other attributes"):
        turned_to(1.0, content).log_probs(content, None)


# ------------------------------------------------------------------------------------------------------------ estimates


def test_the_dial_is_the_optimum_that_scipy_finds():
    content, others, _ = place(reverse(PRIOR), n=300)
    log_v = content.of_values(content.clusters).numpy()
    odds = content.given_value().numpy()
    logit = odds[..., 1] - odds[..., 0]
    sign = np.where(others.numpy()[:, None] == 1, 1.0, -1.0)

    def loss(theta):
        likelihood = log_v - np.logaddexp(0, -sign * (theta[2:] + theta[:2] * logit))
        return -np.logaddexp.reduce(likelihood, axis=1).sum() + (theta**2).sum()

    best = minimize(loss, [1.0, 1.0, 0.0, 0.0], method="BFGS", options={"gtol": 1e-8}).x
    found = fit_dial(content, others)
    assert np.allclose(found.gains, best[:2], atol=1e-4)
    assert np.allclose(found.offsets[:, 1], best[2:], atol=1e-4)


@pytest.mark.parametrize(("prior", "expected"), [(PRIOR, 1.0), (PRIOR.flip(0), -1.0), (MARGINAL.expand(2, -1), 0.0)])
def test_the_dial_reads_the_correlation_of_the_place(prior, expected):
    content, others, _ = place(prior, n=4000)
    assert fit_dial(content, others).gains.numpy() == pytest.approx([expected] * 2, abs=0.2)


def test_the_prior_of_clusters_is_the_maximum_a_posteriori_that_scipy_finds():
    content, others, _ = place(reverse(PRIOR), n=150)
    likelihood = (content.clusters - MARGINAL.log()).numpy()
    marginal = MARGINAL.numpy()
    for e in (0, 1):
        rows = likelihood[others.numpy() == e]

        def loss(theta, rows=rows):
            log_pi = theta - np.logaddexp.reduce(theta)
            # EM with pseudo-counts maximises the posterior under a Dirichlet prior with parameters 1 + p(c).
            return -np.logaddexp.reduce(rows + log_pi, axis=1).sum() - (marginal * log_pi).sum()

        theta = minimize(loss, np.zeros(5), method="BFGS", options={"gtol": 1e-7}).x
        pi = np.exp(theta - np.logaddexp.reduce(theta))
        assert np.allclose(fit_mode_prior(content, others).log_prior[e].exp(), pi, atol=2e-3)


def test_a_value_without_samples_keeps_the_marginal():
    content, others, _ = place(PRIOR)
    rows = (others == 0).nonzero()[:, 0]
    found = fit_mode_prior(content[rows], others[rows])
    assert torch.allclose(found.log_prior[1].exp(), MARGINAL, atol=1e-9)


def test_intervals_cover_the_truth():
    """The penalty matters little at this size, so about 95 of 100 intervals contain the true gain."""
    hits = 0
    for seed in range(60):
        content, others, _ = place(PRIOR, n=2000, seed=seed)
        dial = fit_dial(content, others)
        low, high = dial_intervals(dial, content, others)[0]
        hits += low <= 1.0 <= high
    assert 50 <= hits <= 60


def test_the_temperature_undoes_a_scale():
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 3, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    loss = torch.nn.functional.cross_entropy
    assert fit_temperature(lambda t: loss(3 * logits / t, labels)) == pytest.approx(3, abs=0.1)


# --------------------------------------------------------------------------------------------------------------- choice


@pytest.mark.parametrize("seed", range(3))
def test_adaptation_gains_where_the_correlation_is_reversed(seed):
    content, others, a1 = place(reverse(PRIOR), n=4000, seed=seed)
    found = adapt(content[torch.arange(200)], others[:200])
    assert found.belief.kind in ("dial", "modes")
    chosen = accuracy(found.belief, content, others, a1)
    assert chosen > accuracy(Uniform(), content, others, a1) + 0.015
    assert chosen > accuracy(turned_to(1.0, content), content, others, a1) + 0.1


def test_without_correlation_adaptation_changes_little():
    for seed in range(5):
        content, others, a1 = place(MARGINAL.expand(2, -1), n=4000, seed=seed)
        found = adapt(content[torch.arange(200)], others[:200])
        loss = accuracy(Uniform(), content, others, a1) - accuracy(found.belief, content, others, a1)
        assert loss < 0.01


def test_a_network_that_knows_neither_content_nor_modes_assumes_no_correlation():
    """Its output may show the other attribute itself; frequencies estimated from that made predictions worse."""
    content, others, _ = place(reverse(PRIOR))
    log_values = content.of_values(content.clusters)[:, :, None]
    prior = content.of_values(PRIOR.log())
    alone = Content(log_values, torch.arange(2), prior, content.of_values(MARGINAL.log()), 2)
    found = adapt(alone, others)
    assert list(found.likelihoods) == ["uniform"]
    assert (found.belief.kind, found.dial, found.clusters) == ("uniform", None, None)


def test_the_order_of_samples_does_not_matter_to_estimates():
    content, others, _ = place(reverse(PRIOR))
    shuffled = torch.randperm(len(others), generator=torch.Generator().manual_seed(1))
    first, second = adapt(content, others), adapt(content[shuffled], others[shuffled])
    assert first.dial == pytest.approx(second.dial, abs=1e-4)


def test_too_few_samples_are_an_error():
    content, others, _ = place(PRIOR, n=19)
    with pytest.raises(RunError, match=r"19 unlabelled samples.*at least 20"):
        adapt(content, others)


# ----------------------------------------------------------------------------------------------------------------- file


@pytest.mark.parametrize("prior", [PRIOR, MARGINAL.expand(2, -1)])
def test_an_adaptation_survives_its_file(tmp_path, prior):
    content, others, _ = place(prior)
    before = adapt(content, others)
    before.save(tmp_path / "adaptation.json")
    after = Adaptation.load(tmp_path / "adaptation.json")
    assert after.to_json() == before.to_json()
    assert torch.equal(after.belief.log_probs(content, others), before.belief.log_probs(content, others))


@pytest.mark.parametrize("kind", ["dial", "modes", "uniform"])
def test_every_belief_survives_its_file(kind):
    beliefs = {
        "dial": Dial(torch.ones(2).double(), torch.rand(2, 2).double()),
        "modes": ModePrior(PRIOR.log()),
        "uniform": Uniform(),
    }
    content, others, _ = place(PRIOR)
    stored = json.loads(json.dumps(Adaptation(beliefs[kind], 200).to_json()))
    after = Adaptation.from_json(stored).belief
    assert torch.allclose(after.log_probs(content, others), beliefs[kind].log_probs(content, others))


def test_a_damaged_file_names_itself(tmp_path):
    path = tmp_path / "adaptation.json"
    for text, message in [("{", "is damaged"), ('{"format": 99}', "format 99"), ('{"format": 1}', "is damaged")]:
        path.write_text(text)
        with pytest.raises(RunError, match=rf"adaptation.json.*{message}"):
            Adaptation.load(path)


def test_adaptation_is_fast():
    content, others, _ = place(PRIOR, n=10_000)
    adapt(content[torch.arange(100)], others[:100])  # loads what L-BFGS needs
    start = time.process_time()
    adapt(content, others)
    assert time.process_time() - start < 3
