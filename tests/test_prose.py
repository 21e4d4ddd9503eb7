"""Plain words: pages and docstrings avoid words that readers stumble over, and each page says what it is good for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pages import ROOT, pages

PLAIN = {
    r"refus(?:es?|ed|ing|al)s?": "say `is an error`, `rejects` or `does not accept`",
    r"(?:go|goes|going|went) along": "say `correlates with`",
    r"(?:is|are|was|were|being|be) told(?! apart)": "say `is given` or `knows`",
    r"cannot be told from": "say `cannot be distinguished from`",
    r"looks? after|looking after": "say `handles`",
    r"of one's own|than one's own": "say `your own`",
    r"anew": "say `again` or `new`",
    r"thereby|hereby|whereby|whilst|herein|shall": "say it in a new sentence, or `will`",
    r"in order to": "say `to`",
    r"prior to": "say `before`",
    r"utili[sz]\w+": "say `use`",
    r"leverag\w+": "say `use`",
    r"of course|obviously|needless to say": "leave it out",
    r"(?-i:(?!that|had)([a-z]+) \1)": "a word is doubled",
}
AIM = re.compile(r"\bAfter (?:this|these|a|one of these) (?:page|pages|tutorial)")
WITHOUT_AIM = {"README.md", "CONTRIBUTING.md", "docs/index.md"}
LONGEST = 60  # words of a sentence


def prose(markdown: str) -> str:
    """The text of a page without front matter, blocks, comments, code, addresses and markers; line numbers stay."""
    without = (r"\A---\n.*?^---$", r"^```.*?^```$", r"<!--.*?-->", r"^    .*?$", r"`[^`]*`", r"\]\([^)]*\)")
    for pattern in without:
        markdown = re.sub(pattern, lambda m: "\n" * m[0].count("\n"), markdown, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"[*_]{1,2}(?=\w)|(?<=\w)[*_]{1,2}", "", markdown)


def texts_of_code() -> Iterator[tuple[str, int, str]]:
    """File, line and text of docstrings, messages and help: all strings of the packages."""
    for package in ("codid_lightning", "datamodules"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                    yield file.relative_to(ROOT).as_posix(), node.lineno, re.sub(r"`[^`]*`", "", node.value)
        for file in sorted((ROOT / package).rglob("*.j2")):
            yield file.relative_to(ROOT).as_posix(), 1, file.read_text()


def findings(text: str) -> list[tuple[int, str, str]]:
    """Line, words and advice for each match of a rule."""
    found = []
    for pattern, advice in PLAIN.items():
        for match in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
            found.append((text.count("\n", 0, match.start()), " ".join(match[0].split()), advice))
    return found


def sentences(text: str) -> list[str]:
    """Sentences of the paragraphs and list items of a page, without tables and headings."""
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text)
    plain = [" ".join(block.split()) for block in blocks if not block.lstrip().startswith(("|", "#"))]
    return [sentence for block in plain for sentence in re.split(r"(?<=[.:;?!])\s", block)]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_the_rules_find_what_they_should():
    assert [(line, words) for line, words, _ in findings("It works.\nThe gate refuses it, and the the rest")] == [
        (1, "refuses"),
        (1, "the the"),
    ]
    assert not findings(prose("Say `refuse` here.\n\n```text\nThe gate refuses.\n```\n\n    it refuses\n"))
    assert sentences("# A b\n\nOne two. Three:\n\n- four\n- five six\n\n| x | y |") == [
        "One two.",
        "Three:",
        "- four",
        "five six",
    ]


@pytest.mark.parametrize("page", pages(), ids=name)
def test_a_page_is_plain(page):
    text = prose(page.read_text())
    problems = [f"{name(page)}:{line + 1}: {words}: {advice}" for line, words, advice in findings(text)]
    problems += [f"{name(page)}: too long: {s[:80]}..." for s in sentences(text) if len(s.split()) > LONGEST]
    if name(page) not in WITHOUT_AIM and not AIM.search(page.read_text()[:900]):
        problems.append(f"{name(page)}: say first what the reader can do after this page")
    assert not problems, "\n".join(problems)


def test_docstrings_and_messages_are_plain():
    problems = [
        f"{file}:{start + line}: {words}: {advice}"
        for file, start, text in texts_of_code()
        for line, words, advice in findings(text)
    ]
    assert not problems, "\n".join(problems)
