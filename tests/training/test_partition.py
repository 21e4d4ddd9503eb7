"""A reference partition of the validation samples: read, checked, scored, selected by, and written from a run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from codid_lightning.cli.main import main
from codid_lightning.errors import RunError
from codid_lightning.experiments.search import Search
from codid_lightning.metrics.groups import CellAccuracy
from codid_lightning.training import build, fit, load, resolve, train, validate
from codid_lightning.training.identity import config_hash, difference
from datamodules import DataError, OwnArrays
from datamodules.toy import Toy
from tests.evaluation.short import CODID
from tests.evaluation.short import fit as fit_here

TOY = ["-c", "configs/toy/base.yaml"]
SMALL = {"data.samples_per_mode": 60, "data.batch_size": 64, "data.val_fraction": 0.5, "model.latent_dim": 8}
QUIET = {"trainer.accelerator": "cpu", "trainer.enable_progress_bar": False, "trainer.max_epochs": 2}


def toy(partition: str | None = None) -> Toy:
    data = Toy(samples_per_mode=60, batch_size=64, val_fraction=0.5, partition=partition)
    data.setup()
    return data


def labels() -> np.ndarray:
    """A third of the validation samples each, in turns."""
    return np.arange(len(toy().datasets["val"])) % 3


@pytest.fixture
def file(tmp_path: Path) -> str:
    np.savez(tmp_path / "cells.npz", cell=labels())
    return str(tmp_path / "cells.npz")


def run_of(file: str | None, tmp_path: Path, **more: object):
    keys = {"trainer.default_root_dir": str(tmp_path / "runs"), "data.partition": file, **more}
    return build("configs/toy/base.yaml", SMALL, QUIET, keys)


# ------------------------------------------------------------------------------------------------------------ the file


def test_every_format_says_the_same(tmp_path):
    cells = labels()
    order = np.random.default_rng(0).permutation(len(cells))
    names = np.array(["left", "middle", "right"])[cells]
    np.save(tmp_path / "plain.npy", cells)
    np.savez(tmp_path / "one.npz", anything=cells)
    np.savez(tmp_path / "checked.npz", cell=cells, a=toy().datasets["val"].a.numpy())
    np.savez(tmp_path / "shuffled.npz", cell=cells[order], index=order)
    pd.DataFrame({"cell": names}).to_csv(tmp_path / "text.csv", index=False)
    both = {"index": [0, *order], "split": ["train", *["val"] * len(order)], "cell": [9, *cells[order]]}
    pd.DataFrame(both).to_csv(tmp_path / "splits.csv", index=False)
    for path in sorted(tmp_path.iterdir()):
        assert toy(str(path)).reference_cells().tolist() == cells.tolist(), path.name
    assert toy().reference_cells() is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"cell": [0, 1, 2]}, r"cells\.npz has 3 cells, the validation set has 180 samples"),
        ({"cell": [0.5] * 180}, "float64, not whole numbers or text"),
        ({"cell": [0] * 180, "index": [0] * 180}, "`index` .* must name every validation sample once, from 0 to 179"),
        ({"cell": [0] * 180, "index": [*range(179), 180]}, "must name every validation sample once"),
        ({"cell": [0] * 180, "split": ["train"] * 180}, "has 0 cells, the validation set has 180"),
        ({"cell": [0] * 180, "index": [0, 1]}, "columns of different length"),
        ({"group": [0] * 180, "other": [0] * 180}, "has no column `cell`, only group, other"),
        ({"cell": [0] * 180, "a": [[0, 0]] * 180}, "written for other validation samples"),
    ],
)
def test_a_file_of_something_else_is_an_error(columns, message, tmp_path):
    np.savez(tmp_path / "cells.npz", **columns)
    with pytest.raises(DataError, match=message):
        toy(str(tmp_path / "cells.npz")).reference_cells()


def test_a_missing_or_changed_file_ends_the_run_before_training(tmp_path, file):
    with pytest.raises(DataError, match=r"There is no file .*nowhere\.npz \(data\.partition\)"):
        train(run_of(str(tmp_path / "nowhere.npz"), tmp_path))
    pinned = resolve([*TOY, f"--data.partition={file}"])["data"]["init_args"]["partition"]
    assert re.fullmatch(re.escape(file) + "@[0-9a-f]{16}", pinned)
    np.savez(file, cell=1 - labels() // 2)
    with pytest.raises(DataError, match=r"cells\.npz \(data\.partition\) is not the file .* its content has changed"):
        train(run_of(pinned, tmp_path))


def test_own_data_may_have_a_column(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x1": rng.normal(size=90), "x2": rng.normal(size=90)})
    table.loc[5, "x1"] = np.nan
    for name in ("label", "other", "site"):
        table[name] = rng.integers(2, size=90)
    table.to_csv(tmp_path / "own.csv", index=False)
    arguments = {"file": "own.csv", "attributes": ["label", "other"], "partition": "site", "on_bad_values": "drop"}
    data = OwnArrays(root=str(tmp_path), val_fraction=0.5, **arguments)
    data.setup("fit")
    assert data.inputs == ["x1", "x2"]
    assert data.reference_cells().tolist() == table["site"].to_numpy()[data.datasets["val"].rows].tolist()


# ----------------------------------------------------------------------------------------------------------- identity


def test_the_content_counts_and_the_place_does_not(tmp_path, file):
    def config(path: object) -> dict:
        return resolve([*TOY, f"--data.partition={path}"])

    first, plain = config(file), resolve(TOY)
    copy = tmp_path / "copy.npz"
    copy.write_bytes(Path(file).read_bytes())
    assert config_hash(first) == config_hash(config(copy)) != config_hash(plain)
    without = {**plain, "data": {**plain["data"], "init_args": dict(plain["data"]["init_args"])}}
    del without["data"]["init_args"]["partition"]  # a config of before there were partitions
    assert config_hash(without) == config_hash(plain)
    np.savez(file, cell=1 - labels() // 2)
    assert config_hash(first) != config_hash(config(file))
    assert "data.init_args.partition was" in difference(first, config(file))


def test_a_run_with_another_partition_is_not_resumed(tmp_path, file):
    first = run_of(file, tmp_path)
    fit(first)
    assert run_of(file, tmp_path, resume=True).directory == first.directory
    np.savez(file, cell=1 - labels() // 2)
    assert run_of(file, tmp_path, resume=True).directory != first.directory
    with pytest.raises(RunError, match=r"another config: data\.init_args\.partition was"):
        run_of(file, tmp_path, resume=True, run_dir=str(first.directory))


# ------------------------------------------------------------------------------------------------------------- scores


def expected(model, data) -> dict[str, float]:
    batch = data.datasets["val"][torch.arange(len(data.datasets["val"]))]
    cells = CellAccuracy((data.attribute_sizes[0], 3))
    a1 = batch["a"][:, 0]
    with torch.no_grad():
        cells.update(
            model.predictors[0](model(batch["x"])[:, 0]).argmax(1), torch.stack([a1, data.reference_cells()], 1)
        )
    return {name: float(value) for name, value in cells.compute().items()}


def test_scores_are_those_of_the_partition_and_the_others_stay(tmp_path, file):
    run = run_of(file, tmp_path)
    found = fit(run).metrics
    wanted = expected(run.module.eval(), run.data)
    assert found["val/worst_reference_acc"] == pytest.approx(wanted["worst_acc"])
    assert found["val/balanced_reference_acc"] == pytest.approx(wanted["balanced_acc"])
    plain = fit(run_of(None, tmp_path)).metrics
    assert plain == {name: value for name, value in found.items() if "reference" not in name}
    again = build(
        "configs/toy/base.yaml", SMALL, QUIET, {"data.partition": file, "ckpt_path": str(run.last)}, record=False
    )
    assert validate(again)["val/worst_reference_acc"] == pytest.approx(wanted["worst_acc"])


def test_the_best_epoch_by_the_worst_reference_cell_is_selected(tmp_path, file):
    run = run_of(file, tmp_path, selection="val_reference_worst", **{"trainer.max_epochs": 4})
    found = fit(run).metrics
    log = pd.read_csv(next(run.directory.glob("logs/*/metrics.csv")))
    assert found["val/worst_reference_acc"] == pytest.approx(log["val/worst_reference_acc"].max())
    assert load(run.directory).checkpoint.name == "best.ckpt"


@pytest.mark.parametrize("name", ["val_reference_worst", "val_reference_balanced"])
def test_selection_by_reference_cells_needs_a_partition(name, tmp_path, file):
    message = f"{name} needs a reference partition: .*data.partition"
    with pytest.raises(RunError, match=message):
        run_of(None, tmp_path, selection=name)
    space = tmp_path / "space.yaml"
    space.write_text("model.init_args.lr: {type: choice, values: [1.0e-3]}")
    keys = [f"--{key}={value}" for key, value in {**SMALL, **QUIET}.items()]
    common = {"objective": name, "trials": 1, "space": str(space), "root": str(tmp_path)}
    with pytest.raises(RunError, match=message):
        Search([*TOY, *keys], **common)
    (trial,) = Search([*TOY, *keys, f"--data.partition={file}"], **common).run()
    assert 0 <= trial.value <= 1


# ------------------------------------------------------------------------------------------------------- from a run


def test_a_run_writes_its_clusters_by_the_second_attribute(tmp_path, capsys):
    run, file = tmp_path / "codid", tmp_path / "cells.npz"
    fit_here(run, "-c", "configs/toy/codid.yaml", *CODID, "--data.val_fraction=0.5")
    assert main(["evaluate", str(run), "--partition", str(file)]) == 0
    assert "data.partition" in capsys.readouterr().out
    loaded, stored = load(run), np.load(file)
    val, target = loaded.data.datasets["val"], loaded.model.mode_targets()[0]
    assert stored["index"].tolist() == list(range(len(val)))
    clusters, a2 = np.divmod(stored["cell"], 2)
    assert (a2 == val.a[:, 1].numpy()).all()
    assert (clusters // target.slots == val.a[:, 0].numpy()).all()
    assert set(clusters.tolist()) <= set(target.labels.tolist())
    fit_here(tmp_path / "base", *TOY, f"--data.partition={file}", "--data.val_fraction=0.5", "--trainer.max_epochs=1")
    small = {"data.samples_per_mode": 60, "data.val_fraction": 0.5, "data.partition": str(file)}
    other = build("configs/toy/base.yaml", small, QUIET, {"data.seed": 1, "run_dir": str(tmp_path / "other")})
    with pytest.raises(DataError, match="other validation samples"):
        train(other)


def test_a_partition_is_written_as_npz(tmp_path, capsys):
    assert main(["evaluate", str(tmp_path), "--partition", "cells.csv"]) == 1
    assert "must end in .npz" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path), "--partition"]) == 1
    assert "--partition needs the name of a file" in capsys.readouterr().err
