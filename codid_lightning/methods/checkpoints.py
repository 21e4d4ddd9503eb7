"""What methods add to a checkpoint, and whether a checkpoint fits."""

from __future__ import annotations

import re
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from codid_lightning.clustering import Clusterer
from codid_lightning.clustering.legacy import upgrade_arguments
from codid_lightning.errors import CheckpointError
from codid_lightning.methods.lightning_adapter import attached_trainer
from codid_lightning.nn import distributed
from datamodules.base import AttributeDataModule, DataError

if TYPE_CHECKING:
    from codid_lightning.methods.base import DisentanglementModule

FORMAT = 4
OLD_FORMAT = 3  # of version 0.1.0: can be tested and evaluated, but not continued
_MOVED = {
    r"^autoencoder\.": "counterfactuals.autoencoder.",
    r"^occurring$": "counterfactuals.occurring",
    r"^importance$": "targets.0.cells.importance",
}
_INSTANTIATOR = "lightning.pytorch.cli.instantiate_module"
_HYPERPARAMETERS = ("hyper_parameters", "hparams", "module_arguments", "datamodule_hyper_parameters")
_OURS = ("codid_lightning", "datamodules")
_PLAIN = (bool, int, float, str, type(None))


def add_state(module: DisentanglementModule, checkpoint: dict[str, Any], seed: int | None) -> None:
    """Add the seed, the running losses and the parts."""
    losses = distributed.gather_objects(module.losses.state())  # each rank continues with its own
    parts = {name: describe(getattr(module, name)) for name in module.part_names}
    checkpoint["codid"] = {"schema": FORMAT, "seed": seed, "losses": losses, "parts": parts}


def read(checkpoint: Any) -> dict[str, Any]:
    """The content of a checkpoint, a path or a file: tensors and plain values. A file can be read again."""
    check_whole(checkpoint)
    content: dict[str, Any] = torch.load(checkpoint, map_location="cpu", weights_only=True)
    if hasattr(checkpoint, "seek"):
        checkpoint.seek(0)
    return content


def check_whole(checkpoint: Any) -> None:
    """Raise `BadZipFile` unless the checksums inside of a checkpoint are right; torch does not compare all of them."""
    with zipfile.ZipFile(checkpoint) as packed:
        damaged = packed.testzip()
    if hasattr(checkpoint, "seek"):
        checkpoint.seek(0)
    if damaged is not None:
        raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")


def check_hyperparameters(checkpoint: Mapping[str, Any]) -> None:
    """Raise if hyperparameters name something to call other than an imported class of ours, or one derived from it.

    Lightning and jsonargparse import and call what hyperparameters name. This looks at imported classes only.
    """
    for key in _HYPERPARAMETERS:
        _check_names(key, checkpoint.get(key))


def _check_names(key: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name == "_instantiator" and inner != _INSTANTIATOR:
                raise CheckpointError(f"The checkpoint's {key} would have {inner} called; nothing was loaded.")
            if name in ("class_path", "_class_path") and not _is_known_class(inner):
                raise CheckpointError(
                    f"The checkpoint's {key} names {inner}, which is no imported class of codid-lightning nor derived "
                    "from one; nothing was loaded. If you trust it, import that class first."
                )
            _check_names(f"{key}.{name}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_names(key, inner)


def _is_known_class(path: Any) -> bool:
    module, _, name = str(path).rpartition(".")
    found: Any = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if found is None and module.partition(".")[0] in _OURS and module in sys.modules:
        found = getattr(sys.modules[module], name, None)  # our packages import their names on first use
    ancestors = found.__mro__ if isinstance(found, type) else ()
    return any(ancestor.__module__.partition(".")[0] in _OURS for ancestor in ancestors)


def restore_state(module: DisentanglementModule, checkpoint: dict[str, Any]) -> int | None:
    """Check that the checkpoint fits, and restore the running losses; the seed."""
    try:
        return _restore_state(module, checkpoint)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise CheckpointError(f"The checkpoint is damaged: {error!r}.") from error


def _restore_state(module: DisentanglementModule, checkpoint: dict[str, Any]) -> int | None:
    check_fits(module, checkpoint)
    check_data(module, checkpoint)
    state = checkpoint["codid"]
    losses = state["losses"] if isinstance(state["losses"], list) else [state["losses"]]  # formerly rank 0's only
    module.losses.load(losses[module.global_rank] if module.global_rank < len(losses) else {})
    seed: int | None = state["seed"]
    return seed


def check_fits(module: DisentanglementModule, checkpoint: dict[str, Any]) -> None:
    """Raise unless a checkpoint is of this method, of these sizes and of a known format; name the difference."""
    known = checkpoint.get("codid", {}).get("schema")
    if known == OLD_FORMAT:
        _upgrade(module, checkpoint)
    elif known != FORMAT:
        origin = "another program" if known is None else f"another version of codid-lightning (format {known})"
        raise CheckpointError(f"The checkpoint was written by {origin}; it cannot be loaded here.")
    kept = {k: v.shape for k, v in checkpoint["state_dict"].items() if isinstance(v, Tensor)}
    if kept == {k: v.shape for k, v in module.state_dict().items() if isinstance(v, Tensor)}:
        return
    before, given = checkpoint.get("hyper_parameters", {}), dict(module.hparams)
    changes = [f"model.{k} was {v}, is {given[k]}" for k, v in before.items() if str(given.get(k, v)) != str(v)]
    what = "; ".join(changes) or "it is of another method, or of other parts"
    raise CheckpointError(f"The checkpoint does not fit the model: {what}. Give the config it was trained with.")


def check_data(module: DisentanglementModule, checkpoint: dict[str, Any]) -> None:
    """Compare label names with those of data of another class: Lightning keeps a state by the class's name."""
    data = getattr(attached_trainer(module), "datamodule", None)
    if isinstance(data, AttributeDataModule) and type(data).__qualname__ not in checkpoint:
        for state in checkpoint.values():
            if isinstance(state, dict) and "value_names" in state:
                data.check_same_labels(state)


def _upgrade(module: DisentanglementModule, checkpoint: dict[str, Any]) -> None:
    """Bring a checkpoint of version 0.1.0 into today's form: networks have moved, unused heads are not built."""
    trainer = attached_trainer(module)
    if trainer is not None and trainer.state.fn == "fit":
        raise CheckpointError(
            "The run was started by codid-lightning 0.1.0. Its checkpoint can be tested and evaluated here, but only "
            "version 0.1.0 can continue the training."
        )
    own = module.state_dict()
    state: dict[str, Any] = {}
    for name, value in checkpoint["state_dict"].items():
        for pattern, there in _MOVED.items():
            name = re.sub(pattern, there, name)
        if name in own or not name.startswith("targets."):
            state[name] = value
    if "counterfactuals._extra_state" in own:
        state["counterfactuals._extra_state"] = checkpoint["codid"].get("gate", {})
    checkpoint["state_dict"] = state


# --------------------------------------------------------------------------------------------------------------- parts


def describe(part: Any) -> Any:
    """A part, or a setting of one, as plain values: its class's name and its settings."""
    if isinstance(part, Clusterer):
        settings = part.get_params(deep=False)
    elif is_dataclass(part) and not isinstance(part, type):
        settings = {field.name: describe(getattr(part, field.name)) for field in fields(part) if field.init}
    else:
        return part
    plain = all(_is_plain(value) for value in settings.values())
    return {"class": _full_name(type(part)), "settings": settings if plain else None}


def restore(name: str, saved: Any, kinds: tuple[type, ...]) -> Any:
    """The part that `describe` described. Only classes that are imported are looked at; nothing else is run.

    Args:
        name: Name of the argument, for the message.
        saved: What `describe` gave.
        kinds: Parents of all classes a checkpoint may name.
    """
    if not isinstance(saved, Mapping):
        return saved
    known = [c for kind in kinds for c in (kind, *_subclasses(kind))]
    classes = {
        c.__name__: c for c in known if c.__module__.startswith("codid_lightning.")
    }  # as version 0.1.0 named them
    classes |= {_full_name(c): c for c in known}
    found, settings = classes.get(saved["class"]), saved["settings"]
    if found is None or settings is None:
        raise CheckpointError(
            f"The checkpoint was trained with {name} = {saved['class']}(...), which cannot be made from it: import "
            f"that class, or give it to load_from_checkpoint as `{name}=...`."
        )
    settings = upgrade_arguments(_full_name(found), settings)
    return found(**{key: restore(f"{name}.{key}", value, kinds) for key, value in settings.items()})


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _subclasses(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [c for child in children for c in (child, *_subclasses(child))]


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    return isinstance(value, _PLAIN)
