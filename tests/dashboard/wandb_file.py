"""Reads the file that an offline run of W&B leaves: protocol buffers in LevelDB's log format."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path: Path) -> Iterator[Record]:
    """All records, in order; each chunk is checksum (4 bytes), length (2), kind (1) and content."""
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    position, parts = HEADER, b""
    while position < len(content):
        if BLOCK - position % BLOCK < HEADER:  # no chunk begins in a block's last bytes
            position += BLOCK - position % BLOCK
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        assert kind in (FULL, FIRST, MIDDLE, LAST)
        position += HEADER + length
        parts += content[position - length : position]
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


@dataclass
class OfflineRun:
    """What a run file holds."""

    name: str = ""
    group: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)

    def values(self, key: str) -> list[Any]:
        return [row[key] for row in self.history if key in row]

    @property
    def keys(self) -> set[str]:
        return {key for row in self.history for key in row}


def read_run(folder: Path) -> OfflineRun:
    """The one offline run below a folder."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    run = OfflineRun()
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run.name, run.group = record.run.display_name, record.run.run_group
            run.config |= _items(record.run.config.update)
        elif kind == "config":
            run.config |= _items(record.config.update)
        elif kind == "history":
            run.history.append(_items(record.history.item))
        elif kind == "artifact":
            run.artifacts.append(record.artifact.type)
        elif kind == "request" and record.request.WhichOneof("request_type") == "log_artifact":
            run.artifacts.append(record.request.log_artifact.artifact.type)
    return run


def _items(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
