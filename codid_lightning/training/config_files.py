"""Config files: where the shipped ones are, and how paths to them are resolved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from codid_lightning.errors import RunError
from codid_lightning.training import migration, runs


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


def current_configs(arguments: Sequence[str]) -> list[str]:
    """The arguments, with config files of earlier versions replaced by their upgraded content.

    Raises:
        RunError: A config file is not YAML. The parser's own error does not name the file.
    """
    result = list(arguments)
    for place, prefix, file in _config_arguments(result):
        if file.startswith("{") or not Path(file).is_file():  # content, or an error that the parser reports
            continue
        config = read_yaml(Path(file))
        if isinstance(config, dict) and migration.is_outdated(config):
            upgraded = migration.upgrade(_with_parts(config, Path(file).parent), str(file))
            result[place] = prefix + json.dumps(upgraded)
    return result


def with_run_config(arguments: Sequence[str]) -> list[str]:
    """Add the config saved beside the checkpoint (`--ckpt_path`) unless a config is given."""
    given = list(arguments)
    if next(_config_arguments(given), None) is not None:
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
    """The content of a YAML file."""
    try:
        return yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RunError(f"{file} is not a YAML file: {error}") from error


def _config_arguments(arguments: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Position, prefix and value of every `-c FILE`, `--config FILE` and `--config=FILE`."""
    for i, argument in enumerate(arguments):
        if argument.startswith("--config="):
            yield i, "--config=", argument.removeprefix("--config=")
        elif argument in ("-c", "--config") and i + 1 < len(arguments):
            yield i + 1, "", arguments[i + 1]


def _with_parts(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The config with the content of files it refers to (`data: data.yaml`), because it leaves its folder."""
    return {
        key: read_yaml(folder / value) if isinstance(value, str) and (folder / value).is_file() else value
        for key, value in config.items()
    }
