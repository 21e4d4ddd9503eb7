"""The audit of files: what is noticed in them, the page, the command."""

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from benchmarks.audit_calibration import planted
from codid_lightning.analysis.data_audit import Samples, audit_samples
from codid_lightning.analysis.data_audit.columns import fit_encoder, leaking
from codid_lightning.analysis.data_audit.reading import read_predictions, read_samples
from codid_lightning.analysis.data_audit.report import duplicates
from codid_lightning.analysis.pages.data_audit_page import data_audit_page
from codid_lightning.cli.main import main
from codid_lightning.errors import RunError
from datamodules.base import DataError

EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    """A table with a hidden correlation, predictions of a model that uses it, and much that is odd."""
    folder, rng = tmp_path_factory.mktemp("visits"), np.random.default_rng(0)
    x, y, site = planted(rng, 500, 0.8)
    frame = pd.DataFrame(x, columns=[f"marker {c}" for c in "ABCDEFGHIJ"])
    frame["patient_id"] = rng.permutation(500) + 1000
    frame["diagnosis"] = np.where(y == 1, EVIL, "well")
    frame["site"] = np.where(site == 1, "north", "south")
    frame.loc[7, "diagnosis"] = np.nan
    frame.to_csv(folder / "visits.csv", index=False)
    frame.assign(code=5 + 10 * y).to_csv(folder / "leaky.csv", index=False)
    predicted = np.where(np.where(rng.random(500) < 0.5, site, y) == 1, EVIL, "well")
    pd.DataFrame({"prediction": predicted}).to_csv(folder / "predictions.csv", index=False)
    order = rng.permutation(500)
    pd.DataFrame({"row": order, "prediction": predicted[order]}).to_csv(folder / "shuffled.csv", index=False)
    return folder


class TestColumns:
    def test_every_kind_of_column(self):
        rows = np.arange(40)
        table = {
            "age": np.where(rows == 3, np.nan, rows % 7),
            "dose": np.array(["1.5"] * 39 + ["many"], dtype=object),
            "sex": np.array(["f", "m"] * 20, dtype=object),
            "day": np.array([f"2020-01-{1 + r % 28:02}" for r in rows], dtype=object),
            "unit": np.array(["mm"] * 40, dtype=object),
            "row": rows,
            "note": np.array([f"free text {r}" for r in rows], dtype=object),
            "gap": np.full(40, np.nan),
            "flag": rows % 2 == 0,
        }
        encoder, notes = fit_encoder(table)
        x = encoder.encode(table)
        assert encoder.names == ("age", "dose", "sex = f", "sex = m", "day", "flag")
        assert x[3, 0] == np.median(np.delete(rows % 7, 3))
        assert x[-1, 1] == 1.5
        assert np.array_equal(x[:, 2], rows % 2 == 0)
        assert x[1, 4] - x[0, 4] == 1
        for name in ("age", "dose", "sex", "day", "unit", "row", "note", "gap"):
            assert any(f"`{name}`" in note for note in notes), name
        assert "`many` in row 40" in " ".join(notes)
        new = {name: values[:2] for name, values in table.items()}
        new["sex"] = np.array(["x", "f"], dtype=object)
        assert np.array_equal(encoder.encode(new)[:, 2:4], [[0, 0], [1, 0]])
        with pytest.raises(RunError, match="no column `dose`"):
            encoder.encode({name: values for name, values in new.items() if name != "dose"})

    def test_columns_that_determine_the_target(self):
        rng = np.random.default_rng(0)
        y = rng.integers(3, size=300)
        table = {
            "code": np.array(["c", "a", "b"], dtype=object)[y],
            "number": 10.0 * y + rng.random(300),
            "noise": rng.random(300),
            "strong": y + 0.5 * rng.normal(size=300),
        }
        assert set(leaking(table, y)) == {"code", "number"}

    def test_copies_of_training_rows_in_a_test_set(self):
        x = np.random.default_rng(0).normal(size=(60, 3))
        x[50:55] = x[:5]
        part = np.array(["train"] * 50 + ["test"] * 10)
        y = np.arange(60) % 2
        samples = Samples.of(x, y, y)
        assert duplicates(samples.where(np.arange(60))) == 0
        assert duplicates(Samples(x, samples.target, samples.others, part=part)) == 5


class TestReading:
    def test_rows_without_labels_are_left_out_and_named(self, visits):
        samples = read_samples(visits / "visits.csv", "diagnosis", ["site"])
        assert len(samples) == 499
        assert "first in row 8" in samples.notes[0]
        assert "patient_id" not in samples.columns

    def test_predictions_by_order_and_by_row(self, visits):
        samples = read_samples(visits / "visits.csv", "diagnosis", ["site"])
        one, other = (read_predictions(visits / name, samples) for name in ("predictions.csv", "shuffled.csv"))
        assert np.array_equal(one, other)
        assert set(one.tolist()) == {0, 1}

    def test_embeddings_beside_a_table(self, visits):
        np.save(visits / "z.npy", np.random.default_rng(0).normal(size=(500, 5)))
        samples = read_samples(visits / "visits.csv", "diagnosis", ["site"], features=visits / "z.npy")
        assert samples.x.shape == (499, 5)

    def test_arrays(self, tmp_path):
        rng = np.random.default_rng(0)
        labels = {"fault": rng.choice(["none", "crack"], 60), "site": rng.choice(["A", "B"], 60)}
        np.savez(tmp_path / "machines.npz", x=rng.normal(size=(60, 3, 32)), **labels)
        samples = read_samples(tmp_path / "machines.npz", "fault", ["site"])
        assert samples.x.shape == (60, 3, 32)
        assert samples.target.values == ("crack", "none")

    def test_a_folder_of_pictures(self, tmp_path):
        for i in range(24):
            Image.fromarray(np.full((9, 9, 3), 10 * i, dtype=np.uint8)).save(tmp_path / f"{i}.png")
        table = {"path": [f"{i}.png" for i in range(24)], "kind": ["a", "b"] * 12, "color": ["r", "r", "g", "g"] * 6}
        pd.DataFrame(table).to_csv(tmp_path / "metadata.csv", index=False)
        samples = read_samples(tmp_path, "kind", ["color"])
        assert samples.x.shape == (24, 3, 32, 32)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a,b,c\n1,x,y\n1,x,y,z\n", "line 3"),
            ("a,b\n1,x\n", "no column `c`"),
            ("a,b,c\n" + "1,x,y\n" * 30, "`b` of .* has 1 different values"),
            ("a,b,c\n" + "".join(f"1,{i},y\n" for i in range(60)), "`b` of .* has 60 different values"),
            ("a,b,c\n" + "1,x,u\n2,y,v\n" * 4, "has 8 rows with labels"),
            ("a,b,c\n", "no rows"),
            ("d,b,c\n" + "5,x,u\n5,y,v\n" * 20, "no column left for the inputs. Column `d` is 5 in every row"),
        ],
    )
    def test_bad_tables(self, tmp_path, text, message):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises((RunError, DataError), match=message):
            read_samples(tmp_path / "bad.csv", "b", ["c"])


class TestCommand:
    def test_page_json_and_exit_code(self, visits, capsys):
        page = visits / "audit.html"
        names = ["--table", str(visits / "visits.csv"), "--target", "diagnosis", "--other", "site"]
        files = ["--predictions", str(visits / "predictions.csv"), "--output", str(page)]
        assert main(["audit", *names, *files, "--fail-on", "shortcut", "hurt"]) == 3
        out = capsys.readouterr().out
        assert "Shortcuts threaten: a model can use site" in out
        assert "The model is hurt." in out
        assert json.loads(page.with_suffix(".json").read_text())["problems"] == ["hurt", "shortcut"]
        text = page.read_text()
        assert EVIL not in text
        assert "http" not in text.replace("http-equiv", "")
        assert len(text) < 5_000_000
        for part in ("▼", "as in training", "standard deviations", "Noticed in the data", 'class="card red"'):
            assert part in text, part

    @pytest.mark.parametrize("command", ["audit", "auto"])
    def test_what_is_not_named_is_said(self, command, visits, capsys):
        assert main([command, "--table", str(visits), "--target", "diagnosis"]) == 1
        assert "--other is missing" in capsys.readouterr().err

    def test_a_leak_comes_first(self, visits, capsys):
        names = ["--table", str(visits / "leaky.csv"), "--target", "diagnosis", "--other", "site"]
        assert main(["audit", *names, "--output", str(visits / "leaky.html"), "--fail-on", "leak"]) == 3
        out = capsys.readouterr().out
        assert out.index("`code` determines diagnosis") < out.index("Shortcuts threaten")
        assert "--exclude code" in (visits / "leaky.html").read_text()
        assert (
            main(["audit", *names, "--exclude", "code", "--output", str(visits / "c.html"), "--fail-on", "leak"]) == 0
        )

    def test_pictures_are_shown_as_strips(self):
        rng = np.random.default_rng(0)
        y, m = rng.integers(2, size=400), rng.integers(2, size=400)
        site = np.where(rng.random(400) < 0.9, m ^ y, 1 - (m ^ y))
        x = 0.1 * rng.random((400, 3, 8, 8))
        x[np.arange(400), :, 4 * y, 4 * m] += 1
        x[np.arange(400), site] += 0.3
        found = audit_samples(Samples.of(x, y, {"color": site}, name="planted"), draws=79)
        assert found.data.hides == "yes"
        assert "data:image/png" in data_audit_page(found)
