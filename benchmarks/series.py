"""Do persons and motor loads act like sites of a table on the spectra of series? BASE, and harmonised spectra.

    python -m benchmarks.series --root data --output results/series.md

A window becomes the log power of its channels in bands of frequency, where a gain or a filter is a shift. `Harmonizer`
removes the shift and scale of every person or load. Those of the test group, which training does not see, come from its
own windows without labels (`fit_site`). Both classifiers are the same logistic regression on rows and their squares.
The gate is that of `HarmonisedSamples`, on validation windows. Test windows are only scored.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from benchmarks.provenance import header
from codid_lightning.analysis.data_audit.features import content_features
from codid_lightning.clustering import Harmonizer
from codid_lightning.methods.codid.parts.harmonised import Rows, judge
from datamodules import CWRU, UCIHAR
from datamodules.base import AttributeDataModule

Array = NDArray[Any]
KINDS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "CWRU": (CWRU, {}),
    "UCI-HAR": (UCIHAR, {"signal": "body"}),
}


def spectra(data: AttributeDataModule, split: str) -> Rows:
    """Log spectra of a split with a_2 as the site."""
    batch = data.datasets[split][torch.arange(len(data.datasets[split]))]
    x = content_features(batch["x"].numpy())
    return Rows(x, batch["a"][:, 1].numpy(), batch["a"][:, 0].numpy())


def classifier() -> Pipeline:
    """Of a_1."""
    squares = PolynomialFeatures(2, interaction_only=False, include_bias=False)
    return make_pipeline(StandardScaler(), squares, StandardScaler(), LogisticRegression(C=0.1, max_iter=500, tol=1e-3))


def right(rows: Rows, test: Rows) -> float:
    """Percentage of test windows whose a_1 is predicted after learning from `rows`."""
    predicted: Array = classifier().fit(rows.x, rows.value).predict(test.x)
    return 100 * float((predicted == test.value).mean())


def harmonised(rows: Rows, test: Rows, components: int) -> float:
    """The same on spectra without the effects of a_2."""
    found = Harmonizer(components).fit(*rows)
    for site in np.setdiff1d(test.site, found.sites_):
        found.fit_site(test.x[test.site == site], site)
    return right(*(part._replace(x=found.transform(part.x, part.site)) for part in (rows, test)))


def measured(name: str, options: argparse.Namespace) -> Iterator[str]:
    """Rows of the table."""
    kind, settings = KINDS[name]
    if kind is UCIHAR:
        settings = {**settings, "source": options.source}
    for group in range(options.groups or kind.groups):
        data = kind(root=str(options.root), test_group=group, seed=0, download=False, on_bad_values="drop", **settings)
        data.setup()
        train, val, test = (spectra(data, split) for split in ("train", "val", data.test_names[0]))
        gate = judge(Harmonizer(options.components).fit(*train), train, val)
        scores = (right(train, test), harmonised(train, test, 1), harmonised(train, test, options.components))
        losses = f"{gate['gate/a2_loss_measured']:.2f} / {gate['gate/a2_loss_content']:.2f}"
        answer = "yes" if gate["gate/accepted"] else "no"
        row = f"| {name} | {group} | {losses} | {gate['gate/likelihood_gain']:+.2f} | {answer} |"
        print(row, scores, flush=True)
        yield row + "".join(f" {score:.1f} |" for score in scores)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="Folder with the data sets.")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--source", default="hapt", help="Of UCI-HAR: windows as published, or cut from recordings.")
    parser.add_argument("--groups", type=int, help="How many groups to test; all by default.")
    parser.add_argument("--components", type=int, default=50, help="Most components under each value of a_1.")
    parser.add_argument("--output", type=Path, default=Path("series.md"))
    options = parser.parse_args()
    lines = [
        *header("Harmonised spectra of series"), "",
        "Loss of a_2: of a classifier on validation windows, within values of a_1, before / after its effects are "
        "removed. Gain: of the log-likelihood of validation windows with effects of a_2. Accuracy of a_1 on the test "
        "group in %: of spectra as measured, and without effects of a_2, with one component and with up to "
        f"{options.components} under each value of a_1.", "",
        "| data set | group | loss of a_2 | gain | gate accepts | BASE | one component | components |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [row for name in options.only for row in measured(name, options)]
    options.output.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
