"""How often the audit of data is wrong: false alarms on data without shortcuts, and power on planted ones.

    python -m benchmarks.audit_calibration --output results/audit.md

Null data have no correlation of target and attribute, plain or hidden; the attribute may shift and scale the inputs.
The last null has a plain correlation, so that only the test of hidden correlations is judged there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track
from sklearn.datasets import load_breast_cancer

from codid_lightning.analysis.data_audit.hidden import DRAWS, hidden_correlation
from codid_lightning.analysis.data_audit.samples import Samples
from codid_lightning.analysis.data_audit.verdict import judge

Array = NDArray[Any]
Rows = dict[str, dict[str, float]]
Draw = tuple[Array, Array, Array]  # inputs, target, attribute


def breast_cancer(rng: np.random.Generator, rows: int | None = None) -> tuple[Array, Array]:
    """Rows of a real table, standardised, and their diagnosis."""
    x, y = load_breast_cancer(return_X_y=True)
    chosen = rng.permutation(len(x))[:rows]
    return ((x - x.mean(0)) / x.std(0))[chosen], y[chosen]


def modes(rng: np.random.Generator, rows: int, apart: float = 3.0) -> tuple[Array, Array, Array]:
    """Ten columns; two modes under each of two values of the target."""
    y, m = rng.integers(2, size=rows), rng.integers(2, size=rows)
    centres = rng.normal(size=(2, 2, 10))
    centres *= apart / np.linalg.norm(centres[:, 1] - centres[:, 0], axis=1)[:, None, None]
    return centres[y, m] + rng.normal(size=(rows, 10)), y, m


def measured(rng: np.random.Generator, x: Array, site: Array, strength: float = 0.5) -> Array:
    """Inputs as devices would measure them: every column shifted and scaled by the site."""
    sites = int(site.max()) + 1
    scale = np.exp(0.6 * strength * rng.normal(size=(sites, x.shape[1])))
    found: Array = x * scale[site] + 2 * strength * rng.normal(size=(sites, x.shape[1]))[site]
    return found


def coin(rng: np.random.Generator) -> Draw:
    """A coin that leaves no trace."""
    x, y = breast_cancer(rng)
    return x, y, rng.integers(2, size=len(y))


def coin_with_effects(rng: np.random.Generator) -> Draw:
    """A coin that shifts and scales a real table."""
    x, y = breast_cancer(rng)
    site = rng.integers(2, size=len(y))
    return measured(rng, x, site), y, site


def four_sites(rng: np.random.Generator) -> Draw:
    """Four sites of unequal size that shift and scale data with modes."""
    x, y, _ = modes(rng, 800)
    site = rng.choice(4, size=800, p=[0.4, 0.3, 0.2, 0.1])
    return measured(rng, x, site), y, site


def plain_only(rng: np.random.Generator) -> Draw:
    """A site that follows the diagnosis in four of five cases, and shifts and scales."""
    x, y = breast_cancer(rng)
    site = np.where(rng.random(len(y)) < 0.8, y, 1 - y)
    return measured(rng, x, site), y, site


def planted(rng: np.random.Generator, rows: int, strength: float) -> Draw:
    """Modes that go along with the site, under the two values of the target in opposite or in the same direction."""
    x, y, m = modes(rng, rows)
    kind = m ^ y if rng.random() < 0.5 else m
    site = np.where(rng.random(rows) < 0.5 + strength / 2, kind, 1 - kind)
    return measured(rng, x, site), y, site


NULLS: dict[str, Callable[[np.random.Generator], Draw]] = {
    "coin without effect, 569 real rows": coin,
    "coin that shifts and scales, 569 real rows": coin_with_effects,
    "four sites that shift and scale, 800 rows": four_sites,
}
STRENGTHS, ROWS = (0.3, 0.5, 0.8), (300, 800)


def alarms(name: str, sets: int, draws: int) -> dict[str, float]:
    """Shares of null data sets with a false answer."""
    found = []
    for seed in track(range(sets), name):
        x, y, site = NULLS[name](np.random.default_rng(seed))
        verdict = judge(Samples.of(x, y, site), draws, seed)
        found.append((verdict.threat == "yes", verdict.hides == "yes", verdict.attributes[0].correlated))
    threat, hidden, plain = np.mean(found, 0).tolist()
    return {"shortcuts threaten": threat, "hidden": hidden, "plain": plain, "sets": sets}


def hidden_share(draw: Callable[[np.random.Generator], Draw], sets: int, name: str, draws: int) -> float:
    """Share of data sets in which the test of hidden correlations alone is significant at 5 %."""
    hits = 0
    for seed in track(range(sets), name):
        x, y, site = draw(np.random.default_rng(seed))
        found = hidden_correlation(x, y, site, draws, seed)
        hits += found is not None and found.p_value <= 0.05
    return hits / sets


def main() -> None:
    """Measure, and write a table and its numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=70, help="null data sets of each kind")
    parser.add_argument("--power_sets", type=int, default=10, help="planted data sets at each point")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="of planted data sets")
    parser.add_argument("--draws", type=int, default=DRAWS, help="permutations")
    parser.add_argument("--output", type=Path, default=Path("results/audit.md"))
    options = parser.parse_args()
    nulls: dict[str, dict[str, float]] = {}
    power: dict[str, float] = {}
    for name in NULLS:
        nulls[name] = alarms(name, options.sets, options.draws)
        write(options.output, nulls, power, None, options)
    for strength, rows in product(STRENGTHS, options.rows):
        point = f"{strength:g}, {rows} rows"
        draw = partial(planted, rows=rows, strength=strength)
        power[point] = hidden_share(draw, options.power_sets, point, options.draws)
        write(options.output, nulls, power, None, options)
    follows = hidden_share(plain_only, options.sets, "plain correlation", options.draws)
    write(options.output, nulls, power, follows, options)


def write(
    output: Path, nulls: Rows, power: dict[str, float], follows: float | None, options: argparse.Namespace
) -> None:
    """A table, and its numbers as JSON."""
    keys = ("shortcuts threaten", "hidden", "plain")
    lines = ["# False alarms and power of the audit", "", "| null data | sets | shortcuts threaten | hidden | plain |"]
    lines += ["|---|---|---|---|---|"]
    for name, row in nulls.items():
        lines.append(f"| {name} | {row['sets']:.0f} | " + " | ".join(f"{100 * row[key]:.1f} %" for key in keys) + " |")
    total = sum(row["sets"] for row in nulls.values())
    shares = [sum(row[key] * row["sets"] for row in nulls.values()) / total for key in keys]
    lines.append(f"| all | {total:.0f} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
    if follows is not None:
        lines.append(f"| site follows the diagnosis, 569 real rows | {options.sets} | – | {100 * follows:.1f} % | – |")
    if power:
        lines += ["", f"Power of the test of hidden correlations at 5 %, {options.power_sets} data sets each:", ""]
        lines += ["| strength, rows | significant |", "|---|---|"]
        lines += [f"| {point} | {100 * share:.0f} % |" for point, share in power.items()]
    output.write_text("\n".join(lines) + "\n")
    numbers = {"null": nulls, "plain_only_hidden": follows, "power": power, "power_sets": options.power_sets}
    output.with_suffix(".json").write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
