"""docs/equations.md names functions and tests that exist, and tests of sums of losses, metrics and the schedule."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score

from codid_lightning import metrics
from codid_lightning.clustering import moves
from codid_lightning.methods import losses
from codid_lightning.methods.baselines import find_methods
from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.methods.codid.parts.alignments import Alignment
from codid_lightning.methods.codid.parts.mode_losses import ModeLoss, PredictModes
from codid_lightning.methods.codid.parts.splits import LearnedSplits
from codid_lightning.methods.losses import isotropic_loss, weight_alignment_loss
from codid_lightning.methods.scores import SplitScores
from tests.codid.tiny import bench, gradients_of, random_batch, tiny_codid, tiny_data

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs/equations.md").read_text()
FUNCTIONS = re.findall(r"`((?:codid_lightning|datamodules)\.[\w.]+)`", TABLE)
TESTS = re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", TABLE)

# ------------------------------------------------------------------------------------------------------------ the table


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS)))
def test_the_function_exists(name):
    assert callable(resolve(name)) or isinstance(resolve(name), staticmethod), name


def resolve(name: str) -> Any:
    """A function, class or method by its dotted name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize(("path", "name"), sorted(set(TESTS)), ids=lambda part: part)
def test_the_test_exists(path, name):
    assert name in names_in(path)


@cache
def names_in(path: str) -> set[str]:
    """Names of test functions, those in classes as `Class::name`."""
    tree = ast.parse((ROOT / path).read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    inside = {f"{c.name}::{f.name}" for c in classes for f in c.body if isinstance(f, ast.FunctionDef)}
    return inside | {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_names_a_function_and_a_test():
    rows = [
        line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| equation"))
    ]
    assert len(rows) > 40
    for row in rows:
        assert re.search(r"`(codid_lightning|datamodules)\.", row), row
        assert "`tests/" in row, row


def own_functions(module: ModuleType) -> set[str]:
    """Names of a module's public functions."""
    found = {name: function.__module__ for name, function in inspect.getmembers(module, inspect.isfunction)}
    return {name for name, place in found.items() if place == module.__name__ and not name.startswith("_")}


def classes_below(parent: type) -> set[str]:
    """Names of the classes of the package that a config can name."""
    found = {c for c in parent.__subclasses__() if c.__module__.startswith("codid_lightning")}
    below = {name for c in found for name in classes_below(c)}
    return below | {c.__name__ for c in found if not inspect.isabstract(c)}


KINDS = {
    "losses": own_functions(losses),
    "moves": own_functions(moves),
    "metrics": {name for name in metrics.__all__ if name.islower()} | {"CellAccuracy"},
    "mode losses": classes_below(ModeLoss),
    "alignments": classes_below(Alignment),
    "baselines": {method.__module__.split(".")[-1] for method in find_methods().values()} - {"base"},
}


@pytest.mark.parametrize(("kind", "name"), sorted((kind, name) for kind, names in KINDS.items() for name in names))
def test_every_loss_move_and_metric_has_a_row(kind, name):
    """A function, a class, or something in a baseline's module."""
    assert name in {part for entry in FUNCTIONS for part in entry.split(".")}, kind


@pytest.mark.parametrize("equation", range(1, 12))
def test_every_numbered_equation_of_the_method_has_a_row(equation):
    assert re.search(rf"^\| Eq\. {equation},", TABLE, re.MULTILINE)


# ----------------------------------------------------------------------------------------------- sums of several losses


def test_the_informative_loss_is_its_sum_by_hand():
    """Eq. 1, 3 and 4, one sample after the other; Eq. 2 enters with its weight."""
    module = tiny_codid(tiny_data(), reconstruction=0.7, mode_loss=PredictModes(0.4)).double()
    batch = random_batch(module, 24, shape=(2,))
    bench(module, batch["a"])
    z = torch.randn(24, 2, 4, dtype=torch.float64)
    expected, decoded = 0.0, module.decoder(z).detach().numpy()  # of the whole batch: BatchNorm sees all
    for i in range(24):
        for q, predictor in enumerate(module.predictors):
            logits = (predictor.weight @ z[i, q] + predictor.bias).detach().numpy()
            expected -= (logits - np.logaddexp.reduce(logits))[batch["a"][i, q]] / 24
        expected += 0.7 * np.mean((decoded[i] - batch["x"][i].numpy()) ** 2) / 24
    assert module.informative_loss(z, batch).item() == pytest.approx(expected)
    divergence = module.target_list[0].mode_losses(z[:, 0], batch["index"])[0].mean()
    assert module.mode_loss.additional_loss(module, z, batch).item() == pytest.approx(0.4 * divergence.item())


@pytest.mark.parametrize("strength", [0.0, 0.3, 2.0])
def test_the_subclustering_loss_is_its_sum(strength):
    """Eq. 11: the gradient that S gets."""
    module = tiny_codid(tiny_data(), splits=LearnedSplits(weight_alignment=strength)).double()
    batch = random_batch(module, 40, shape=(2,))
    bench(module, batch["a"])
    views = module.views(torch.randn(40, 2, 4, dtype=torch.float64), batch)
    (target,), (view,) = module.target_list, views
    before = target.sub_means.clone()
    received = gradients_of(module, lambda: module.splits.step(module, views))
    target.sub_means.copy_(before)
    halves = target.subcluster_net(view.own, view.table, view.slot)
    divergence, together = module.alignment.weight_divergence(target, view)
    loss = isotropic_loss(halves, view.own, target.update_subcluster_means(view)[view.slot])
    loss = loss + strength * weight_alignment_loss(view.table.pad(halves[:, 0]), divergence, together)
    parameters = dict(target.subcluster_net.named_parameters())
    for (name, _), gradient in zip(parameters.items(), torch.autograd.grad(loss, parameters.values()), strict=True):
        torch.testing.assert_close(received[f"targets.0.subcluster_net.{name}"], gradient, msg=name)


# ------------------------------------------------------------------------------------------------- schedule and metrics


def test_merges_are_proposed_at_even_and_splits_at_odd_iterations():
    """Algorithm 1, lines 8 to 12, with N_ptr = 20, N_cl = 5 and N_it = 30: epochs counted from 0."""
    discovery, module = ModeDiscovery(start=20, every=5, until=30), tiny_codid(tiny_data())
    discovery.searched = True  # as after the first clustering
    due = {epoch: kind for epoch in range(60) if (kind := discovery.due(epoch, module)) is not None}
    assert due == {20: "fit", 25: "split", 30: "merge", 35: "split", 40: "merge", 45: "split"}


def test_accuracy_and_macro_f1_equal_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    scores = SplitScores("test", (4, 3), (0, 1))
    logits = [torch.randn(50, size, generator=generator) for size in (4, 3)]
    a = torch.stack([torch.randint(size, (50,), generator=generator) for size in (4, 3)], dim=1)
    for part in torch.arange(50).split(20):
        scores.update([each[part] for each in logits], a[part])
    found = scores.compute()
    for q, prefix in enumerate(("test/", "test/a2/")):
        guesses = logits[q].argmax(1)
        assert float(found[f"{prefix}acc"]) == pytest.approx(accuracy_score(a[:, q], guesses))
        assert float(found[f"{prefix}f1"]) == pytest.approx(f1_score(a[:, q], guesses, average="macro"))
