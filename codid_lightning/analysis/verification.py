"""Whether a finished run's result is what its checkpoint and data give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from codid_lightning.errors import RunError
from codid_lightning.training import migration, runs
from codid_lightning.training.config import parse
from codid_lightning.training.identity import config_hash
from codid_lightning.training.loading import selected_checkpoint
from codid_lightning.training.run import build
from codid_lightning.training.stages import test

TOLERANCE = 1e-6  # of metrics that float32 sums in another order
_ONE_DEVICE = ("--trainer.devices=1", "--trainer.num_nodes=1", "--trainer.strategy=auto")
_QUIET = "--trainer.enable_progress_bar=false"
_FIELDS = {"config": "config_hash", "data": "data_checksum", "code": "code_checksum"}


@dataclass(frozen=True)
class Compared:
    """A metric as `result.json` has it (None: not at all) and as the checkpoint gives it.

    `known` is false for a metric that the result has of no test set: the version that made it did not compute it.
    """

    name: str
    recorded: float | None
    recomputed: float
    known: bool = True

    def equal(self, tolerance: float) -> bool:
        """Whether both differ by no more than the tolerance; NaN equals NaN."""
        if self.recorded is None:
            return False
        if math.isnan(self.recorded) or math.isnan(self.recomputed):
            return math.isnan(self.recorded) and math.isnan(self.recomputed)
        return abs(self.recorded - self.recomputed) <= tolerance


@dataclass(frozen=True)
class Verification:
    """Test metrics and checksums, recorded and recomputed."""

    checkpoint: Path
    metrics: tuple[Compared, ...]
    checksums: dict[str, tuple[str | None, str | None]]  # of config, data and code: recorded, present
    others: int  # metrics of the result that a test does not give

    def different(self, tolerance: float = TOLERANCE) -> list[Compared]:
        """The metrics that are not confirmed, of those that the result has."""
        return [metric for metric in self.metrics if metric.known and not metric.equal(tolerance)]

    def changed(self) -> list[str]:
        """What is recorded, and differs now: config, data or code."""
        return [name for name, (before, now) in self.checksums.items() if before is not None and before != now]


def verify(directory: Path, keys: Sequence[str] = ()) -> Verification:
    """Test the checkpoint that a run selected once more, on one device.

    Args:
        directory: A run directory with a result.
        keys: Arguments of `codid test` that override the run's config, for example `--data.init_args.root=data`.

    Raises:
        RunError: There is no result, checkpoint or config.
    """
    try:
        recorded = runs.read_result(directory)
        kept: dict[str, Any] = dict(recorded["metrics"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{directory / runs.RESULT} is no result of a finished run ({error}).") from error
    checkpoint = selected_checkpoint(directory)
    run = build(parse(["--ckpt_path", str(checkpoint), _QUIET, *_ONE_DEVICE, *keys]), record=False)
    found = {name: value for name, value in test(run).items() if name.split("/")[0] in run.data.test_names}
    kinds = {_kind(name) for name in kept if name.split("/")[0] in run.data.test_names}
    now = {
        "config": config_hash(runs.read_config(directory)),
        "data": run.data.checksum(),
        "code": runs.code_checksum(),
    }
    before = {name: recorded.get(field) for name, field in _FIELDS.items()}
    if migration.is_outdated(yaml.safe_load((directory / runs.CONFIG).read_text())):
        before["config"] = None  # a translated config has another hash
    return Verification(
        checkpoint,
        tuple(Compared(name, kept.get(name), found[name], _kind(name) in kinds) for name in sorted(found)),
        {name: (before[name], now[name]) for name in now},
        len(kept.keys() - found.keys()),
    )


def _kind(metric: str) -> str:
    """A metric without the test set and the attribute that it is of."""
    return metric.split("/")[-1]
