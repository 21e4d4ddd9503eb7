"""`codid repair` on a table with a planted shortcut: it helps where DFR does, and reads no test data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from codid_lightning.analysis.repair import repair
from codid_lightning.training import load
from tests.commands import codid, fit_toy

SHORT = {"max_epochs": 6, "enable_progress_bar": False, "logger": False, "accelerator": "cpu"}


def table(rows: int, agreement: float, seed: int) -> pd.DataFrame:
    """The column `content` shows the kind with errors; the column `tint` shows the place, which mostly agrees."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(2, size=rows)
    place = np.where(rng.random(rows) < agreement, kind, 1 - kind)
    return pd.DataFrame(
        {
            "content": kind + 0.5 * rng.normal(size=rows),
            "tint": place + 0.05 * rng.normal(size=rows),
            "kind": np.array(["cat", "dog"])[kind],
            "place": np.array(["home", "park"])[place],
        }
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    parts = [table(4000, 0.95, 0).assign(split="train"), table(1000, 0.5, 1).assign(split="test")]
    pd.concat(parts).to_csv(folder / "table.csv", index=False)
    own = {"root": str(folder), "file": "table.csv", "attributes": ["kind", "place"], "inputs": ["content", "tint"]}
    config = {
        "dataset": "pets",
        "method": "base",
        "title": "BASE",
        "data": {"class_path": "OwnArrays", "init_args": {**own, "protocol": "split_column", "split": "split"}},
        "model": {"class_path": "Base", "init_args": {"latent_dim": 16}},
        "trainer": SHORT,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert codid("fit", "-c", folder / "config.yaml", f"--run_dir={folder / 'run'}") == 0
    return folder / "run"


def test_the_worst_cell_gains_and_no_test_data_are_read(run):
    loaded = load(run)
    for name in loaded.data.test_names:
        del loaded.data.datasets[name]
    found = repair(loaded)
    before, after = found.worst()
    assert after > before + 0.1
    samples = loaded.data.datasets["val"]
    x = samples.inputs(torch.arange(len(samples)))
    with torch.no_grad():
        logits = loaded.model.attribute_logits(loaded.model(x), samples.a)[0]
    for cell, row in zip(found.cells, [(0, 0), (0, 1), (1, 0), (1, 1)], strict=True):
        own = (samples.a == torch.tensor(row)).all(1)
        assert cell.values == (("cat", "dog")[row[0]], ("home", "park")[row[1]])
        assert cell.samples == int(own.sum())
        assert cell.before == pytest.approx((logits[own].argmax(1) == row[0]).double().mean().item())


def test_the_checkpoint_differs_in_the_last_layer_and_can_be_tested_and_predicted_with(run, capsys):
    assert codid("repair", run) == 0
    said = capsys.readouterr().out
    assert "Worst cell: " in said
    repaired = run / "checkpoints" / "repaired.ckpt"
    states = [
        torch.load(path, weights_only=True)["state_dict"] for path in (run / "checkpoints" / "last.ckpt", repaired)
    ]
    changed = [name for name, value in states[0].items() if not torch.equal(value, states[1][name])]
    assert changed == ["predictors.0.weight", "predictors.0.bias"]
    right = {}
    for path in (run / "checkpoints" / "last.ckpt", repaired):
        assert codid("predict", "--ckpt_path", path) == 0
        (file,) = (run / "predictions").glob("*.csv")
        predicted = pd.read_csv(file).join(pd.read_csv(run.parent / "table.csv"), on="row", rsuffix="_true")
        rare = (predicted["kind_true"] == "cat") != (predicted["place_true"] == "home")
        right[path.stem] = (predicted["kind"] == predicted["kind_true"])[rare].mean()
        assert codid("test", "--ckpt_path", path) == 0
    assert right["repaired"] > right["last"] + 0.1


def test_what_has_no_last_layer_is_an_error(tmp_path, capsys):
    run = fit_toy(tmp_path, "-c", "configs/methods/logit_adjustment.yaml", config="configs/toy/codid.yaml")
    assert codid("repair", run) == 1
    assert "by more than one last layer" in capsys.readouterr().err
    assert codid("repair", run, "--output", "x.txt") == 1
    assert "it should end in .ckpt" in capsys.readouterr().err
