"""The rounds of moves that a clustering went through, and a picture of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from codid_lightning.clustering.moves import MoveKind, Proposal


class Round(NamedTuple):
    """One round of proposals, and the numbers of clusters before it and after the EM that followed."""

    kind: MoveKind
    before: int
    after: int
    proposals: tuple[Proposal, ...]

    @property
    def accepted(self) -> int:
        """Number of accepted proposals."""
        return sum(p.accepted for p in self.proposals)


def plot_history(rounds: Sequence[Round], axes: Any = None) -> Any:
    """Draw the log Hastings ratios of all proposals above the rounds, and the number of clusters.

    Args:
        rounds: The ``history_`` of a fitted ``DPGMM``.
        axes: Matplotlib axes; default: new ones.

    Returns:
        The axes.
    """
    if axes is None:
        from matplotlib import pyplot as plt

        axes = plt.subplots(layout="constrained")[1]
    colours = {"merge": "tab:blue", "split": "tab:orange"}
    for kind, colour in colours.items():
        for accepted, marker in ((True, "o"), (False, "x")):
            chosen = [
                (t, p.log_hastings)
                for t, r in enumerate(rounds, 1)
                for p in r.proposals
                if r.kind == kind and p.accepted is accepted and np.isfinite(p.log_hastings)
            ]
            label = f"{kind}, {'accepted' if accepted else 'rejected'}"
            axes.scatter(*np.array(chosen).reshape(-1, 2).T, c=colour, marker=marker, s=20, label=label)
    axes.set_yscale("symlog")
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set(xlabel="round", ylabel="log Hastings ratio")
    counts = axes.twinx()
    counts.step(
        range(len(rounds) + 1), [*(r.before for r in rounds[:1]), *(r.after for r in rounds)], "k", where="post"
    )
    counts.set_ylabel("number of clusters")
    axes.legend(fontsize="small")
    return axes
