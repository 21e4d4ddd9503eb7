"""Scores of predictions against scikit-learn and against their definitions, whole, in batches and on two ranks."""

import math
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from codid_lightning import metrics
from codid_lightning.methods.scores import CompleteScores
from tests.codid.ranks import on_two_ranks

SIZES = (4, 2, 3)


def drawn(n=300, seed=0):
    """Logits of three attributes that know something of them, and the attributes."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.stack([torch.randint(size, (n,), generator=generator) for size in SIZES], dim=1)
    return [
        torch.randn(n, size, generator=generator) + 1.5 * torch.nn.functional.one_hot(a[:, q], size)
        for q, size in enumerate(SIZES)
    ], a


@pytest.mark.parametrize("q", range(len(SIZES)))
def test_scores_of_values_equal_scikit_learns(q):
    logits, a = drawn()
    probabilities, true = logits[q].double().softmax(1), a[:, q]
    found = metrics.value_scores(logits[q], true)
    assert found["class_balanced_acc"] == pytest.approx(balanced_accuracy_score(true, logits[q].argmax(1)))
    scores = probabilities[:, 1] if SIZES[q] == 2 else probabilities
    assert found["auroc"] == pytest.approx(roc_auc_score(true, scores, multi_class="ovr"), abs=1e-6)
    assert found["ece"] == pytest.approx(calibration_by_definition(probabilities.numpy(), true.numpy()), abs=1e-6)


def calibration_by_definition(probabilities, targets, bins=15):
    """Eq. 3 of Guo et al. (2017): bins are ((m - 1) / M, m / M]."""
    confidence, right = probabilities.max(1), probabilities.argmax(1) == targets
    total = 0.0
    for m in range(bins):
        inside = (confidence > m / bins) & (confidence <= (m + 1) / bins)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


def test_values_that_do_not_occur_do_not_count():
    logits, a = drawn()
    kept = a[:, 0] != 2
    logits, true = logits[0][kept], a[kept, 0]
    found = metrics.value_scores(logits, true)
    areas = [roc_auc_score(true == v, logits.softmax(1)[:, v]) for v in (0, 1, 3)]
    assert found["auroc"] == pytest.approx(np.mean(areas), abs=1e-6)
    recalls = [(logits.argmax(1) == v)[true == v].double().mean().item() for v in (0, 1, 3)]
    assert found["class_balanced_acc"] == pytest.approx(np.mean(recalls))


def test_what_cannot_be_computed_is_left_out():
    logits, a = drawn(20)
    assert set(metrics.value_scores(logits[1], torch.ones(20, dtype=torch.long))) == {"class_balanced_acc", "ece"}
    assert set(metrics.value_scores(torch.full((20, 2), math.nan), a[:, 1])) == {"class_balanced_acc"}
    assert metrics.group_scores(a[:5, 0], a[:5], None) == {}  # no group has enough samples
    assert "adjusted_acc" not in metrics.group_scores(a[:, 0], a, a + 10)  # no group occurs in training


def test_groups_are_weighted_as_in_training():
    """Two groups of Waterbirds' kind: right in 9 of 10 and in 12 of 20, in training 950 and 50 samples."""
    groups = torch.tensor([0] * 10 + [1] * 20)
    right = torch.tensor([True] * 9 + [False] + [True] * 12 + [False] * 8)
    attributes = torch.stack([torch.zeros_like(groups), groups], dim=1)
    training = torch.tensor([[0, 0]] * 950 + [[0, 1]] * 50 + [[1, 1]] * 7)  # the last group has no test samples
    found = metrics.group_scores((~right).long(), attributes, training)
    assert found["adjusted_acc"] == pytest.approx((950 * 0.9 + 50 * 0.6) / 1000)
    assert found["worst_group_acc"] == pytest.approx(0.6)


def test_training_frequencies_of_the_test_set_give_plain_accuracy():
    logits, a = drawn()
    guesses = logits[0].argmax(1)
    accuracy = (guesses == a[:, 0]).double().mean().item()
    assert metrics.group_scores(guesses, a, a.flip(0))["adjusted_acc"] == pytest.approx(accuracy)


def scored(rows):
    """The scores of some rows in batches of 64."""
    logits, a = drawn()
    scores = CompleteScores("test", SIZES, (0, 2))
    scores.trained_on = a[:100]
    scores.eval()
    for part in torch.arange(len(a))[rows].split(64):
        if len(part):
            scores.update([own[part] for own in logits], a[part])
    return {name: float(value) for name, value in scores.compute().items()}


def test_batches_give_the_scores_of_all_samples():
    logits, a = drawn()
    found = scored(slice(None))
    assert {name.split("/")[-1] for name in found if "a3" not in name} == {
        *("acc", "f1", "class_balanced_acc", "auroc", "ece", "worst_group_acc", "adjusted_acc")
    }
    expected = metrics.value_scores(logits[0], a[:, 0]) | metrics.group_scores(logits[0].argmax(1), a, a[:100])
    assert {name: found[f"test/{name}"] for name in expected} == pytest.approx(expected)
    last = metrics.value_scores(logits[2], a[:, 2])
    assert {name: found[f"test/a3/{name}"] for name in last} == pytest.approx(last)


def share(first):
    """The scores where rank 0 has the first rows and rank 1 the others."""
    return scored(slice(0, first) if dist.get_rank() == 0 else slice(first, None))


@pytest.mark.slow
@pytest.mark.parametrize("first", [100, 300])  # with 300, rank 1 has no sample
def test_two_ranks_give_the_scores_of_all_samples(tmp_path, first):
    for found in on_two_ranks(partial(share, first), tmp_path):
        assert found == pytest.approx(scored(slice(None)))
