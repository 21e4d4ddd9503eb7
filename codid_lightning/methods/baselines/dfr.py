"""DFR: the last layer is fitted again, to validation samples of which every cell has equally many."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from codid_lightning.errors import RunError
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.baselines.base import Base
from codid_lightning.methods.baselines.samples import split_of
from codid_lightning.methods.hardware import like_parameters
from codid_lightning.metrics.groups import worst_group_accuracy
from codid_lightning.metrics.information import joint_labels
from codid_lightning.nn import distributed
from datamodules.base import AttributeDataset, Batch

STRENGTHS = (1.0, 0.7, 0.3, 0.1, 0.07, 0.03, 0.01)  # of which one is chosen (C), the paper's
FITS = 10  # balanced subsets whose last layers are averaged, the paper's
NEVER = -1e4  # logit of a value that no sample has

Array = NDArray[np.float64]


class DFR(Base):
    """Trains as BASE, then fits the last layer of a_1 again, to a validation set with equally many samples per cell.

    Kirichenko et al., "Last Layer Re-Training is Sufficient for Robustness to Spurious Correlations", ICLR 2023
    (DFR on validation data). All epochs of the schedule train BASE; the fit takes seconds and follows the last batch of
    the last epoch. Validation scores of that epoch are of samples that the last layer was fitted to.
    `codid repair` does the same to a finished run of another method.
    """

    title = "DFR"

    def selectable(self) -> bool:
        """Only the last epoch has the fitted layer."""
        return self.current_epoch + 1 == self.trainer.max_epochs

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Fit the last layer after the last batch, when BatchNorm's statistics are those of the weights."""
        super().on_train_batch_end(outputs, batch, batch_idx)
        if self.trainer.is_last_batch and self.selectable():
            samples, seed = split_of(self, "val"), self.step_seed()
            z1 = first_representations(self, samples)
            layer = self.predictors[0]
            assert isinstance(layer, nn.Linear)  # noqa: S101
            replace_layer(
                layer, *distributed.from_first_rank(lambda: last_layer(z1, samples.a, layer.out_features, seed))
            )


@torch.no_grad()
def first_representations(model: DisentanglementModule, samples: AttributeDataset) -> Tensor:
    """z_1 (N, d) of samples in evaluation mode, on the CPU."""
    training = model.training
    model.eval()
    found = []
    for index in torch.arange(len(samples)).split(1024):
        batch = samples[index]
        moved = Batch(
            x=like_parameters(batch["x"], model), a=batch["a"].to(model.device), mode=batch["mode"], index=index
        )
        found.append(model.represent(moved)[:, 0].float().cpu())
    model.train(training)
    return torch.cat(found)


@torch.no_grad()
def replace_layer(layer: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    """Give a layer these parameters."""
    layer.weight.copy_(weight)
    layer.bias.copy_(bias)


def last_layer(z: Tensor, a: Tensor, values: int, seed: int) -> tuple[Tensor, Tensor]:
    """Weight (A_1, d) and bias (A_1,) of a last layer that no correlation of a_1 with a_2 has shaped.

    The L1 strength with the best accuracy in the worst cell of one half of the samples is chosen by fits to the other
    half. The layer is the mean of `FITS` logistic regressions, each of as many samples of every cell as the smallest
    cell has. Three and more values of a_1 are fitted one against the rest, as by the paper's solver.

    Args:
        z: Representations (N, d).
        a: Attributes (N, Q).
        values: Number of values of a_1.
        seed: Of halves and subsets.

    Raises:
        RunError: Fewer than two values of a_1 occur.
    """
    labels, cells = a[:, 0].numpy(), joint_labels(*a.unbind(1)).numpy()
    if len(np.unique(labels)) < 2:
        raise RunError("The validation set has a single value of the first attribute: a last layer cannot be fitted.")
    x, random = z.double().numpy(), np.random.default_rng(seed)
    order = random.permutation(len(x))
    fitted, judged = order[: len(x) // 2], order[len(x) // 2 :]
    if len(np.unique(labels[fitted])) < 2:
        strength = STRENGTHS[0]  # too few samples to choose
    else:
        subset = balanced_subset(cells[fitted], random)
        accuracies = [
            _worst(_fit(x[fitted][subset], labels[fitted][subset], values, tried, seed), x, labels, cells, judged)
            for tried in STRENGTHS
        ]
        strength = STRENGTHS[int(np.argmax(accuracies))]
    subsets = [balanced_subset(cells, random) for _ in range(FITS)]
    layers = [_fit(x[subset], labels[subset], values, strength, seed) for subset in subsets]
    weight, bias = (torch.as_tensor(np.mean(parts, axis=0)).float() for parts in zip(*layers, strict=True))
    return weight, bias


def balanced_subset(cells: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
    """Positions of as many random samples of every cell (N,) as the smallest cell has."""
    names, counts = np.unique(cells, return_counts=True)
    return np.concatenate([random.choice(np.flatnonzero(cells == c), counts.min(), replace=False) for c in names])


def _fit(x: Array, labels: NDArray[np.int64], values: int, strength: float, seed: int) -> tuple[Array, Array]:
    """Weight and bias of a logistic regression with an L1 penalty on standardised inputs, for inputs as they are."""
    scaler = StandardScaler().fit(x)
    weight, bias = np.zeros((values, x.shape[1])), np.full(values, NEVER)
    present = np.unique(labels)
    for value in present[1:] if len(present) == 2 else present:
        regression = LogisticRegression(C=strength, l1_ratio=1.0, solver="liblinear", random_state=seed % 2**32)
        regression.fit(scaler.transform(x), labels == value)
        weight[value] = regression.coef_[0] / scaler.scale_
        bias[value] = regression.intercept_[0] - weight[value] @ scaler.mean_
    if len(present) == 2:
        first, second = present
        weight[second], bias[second] = weight[second] / 2, bias[second] / 2
        weight[first], bias[first] = -weight[second], -bias[second]
    return weight, bias


def _worst(
    layer: tuple[Array, Array], x: Array, labels: NDArray[np.int64], cells: NDArray[np.int64], rows: NDArray[np.int64]
) -> float:
    """Accuracy of a layer in the worst cell of some rows."""
    predicted = (x[rows] @ layer[0].T + layer[1]).argmax(1)
    tensors = (torch.as_tensor(values) for values in (predicted, labels[rows], cells[rows]))
    return worst_group_accuracy(*tensors)
