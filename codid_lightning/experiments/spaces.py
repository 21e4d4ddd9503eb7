"""Search spaces: which values the config keys of a method may have. They are the key `space` of its config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from codid_lightning.errors import RunError


@dataclass(frozen=True)
class Parameter:
    """What one config key may be. A key with `entries` is a list whose entries are searched one by one."""

    key: str
    distribution: BaseDistribution
    entries: int | None = None

    @classmethod
    def read(cls, key: str, given: Mapping[str, Any]) -> Parameter:
        """Read one entry of a search space; raise `RunError` if it is not valid."""
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


def read_space(space: Mapping[str, Mapping[str, Any]]) -> list[Parameter]:
    """The parameters of a search space: config keys and what they may be."""
    return [Parameter.read(key, given) for key, given in space.items()]
