"""Config files: where the shipped ones are, and how paths to them are resolved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from codid_lightning.errors import RunError
from codid_lightning.training import migration, runs

OVERLAYS = "overlays"  # key of a config file: files beside it that are read after it
_CONFIG = "--config="
_MAX_SIZE = 100_000  # values in a config file


def config_folder() -> Path:
    """Folder of the shipped configs: inside the installed package, or beside it in its repository."""
    package = Path(__file__).parents[1]
    return next(folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir())


def packaged_configs(arguments: Sequence[str]) -> list[str]:
    """Replace `configs/...` by the path of the shipped file where the working directory has no such file."""
    shipped = config_folder().parent
    return [
        str(shipped / a) if a.startswith("configs/") and not Path(a).exists() and (shipped / a).exists() else a
        for a in arguments
    ]


def expanded_configs(arguments: Sequence[str]) -> list[str]:
    """The arguments, with each config file followed by its `overlays`, and files of earlier versions upgraded.

    Raises:
        RunError: A config file or an overlay is not YAML or does not exist.
    """
    result: list[str] = []
    for argument in _joined(arguments):
        file = argument.removeprefix(_CONFIG)
        if argument.startswith(_CONFIG) and not file.startswith("{") and Path(file).is_file():
            result += _expanded(Path(file))
        else:
            result.append(argument)
    return result


def _expanded(file: Path, within: tuple[Path, ...] = ()) -> list[str]:
    """A config file, then those that it names under `overlays`, as arguments."""
    file = file.resolve() if within else file
    if file.resolve() in within:
        raise RunError(f"{file}: its overlays lead back to itself.")
    config = read_yaml(file)
    if not isinstance(config, dict):
        raise RunError(f"{file} is no config: it should hold keys and values.")
    if strange := [key for key in config if not isinstance(key, str)]:
        raise RunError(f"{file}: the key {strange[0]!r} is not a text.")
    outdated, overlays = migration.is_outdated(config), config.pop(OVERLAYS, None)
    if not outdated and overlays is None:
        return [f"{_CONFIG}{file}"]
    content = _with_parts(config, file.parent)
    own = migration.upgrade(content, str(file)) if outdated else content
    result = [_CONFIG + json.dumps(own)] if own else []
    for name in _names_of_overlays(overlays, file):
        if not (file.parent / name).is_file():
            raise RunError(f"{file}: there is no file {file.parent / name}, which `{OVERLAYS}` names.")
        result += _expanded(file.parent / name, (*within, file.resolve()))
    return result


def _names_of_overlays(overlays: Any, file: Path) -> list[str]:
    names = [overlays] if isinstance(overlays, str) else [] if overlays is None else overlays
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RunError(f"{file}: `{OVERLAYS}` is {overlays!r}; it must be the name of a file, or a list of names.")
    return names


def with_run_config(arguments: Sequence[str]) -> list[str]:
    """Add the config saved beside the checkpoint (`--ckpt_path`) unless a config is given."""
    given = list(arguments)
    if any(argument.startswith(_CONFIG) for argument in _joined(given)):
        return given
    for i, argument in enumerate(given):
        path = argument.split("=", 1)[1] if argument.startswith("--ckpt_path=") else "".join(given[i + 1 : i + 2])
        if argument.startswith("--ckpt_path") and Path(path).is_file() and (run := runs.run_of(Path(path))):
            return ["-c", str(run / runs.CONFIG), *given]
    return given


def nested_nulls(arguments: Sequence[str]) -> list[str]:
    """Write `--model.PART.KEY=null` as `--model.PART={"KEY": null}`: jsonargparse reads the former as a text."""
    given, result = iter(arguments), []
    for argument in given:
        key, separator, value = argument.partition("=")
        names = [name for name in key.split(".") if name != "init_args"]
        if names[0] not in ("--model", "--data") or len(names) < 3:
            result.append(argument)
            continue
        value = value if separator else next(given, "")
        if value == "null":
            content: Any = None
            for name in reversed(names[2:]):
                content = {name: content}
            result.append(f"{names[0]}.{names[1]}={json.dumps(content)}")
        else:
            result += [argument] if separator else [argument, value]
    return result


def read_yaml(file: Path) -> Any:
    """The content of a YAML file, which may not refer to itself nor, with all its references written out, be huge."""
    try:
        content = yaml.safe_load(file.read_text())
        size = _size(content, {})
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also of dates, numbers and characters
        raise RunError(f"{file} is not a YAML file that can be used: {error}") from error
    if size > _MAX_SIZE:
        raise RunError(f"{file} has {size} values with its references written out; {_MAX_SIZE} are allowed.")
    return content


def _size(value: Any, known: dict[int, int | None]) -> int:
    """How many values there are, references written out."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = None
        parts = [*value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(part, known) for part in parts)
    found = known[id(value)]
    if found is None:
        raise RecursionError("a value refers to itself")
    return found


def _joined(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments, with `-c FILE` and `--config FILE` written as `--config=FILE`."""
    given = iter(arguments)
    for argument in given:
        value = next(given, None) if argument in ("-c", "--config") else None
        yield argument if value is None else _CONFIG + value


def _with_parts(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The config with the content of files it refers to (`data: data.yaml`), because it leaves its folder."""
    return {
        key: read_yaml(folder / value) if isinstance(value, str) and (folder / value).is_file() else value
        for key, value in config.items()
    }
