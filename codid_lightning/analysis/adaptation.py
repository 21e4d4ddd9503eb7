"""Adaptation of a trained run to a place of use: its unlabelled samples, and what it changed, in words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from codid_lightning.errors import RunError
from codid_lightning.methods.codid.adaptation import Adaptation
from codid_lightning.methods.codid.module import CoDID
from codid_lightning.training import runs
from codid_lightning.training.loading import LoadedRun, load_data, load_run
from datamodules.base import AttributeDataModule, AttributeDataset, seeded_generator
from datamodules.labelled import OwnData
from datamodules.tables import label_texts

TABLES = (".csv", ".tsv", ".parquet", ".npz")
CONFIGS = (".yaml", ".yml")
CANDIDATES = {
    "uniform": "no correlation",
    "train": "as in training",
    "dial": "dial",
    "modes": "frequencies of modes",
}
MAX_SAMPLES = 5000  # more would hardly narrow the intervals
BATCH_SIZE = 128  # larger ones leave the cache, and take longer


@dataclass(frozen=True)
class Place:
    """Unlabelled samples of a place of use.

    Args:
        name: What they are called.
        samples: A data set; its labels of the first attribute are never read.
        rows: Which of its samples are used, (N,).
        others: Values of all attributes but the first of all its samples, (M, Q - 1); None predicts them.
    """

    name: str
    samples: AttributeDataset
    rows: Tensor
    others: Tensor | None

    @property
    def size(self) -> str:
        """The number of samples in words."""
        used, all_of_them = len(self.rows), len(self.samples)
        return f"{used} samples" if used == all_of_them else f"{used} of {all_of_them} samples"

    def some(self, count: int | None = None, seed: int = 0) -> Place:
        """A random part of `count` samples, by default of at most `MAX_SAMPLES`."""
        count = min(MAX_SAMPLES, len(self.rows)) if count is None else count
        if not 0 < count <= len(self.rows):
            raise RunError(f"--samples is {count}; {self.name} has {len(self.rows)} samples.")
        chosen = torch.randperm(len(self.rows), generator=seeded_generator(seed))[:count].sort().values
        return replace(self, rows=self.rows[chosen])


# ------------------------------------------------------------------------------------------------------------- the data


def load(run: Sequence[str], data: str, split: str | None = None) -> tuple[LoadedRun, Place]:
    """A finished run, and samples of a place of use.

    Args:
        run: A run directory, or arguments as `codid test` takes them.
        data: The name of one of the run's test sets, your own file, or a data config.
        split: Which test set of a data config, where it has several.

    Raises:
        RunError: The run has not finished, or the samples do not fit it.
    """
    path = Path(data)
    if path.suffix in TABLES:
        loaded = _finished(load_run(run, file=path))
        return loaded, _of_file(path, loaded.data)
    loaded = _finished(load_run(run))
    if path.suffix in CONFIGS or path.is_dir():
        keys = [argument for argument in _joined(run) if argument.startswith("--data.")]
        return loaded, _of_config(path, load_data(path, keys, loaded.checkpoint), loaded.data, split)
    if data not in loaded.data.test_names:
        raise RunError(
            f"--data is {data}. The test sets of the run are {', '.join(loaded.data.test_names)}; a file ends in "
            f"{', '.join(TABLES)}, a data config in .yaml."
        )
    return loaded, _of_split(data, loaded.data.datasets[data])


def adapt(run: LoadedRun, place: Place, predict_others: bool = False) -> Adaptation:
    """Adapt the model of a run to a place of use. It predicts accordingly from now on.

    Args:
        run: The run.
        place: Samples of the place.
        predict_others: Predict the other attributes also where they are given.
    """
    if not isinstance(run.model, CoDID):
        raise RunError(f"{run.name} cannot be adapted: it needs CoDID with `model.mode_loss: PriorInLogits`.")
    others = None if place.others is None or predict_others else place.others[place.rows]
    return run.model.adapt((place.samples.inputs(index) for index in place.rows.split(BATCH_SIZE)), others)


def _finished(run: LoadedRun) -> LoadedRun:
    if run.directory is not None and not (run.directory / runs.RESULT).is_file():
        raise RunError(
            f"{run.directory} has no {runs.RESULT}: the run has not finished. Continue it with --resume true first."
        )
    return run


def _of_split(name: str, samples: AttributeDataset) -> Place:
    return Place(name, samples, torch.arange(len(samples)), samples.a[:, 1:])


def _of_config(path: Path, data: AttributeDataModule, trained: AttributeDataModule, split: str | None) -> Place:
    if type(data) is type(trained):
        data.load_state_dict(trained.state_dict())  # also the scaling of the training samples
    else:
        data.check_same_labels(trained.state_dict())
    names = data.test_names
    if split is None and len(names) > 1:
        raise RunError(f"{path} has several test sets; choose one with --split: {', '.join(names)}.")
    chosen = names[0] if split is None else split
    if chosen not in data.datasets:
        raise RunError(f"--split is {chosen}; {path} has {', '.join(data.datasets)}.")
    if isinstance(data, OwnData) and data.protocol == "predict":
        return _of_file(data.file, data)
    return _of_split(f"{chosen} of {path}", data.datasets[chosen])


def _of_file(path: Path, data: AttributeDataModule) -> Place:
    """All rows of a file. Its columns of other attributes are used if all are there."""
    if not isinstance(data, OwnData):
        raise RunError(f"{path} was not read as your own data.")
    samples, names = data.datasets["test"], data.attribute_names[1:]
    given = [name for name in names if name in data.table]
    if given and len(given) < len(names):
        missing = ", ".join(name for name in names if name not in given)
        raise RunError(
            f"{path} has the column {', '.join(given)}, but not {missing}. Add it, or leave out all of them; then "
            "the model predicts them."
        )
    if given:
        _check_known(path, data, samples)
    return Place(str(path), samples, torch.arange(len(samples)), samples.a[:, 1:] if given else None)


def _check_known(path: Path, data: OwnData, samples: AttributeDataset) -> None:
    """Raise if a row has a value of another attribute that was not seen in training."""
    for q, name in enumerate(data.attribute_names[1:], start=1):
        unknown = (samples.a[:, q] < 0).nonzero()[:, 0]
        if len(unknown):
            row = int(unknown[0] if samples.rows is None else samples.rows[unknown[0]])
            (text,) = label_texts(data.table[name][row : row + 1], name, path)
            raise RunError(
                f"Row {row} of {path} has {f'no {name}' if text is None else f'{name} = {text}'}; in training its "
                f"values are {', '.join(data.value_names[q])}. Remove rows with other values ({len(unknown)} here), or "
                f"the column {name}: then the model predicts it."
            )


def _joined(arguments: Sequence[str]) -> list[str]:
    """The arguments, with `--key value` written as `--key=value`."""
    given, result = iter(arguments), []
    for argument in given:
        lonely = argument.startswith("--") and "=" not in argument
        result.append(f"{argument}={next(given, '')}" if lonely else argument)
    return result


# ------------------------------------------------------------------------------------------------------------- in words


@dataclass(frozen=True)
class Share:
    """How often a mode occurs under one value of the other attributes, in training and now."""

    mode: str
    others: str
    train: float
    now: float


def others_name(data: AttributeDataModule) -> str:
    """The other attributes in words."""
    return " and ".join(data.attribute_names[1:])


def others_values(data: AttributeDataModule) -> list[str]:
    """All combinations of the other attributes' values in words, in the order of their numbers."""
    return [", ".join(names) for names in itertools.product(*data.value_names[1:])]


def reading(gain: float, interval: tuple[float, float]) -> str:
    """What a number on the dial and its interval mean."""
    low, high = interval
    if low <= 0 <= high:
        return "unclear, the interval is too wide" if low <= -1 or high >= 1 else "no correlation"
    size = "weaker" if max(abs(low), abs(high)) < 1 else "stronger" if min(abs(low), abs(high)) > 1 else ""
    if gain > 0:
        return f"{size} than in training" if size else "as in training"
    return f"reversed, and {size} than in training" if size else "reversed"


def dial_lines(found: Adaptation, data: AttributeDataModule) -> list[str]:
    """The dial under every value of the first attribute, one sentence each."""
    if found.dial is None or found.intervals is None:
        return []
    first = data.attribute_names[0]
    return [
        f"The correlation of {others_name(data)} with content within {first} {value} is {gain:.2f} "
        f"[{low:.2f}, {high:.2f}] of training's: {reading(gain, (low, high))}."
        for value, gain, (low, high) in zip(data.value_names[0], found.dial, found.intervals, strict=True)
    ]


def conclusion(found: Adaptation, data: AttributeDataModule) -> str:
    """What is believed now, and what follows."""
    names = f"{data.attribute_names[0]}'s modes and {others_name(data)}"
    if found.dial is None and found.clusters is None:
        return (
            "This model has neither content without the other attributes nor modes, so unlabelled samples cannot show "
            f"the correlation of {names}. Predictions assume none."
        )
    return {
        "uniform": f"The samples speak for no correlation of {names}. Predictions assume none.",
        "train": f"The samples speak for the correlation of {names} as in training. Predictions assume it.",
        "dial": f"The correlation of {names} differs from training. Predictions use the dial.",
        "modes": f"The correlation of {names} differs from training. Predictions use the frequencies of modes now.",
    }[found.chosen]


def shares(found: Adaptation, data: AttributeDataModule) -> list[Share]:
    """Every mode under every value of the other attributes; empty where frequencies of modes were not estimated."""
    if found.clusters is None:
        return []
    titles = mode_titles(found.clusters.value.tolist(), data.value_names[0])
    return [
        Share(title, others, float(train), float(now))
        for others, before, after in zip(others_values(data), found.clusters.train, found.clusters.now, strict=True)
        for title, train, now in zip(titles, before, after, strict=True)
    ]


def mode_titles(values: list[int], names: Sequence[str]) -> list[str]:
    """Modes in words: the name of their value, and their number under it where it has several."""
    numbers = [values[:i].count(value) + 1 for i, value in enumerate(values)]
    return [
        f"{names[value]} {number}" if values.count(value) > 1 else names[value]
        for value, number in zip(values, numbers, strict=True)
    ]
