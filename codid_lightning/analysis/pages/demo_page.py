"""The page that `codid demo` writes: accuracies, a picture and where the runs are."""

from collections.abc import Mapping, Sequence

from codid_lightning.analysis.pages.page import PageTable, Picture, render, row


def demo_page(
    explanation: str,
    tests: Sequence[str],
    scores: Mapping[str, Sequence[float]],
    picture: Picture,
    runs: Mapping[str, str],
) -> str:
    """The whole page.

    Args:
        explanation: What the numbers are.
        tests: Titles of the test sets.
        scores: Accuracies in % on the test sets, by method.
        picture: Pictures of the tests, and the accuracies.
        runs: Run directories as seen from the page, by method.
    """
    rows = [row(method, *(f"{score:.1f}" for score in own)) for method, own in scores.items()]
    table = PageTable(("right answers in %", *tests), rows)
    parts = {"scores": table, "picture": picture, "runs": runs}
    return render("demo.html.j2", title="CoDID on colored digits", explanation=explanation, **parts)
