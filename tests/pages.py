"""The code blocks of pages, and how a test runs them.

A fence may have an option after its language. A block with `needs=data` is not run, because it needs data to
download; other reasons are hardware, time, a trained run or the network. A block with `title=FILE` is a file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from codid_lightning.experiments.matrix import Matrix, Rule
from codid_lightning.experiments.spaces import read_space
from codid_lightning.training import resolve
from tests.commands import codid

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LANGUAGES = {"python", "sh", "yaml", "text", "mermaid", "console"}
REASONS = {"data", "hardware", "time", "run", "network"}
SHORT = {"fit": ("--trainer.max_epochs=5", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu")}


def pages() -> list[Path]:
    """All pages for readers."""
    docs = [page for page in (ROOT / "docs").rglob("*.md") if "generated" not in page.parts]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(docs)]


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    options: dict[str, str]
    code: str

    @property
    def name(self) -> str:
        """Where it is."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether a test executes it."""
        return ("title" in self.options or self.language in {"python", "sh"}) and "needs" not in self.options

    @property
    def commands(self) -> Iterator[list[str]]:
        """The arguments of each line of a shell block, without comments."""
        for line in self.code.replace("\\\n", " ").splitlines():
            if arguments := shlex.split(line, comments=True):
                yield arguments


def blocks(page: Path) -> list[Block]:
    """The blocks of a page; cells of notebooks are Python. Directives of the site are no blocks."""
    text, found = page.read_text(), []
    for match in FENCE.finditer(text):
        words, code = match["info"].split() or [""], match["code"]
        if words[0] == "{code-cell}":
            words, code = ["python"], re.sub(r"\A(?::.*\n)+", "", code)  # tags of the cell
        if not words[0].startswith("{"):
            options = dict(word.split("=", 1) for word in words[1:])
            found.append(Block(page, text.count("\n", 0, match.start()) + 1, words[0], options, code))
    return found


def run(block: Block, names: dict[str, Any]) -> None:
    """Execute a block in the current folder; `names` are the variables that its page has so far."""
    if block.language == "python":
        source = re.sub(r"^!codid (.+)$", lambda m: f"_codid({shlex.split(m[1])!r})", block.code, flags=re.MULTILINE)
        names["_codid"] = run_codid
        names.setdefault("__name__", "__main__")
        exec(compile("\n" * block.line + source, str(block.page), "exec"), names)
    elif block.language == "sh":
        for command, *arguments in block.commands:
            assert command == "codid", f"{block.name} has {command}: mark the block with needs=..."
            run_codid(arguments, SHORT.get(arguments[0], ()))
    elif file := block.options.get("title"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(block.code)
        if block.language == "yaml":
            check_config(Path(file))


def check_config(file: Path) -> None:
    """All keys exist: of a config, of an overlay on a small data set, of a matrix of runs, or of a space to search."""
    match yaml.safe_load(file.read_text()):
        case {"datasets": _} as matrix:
            assert [Rule(**rule) for rule in matrix.pop("rules", [])]
            Matrix(**matrix)
        case {"space": space}:
            assert read_space(space)
        case {"data": _, "model": _}:
            resolve(["-c", str(file)])
        case _:
            resolve(["-c", "configs/toy/codid.yaml", "-c", str(file)])


def run_codid(arguments: list[str], more: tuple[str, ...] = ()) -> None:
    """A command that must succeed."""
    assert codid(*arguments, *more) == 0, shlex.join(["codid", *arguments, *more])
