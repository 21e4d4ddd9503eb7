"""Search spaces: what the config keys of a method may be, kept as data in `configs/spaces`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from codid_lightning.cli import packaged_configs
from codid_lightning.runs import RunError


@dataclass(frozen=True)
class Parameter:
    """What one config key may be. A key with `entries` is a list whose entries are searched one by one."""

    key: str
    distribution: BaseDistribution
    entries: int | None = None

    @classmethod
    def read(cls, key: str, given: Mapping[str, Any]) -> Parameter:
        """From its line in a space file; raises `RunError` if it is none."""
        match dict(given):
            case {"type": "log_uniform", "low": low, "high": high, **rest}:
                kind: BaseDistribution = FloatDistribution(float(low), float(high), log=True)
            case {"type": "uniform", "low": low, "high": high, **rest}:
                kind = FloatDistribution(float(low), float(high), step=rest.pop("step", None))
            case {"type": "int", "low": low, "high": high, **rest}:
                kind = IntDistribution(low, high, step=rest.pop("step", 1))
            case {"type": "choice", "values": [*values], **rest}:
                kind = CategoricalDistribution(values)
            case _:
                raise RunError(
                    f"The search space of {key} must be {{type: log_uniform|uniform|int, low: .., high: ..}} or "
                    f"{{type: choice, values: [..]}}, not {dict(given)}."
                )
        entries = rest.pop("entries", None)
        if rest:
            raise RunError(f"The search space of {key} has no `{next(iter(rest))}`.")
        return cls(key, kind, entries)

    @property
    def names(self) -> list[str]:
        """Its names in the study."""
        return [self.key] if self.entries is None else [f"{self.key}[{i}]" for i in range(self.entries)]

    def suggest(self, trial: Trial) -> Any:
        """A value for a trial."""
        drawn = [_suggest(trial, name, self.distribution) for name in self.names]
        return drawn[0] if self.entries is None else drawn

    def value(self, found: Mapping[str, Any]) -> Any:
        """The value in a trial's parameters."""
        drawn = [found[name] for name in self.names]
        return drawn[0] if self.entries is None else drawn

    def named(self, value: Any) -> dict[str, Any] | None:
        """A config's value by its names in the study; None where the space does not contain it."""
        values = [value] if self.entries is None else value
        if not isinstance(values, list) or len(values) != len(self.names):
            return None
        inside = all(_contains(self.distribution, v) for v in values)
        return dict(zip(self.names, values, strict=True)) if inside else None


def _suggest(trial: Trial, name: str, distribution: BaseDistribution) -> Any:
    match distribution:
        case CategoricalDistribution():
            return trial.suggest_categorical(name, distribution.choices)
        case IntDistribution():
            return trial.suggest_int(name, distribution.low, distribution.high, step=distribution.step)
        case FloatDistribution(low=low, high=high, step=step, log=log):
            return trial.suggest_float(name, low, high, step=step, log=log)
    raise TypeError(f"{name} has no values of a config.")


def _contains(distribution: BaseDistribution, value: Any) -> bool:
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    if not isinstance(distribution, FloatDistribution | IntDistribution) or type(value) not in (int, float):
        return False
    steps = (value - distribution.low) / distribution.step if distribution.step else 0.0
    return bool(distribution.low <= value <= distribution.high and abs(steps - round(steps)) < 1e-6)


def space_file(method: str, dataset: str) -> Path:
    """The space shipped for a method, for one data set where it has one; CoDID's for its variants."""
    variant = Path(packaged_configs([f"configs/variants/{method}.yaml"])[0]).is_file()
    names = [method, "codid"] if variant else [method]
    for name in [name for n in names for name in (f"{n}_{dataset}", n)]:
        (path,) = packaged_configs([f"configs/spaces/{name}.yaml"])
        if Path(path).is_file():
            return Path(path)
    raise RunError(f"There is no search space for the method `{method}`: name one with --space FILE.")


def read_space(path: Path) -> list[Parameter]:
    """The parameters of a space file."""
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise RunError(f"There is no search space {path}.") from error
    if not isinstance(content, dict) or not all(isinstance(given, dict) for given in content.values()):
        raise RunError(f"{path} must map config keys to their search space.")
    return [Parameter.read(key, given) for key, given in content.items()]
