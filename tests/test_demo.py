"""`codid demo` from its runs to its table, figure and page; its bars read the runs' own files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from jinja2 import UndefinedError
from PIL import Image

from codid_lightning.analysis.figures.results import FigureError
from codid_lightning.analysis.figures.toy import decision_boundaries
from codid_lightning.analysis.pages.page import render
from codid_lightning.cli.commands import demo
from codid_lightning.cli.main import main
from codid_lightning.training import runs

SHORT = {"trainer.max_epochs": 6, "trainer.limit_train_batches": 3, "data.samples_per_mode": 40, "model.latent_dim": 4}
TITLES = {"base": "BASE", "codid": "CoDID"}  # two of the four: every run is a process that imports everything

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def short(monkeypatch) -> None:
    shorten(monkeypatch)


def shorten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(demo, "METHODS", tuple(TITLES))
    for key, value in SHORT.items():
        patch.setitem(demo.SETTINGS, key, value)


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("demo") / "<b>"  # a folder whose name must be escaped
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        assert main(["demo", "--output", str(root)]) == 0
    return root


def results(root: Path) -> dict[str, dict]:
    found = [runs.read_result(path.parent) for path in root.rglob(runs.RESULT)]
    return {result["method"]: result for result in found}


@pytest.mark.slow
def test_leaves_runs_a_figure_and_a_page(demonstrated):
    assert results(demonstrated).keys() == TITLES.keys()
    assert all(result["epochs"] == 6 for result in results(demonstrated).values())
    with Image.open(demonstrated / demo.FIGURE) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 10, "the picture is blank"
    text = (demonstrated / demo.REPORT).read_text()
    assert all(f'<th scope="row">{title}</th>' in text for title in TITLES.values())
    assert "<b>" not in text, "a name was taken for markup"
    assert not re.search(r"""(src|href)=["'](?!data:)""", text), "the page needs other files"


@pytest.mark.slow
def test_a_second_demo_trains_nothing_and_prints_the_results(demonstrated, short, capsys):
    before = {path: path.stat().st_mtime_ns for path in demonstrated.rglob(runs.RESULT)}
    assert main(["demo", "--output", str(demonstrated)]) == 0
    assert before == {path: path.stat().st_mtime_ns for path in demonstrated.rglob(runs.RESULT)}
    out = capsys.readouterr().out
    assert "2 finished runs" in out
    for method, title in TITLES.items():
        metrics = results(demonstrated)[method]["metrics"]
        accuracies = [f"{100 * metrics[f'test{k}/acc']:.1f}" for k in (1, 2, 3)]
        assert [title, *accuracies] in [line.split() for line in out.splitlines()]


@pytest.mark.slow
def test_a_failed_run_is_named(short, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(demo.SETTINGS, "model.lr", -1.0)
    monkeypatch.setattr(demo, "METHODS", ("base",))
    assert main(["demo", "--output", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "toy, base" in message
    assert "model.lr" in message


def test_bars_follow_the_runs_own_log(tmp_path):
    assert demo.epochs(tmp_path) == (0, None)
    (tmp_path / runs.CONFIG).write_text("trainer: {max_epochs: 4}\n")
    assert demo.epochs(tmp_path) == (0, 4)
    log = tmp_path / "logs" / "version_0" / "metrics.csv"
    log.parent.mkdir(parents=True)
    log.write_text("epoch,step,val/acc\n0,10,0.5\n0,10,\n1,20,0.6\n")
    assert demo.epochs(tmp_path) == (2, 4)
    (tmp_path / runs.RESULT).write_text("{}")
    assert demo.epochs(tmp_path) == (4, 4)


@pytest.mark.slow
def test_figure_is_of_the_plane_only(tmp_path):
    short = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--data.samples=60"]
    assert main(["fit", "-c", "configs/toy_four_attributes/base.yaml", f"--run_dir={tmp_path}", *short]) == 0
    with pytest.raises(FigureError, match="plane"):
        decision_boundaries([tmp_path])


def test_page_escapes_its_title():
    text = render("page.html.j2", title="<script>")
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 2


def test_page_needs_every_value():
    with pytest.raises(UndefinedError, match="title"):
        render("page.html.j2")
