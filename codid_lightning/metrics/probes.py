"""Classifiers (probes) trained on fixed representations, to measure the information in them."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from codid_lightning.metrics.base import SampleMetric, is_measurable, subsample
from codid_lightning.metrics.information import entropy, joint_labels

MIN_SAMPLES = 3  # a probe needs two to be trained on and one to predict


def held_out_log_probs(z: Tensor, labels: Tensor, *, hidden: int = 64, folds: int = 3, seed: int = 0) -> Tensor:
    """Log-probabilities of `labels` given `z`. Each sample is predicted by a probe that was not trained on it.

    The probe is a network with one hidden layer, or linear if `hidden` is 0. Training stops early, by the loss on a
    tenth of its training samples: with an overconfident probe the information would be underestimated.

    Args:
        z: `(N, d)` representations.
        labels: `(N,)` labels from 0 to the number of classes minus one.
        hidden: Width of the hidden layer.
        folds: Number of parts, each predicted by a probe trained on the others.
        seed: Of the folds, the initial weights and the batches.
    """
    generator = torch.Generator().manual_seed(seed)
    z, labels = z.detach().float().cpu(), labels.cpu()
    classes = int(labels.max()) + 1
    fold = torch.randperm(len(z), generator=generator) % folds
    log_probs = torch.empty(len(z), classes)
    for part in range(folds):
        train = fold != part
        mean, scale = z[train].mean(0), z[train].std(0).clamp(min=1e-6)
        probe = _fit_probe((z[train] - mean) / scale, labels[train], classes, hidden, generator)
        with torch.no_grad():
            log_probs[~train] = probe((z[~train] - mean) / scale).log_softmax(1)
    return log_probs


def _fit_probe(z: Tensor, labels: Tensor, classes: int, hidden: int, generator: torch.Generator) -> nn.Module:
    """Train a probe; stop early by the loss on a random tenth of the samples."""
    order = torch.randperm(len(z), generator=generator)
    cut = max(1, len(z) // 10)
    check, train = order[:cut], order[cut:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=generator)))
        probe: nn.Module = nn.Linear(z.shape[1], classes)
        if hidden:
            probe = nn.Sequential(nn.Linear(z.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, classes))
    optimizer = torch.optim.Adam(probe.parameters(), lr=5e-3 if hidden else 2e-2)
    best, best_state, patience = torch.inf, probe.state_dict(), 0
    for _ in range(200):
        for rows in _batches(train, generator):
            optimizer.zero_grad()
            cross_entropy(probe(z[rows]), labels[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            loss = float(cross_entropy(probe(z[check]), labels[check]))
        if loss < best - 1e-4:
            best, patience = loss, 0
            best_state = {name: tensor.clone() for name, tensor in probe.state_dict().items()}
        elif (patience := patience + 1) == 10:
            break
    probe.load_state_dict(best_state)
    return probe


def _batches(rows: Tensor, generator: torch.Generator, size: int = 256) -> Iterator[Tensor]:
    yield from rows[torch.randperm(len(rows), generator=generator)].split(size)


def probe_accuracy(z: Tensor, labels: Tensor, *, hidden: int = 0, max_samples: int = 5000, seed: int = 0) -> float:
    """Held-out accuracy of a probe, by default linear, that predicts `labels` from `z`.

    It is NaN for fewer than three samples, or if a representation is not finite.
    """
    if not is_measurable(z, MIN_SAMPLES):
        return math.nan
    z, labels = subsample(max_samples, seed, z, joint_labels(labels))
    predicted = held_out_log_probs(z, labels, hidden=hidden, seed=seed).argmax(1)
    return float((predicted == labels.cpu()).double().mean())


def probe_information(z: Tensor, labels: Tensor, *, hidden: int = 64, max_samples: int = 5000, seed: int = 0) -> float:
    """Information about `labels` in `z`: their entropy minus the held-out cross-entropy of a probe, at least 0.

    For z_1 and a_2 of an uncorrelated test set it is the paper's MI, a lower bound on `I(z_1; a_2)`.
    It is NaN for fewer than three samples, or if a representation is not finite.
    """
    if not is_measurable(z, MIN_SAMPLES):
        return math.nan
    z, labels = subsample(max_samples, seed, z, joint_labels(labels))
    log_probs = held_out_log_probs(z, labels, hidden=hidden, seed=seed)
    cost = float(nn.functional.nll_loss(log_probs, labels.cpu())) / torch.tensor(2.0).log().item()
    return max(0.0, entropy(labels) - cost)


class ProbeAccuracy(SampleMetric):
    """`probe_accuracy` over batches and ranks."""

    function = staticmethod(probe_accuracy)


class ProbeInformation(SampleMetric):
    """`probe_information` over batches and ranks."""

    function = staticmethod(probe_information)
