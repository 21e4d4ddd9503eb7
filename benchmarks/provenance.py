"""Where a file of results comes from: its command, revision and date."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path


def header(title: str) -> list[str]:
    """Title and origin, as the first lines of a Markdown file."""
    program = f"python -m benchmarks.{Path(sys.argv[0]).stem}"
    command = " ".join([program, *sys.argv[1:]])
    return [f"# {title}", "", f"Made by `{command}` at revision {revision()} on {datetime.now(UTC):%Y-%m-%d}."]


def revision() -> str:
    """The commit of this checkout; `unknown` outside one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  (no input from outside)
    return found.stdout.strip() or "unknown"
