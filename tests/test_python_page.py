"""The Python blocks of docs/python.md run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


@pytest.mark.filterwarnings("ignore")
def test_the_blocks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S):
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["predictions"]
    assert {"test1/acc", "test3/acc"} <= names["result"].metrics.keys()
    assert "CoDID-km on toy" in capsys.readouterr().out
