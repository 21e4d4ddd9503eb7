"""The page that `codid demo` writes: accuracies, decision boundaries and where the runs are."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from codid_lightning.analysis.pages.page import PageTable, Picture, render, row


def demo_page(
    explanation: str,
    tests: Sequence[str],
    scores: Mapping[str, Sequence[str]],
    picture: Picture,
    runs: Mapping[str, Path],
) -> str:
    """The whole page.

    Args:
        explanation: What the numbers are.
        tests: Titles of the test sets.
        scores: Accuracies on the test sets, by method.
        picture: The decision boundaries.
        runs: Run directories, by method.
    """
    table = PageTable(("a1", *tests), [row(method, *texts) for method, texts in scores.items()])
    parts = {"scores": table, "picture": picture, "runs": runs}
    return render("demo.html.j2", title="CoDID on toy data", explanation=explanation, **parts)
