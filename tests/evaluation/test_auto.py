"""`codid auto`: what it chooses where a shortcut was planted and where none was, and the model it hands over."""

import json
import os
import pickle
import zipfile

import numpy as np
import pandas as pd
import pytest
import skops.io

from benchmarks.audit_calibration import coin_with_effects, modes
from codid_lightning.analysis.auto import AutoModel, auto, search
from codid_lightning.analysis.auto.candidates import Candidate, cell_weights
from codid_lightning.analysis.data_audit import Samples
from codid_lightning.cli.commands.auto import seconds
from codid_lightning.cli.main import main
from codid_lightning.errors import RunError


@pytest.fixture(scope="module")
def shortcut(tmp_path_factory):
    """The site follows the diagnosis in 85 of 100 rows and shifts one column; the target is hard to see."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=1200)
    site = np.where(rng.random(1200) < 0.85, y, 1 - y)
    x = rng.normal(size=(1200, 4)) + 0.6 * y[:, None]
    x[:, 3] += 3 * site
    frame = pd.DataFrame(x, columns=list("abcd"))
    frame["diagnosis"], frame["site"] = np.where(y == 1, "ill", "well"), np.where(site == 1, "north", "south")
    file = tmp_path_factory.mktemp("auto") / "visits.csv"
    frame.to_csv(file, index=False)
    return file


@pytest.fixture
def few(monkeypatch):
    """Logistic regression only, with and without help."""
    found = [Candidate("logistic", {"C": 0.1}, b, h) for h in (False, True) for b in (False, True)]
    monkeypatch.setattr(search, "candidates", lambda threat: [c for c in found if threat or not c.robust])


def test_weights_make_kind_and_site_independent():
    rng = np.random.default_rng(0)
    kind = rng.integers(3, size=2000)
    site = np.where(rng.random(2000) < 0.6, kind % 2, rng.integers(2, size=2000))
    weights = cell_weights(kind, site)
    joint = np.zeros((3, 2))
    np.add.at(joint, (kind, site), weights)
    joint /= joint.sum()
    assert np.allclose(joint, joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True))


def test_from_a_table_to_predictions(shortcut, few, capsys):
    folder = shortcut.parent / "result"
    names = ["--table", str(shortcut), "--target", "diagnosis", "--other", "site"]
    assert main(["auto", *names, "--output", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "Shortcuts threaten: a model can use site" in out
    found = json.loads((folder / "auto.json").read_text())
    assert "balanced" in found["chosen"] or "harmonised" in found["chosen"]
    assert found["test_after"]["reversed"][0] > found["test_before"]["reversed"][0] + 0.1
    assert sum(entry["robust"] for entry in found["tried"]) == 3
    page = (folder / "auto.html").read_text()
    assert "How to use the model" in page
    assert "Test rows that changed sides" in page
    new = shortcut.parent / "new.csv"
    frame = pd.read_csv(shortcut).drop(columns="diagnosis")
    frame.to_csv(new, index=False)
    predicted = shortcut.parent / "predicted.csv"
    assert main(["auto", "--model", str(folder), "--table", str(new), "--output", str(predicted)]) == 0
    table = pd.read_csv(predicted)
    assert set(table["prediction"]) == {"ill", "well"}
    assert np.allclose(table[["p(ill)", "p(well)"]].sum(axis=1), 1)
    assert table["prediction"].tolist() == AutoModel.load(folder).predict(frame)["prediction"].tolist()


def test_where_nothing_threatens_the_plain_model_stays(tmp_path, few):
    x, y, site = coin_with_effects(np.random.default_rng(1))
    found = auto(Samples.of(x, y, site), tmp_path)
    assert found.chosen is found.base
    assert not any(t.candidate.robust for t in found.tried)
    assert "no shortcut" in found.reason


def test_an_interrupted_search_goes_on(shortcut, few, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, y, _ = modes(rng, 300)
    site = np.where(rng.random(300) < 0.9, y, 1 - y)
    x[:, 0] += 3 * site
    samples, begun = Samples.of(x, y, site), []

    def stop(title, number, total, left):
        begun.append(title)
        if number == 2:
            raise KeyboardInterrupt

    first = auto(samples, tmp_path, report=stop)
    assert len(first.tried) == 2
    assert len(first.left_out) == 2
    original, trained = search._Folds.cross_predicted, []
    monkeypatch.setattr(search._Folds, "cross_predicted", lambda folds, c: trained.append(c.key) or original(folds, c))
    second = auto(samples, tmp_path)
    assert len(second.tried) == 4
    assert len(trained) == 2
    assert {t.candidate.key for t in first.tried} | set(trained) == {t.candidate.key for t in second.tried}


def test_no_time_leaves_plain_models(shortcut, few, tmp_path):
    rng = np.random.default_rng(0)
    x, y, _ = modes(rng, 300)
    site = np.where(rng.random(300) < 0.9, y, 1 - y)
    x[:, 0] += 3 * site
    found = auto(Samples.of(x, y, site), tmp_path, budget=0)
    assert [t.candidate.robust for t in found.tried] == [False]
    assert len(found.left_out) == 3


def test_messages(tmp_path):
    assert seconds("20m") == 1200
    with pytest.raises(RunError, match="90s, 20m or 1h"):
        seconds("soon")
    with pytest.raises(RunError, match="no file"):
        AutoModel.load(tmp_path)


class Marker:
    """Leaves a file behind where it is made again."""

    def __init__(self, file: str) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.file,)


def test_a_file_that_would_run_code_is_an_error(tmp_path):
    trace = tmp_path / "trace"
    with zipfile.ZipFile(tmp_path / "pickle.skops", "w") as archive:
        archive.writestr("schema.json", pickle.dumps(Marker(str(trace))))
    (tmp_path / "joblib.skops").write_bytes(pickle.dumps(Marker(str(trace))))
    skops.io.dump(Marker(str(trace)), tmp_path / "other.skops")
    skops.io.dump({"weights": [1.0]}, tmp_path / "data.skops")
    for name, message in (("pickle", "cannot be read"), ("joblib", "cannot be read"), ("data", "not written by")):
        with pytest.raises(RunError, match=message):
            AutoModel.load(tmp_path / f"{name}.skops")
    with pytest.raises(RunError, match=r"not written by .*It holds .*Marker"):
        AutoModel.load(tmp_path / "other.skops")
    assert not trace.exists()
