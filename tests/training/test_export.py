"""An exported run: what a user of the file sees, who has torch alone."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from codid_lightning.errors import RunError
from codid_lightning.training import export as module
from codid_lightning.training import load
from tests.commands import codid


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """BASE on a table of its own, whose columns have very different scales."""
    folder, rng = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    y, site = rng.integers(2, size=120), rng.integers(3, size=120)
    frame = pd.DataFrame({"small": 1e-3 * (rng.normal(size=120) + 2 * y), "large": 1e4 + 500 * rng.normal(size=120)})
    frame["kind"], frame["site"] = np.where(y == 1, "cat", "dog"), np.array(["A", "B", "C"])[site]
    frame.to_csv(folder / "own.csv", index=False)
    (folder / "own.yaml").write_text(
        "method: base\n"
        f"data: {{class_path: OwnArrays, init_args: {{root: {folder}, file: own.csv, attributes: [kind, site], "
        "protocol: random}}\n"
        "model: {class_path: Base, init_args: {latent_dim: 4}}\n"
        f"trainer: {{max_epochs: 1, default_root_dir: {folder}/runs, enable_progress_bar: false}}\n"
    )
    assert codid("fit", "-c", folder / "own.yaml") == 0
    (result,) = (folder / "runs").rglob("result.json")
    return result.parent, frame


def test_raw_rows_in_probabilities_of_named_values_out(run, capsys):
    directory, frame = run
    assert codid("export", directory) == 0
    assert "model.pt2" in capsys.readouterr().out
    extra = {module.FACTS: ""}
    program = torch.export.load(directory / "model.pt2", extra_files=extra).module()
    facts = json.loads(extra[module.FACTS])
    assert facts["inputs"] == ["small", "large"]
    assert facts["attributes"] == ["kind", "site"]
    assert facts["values"] == [["cat", "dog"], ["A", "B", "C"]]
    x = torch.tensor(frame[["small", "large"]].to_numpy(), dtype=torch.float32)
    found = program(x, torch.zeros(len(x), 1, dtype=torch.long))
    loaded = load(directory)
    scaled = loaded.data.scaling(x)
    expected = loaded.model.predictors[0](loaded.model(scaled)[:, 0]).softmax(1)
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_file_that_predicts_differently_is_an_error(run, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_difference", lambda *parts: 0.1)
    with pytest.raises(RunError, match="do not use it"):
        module.export(load(run[0]), tmp_path / "m.pt2")
    assert codid("export", run[0], "--output", tmp_path / "m.onnx") == 1
