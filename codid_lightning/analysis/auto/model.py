"""The model that `codid auto` hands over: rows of a table in, names of labels out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import skops.io
from numpy.typing import NDArray

from codid_lightning.analysis.auto.candidates import Fitted
from codid_lightning.analysis.data_audit.columns import Column, Encoder
from codid_lightning.analysis.data_audit.samples import Samples
from codid_lightning.clustering import Harmonizer
from codid_lightning.errors import RunError
from codid_lightning.training.runs import replacing
from datamodules.tables import label_texts

Array = NDArray[Any]

FILE = "model.skops"


@dataclass(frozen=True)
class AutoModel:
    """A trained classifier with everything around it: columns, names of values, effects of sites.

    The file holds data alone: `load` imports and calls nothing but `TRUSTED` and what scikit-learn's models consist of.

    Args:
        target: Name of the target.
        values: Its values.
        others: Names and values of the other attributes.
        encoder: How columns become inputs; None if inputs are arrays.
        fitted: The classifier.
        title: What it is, in words.
    """

    target: str
    values: tuple[str, ...]
    others: tuple[tuple[str, tuple[str, ...]], ...]
    encoder: Encoder | None
    fitted: Fitted
    title: str

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """From the folder that `codid auto` wrote."""
        file = Path(folder) / FILE if Path(folder).is_dir() else Path(folder)
        if not file.is_file():
            raise RunError(f"There is no file {file}; `codid auto` writes it.")
        try:
            strange = set(skops.io.get_untrusted_types(file=file)) - set(TRUSTED)
            found = None if strange else skops.io.load(file, trusted=TRUSTED)
        except Exception as error:  # whatever a damaged archive makes its reader raise
            raise RunError(f"{file} cannot be read: {error}") from error
        if not isinstance(found, cls):
            named = f" It holds {', '.join(sorted(strange))}." if strange else ""
            raise RunError(f"{file} was not written by `codid auto`.{named}")
        return found

    def save(self, folder: Path) -> Path:
        """Write the file."""
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / FILE) as part:
            skops.io.dump(self, part)
        return folder / FILE

    def predict(self, table: Mapping[str, Any] | pd.DataFrame | Array) -> pd.DataFrame:
        """The likeliest value of each row, and the probability of every value.

        Args:
            table: Columns as in training, or inputs (N, d) where the model was trained on arrays. Columns of the other
                attributes are needed if effects of sites are removed.
        """
        columns = {} if isinstance(table, np.ndarray) else {str(name): np.asarray(table[name]) for name in table}
        if isinstance(table, np.ndarray):
            x = table
        elif self.encoder is None:
            raise RunError("This model was trained on arrays: give inputs of shape (rows, inputs).")
        else:
            x = self.encoder.encode(columns)
        probabilities = self.fitted.predict_proba(x, self._site(columns, len(x)))
        found: dict[str, Any] = {"prediction": [self.values[i] for i in probabilities.argmax(1)]}
        found |= {f"p({value})": probabilities[:, i] for i, value in enumerate(self.values)}
        return pd.DataFrame(found)

    def _site(self, columns: Mapping[str, Array], rows: int) -> Array:
        """Combination (N,) of the other attributes, -1 for unknown values."""
        site = np.zeros(rows, dtype=int)
        if not self.fitted.needs_site:
            return site
        unknown = np.zeros(rows, dtype=bool)
        for name, values in self.others:
            if name not in columns:
                raise RunError(f"This model removes the effects of {name}: the table needs a column `{name}`.")
            place = {value: i for i, value in enumerate(values)}
            index = np.array([place.get(str(t), -1) for t in label_texts(columns[name], name, Path("the table"))])
            unknown |= index < 0
            site = site * len(values) + index
        return np.where(unknown, -1, site)


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


# What a file may hold beside the types that skops trusts.
TRUSTED = [
    *(_path(cls) for cls in (AutoModel, Encoder, Column, Fitted, Harmonizer)),
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
]


def combination(samples: Samples) -> Array:
    """One number (N,) for the values of all other attributes, as `AutoModel` counts them."""
    site = np.zeros(len(samples), dtype=int)
    for other in samples.others:
        site = site * len(other.values) + other.labels
    return site
