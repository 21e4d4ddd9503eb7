"""Repair of a finished run: a last layer that is fitted to balanced cells of the validation set (DFR)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from codid_lightning.errors import RunError
from codid_lightning.methods.baselines.dfr import first_representations, last_layer
from codid_lightning.methods.hardware import like_parameters
from codid_lightning.metrics.information import joint_labels
from codid_lightning.training.callbacks.checkpoint import AtomicCheckpointIO
from codid_lightning.training.loading import LoadedRun
from datamodules.base import AttributeDataset, Batch

FILE = "repaired.ckpt"


@dataclass(frozen=True)
class Cell:
    """Accuracy of the first attribute in one cell of the validation set.

    Args:
        values: The values of all attributes, in words.
        samples: How many validation samples it has.
        before: Accuracy of the run's own last layer.
        after: Accuracy of layers fitted like the new one, but to the other half of the samples.
    """

    values: tuple[str, ...]
    samples: int
    before: float
    after: float


@dataclass(frozen=True)
class Repair:
    """A new last layer, and what it is expected to change; cells in the order of their values."""

    weight: Tensor  # (A_1, d)
    bias: Tensor  # (A_1,)
    cells: tuple[Cell, ...]

    def worst(self) -> tuple[float, float]:
        """Accuracy in the worst cell, before and after."""
        return min(cell.before for cell in self.cells), min(cell.after for cell in self.cells)


def repair(run: LoadedRun, seed: int = 0) -> Repair:
    """Fit the last layer of the first attribute again, as DFR does; the run's model is left as it is.

    Only validation data are read. The accuracy after the repair is cross-fitted: every sample is judged by a layer that
    was fitted to the half without it.

    Args:
        run: A run of a method that predicts the first attribute by one last layer.
        seed: Of halves and subsets.

    Raises:
        RunError: The method predicts otherwise, or validation data do not suffice.
    """
    samples, values = run.data.datasets["val"], run.data.attribute_sizes[0]
    layer = _own_layer(run, samples)
    z, a = first_representations(run.model, samples), samples.a
    cells = joint_labels(*a.unbind(1))
    before = (z @ layer.weight.cpu().T + layer.bias.cpu()).argmax(1)
    after = torch.empty_like(before)
    half = _halves(cells, seed)
    for judged in (half, ~half):
        weight, bias = last_layer(z[~judged], a[~judged], values, seed)
        after[judged] = (z[judged] @ weight.T + bias).argmax(1)
    found = [_cell(run, a, cells == cell, before, after) for cell in cells.unique()]
    return Repair(*last_layer(z, a, values, seed), tuple(found))


def write(run: LoadedRun, found: Repair, path: Path) -> None:
    """Write the run's checkpoint with the new last layer, completely or not at all."""
    io = AtomicCheckpointIO()
    state = io.load_checkpoint(run.checkpoint, map_location="cpu")
    state["state_dict"] |= {"predictors.0.weight": found.weight, "predictors.0.bias": found.bias}
    io.save_checkpoint(state, path)


@torch.no_grad()
def _own_layer(run: LoadedRun, samples: AttributeDataset) -> nn.Linear:
    """The layer that predicts the first attribute from z_1."""
    model, layer = run.model, run.model.predictors[0]
    some = samples[torch.arange(min(64, len(samples)))]
    x, a = like_parameters(some["x"], model), some["a"].to(model.device)
    z = model.represent(Batch(x=x, a=a, mode=some["mode"], index=some["index"]))
    if not isinstance(layer, nn.Linear) or not torch.equal(model.attribute_logits(z, a)[0], layer(z[:, 0])):
        raise RunError(
            f"{run.name} cannot be repaired: it predicts {run.data.attribute_names[0]} by more than one last layer (as "
            "with model.mode_loss: PriorInLogits). `codid repair` needs a run of another method, such as BASE."
        )
    return layer


def _halves(cells: Tensor, seed: int) -> Tensor:
    """A mask (N,) of a random half of every cell (N,)."""
    order = torch.as_tensor(np.random.default_rng(seed).permutation(len(cells)))
    order = order[cells[order].argsort(stable=True)]
    half = torch.zeros(len(cells), dtype=torch.bool)
    half[order[::2]] = True
    return half


def _cell(run: LoadedRun, a: Tensor, members: Tensor, before: Tensor, after: Tensor) -> Cell:
    own = a[members]
    names = tuple(of[int(value)] for of, value in zip(run.data.value_names, own[0], strict=True))
    shares = [float((predicted[members] == own[:, 0]).double().mean()) for predicted in (before, after)]
    return Cell(names, len(own), *shares)
