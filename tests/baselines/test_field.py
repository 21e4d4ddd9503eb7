"""The field's methods against independent computations: brute force, scikit-learn, and BASE where they begin so."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_sample_weight
from torch import nn

from codid_lightning.methods.baselines.base import Base
from codid_lightning.methods.baselines.dfr import STRENGTHS, balanced_subset, last_layer
from codid_lightning.methods.baselines.group_resampling import cell_weights
from codid_lightning.methods.baselines.spare import best_clusters
from codid_lightning.training import build as build_run
from datamodules.toy import Toy
from tests.baselines.small import build, trainer


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def toy() -> Toy:
    """Two attributes with two values, correlated; 320 training samples in batches of 32."""
    return Toy(samples_per_mode=80, batch_size=32)


def fitted(name: str, epochs: int, **kwargs: Any):
    data = toy()
    model = build(name, data, **kwargs)
    trainer(max_epochs=epochs, limit_val_batches=0).fit(model, data)
    return model, data


def linear(name: str, **kwargs: Any):
    """A method whose encoder keeps two inputs as they are: losses can be computed by hand."""
    model = build(name, toy(), latent_dim=2, **kwargs)
    model.encoder = nn.Unflatten(1, (1, 2))
    model.encoder.forward = lambda x: torch.stack([x, x], dim=1)
    return model


def random_batch(size: int, values: int = 2) -> dict[str, torch.Tensor]:
    a = torch.randint(values, (size, 2))
    return {"x": torch.randn(size, 2), "a": a, "mode": -torch.ones_like(a), "index": torch.arange(size)}


#  mixtures of samples


def test_mixtures_have_the_cross_entropy_of_mixed_labels():
    model, batch, partner, share = linear("Mixup"), random_batch(6), torch.tensor([3, 1, 0, 2, 5, 4]), 0.3
    found, _ = model.mixed_loss(batch, partner, share)
    x, expected = share * batch["x"] + (1 - share) * batch["x"][partner], 0.0
    for q, predictor in enumerate(model.predictors):
        labels = F.one_hot(batch["a"][:, q], 2).float()
        expected += F.cross_entropy(predictor(x), share * labels + (1 - share) * labels[partner])
    torch.testing.assert_close(found, expected)


def test_mixup_pairs_are_a_permutation():
    assert sorted(linear("Mixup").partners(random_batch(9)["a"]).tolist()) == list(range(9))


@pytest.mark.parametrize("same_label", [0.0, 1.0])
def test_lisa_draws_each_allowed_partner_alike_and_no_other(same_label):
    a = torch.tensor([[0, 0], [0, 1], [0, 2], [1, 0], [1, 0], [2, 3]])

    def allowed(i: int, j: int) -> bool:
        label, domain = (int(a[i, q] == a[j, q]) for q in (0, 1))
        return (label, domain) == ((1, 0) if same_label else (0, 1))

    model = linear("LISA", same_label=same_label)
    drawn = Counter((i, j) for _ in range(600) for i, j in enumerate(model.partners(a).tolist()))
    for i in range(len(a)):
        partners = [j for j in range(len(a)) if allowed(i, j)] or [i]
        assert {j for k, j in drawn if k == i} == set(partners)
        assert all(abs(drawn[i, j] / 600 - 1 / len(partners)) < 0.1 for j in partners)


#  two stages


@pytest.fixture(scope="module")
def one_epoch_of_base():
    """BASE after the first stage of JTT, and its predictions for the training set."""
    data = toy()
    model = build("Base", data)
    trainer(max_epochs=1, limit_val_batches=0).fit(model, data)
    samples = data.datasets["train"]
    with torch.no_grad():
        logits = model.eval().attribute_logits(model(samples.x), samples.a)[0]
    return logits, samples.a[:, 0]


def test_jtt_draws_what_base_gets_wrong_more_often(one_epoch_of_base, monkeypatch):
    used: list[torch.Tensor] = []
    step = Base.training_step
    monkeypatch.setattr(Base, "training_step", lambda *args: (used.append(args[1]["index"]), step(*args)))
    model, _ = fitted("JTT", epochs=5, upweight=20.0)
    logits, labels = one_epoch_of_base
    wrong = logits.argmax(1) != labels
    assert 0 < wrong.sum() < len(wrong)
    assert torch.equal(model.table.values, torch.where(wrong, 20.0, 1.0))
    first, second = torch.cat(used[: len(used) // 5]), torch.cat(used[len(used) // 5 :])
    assert sorted(first.tolist()) == list(range(len(labels))), "the first stage is an epoch of BASE"
    assert len(second) == 4 * len(labels)
    share = 20 * wrong.sum() / (20 * wrong.sum() + (~wrong).sum())
    assert wrong[second].double().mean().item() == pytest.approx(share.item(), abs=4 * len(second) ** -0.5 / 2)


@pytest.mark.parametrize("name", ["JTT", "EIIL", "SPARE"])
def test_the_second_stage_starts_with_new_networks(name):
    model, data = fitted(name, epochs=2, lr=1e-12)  # as good as no training: what changes is the restart
    first = build(name, data)
    for own, before in ((model.predictors[0], first.predictors[0]), *zip(linears(model), linears(first), strict=True)):
        assert not torch.allclose(own.weight, before.weight, atol=1e-3)
        assert own.weight.std().item() == pytest.approx(before.weight.std().item(), rel=0.5)


def linears(model) -> list[nn.Linear]:
    return [module for module in model.encoder.modules() if isinstance(module, nn.Linear)]


def test_eiil_finds_the_environments_that_violate_invariance_most():
    model = linear("EIIL")
    logits, labels = 2 * torch.randn(9, 3, dtype=torch.float64), torch.randint(3, (9,))
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    losses = F.cross_entropy(scale * logits, labels, reduction="none")

    def violation(q: torch.Tensor) -> float:
        gradients = [torch.autograd.grad((p * losses).mean(), scale, retain_graph=True)[0] for p in (q, 1 - q)]
        return sum(float(g) ** 2 for g in gradients)

    every = [torch.tensor(q, dtype=torch.float64) for q in itertools.product((0.0, 1.0), repeat=9)]
    found = model.identify(logits, labels)
    assert violation(found.double()) == pytest.approx(max(map(violation, every)))
    assert 0 < found.sum() < 9


def test_eiil_minimises_the_loss_of_the_worst_group():
    model = linear("EIIL", group_lr=0.5)
    model.table.values = torch.tensor([0, 1, 1, 0])
    model.groups.importance = torch.tensor([0.25, 0.25, 0.25, 0.25])
    batch = {"a": torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]]), "index": torch.arange(4)}
    losses = torch.rand(4, 2)
    own = losses[:, 0].numpy()  # each sample is the only one of its group
    importance = np.exp(0.5 * own) / np.exp(0.5 * own).sum()
    expected = (importance * own).sum() + losses[:, 1].mean().item()
    assert model.attribute_loss(losses, batch).item() == pytest.approx(expected, rel=1e-6)


def test_eiil_groups_that_occur_start_alike():
    model, data = fitted("EIIL", epochs=2, group_lr=0.0)
    samples = data.datasets["train"]
    occurring = {2 * int(v) + int(e) for v, e in zip(samples.a[:, 0], model.table.values, strict=True)}
    assert {int(g) for g in model.groups.importance.nonzero()} == occurring
    assert model.groups.importance.sum().item() == pytest.approx(1)
    assert len(model.groups.importance.unique()) <= 2


def test_spare_weighs_clusters_of_a_class_by_their_inverse_size():
    sizes, centres = {0: (40, 10), 1: (25, 5)}, {0: (0.0, 50.0), 1: (-50.0, 9.0)}
    rows = [(v, c) for v in sizes for c, n in zip(centres[v], sizes[v], strict=True) for _ in range(n)]
    labels = torch.tensor([v for v, _ in rows])
    logits = torch.tensor([[c, -c] for _, c in rows]) + 0.1 * torch.randn(len(rows), 2)
    expected = torch.tensor([0.5 / sizes[v][centres[v].index(c)] for v, c in rows])  # both clusters, both classes alike
    torch.testing.assert_close(linear("SPARE").identify(logits, labels), expected)
    squared = linear("SPARE", separated=1.1, power=2.0).identify(logits, labels)  # never separated enough
    reference = torch.tensor([sizes[v][centres[v].index(c)] ** -2.0 for v, c in rows])
    for value in (0, 1):
        own = labels == value
        torch.testing.assert_close(squared[own], reference[own] / reference[own].sum())


def test_the_silhouette_chooses_the_number_of_clusters():
    x = torch.cat([torch.randn(30, 2) * 0.1 + torch.tensor([4.0 * k, 0.0]) for k in range(4)])
    found, score = best_clusters(x, 5)
    assert len(found.unique()) == 4
    assert score > 0.9
    assert best_clusters(torch.zeros(7, 2), 5)[0].tolist() == [0] * 7


#  the other ones


def test_lff_weighs_by_relative_difficulty_as_by_hand(monkeypatch):
    model, labels = linear("LfF", momentum=0.6), torch.tensor([0, 0, 1, 1])
    samples = type("Samples", (), {"a": labels[:, None]})
    monkeypatch.setattr("codid_lightning.methods.baselines.lff.split_of", lambda *_: samples)
    averages: dict[int, np.ndarray] = {}
    for index in ([0, 1, 2], [3, 1, 2], [0, 3, 1]):
        losses = torch.rand(3, 2)
        for i, pair in zip(index, losses.numpy(), strict=True):
            averages[i] = pair if i not in averages else 0.6 * averages[i] + 0.4 * pair
        expected = []
        for i in index:
            largest = np.max([averages[j] for j in averages if labels[j] == labels[i]], axis=0)
            biased, debiased = averages[i] / largest
            expected.append(biased / (biased + debiased))
        assert model.difficulty(losses, torch.tensor(index)).tolist() == pytest.approx(expected, rel=1e-5)


def test_lff_trains_its_biased_network_on_easy_samples():
    """The gradient of the generalised cross-entropy is that of the cross-entropy times p_y^q (the paper's Eq. 4)."""
    model, batch = linear("LfF", q=0.7), random_batch(5)
    model.difficulty = lambda losses, index: torch.ones(len(losses))
    model.biased = nn.Linear(2, 2)
    found = torch.autograd.grad(model.attribute_loss(torch.rand(5, 2), batch), model.biased.weight)[0]
    logits, labels = model.biased(batch["x"]), batch["a"][:, 0]
    trust = logits.softmax(1).gather(1, labels[:, None])[:, 0].detach() ** 0.7
    loss = (trust * F.cross_entropy(logits, labels, reduction="none")).mean()
    torch.testing.assert_close(found, torch.autograd.grad(loss, model.biased.weight)[0])


def test_group_resampling_has_scikit_learns_balanced_weights():
    a = torch.randint(3, (200, 3))
    expected = compute_sample_weight("balanced", [str(row) for row in a.tolist()])
    found = cell_weights(a).numpy()
    np.testing.assert_allclose(found / found.sum(), expected / expected.sum())


@pytest.mark.parametrize("values", [2, 3])
def test_dfr_is_scikit_learns_regression_where_cells_are_balanced(values):
    labels, others = (torch.tensor(c).repeat(20) for c in zip(*itertools.product(range(values), (0, 1)), strict=True))
    z = torch.randn(len(labels), 5) * 3 + 2
    z[:, 0] += 2 * labels
    z[:, 1] += labels == 1
    weight, bias = last_layer(z, torch.stack([labels, others], dim=1), values, seed=0)
    found = (z @ weight.T + bias).numpy()
    scores = []
    for strength in STRENGTHS:
        regression = LogisticRegression(C=strength, l1_ratio=1.0, solver="liblinear", random_state=0, tol=1e-6)
        model = make_pipeline(StandardScaler(), OneVsRestClassifier(regression)).fit(z.numpy(), labels.numpy())
        expected = model.decision_function(z.numpy())
        own = found[:, 1] - found[:, 0] if values == 2 else found
        scores.append(np.abs(own - expected).max())
    assert min(scores) < 0.02, "all balanced subsets are the whole set"


def test_dfr_stops_using_what_agrees_with_a2():
    """The second column is a_2, which repeats a_1 in nine samples of ten; the first is a_1 with errors."""
    a1, agrees = torch.randint(2, (4000,)), torch.rand(4000) < 0.9
    a = torch.stack([a1, torch.where(agrees, a1, 1 - a1)], dim=1)
    z = torch.stack([a1 + 0.7 * torch.randn(4000), a[:, 1] + 0.1 * torch.randn(4000)], dim=1)
    weight, bias = last_layer(z[:2000], a[:2000], 2, seed=0)
    plain = LogisticRegression().fit(z[:2000].numpy(), a1[:2000].numpy())
    right = {"DFR": (z @ weight.T + bias).argmax(1) == a1, "plain": torch.as_tensor(plain.predict(z.numpy())) == a1}
    rare = ~agrees & (torch.arange(4000) >= 2000)
    accuracy = {name: hits[rare].double().mean().item() for name, hits in right.items()}
    assert accuracy["plain"] < 0.3
    assert accuracy["DFR"] > 0.7


def test_a_balanced_subset_has_the_smallest_cells_size_everywhere():
    cells = np.repeat([0, 1, 2], [5, 9, 3])
    chosen = balanced_subset(cells, np.random.default_rng(0))
    assert len(set(chosen)) == len(chosen)
    assert np.bincount(cells[chosen]).tolist() == [3, 3, 3]


def test_dfr_is_base_but_for_the_last_layer_of_a1():
    (dfr, _), (base, _) = fitted("DFR", epochs=2), fitted("Base", epochs=2)
    changed = [k for k, v in base.state_dict().items() if not torch.equal(v, dfr.state_dict()[k])]
    assert changed == ["predictors.0.weight", "predictors.0.bias"]


#  configs of parts


def config_of(method: str, monkeypatch):
    """The method of a config after a batch on colored digits, and what its attribute loss and logits were."""
    keys = {"trainer.fast_dev_run": 1, "trainer.accelerator": "cpu", "trainer.enable_progress_bar": False}
    run = build_run("configs/colored_digits/codid.yaml", f"configs/methods/{method}.yaml", keys, record=False)
    seen: dict[str, Any] = {}

    def keeping(name: str):
        original = getattr(run.module, name)

        def call(*args: Any) -> Any:
            seen[name] = (args, original(*args))
            return seen[name][1]

        monkeypatch.setattr(run.module, name, call)

    keeping("attribute_loss")
    keeping("training_logits")
    run.trainer.fit(run.module, datamodule=run.data)
    return run, seen


def test_group_reweighting_has_scikit_learns_balanced_weights(monkeypatch):
    run, seen = config_of("group_reweighting", monkeypatch)
    (losses, batch), found = seen["attribute_loss"]
    names = [str(row) for row in run.data.datasets["train"].a.tolist()]
    weights = torch.as_tensor(compute_sample_weight("balanced", names)[batch["index"].numpy()])
    expected = (weights * losses[:, 0].double()).mean() + losses[:, 1:].double().sum(1).mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_logit_adjustment_adds_the_prior_of_a1_given_a2(monkeypatch):
    run, seen = config_of("logit_adjustment", monkeypatch)
    (z, a), (found, *_) = seen["training_logits"]
    known = run.data.datasets["train"].a.numpy()
    marginal = np.bincount(known[:, 0]) / len(known)
    given = {e: np.bincount(known[known[:, 1] == e, 0], minlength=len(marginal)) for e in set(known[:, 1].tolist())}
    share = {e: (counts + marginal) / (counts.sum() + 1) for e, counts in given.items()}  # one pseudo-sample
    prior = torch.tensor(np.array([np.log(share[e] / marginal) for e in a[:, 1].tolist()]))
    run.module.target_list[0].mode_predictor.temperature.fill_(1.0)  # calibrated on validation data, no part of it
    plain, moved = run.module.eval().attribute_logits(z, a)[0], run.module.training_logits(z, a)[0]  # after the step
    torch.testing.assert_close((moved - plain).log_softmax(1).double(), prior.log_softmax(1), atol=1e-5, rtol=1e-5)
    assert found.shape == moved.shape
