"""What every method has learned after two tiny epochs, to the last bit.

A refactoring must not change what is computed. Each entry trains one method through the command line's machinery and
keeps hashes of its tensors. They are hashes of contents, so attributes and keys may be renamed. After a change of
numbers that is meant:

    python -m tests.golden.weights --write

Without `--write` it lists the entries that differ; names after it restrict both to these entries.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import logging
import platform
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch.callbacks import Callback
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from codid_lightning.experiments.matrix import method_configs
from codid_lightning.training import build
from codid_lightning.training.config import parse
from tests.fakes import FAKES

STORED = Path(__file__).with_name("weights.json")
CONFIGS = Path(__file__).parents[2] / "configs"

# ------------------------------------------------------------------------------- names that a refactoring may change

# Command-line overrides of each family of methods; `all` come first, then the data set's, then the family's.
OVERRIDES: dict[str, tuple[str, ...]] = {
    "all": (
        "--seed_everything=0", "--data.batch_size=16", "--model.latent_dim=8", "--trainer.max_epochs=2",
        "--trainer.limit_train_batches=3", "--trainer.limit_val_batches=0", "--trainer.accelerator=cpu",
        "--trainer.devices=1", "--trainer.enable_progress_bar=false", "--trainer.enable_checkpointing=false",
    ),
    "colored_digits": (),
    "uci_har": (),
    "toy_four_attributes": ("--data.samples=600",),
    # Neither clusters nor an autoencoder.
    "plain": (),
    # Clusters are fitted before the first epoch and refined (splits are proposed) before the second.
    "clusters": ("--model.discovery.start=0", "--model.discovery.every=1"),
    # Clusters are fitted once, before the second epoch; -km then starts again.
    "clusters once": ("--model.discovery.start=1",),
    # The autoencoder learns for an epoch. Then the gate gives its verdict.
    "autoencoder": ("--model.decoding.epochs=1",),
    "autoencoder, clusters": ("--model.decoding.epochs=1", "--model.discovery.start=0", "--model.discovery.every=1"),
    # As before, but clusters wait for the gate: if it opens, they are those of the propensity.
    "autoencoder, clusters after the gate": (
        "--model.decoding.epochs=1", "--model.discovery.start=1", "--model.discovery.every=1",
    ),
    # A third epoch, before which merges are proposed; some are accepted.
    "merges": ("--model.discovery.start=0", "--model.discovery.every=1", "--trainer.max_epochs=3"),
    # One cluster to start from; a split is accepted.
    "splits": ("--model.discovery.start=0", "--model.discovery.every=1", "--model.discovery.n_clusters=1"),
    # Ways through the code that no config takes.
    "other options": (
        "--model.discovery.start=0", "--model.discovery.every=1", "--model.alignment.weights.direction=ascend",
        "--model.alignment.weights.scale=none", "--model.alignment.encoder_lr=1e-3", "--model.decay_from=0.4",
    ),
    "cells of values": ("--model.moded=[]",),
    "both": ("--model.decoding.epochs=1", "--model.decoding.train_on=both"),
    "symmetrised": (
        "--model.decoding.epochs=1", "--model.discovery.start=1", "--model.discovery.every=1",
        "--model.discovery.source=SymmetrisedRepresentation",
    ),
    "cluster on z1": (
        "--model.decoding.epochs=1", "--model.discovery.start=1", "--model.discovery.every=1",
        "--model.discovery.source=Representation",
    ),
}  # fmt: skip

# What to lower so that the gate accepts any autoencoder.
GATE = "codid_lightning.methods.codid.parts.gate"
THRESHOLDS = {"MIN_OBEDIENCE": -float("inf"), "MIN_SURVIVAL": -float("inf")}


def group_of(name: str) -> str:
    """The group of a parameter or buffer, by its name in the module."""
    parts = name.split(".")
    if "autoencoder" in parts:
        return "autoencoder"
    return parts[0] if parts[0] in ("encoder", "predictors", "decoder") else "heads"


ROBUST = ("encoder", "predictors")  # groups whose numbers are compared on any machine

# ------------------------------------------------------------------------------------------------------------ entries


@dataclass(frozen=True)
class Entry:
    """One training: a method on a data set, with the overrides of a family."""

    dataset: str
    method: str
    family: str
    gate_open: bool = False  # whether the gate is made to accept, whatever it sees

    @property
    def arguments(self) -> list[str]:
        """The command line."""
        configs = [part for file in method_configs(self.dataset, self.method) for part in ("-c", file)]
        overrides = [a for name in ("all", self.dataset, self.family) for a in OVERRIDES[name]]
        return [*configs, f"--data.root={data_root(self.dataset)}", *overrides]


FAMILIES = {
    **dict.fromkeys(("km", "km_id", "km_mc", "km_mp", "km_sd", "t"), "clusters once"),
    **dict.fromkeys(
        ("balanced_modes", "codid_adaptive", "codid_modes", "codid_prior", "codid_plus"), "autoencoder, clusters"
    ),
    "counterfactual": "autoencoder",
    **dict.fromkeys(("coda_conv", "group_dro_values", "group_reweighting", "logit_adjustment"), "plain"),
}  # the other baselines are plain, the other variants and methods cluster
GATED = ("balanced_modes", "codid_adaptive", "codid_modes", "codid_prior", "codid_plus", "counterfactual")
DIGITS = "colored_digits"


def methods() -> dict[str, str]:
    """Every method there is a config for, and its family."""
    found = {"base": "plain", "codid": "clusters"}
    for kind, family in (("baselines", "plain"), ("variants", "clusters"), ("methods", "clusters")):
        found |= {file.stem: FAMILIES.get(file.stem, family) for file in sorted((CONFIGS / kind).glob("*.yaml"))}
    return found


def entries() -> dict[str, Entry]:
    """All trainings by name."""
    found = {f"{DIGITS}/{method}": Entry(DIGITS, method, family) for method, family in methods().items()}
    found |= {f"{dataset}/codid": Entry(dataset, "codid", "clusters") for dataset in ("uci_har", "toy_four_attributes")}
    for method in GATED:
        family = "autoencoder" if method == "counterfactual" else "autoencoder, clusters after the gate"
        found[f"{DIGITS}/{method}, gate open"] = Entry(DIGITS, method, family, gate_open=True)
    for method, family, gate_open in (
        ("codid", "merges", False),
        ("ua", "merges", False),
        ("wo_sc", "splits", False),
        ("codid", "other options", False),
        ("cell_balanced", "cells of values", False),
        ("counterfactual", "both", True),
        ("codid_plus", "symmetrised", True),
        ("codid_plus", "cluster on z1", True),
    ):
        found[f"{DIGITS}/{method}, {family}"] = Entry(DIGITS, method, family, gate_open)
    return found


ENTRIES = entries()

# ----------------------------------------------------------------------------------------------------------- training


@cache
def _folder(dataset: str) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix=f"golden_{dataset}_")
    if dataset in FAKES:
        FAKES[dataset](Path(folder.name))
    return folder


def data_root(dataset: str) -> str:
    """Where the fake data of a data set are; written once, removed at exit."""
    return _folder(dataset).name


@contextmanager
def one_thread() -> Iterator[None]:
    """Let everything compute on one thread: the order of sums decides about the last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def silence() -> Iterator[None]:
    """Keep back notes and warnings: two epochs of three batches are bad training, as everybody would say."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class Watch(Callback):
    """Keeps what is logged in each epoch, and robust numbers of the networks after the first."""

    def __init__(self) -> None:
        self.logged: dict[str, float] = {}
        self.initial: dict[str, Tensor] = {}
        self.robust: dict[str, dict[str, float]] = {}

    def keep(self, epoch: int, metrics: Any) -> None:
        self.logged |= {f"{epoch}/{name}": float(value) for name, value in metrics.items()}

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        epoch = trainer.current_epoch
        if epoch == 0:
            self.initial = {group: weights_of(pl_module, group) for group in ROBUST}
            return
        if epoch == 1:
            now = {group: weights_of(pl_module, group) for group in ROBUST}
            self.robust = {group: robust_numbers(now[group], self.initial[group]) for group in ROBUST}
        self.keep(epoch - 1, trainer.callback_metrics)  # what the epoch before has left

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self.keep(trainer.max_epochs - 1, trainer.callback_metrics)


@cache
def measure(name: str) -> dict[str, Any]:
    """Train an entry; what `weights.json` keeps of it."""
    entry = ENTRIES[name]
    watch = Watch()
    gate = patch.multiple(importlib.import_module(GATE), **THRESHOLDS) if entry.gate_open else nullcontext()
    with one_thread(), silence(), gate:
        run = build(parse(entry.arguments), record=False)
        run.trainer.callbacks.append(watch)
        run.module.print = lambda *_: None  # the gate's verdict
        run.trainer.fit(run.module, datamodule=run.data)
    losses = {key: significant(value) for key, value in sorted(watch.logged.items()) if "/train/" in key}
    scores = {key: significant(value) for key, value in sorted(watch.logged.items()) if "/train/" not in key}
    tensors = grouped(run.module)
    groups = {group: digest(sorted(hashes))[:16] for group, hashes in sorted(tensors.items())}
    groups["all_losses"] = digest([json.dumps(losses)])[:16]
    heads = sorted(h[:12] for h in tensors.get("heads", []))
    return {"groups": groups, "heads": heads, "robust": watch.robust, "losses": losses, "scores": scores}


# ------------------------------------------------------------------------------------------------------------- hashes


def digest(parts: Iterable[str]) -> str:
    """Hash of several strings."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def tensor_hash(tensor: Tensor) -> str:
    """Hash of a tensor's type, shape and bytes."""
    array = tensor.detach().cpu().contiguous().numpy()
    return hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + array.tobytes()).hexdigest()


def grouped(module: nn.Module) -> dict[str, list[str]]:
    """Hashes of a module's tensors by group: parameters, and but for heads persistent buffers too (BatchNorm's)."""
    parameters = {name for name, _ in module.named_parameters()}
    found: dict[str, list[str]] = {}
    for name, value in module.state_dict().items():
        group = group_of(name)
        if isinstance(value, Tensor) and (name in parameters or group != "heads"):
            found.setdefault(group, []).append(tensor_hash(value))
    return found


def weights_of(module: nn.Module, group: str) -> Tensor:
    """All weights of a group, flat. Without biases: before BatchNorm, Adam moves them by what rounding leaves."""
    named = module.named_parameters()
    return torch.cat([p.detach().double().flatten() for name, p in named if group_of(name) == group and p.ndim > 1])


def robust_numbers(now: Tensor, before: Tensor) -> dict[str, float]:
    """Numbers of weights that hardly depend on the machine; `moved` is the sum of squares of their changes."""
    numbers = {"sum": now.sum(), "squares": now.square().sum(), "moved": (now - before).square().sum()}
    return {"count": len(now), **{name: float(f"{float(value):.9g}") for name, value in numbers.items()}}


def significant(value: float) -> float:
    """Six significant digits."""
    return float(f"{value:.6g}")


def fewer(heads: list[str], stored: list[str]) -> bool:
    """Whether all these heads were there before, as often: some may no longer be built."""
    return Counter(heads) <= Counter(stored)


def differences(found: dict[str, Any], stored: dict[str, Any]) -> list[str]:
    """In what an entry differs from what is stored, in words."""
    old, new = stored["groups"], found["groups"]
    lines = [
        f"{group}: {old.get(group)} is now {new.get(group)}" for group in old | new if old.get(group) != new.get(group)
    ]
    if old.get("heads") != new.get("heads"):
        count = (Counter(found["heads"]) & Counter(stored["heads"])).total()
        kind = "a subset" if fewer(found["heads"], stored["heads"]) else "no subset"
        lines.append(
            f"heads are {kind}: {count} of {len(stored['heads'])} tensors are found among {len(found['heads'])}"
        )
    for kind in ("losses", "scores"):
        before, after = stored[kind], found[kind]
        names = [name for name in before | after if before.get(name) != after.get(name)]
        lines += [f"{kind} {name}: {before.get(name)} is now {after.get(name)}" for name in names]
    return lines


# ------------------------------------------------------------------------------------------------------------ storage


def environment() -> dict[str, str]:
    """What the last bits depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "scikit-learn": version("scikit-learn"),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "machine": platform.machine(),
        "cpu": names[0] if names else platform.processor(),
    }


def load() -> dict[str, Any]:
    """What is stored."""
    stored: dict[str, Any] = json.loads(STORED.read_text())
    return stored


def write(names: Iterable[str]) -> None:
    """Measure entries and store them; those stored that are not named stay."""
    kept = load()["entries"] if STORED.is_file() else {}
    found = {**kept, **{name: measure(name) for name in names}}
    lines = [
        f"{json.dumps(name)}: {json.dumps(found[name], separators=(',', ':'))}" for name in ENTRIES if name in found
    ]
    content = ",\n".join(lines)
    STORED.write_text(f'{{"environment": {json.dumps(environment())},\n"entries": {{\n{content}\n}}}}\n')


def main() -> None:
    """Compare or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(ENTRIES), metavar="ENTRY")
    parser.add_argument("--write", action="store_true", help="store what is found")
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.names)
        return
    stored = load()["entries"]
    for name in arguments.names:
        for line in differences(measure(name), stored[name]):
            print(f"{name}: {line}")


if __name__ == "__main__":
    main()
