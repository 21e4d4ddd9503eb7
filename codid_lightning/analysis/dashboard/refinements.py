"""Numbers and tables of the refinements that mode discovery has made."""

from __future__ import annotations

from typing import Any

from lightning import Trainer

from codid_lightning.methods.codid.discovery import ModeDiscovery

MOVE_COLUMNS = ("epoch", "attribute", "value", "kind", "clusters", "log_hastings", "accepted", "reason")


def history_of(trainer: Trainer) -> list[dict[str, Any]]:
    """The refinements so far; empty for methods without mode discovery."""
    found = next((c for c in trainer.callbacks if isinstance(c, ModeDiscovery)), None)  # type: ignore[attr-defined]
    return [] if found is None else found.history


def cluster_counts(note: dict[str, Any], trainer: Trainer) -> dict[str, float]:
    """Numbers of clusters under each value, and of accepted and rejected proposals, of one refinement."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    q, kind = note["attribute"], note["kind"]
    names = [f"clusters/{data.attribute_names[q]}={value}" for value in data.value_names[q]]
    counts = {name: float(count) for name, count in zip(names, note["counts"], strict=True)}
    if kind == "fit":
        return counts
    accepted = sum(move["accepted"] for move in note["moves"])
    prefix = f"moves/{data.attribute_names[q]}/{kind}"
    return counts | {f"{prefix}_accepted": float(accepted), f"{prefix}_rejected": float(len(note["moves"]) - accepted)}


def move_rows(history: list[dict[str, Any]], trainer: Trainer) -> list[list[Any]]:
    """One row per proposal so far, with the columns `MOVE_COLUMNS`."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    return [
        [
            note["epoch"],
            data.attribute_names[note["attribute"]],
            data.value_names[note["attribute"]][move["value"]],
            move["kind"],
            "+".join(map(str, move["slots"])),
            float(move["log_hastings"]),
            bool(move["accepted"]),
            move["reason"],
        ]
        for note in history
        for move in note["moves"]
    ]
