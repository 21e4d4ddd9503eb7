"""`codid demo` from its runs to its table, figure and page; its bars read the runs' own files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from jinja2 import UndefinedError
from matplotlib.colors import to_hex
from PIL import Image

from codid_lightning.analysis.evaluation import load_run
from codid_lightning.analysis.figures.shifted_tests import BARS, LOWEST, PICTURES, shifted_tests
from codid_lightning.analysis.pages.page import render
from codid_lightning.cli.commands import demo
from codid_lightning.cli.main import main
from codid_lightning.training import runs
from datamodules import ColoredGlyphs

SHORT = {"trainer.max_epochs": 6, "trainer.limit_train_batches": 3, "data.samples_per_mode": 40, "model.latent_dim": 4}
TITLES = {"base": "BASE, a plain network", "codid_adaptive": "CoDID-A"}
ADAPTED = "CoDID-A + 200 unlabelled pictures"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def short(monkeypatch) -> None:
    shorten(monkeypatch)


def shorten(patch: pytest.MonkeyPatch) -> None:
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
    assert all(f'<th scope="row">{title}</th>' in text for title in (*TITLES.values(), ADAPTED))
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
        assert [*title.split(), *accuracies] in [line.split() for line in out.splitlines()]
    assert [*ADAPTED.split(), *adapted_by_hand(demonstrated)] in [line.split() for line in out.splitlines()]


def adapted_by_hand(root: Path) -> list[str]:
    run = load_run([next(str(path.parent) for path in root.rglob(runs.RESULT) if "adaptive" in str(path))])
    accuracies = []
    for test in run.data.test_names:
        data = run.data.datasets[test]
        every = data[torch.arange(len(data))]
        some = torch.randperm(len(data), generator=demo.seeded_generator(0))[:200]
        run.model.adapt(every["x"][some], every["a"][some, 1:])
        with torch.no_grad():
            found = run.model.attribute_logits(run.model(every["x"]), every["a"])[0].argmax(1)
        accuracies.append(f"{100 * float((found == every['a'][:, 0]).double().mean()):.1f}")
    return accuracies


@pytest.mark.slow
def test_a_failed_run_is_named(short, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(demo.SETTINGS, "model.lr", -1.0)
    monkeypatch.setattr(demo, "METHODS", ("base",))  # every run is a process that imports everything
    assert main(["demo", "--output", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert "glyphs, base" in message
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


@pytest.fixture(scope="module")
def drawn():
    data = ColoredGlyphs(noise=0.0, min_brightness=1.0, distortion=0.0)
    data.setup()
    scores = {"one": (92.0, 81.2, 48.9), "other": (88.0, 87.6, 87.4)}
    return data, scores, shifted_tests(data, "Odd?", ("as before", "at random", "reversed"), scores)


def test_bars_of_the_picture_are_the_accuracies(drawn):
    _, scores, figure = drawn
    for number, panel in enumerate(figure.axes[3:]):
        tops = [bar.get_y() + bar.get_height() for bar in panel.patches]
        assert tops == pytest.approx([own[number] for own in scores.values()])
        assert {bar.get_y() for bar in panel.patches} == {LOWEST}
        assert [to_hex(bar.get_facecolor()) for bar in panel.patches] == [color.lower() for color in BARS[:2]]
        assert [text.get_text() for text in panel.texts] == [f"{own[number]:.0f}" for own in scores.values()]


def test_the_picture_shows_the_same_digits_in_the_colors_of_each_test(drawn):
    data, _, figure = drawn
    shown = [np.asarray(panel.get_images()[0].get_array()) for panel in figure.axes[:3]]
    shapes = [image.min(2) for image in shown]
    assert all(np.array_equal(shape, shapes[0]) for shape in shapes)
    for panel, image, test in zip(figure.axes[:3], shown, data.test_names, strict=True):
        assert [text.get_text() for text in panel.texts] == ["8", "4", "2", "even", "3", "9", "odd"]
        dataset = data.datasets[test]
        for mode, start in enumerate((0, 28, 56, 98, 126)):  # half a picture between even and odd
            rows = (dataset.mode[:, 0] == mode).nonzero()[:PICTURES, 0]
            for place, (row, color) in enumerate(zip(rows.tolist(), dataset.a[rows, 1].tolist(), strict=True)):
                tile = image[28 * place : 28 * place + 28, start : start + 28]
                ink = tile[..., 2 - 2 * color].min()  # red (0) hides blue, blue (1) hides red
                assert ink < 0.1
                assert (tile[..., 2 * color] == 1).all()
                assert 1 - tile.min(2) == pytest.approx(dataset.x[row].amax(0).numpy() / 255, abs=1e-6)


def test_page_escapes_its_title():
    text = render("page.html.j2", title="<script>")
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 2


def test_page_needs_every_value():
    with pytest.raises(UndefinedError, match="title"):
        render("page.html.j2")
