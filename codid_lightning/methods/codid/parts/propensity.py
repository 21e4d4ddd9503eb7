"""The propensity score of the other attributes. Ours.

Under a hidden correlation the other attribute is more likely under one mode than under another. So what matters of the
mode is the part of the content that predicts a_2, if the content itself does not show a_2: P(a_2 | content, a_1), the
propensity score. Given it, content and a_2 are independent, and no coarser condition makes them so (Rosenbaum & Rubin,
"The Central Role of the Propensity Score in Observational Studies for Causal Effects", Biometrika 1983).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

FOLDS = 3
COMPONENTS, LANDMARKS = 100, 500  # of the content, and of the kernel on them
MAX_TRAIN_SAMPLES = 20_000  # samples a classifier learns from; it predicts for all
MIN_PROBABILITY = 1e-3  # probability
STRENGTHS = (0.01, 0.1, 1.0, 10.0)  # inverse regularisation to choose from


def propensity(content: Tensor, value: Tensor, others: Tensor) -> Tensor:
    """Log-odds of the other attributes' values under each value of the first, by classifiers not trained on the sample.

    Args:
        content: Features of each sample that do not show its other attributes, (N, p).
        value: Values of the attribute whose modes are to be found, (N,).
        others: Values of the other attributes, (N, Q - 1).

    Returns:
        (N, k): one column for an attribute of two values, else one per value, centred logarithms of the probabilities.
    """
    x, groups = content.detach().cpu().double().numpy(), value.cpu().numpy()
    columns: list[NDArray[np.float64]] = []
    for other in others.T.cpu().numpy():
        size = int(other.max()) + 1
        logs = np.zeros((len(x), size))
        for group in np.unique(groups):
            here = np.flatnonzero(groups == group)
            logs[here] = _log_probabilities(x[here], other[here], size)
        columns.append(logs[:, 1:] - logs[:, :1] if size == 2 else logs - logs.mean(1, keepdims=True))
    return torch.from_numpy(np.concatenate(columns, axis=1)).to(content)


def principal_components(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Leading principal components of samples x (n, p), whose total variance is 1: a kernel's width fits any scale."""
    found: NDArray[np.float64] = PCA(min(COMPONENTS, *x.shape), random_state=0).fit_transform(x)
    return found / max(float(np.sqrt(found.var(axis=0).sum())), 1e-12)


def _log_probabilities(x: NDArray[np.float64], y: NDArray[np.int64], size: int) -> NDArray[np.float64]:
    """Logarithms of the held-out probabilities (n, size) of labels y (n,) given x (n, p), floored."""
    known, counts = np.unique(y, return_counts=True)
    probabilities = np.full((len(x), size), MIN_PROBABILITY)
    probabilities[:, known] = counts / len(x)
    if len(known) > 1 and counts.min() >= 2 * FOLDS:  # as many in every fold of a fold
        x = principal_components(x)
        for learn, predict in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(x, y):
            learn = np.random.default_rng(0).permutation(learn)[:MAX_TRAIN_SAMPLES]
            kernel = Nystroem(gamma=1.0, n_components=min(LANDMARKS, len(learn)), random_state=0).fit(x[learn])
            classifier = _chosen(kernel.transform(x[learn]), y[learn])
            probabilities[np.ix_(predict, classifier.classes_)] = classifier.predict_proba(kernel.transform(x[predict]))
    logs: NDArray[np.float64] = np.log(np.clip(probabilities, MIN_PROBABILITY, None))
    return logs


def _chosen(x: NDArray[np.float64], y: NDArray[np.int64]) -> LogisticRegression:
    """Logistic regression of the strength that gives a held-out third its best likelihood, fitted to everything."""
    learn, check = next(StratifiedKFold(FOLDS, shuffle=True, random_state=1).split(x, y))

    def loss(classifier: LogisticRegression) -> float:
        classifier.fit(x[learn], y[learn])
        return float(log_loss(y[check], classifier.predict_proba(x[check]), labels=classifier.classes_))

    tried = [LogisticRegression(C=strength, max_iter=300) for strength in STRENGTHS]
    best: LogisticRegression = min(tried, key=loss)
    return best.fit(x, y)
