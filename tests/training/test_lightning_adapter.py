"""What is used of Lightning beyond its documentation still exists, and nothing else of it is used."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import lightning.pytorch.core.mixins.hparams_mixin as hparams_mixin
from lightning import LightningModule, Trainer

from codid_lightning.training import lightning_adapter

ROOT = Path(__file__).parents[2]
PACKAGES = ("codid_lightning", "datamodules")
ADAPTERS = {
    "codid_lightning/nn/adam.py",  # calls torch's fused Adam directly
    "codid_lightning/training/lightning_adapter.py",
    "codid_lightning/methods/lightning_adapter.py",
}
FOREIGN = ("torch", "lightning", "torchmetrics", "wandb", "optuna", "numpy", "sklearn", "jsonargparse", "rich")
NAMED_TUPLE = {"_replace", "_asdict", "_fields", "_make"}  # documented in spite of their names

# ------------------------------------------------------------------------------------------------ each attribute exists


def trainer() -> Trainer:
    return Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")


def test_trainer_has_signal_connector_received_sigterm():
    made = trainer()
    assert hasattr(made, "_signal_connector"), "Trainer._signal_connector is gone: request_stop needs another way"
    assert hasattr(made._signal_connector, "received_sigterm"), "_signal_connector.received_sigterm is gone"
    lightning_adapter.request_stop(made, True)
    assert made.received_sigterm, "Trainer.received_sigterm no longer reads _signal_connector.received_sigterm"
    lightning_adapter.request_stop(made, False)
    assert not made.received_sigterm


def test_fit_loop_counts_batches():
    made = trainer()
    place = made.fit_loop
    for name in ("epoch_loop", "batch_progress", "current", "completed"):
        assert hasattr(place, name), f"Trainer.fit_loop...{name} is gone: batches_of_epoch and exact resume need it"
        place = getattr(place, name)
    assert lightning_adapter.batches_of_epoch(made) == 0
    for name in ("restarting", "epoch_progress"):
        assert hasattr(made.fit_loop, name), f"Trainer.fit_loop.{name} is gone: datamodules/base.py needs it"
    assert hasattr(made.fit_loop.epoch_loop.batch_progress, "is_last_batch"), "batch_progress.is_last_batch is gone"


def test_hyperparameters_can_be_given():
    assert hasattr(hparams_mixin, "_given_hyperparameters_context"), (
        "lightning.pytorch.core.mixins.hparams_mixin._given_hyperparameters_context is gone: recorded_hyperparameters"
    )

    class Module(LightningModule):
        def __init__(self, part: object) -> None:
            super().__init__()
            self.save_hyperparameters()

    with lightning_adapter.recorded_hyperparameters({"part": "its config"}):
        module = Module(object())
    assert module.hparams["part"] == "its config"


def test_trainer_holds_module_and_data_where_let_go_looks():
    made = trainer()
    holders = [made.fit_loop, made.fit_loop.epoch_loop.val_loop, made.validate_loop, made.test_loop, made.predict_loop]
    for loop in holders:
        assert hasattr(loop._data_source, "instance"), "the loops' _data_source.instance is gone: let_go"
        assert hasattr(loop, "_combined_loader"), "the loops' _combined_loader is gone: let_go"
    assert hasattr(made._data_connector, "_datahook_selector"), "_data_connector._datahook_selector is gone: let_go"
    module = LightningModule()
    made.strategy.connect(module)
    lightning_adapter.let_go(made)
    assert made.lightning_module is None


# ------------------------------------------------------------------------------------------- no other private attribute


def files() -> list[Path]:
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [path for path in found if str(path.relative_to(ROOT)) not in ADAPTERS]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def own_names() -> set[str]:
    """Private names that our classes and modules define."""
    names: set[str] = set()
    for path in files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
                names.add(node.attr)
    return names


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def private_uses(path: Path, own: set[str]) -> Iterator[str]:
    """Private attributes of other objects, and private names imported from other packages."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_self(node.value):
            if node.attr not in own:
                yield f"line {node.lineno}: .{node.attr}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FOREIGN:
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            yield from (f"line {node.lineno}: import of {name}" for name in names if is_private(name))


def inherited_uses(path: Path) -> Iterator[str]:
    """Private attributes that a class of ours takes from, or overrides in, a class of another package."""
    module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    for name, made in vars(module).items():
        if not inspect.isclass(made) or made.__module__ != module.__name__:
            continue
        foreign = [c for c in made.__mro__ if c.__module__.split(".")[0] in FOREIGN]
        theirs = {n for c in foreign for n in re.findall(r"(?:self\.|def )(_[a-z]\w*)", source(c))}
        ours = set(re.findall(r"(?:self\.|def )(_[a-z]\w*)", source(made)))
        yield from (f"{name}.{attribute}" for attribute in sorted(ours & theirs))


@cache
def source(made: type) -> str:
    try:
        return inspect.getsource(made)
    except (OSError, TypeError):
        return ""


def found_uses() -> dict[str, list[str]]:
    own = own_names()
    uses = {str(p.relative_to(ROOT)): [*private_uses(p, own), *inherited_uses(p)] for p in files()}
    return {path: found for path, found in uses.items() if found}


def test_private_attributes_of_other_packages_are_only_in_the_adapters():
    documented = "Clusterer._n_features_out"  # what scikit-learn asks of a transformer that names its outputs
    uses = {path: [use for use in found if use != documented] for path, found in found_uses().items()}
    assert {path: found for path, found in uses.items() if found} == {}
