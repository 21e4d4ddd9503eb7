"""The config of a run: which keys there are, and how files, overlays and values become one resolved config."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentError, Namespace
from lightning import Trainer
from lightning.pytorch.cli import LightningArgumentParser
from lightning.pytorch.loggers import CSVLogger, WandbLogger  # noqa: F401  (short class names in configs)

import codid_lightning
from codid_lightning.errors import RunError
from codid_lightning.training import migration
from codid_lightning.training.config_files import expanded_configs, nested_nulls, packaged_configs, with_run_config
from codid_lightning.training.registry import PARENTS, public_path
from datamodules.base import FACTS
from datamodules.partition import pinned

Config = str | Path | Mapping[str, Any] | Namespace
Objective = Literal["val", "val_balanced", "val_worst", "val_reference_balanced", "val_reference_worst"]
Selection = Literal["last", Objective]
Need = Literal["a2", "val_a2", "modes"]
MONITORS: dict[str, str] = {
    "val": "val/acc",
    "val_balanced": "val/balanced_acc",
    "val_worst": "val/worst_acc",
    "val_reference_balanced": "val/balanced_reference_acc",
    "val_reference_worst": "val/worst_reference_acc",
}
KEYS = {
    "config": "a config file; later ones, and keys on the command line, override earlier ones",
    "seed_everything": "seed of initialisation and training; data has a seed of its own",
    "dataset": "name of the data set in results: the config's folder; by default that of the data file",
    "method": "name of the method in results: the config or overlay; by default that of the class",
    "title": "how tables and figures write the method; by default its name",
    "needs": "what the method must know besides a_1 of training samples, for tables: the other attributes of training "
    "samples (a2) or of validation samples (val_a2), true modes (modes)",
    "space": "search space of `codid tune`: config keys and their possible values, or a file with them",
    "run_dir": "directory of this run; by default a new one below trainer.default_root_dir",
    "resume": "continue from the last checkpoint of the same run, if there is one",
    "selection": "epoch to test: the last, or the best on validation data by plain accuracy of a_1 (val), its mean "
    "over the cells of (a_1, a_2) (val_balanced) or its value in the worst cell (val_worst); val_reference_balanced "
    "and val_reference_worst are the same over the cells of data.partition",
    "ckpt_path": "checkpoint to start from; its run's config is used where none is given",
    "adapted": "test and predict as adapted by `codid adapt`: true, for its file beside the checkpoint; or a file",
}
TRAINER_DEFAULTS = {
    "default_root_dir": "runs",
    "use_distributed_sampler": False,  # the data modules shard without padding
    "num_sanity_val_steps": 0,
    "enable_model_summary": False,
    "max_epochs": 50,
}


@cache
def run_parser() -> LightningArgumentParser:
    """The parser of all configs; it raises `ArgumentError` rather than end the process."""
    header = [f"codid-lightning=={codid_lightning.__version__}"]
    parser = LightningArgumentParser(exit_on_error=False, allow_abbrev=False, prog="codid", dump_header=header)
    parser.add_argument("-c", "--config", action="config", help=KEYS["config"])
    add_run_arguments(parser)
    return parser


def add_run_arguments(parser: LightningArgumentParser) -> None:
    """Add every key of a config to a parser, and the links from data to model."""
    parser.add_argument("--seed_everything", type=bool | int, default=0, help=KEYS["seed_everything"])
    parser.add_lightning_class_args(Trainer, "trainer")
    parser.set_defaults({f"trainer.{key}": value for key, value in TRAINER_DEFAULTS.items()})
    for key, parent in PARENTS.items():
        parser.add_lightning_class_args(parent, key, subclass_mode=True)
    for key in ("dataset", "method", "title"):
        parser.add_argument(f"--{key}", type=str, default="", help=KEYS[key])
    parser.add_argument("--needs", type=list[Need] | None, default=None, help=KEYS["needs"])
    parser.add_argument("--space", type=dict[str, Any] | None, default=None, sub_configs=True, help=KEYS["space"])
    parser.add_argument("--run_dir", type=str | None, default=None, help=KEYS["run_dir"])
    parser.add_argument("--resume", type=bool, default=False, help=KEYS["resume"])
    parser.add_argument("--selection", type=Selection, default="last", help=KEYS["selection"])
    parser.add_argument("--ckpt_path", type=str | None, default=None, help=KEYS["ckpt_path"])
    parser.add_argument("--adapted", type=bool | str, default=False, help=KEYS["adapted"])
    for fact in FACTS:
        parser.link_arguments(f"data.{fact}", f"model.init_args.{fact}", apply_on="instantiate")


def parse(arguments: Sequence[str]) -> Namespace:
    """Parse arguments as `codid fit` takes them: `-c FILE`, `--key value`, `--key=value`."""
    given = with_run_config(packaged_configs(nested_nulls(arguments)))
    expanded = expanded_configs(given)
    try:
        config: Namespace = run_parser().parse_args(expanded)
    except ArgumentError as error:
        if "Problems parsing config" not in str(error):
            raise
        files = [argument.removeprefix("--config=") for argument in expanded if argument.startswith("--config=")]
        named = ", ".join(file for file in files if not file.startswith("{"))
        raise RunError(f"{named or 'The config'} cannot be read: {' '.join(str(error).split())}") from error
    if config.data is not None:
        config.dataset = config.dataset or _data_name(config.data)
    if config.model is not None:
        config.method = config.method or _class_name(config.model)
    return config


def _data_name(data: Namespace) -> str:
    """The name of the user's file, or of the folder that a `metadata.csv` describes; else that of the class."""
    arguments = data.get("init_args") or {}
    if not (named := arguments.get("file")):
        return _class_name(data)
    file = Path(arguments.get("root") or ".", named).resolve()
    return file.parent.name if file.stem == "metadata" else file.stem


def _class_name(section: Namespace) -> str:
    return str(section.class_path).rpartition(".")[2].lower()


def resolve(arguments: Sequence[str]) -> dict[str, Any]:
    """The config, with all defaults, that a run with these arguments has."""
    return as_dict(parse(arguments))


def as_dict(config: Namespace) -> dict[str, Any]:
    """A parsed config as plain values; public classes are spelt in one way, so that equal configs have one identity."""
    dump = run_parser().dump(config, skip_link_targets=False, skip_unset=False, format="yaml")
    resolved: dict[str, Any] = _with_public_paths(yaml.safe_load(dump))
    arguments = (resolved.get("data") or {}).get("init_args") or {}
    if arguments.get("partition"):
        arguments["partition"] = pinned(arguments["partition"])
    return resolved


def check_selection(name: str, config: Mapping[str, Any]) -> None:
    """Raise if a resolved config has no reference partition, and epochs or trials are chosen by its cells."""
    if "reference" in name and not config["data"]["init_args"].get("partition"):
        raise RunError(
            f"{name} needs a reference partition: give a file of cells with data.partition (`codid evaluate RUN "
            "--partition cells.npz` writes one), or choose another."
        )


def _with_public_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: public_path(v) if k == "class_path" else _with_public_paths(v) for k, v in value.items()}
    return [_with_public_paths(entry) for entry in value] if isinstance(value, list) else value


def combine(*configs: Config) -> Namespace:
    """Parse several configs; later ones override earlier ones.

    Args:
        configs: Each is the path of a config file, a mapping of dotted keys (`{"trainer.max_epochs": 2}`) or of nested
            ones (`{"trainer": {"max_epochs": 2}}`), or a parsed config.
    """
    if len(configs) == 1 and isinstance(configs[0], Namespace):
        return configs[0].clone()
    return parse([argument for config in configs for argument in _arguments(config)])


def key_arguments(values: Mapping[str, Any]) -> list[str]:
    """Dotted keys and their values as arguments."""
    return [f"--{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in values.items()]


def _arguments(config: Config) -> list[str]:
    if isinstance(config, str | Path):
        return ["-c", str(config)]
    if isinstance(config, Namespace):
        return ["--config=" + json.dumps(as_dict(config))]
    config = migration.upgrade(config, "The given config")
    nested = {key: value for key, value in config.items() if isinstance(value, Mapping) and "." not in key}
    flat = {key: value for key, value in config.items() if key not in nested}
    return [*(["--config=" + json.dumps(nested)] if nested else []), *key_arguments(flat)]
