"""Marks on runs that other code or other data made than the runs they are compared with."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

from codid_lightning.analysis.tables.scores import Run


def marked(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The runs, marked, and a message for every data set with runs of several origins.

    The code of most runs on a data set is the one to compare with; the data, that of most runs with the same held-out
    group and seed of the data. Runs that recorded neither revision nor checksum are not marked.
    """
    code = _unusual(runs, lambda run: run.dataset, _code(runs))
    data = _unusual(runs, lambda run: (run.dataset, run.group, run.config.get("data.init_args.seed")), lambda r: r.data)
    marks = [replace(run, other_code=i in code, other_data=i in data) for i, run in enumerate(runs)]
    messages = [
        *_messages(marks, "code", lambda run: run.other_code, lambda run: (run.revision or run.code or "")[:8]),
        *_messages(marks, "data", lambda run: run.other_data, lambda run: (run.data or "")[:8]),
    ]
    return marks, messages


def _code(runs: Sequence[Run]) -> Callable[[Run], str | None]:
    """What identifies the code of a run: its checksum, or its revision where runs on the data set have no checksum."""
    without = {run.dataset for run in runs if run.code is None}
    return lambda run: run.revision if run.dataset in without else run.code


def _unusual(runs: Sequence[Run], together: Callable[[Run], Hashable], origin: Callable[[Run], str | None]) -> set[int]:
    """Positions of the runs whose origin is not that of most runs they belong together with; of two, the newer."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for i, run in enumerate(runs):  # oldest first
        if origin(run) is not None:
            groups[together(run)].append(i)
    found: set[int] = set()
    for members in groups.values():
        counts = Counter(origin(runs[i]) for i in reversed(members))
        usual, _ = counts.most_common(1)[0]
        found |= {i for i in members if origin(runs[i]) != usual}
    return found


def _messages(
    runs: Iterable[Run], what: str, is_marked: Callable[[Run], bool], name: Callable[[Run], str]
) -> list[str]:
    by_dataset: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_dataset[run.dataset].append(run)
    messages = []
    for dataset, of_dataset in by_dataset.items():
        others = [run for run in of_dataset if is_marked(run)]
        if others:
            counts = Counter(f"{run.method} {name(run)}".strip() for run in others)
            listed = ", ".join(f"{count} of {kind}" for kind, count in sorted(counts.items()))
            messages.append(f"{dataset}: {len(others)} of {len(of_dataset)} runs are of other {what}: {listed}")
    return messages
