import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from codid_lightning.cli.main import main
from datamodules import DataError, OwnArrays, OwnImages
from datamodules.images import crop_and_flip

N = 120
NAMES = ["shape", "color"]


def frame(n: int = N) -> pd.DataFrame:
    """Two inputs that tell the labels, a mode, a group of six people and a split."""
    rng = np.random.default_rng(0)
    shape, color = rng.integers(0, 2, n), rng.integers(0, 3, n)
    return pd.DataFrame(
        {
            "height": 3.0 * shape + rng.normal(0, 0.1, n),
            "shape": np.array(["square", "circle"])[shape],
            "width": 100.0 * color + rng.normal(0, 1, n),
            "color": np.array(["red", "blue", "green"])[color],
            "kind": rng.integers(0, 3, n),
            "person": np.array(list("abcdef"))[rng.integers(0, 6, n)],
            "part": rng.choice(["train", "val", "test near", "test far"], n),
        }
    )


def write(table: pd.DataFrame, folder, kind: str) -> str:
    """The table in one of the formats; `.npz` keeps its two inputs in one array `x`."""
    path = folder / f"table.{kind}"
    if kind == "npz":
        labels = {name: table[name].to_numpy().astype(str) for name in table if name not in ("height", "width")}
        np.savez(path, x=table[["height", "width"]].to_numpy(), **labels)
    elif kind == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    return path.name


OTHERS = {"mode": "kind", "group": "person", "split": "part"}


def built(folder, kind="csv", table=None, cls=OwnArrays, **arguments):
    file = write(frame() if table is None else table, folder, kind)
    module = cls(root=str(folder), file=file, attributes=NAMES, **{**OTHERS, **arguments})
    module.setup()
    return module


def every(dataset):
    return dataset[torch.arange(len(dataset))]


# ------------------------------------------------------------------------------------------------- formats and labels


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "npz"])
def test_every_format_gives_the_rows_of_the_file(tmp_path, kind):
    module, table = built(tmp_path, kind, scaling="none"), frame()
    assert module.value_names == (("circle", "square"), ("blue", "green", "red"))
    for dataset in module.datasets.values():
        batch, rows = every(dataset), table.iloc[dataset.rows.tolist()]
        assert np.allclose(batch["x"], rows[["height", "width"]], atol=1e-4)
        for q, name in enumerate(NAMES):
            assert [module.value_names[q][i] for i in batch["a"][:, q]] == rows[name].tolist()
    assert sum(map(len, module.datasets.values())) == N


def test_labels_are_sorted_as_numbers_where_they_are_numbers(tmp_path):
    table = frame()
    table["shape"] = np.where(table["shape"] == "square", 10, 9)
    table["color"] = np.random.default_rng(0).choice([-1, 0, 2, 10], N)
    for kind in ("csv", "npz"):  # numbers, and numbers as text
        assert built(tmp_path, kind, table).value_names == (("9", "10"), ("-1", "0", "2", "10"))
    table["color"] = np.random.default_rng(0).choice([-1.5, 0.0, 2.0, 10.0], N)
    assert built(tmp_path, "csv", table).value_names[1] == ("-1.5", "0", "2", "10")


def test_given_labels_fix_the_numbers(tmp_path):
    module = built(tmp_path, labels={"color": ["red", "green", "blue"]})
    assert module.value_names == (("circle", "square"), ("red", "green", "blue"))
    rows = frame().iloc[module.datasets["test"].rows.tolist()]
    assert (module.datasets["test"].a[:, 1] == 0).tolist() == (rows["color"] == "red").tolist()


def test_given_labels_may_be_numbers(tmp_path):
    table = frame().assign(color=np.random.default_rng(0).choice([1.0, 2.0, 3.5], N))
    for protocol in ("random", "predict"):
        module = built(tmp_path, table=table, protocol=protocol, labels={"color": [3.5, 2, 1]})
        assert module.value_names[1] == ("3.5", "2", "1")
        assert all((dataset.a[:, 1] >= 0).all() for dataset in module.datasets.values())


def test_modes_count_over_the_values_of_the_first_attribute(tmp_path):
    module = built(tmp_path)
    assert module.mode_sizes == ((3, 3), None)
    assert module.mode_names == ("0", "1", "2") * 2
    train = module.datasets["train"]
    assert torch.equal(train.mode[:, 0] // 3, train.a[:, 0])
    assert (train.mode[:, 0] % 3).tolist() == frame()["kind"].iloc[train.rows.tolist()].tolist()
    assert (train.mode[:, 1] == -1).all()
    assert built(tmp_path, mode=None).mode_sizes == (None, None)


def test_inputs_are_the_named_columns_in_their_order(tmp_path):
    module = built(tmp_path, inputs=["width", "height"], scaling="none")
    rows = frame().iloc[module.datasets["train"].rows.tolist()]
    assert np.allclose(every(module.datasets["train"])["x"], rows[["width", "height"]], atol=1e-4)


def test_columns_left_out_of_the_inputs_are_named(tmp_path):
    table = frame().assign(note="text").reset_index(drop=True)
    table.to_csv(tmp_path / "table.csv")  # with pandas' own row numbers, which must not become an input
    with pytest.warns(UserWarning, match="Unnamed: 0, note are not used"):
        module = OwnArrays(root=str(tmp_path), file="table.csv", attributes=NAMES, **OTHERS)
    assert module.inputs == ["height", "width"]


@pytest.mark.parametrize(("scaling", "center"), [("standard", "mean"), ("minmax", "middle")])
def test_scaling_is_fitted_on_training_rows_only(tmp_path, scaling, center):
    module = built(tmp_path, protocol="leave_one_group_out", test_group=2, scaling=scaling)
    raw = frame()[["height", "width"]].to_numpy(np.float32)
    train = raw[module.datasets["train"].rows.numpy()]
    if center == "mean":
        expected = (raw - train.mean(0)) / train.std(0, ddof=1)
    else:
        expected = 2 * (raw - train.min(0)) / (train.max(0) - train.min(0)) - 1
    for dataset in module.datasets.values():
        assert np.allclose(every(dataset)["x"], expected[dataset.rows.numpy()], atol=1e-4)


def test_bytes_become_numbers_between_0_and_1(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (N, 3, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=images, **{n: frame()[n].to_numpy().astype(str) for n in NAMES})
    module = OwnArrays(root=str(tmp_path), file="x.npz", attributes=NAMES)
    module.setup()
    batch = every(module.datasets["train"])
    assert module.input_shape == (3, 8, 8)
    assert np.allclose(batch["x"], images[module.datasets["train"].rows.numpy()] / 255)


# ---------------------------------------------------------------------------------------------------------- protocols


def test_random_rows_are_divided_by_the_fractions(tmp_path):
    module, again, other = built(tmp_path), built(tmp_path), built(tmp_path, seed=1)
    sizes = {name: len(dataset) for name, dataset in module.datasets.items()}
    assert sizes == {"train": 86, "val": 10, "test": 24}
    assert len(set(torch.cat(list(module.rows.values())).tolist())) == N
    assert all(torch.equal(rows, again.rows[name]) for name, rows in module.rows.items())
    assert not torch.equal(module.rows["test"], other.rows["test"])


def test_split_column_names_the_splits(tmp_path):
    module, parts = built(tmp_path, protocol="split_column"), frame()["part"]
    assert module.test_names == ("test far", "test near")
    for name, rows in module.rows.items():
        assert set(parts.iloc[rows.tolist()]) == {name}


def test_split_column_without_val_holds_some_training_rows_out(tmp_path):
    table = frame()
    table["part"] = table["part"].replace("val", "train")
    module = built(tmp_path, table=table, protocol="split_column", val_fraction=0.25)
    train, val = len(module.rows["train"]), len(module.rows["val"])
    assert train + val == (table["part"] == "train").sum()
    assert val / (train + val) == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(("folds", "group", "people"), [(None, 3, {"d"}), (3, 0, {"a", "b"}), (2, 1, {"d", "e", "f"})])
def test_left_out_group_is_tested_and_never_trained_on(tmp_path, folds, group, people):
    module = built(tmp_path, protocol="leave_one_group_out", folds=folds, test_group=group)
    person = frame()["person"]
    assert set(person.iloc[module.rows["test"].tolist()]) == people
    for name in ("train", "val"):
        assert not set(person.iloc[module.rows[name].tolist()]) & people
    assert sum(map(len, module.rows.values())) == N


def test_second_attribute_that_training_never_saw_has_no_test_metrics(tmp_path):
    file = write(frame(), tmp_path, "csv")
    arguments = {"root": str(tmp_path), "file": file, "group": "person", "test_group": 0, "inputs": ["height"]}
    own = OwnArrays(attributes=["shape", "person"], protocol="leave_one_group_out", **arguments)
    assert own.test_attributes == (0,)
    assert OwnArrays(attributes=["shape", "person"], **arguments).test_attributes == (0, 1)


LABELS = st.one_of(
    st.integers(-5, 5),
    st.sampled_from(["a", "b", "ab", "B", "", "é", "1", "2.5"]),
    st.floats(-3, 3).map(lambda f: round(f, 1)),
)


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.tuples(LABELS, LABELS), min_size=30, max_size=60),
    kind=st.sampled_from(["csv", "parquet", "npz"]),
    seed=st.integers(0, 3),
)
def test_random_tables_load_with_their_labels_or_say_why_not(tmp_path_factory, labels, kind, seed):
    folder = tmp_path_factory.mktemp("random")
    first, second = (np.array([str(pair[i]) for pair in labels]) for i in (0, 1))
    table = pd.DataFrame({"height": 0.0, "width": np.arange(len(labels)), "shape": first, "color": second})
    file = write(table, folder, kind)
    module, complaint = attempted(root=str(folder), file=file, seed=seed, scaling="none")
    if complaint:
        empty = kind == "csv" and ("" in first or "" in second)
        single = any(all(same(label, column[0]) for label in column) for column in (first, second))
        expected = {"no training sample has": True, "are empty": empty, "has the single value": single}
        assert any(possible and words in complaint for words, possible in expected.items()), complaint
        return
    seen = torch.cat([d.rows for d in module.datasets.values()])
    assert sorted(seen.tolist()) == list(range(len(labels)))
    for dataset in module.datasets.values():
        assert dataset.x[:, 1].tolist() == dataset.rows.tolist()
        for q, column in enumerate((first, second)):
            names = [module.value_names[q][i] for i in dataset.a[:, q]]
            assert all(same(a, b) for a, b in zip(names, column[dataset.rows.numpy()], strict=True))
    for names in module.value_names:
        assert len(set(names)) == len(names)


def attempted(**arguments) -> tuple[OwnArrays | None, str]:
    try:
        module = OwnArrays(attributes=NAMES, **arguments)
        module.setup()
    except DataError as error:
        return None, str(error)
    return module, ""


def same(name: str, label: str) -> bool:
    """Reading a table may write a number differently: 1 for 1.0, 0.5 for .5."""
    try:
        return name == label or float(name) == float(label)
    except ValueError:
        return False


# ------------------------------------------------------------------------------------------------------------- images


@pytest.fixture
def folder(tmp_path):
    """Forty pictures whose grey is their number, of different sizes and kinds, and their table."""
    rows = []
    for i in range(40):
        name = f"pictures/{i}.{'png' if i % 2 else 'jpg'}"
        (tmp_path / "pictures").mkdir(exist_ok=True)
        mode = ("RGB", "L", "RGBA")[i % 3] if i % 2 else "RGB"
        Image.new(mode, (20 + i, 30), (5 * i,) * (1 if mode == "L" else len(mode))).save(tmp_path / name)
        rows.append((name, "odd" if i % 2 else "even", i % 4, i // 10, ("train", "test")[i % 5 == 0]))
    pd.DataFrame(rows, columns=["path", "parity", "rest", "ten", "split"]).to_csv(
        tmp_path / "metadata.csv", index=False
    )
    return tmp_path


@pytest.mark.parametrize("in_memory", [True, False])
def test_pictures_come_with_their_labels(folder, in_memory):
    module = OwnImages(root=str(folder), attributes=["parity", "rest"], mode="ten", image_size=16, in_memory=in_memory)
    module.setup()
    for dataset in module.datasets.values():
        batch = every(dataset)
        assert batch["x"].shape[1:] == (3, 16, 16)
        numbers = (batch["x"].mean((1, 2, 3)) * 255 / 5).round().long()
        assert torch.equal(numbers, dataset.rows)
        assert torch.equal(numbers % 2, batch["a"][:, 0])
        assert torch.equal(numbers % 4, batch["a"][:, 1])


def test_picture_protocols(folder):
    by_column = OwnImages(root=str(folder), attributes=["parity", "rest"], protocol="split_column", split="split")
    assert by_column.rows["test"].tolist() == list(range(0, 40, 5))
    by_group = OwnImages(
        root=str(folder), attributes=["parity", "rest"], protocol="leave_one_group_out", group="ten", test_group=2
    )
    assert by_group.rows["test"].tolist() == list(range(20, 30))


def test_missing_and_damaged_pictures_are_named(folder):
    arguments = {"root": str(folder), "attributes": ["parity", "rest"]}
    with pytest.raises(DataError, match=r"data\.path is file; .*metadata\.csv has .*path"):
        OwnImages(**arguments, path="file")
    (folder / "pictures" / "4.jpg").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"Cannot read the image .*4\.jpg"):
        OwnImages(**arguments).setup()
    (folder / "pictures" / "4.jpg").unlink()
    with pytest.raises(DataError, match=r"1 image files are missing, the first is .*4\.jpg"):
        OwnImages(**arguments)


# ---------------------------------------------------------------------------------------------------------- bad input


def test_bad_values_are_refused_by_row_dropped_or_imputed(tmp_path):
    table = frame()
    table.loc[[7, 50], "height"] = [np.nan, np.inf]
    with pytest.raises(DataError, match=r"of 86 samples of `train` hold NaN.*rows \[\d+.*table\.csv.*on_bad_values"):
        built(tmp_path, table=table)
    dropped = built(tmp_path, table=table, on_bad_values="drop")
    rows = torch.cat([d.rows for d in dropped.datasets.values()]).tolist()
    assert sorted(rows) == [row for row in range(N) if row not in (7, 50)]
    imputed = built(tmp_path, table=table, on_bad_values="impute")
    values = {int(r): x for d in imputed.datasets.values() for r, x in zip(d.rows, every(d)["x"], strict=True)}
    assert values[7][0] == values[50][0] == 0  # after scaling: the training mean
    assert values[7][1] != 0


def test_bad_rows_of_any_split_are_found(tmp_path):
    for row in range(0, N, 17):
        table = frame()
        table.loc[row, "width"] = np.nan
        with pytest.raises(DataError, match=rf"1 of \d+ samples .*rows \[{row}\]"):
            built(tmp_path, table=table)


def test_bad_values_are_refused_by_column(tmp_path):
    table = frame()
    table.loc[[7, 8, 9, 10, 50], "height"] = np.nan
    with pytest.raises(DataError, match=r"hold NaN or infinity in `height` \(first rows .*table\.csv.*on_bad_values"):
        built(tmp_path, table=table)
    with pytest.raises(DataError, match=r"hold NaN or infinity in the array `x` \(first rows .*table\.npz"):
        built(tmp_path, table=table, kind="npz")


@pytest.mark.parametrize("column", NAMES)
def test_an_attribute_with_a_single_value_is_refused(tmp_path, column):
    single = rf"The column `{column}` of .*table\.csv has the single value same.*data\.attributes"
    with pytest.raises(DataError, match=single):
        built(tmp_path, table=frame().assign(**{column: "same"}))


def test_the_command_names_an_empty_file_and_its_key(tmp_path, capsys):
    (tmp_path / "empty.csv").touch()
    data = ["--data=OwnArrays", f"--data.root={tmp_path}", "--data.file=empty.csv", "--data.attributes=[a,b]"]
    assert main(["fit", "--model=Base", *data, f"--trainer.default_root_dir={tmp_path}"]) == 1
    said = capsys.readouterr().err
    assert f"Cannot read {tmp_path / 'empty.csv'} (data.file): No columns" in said


def test_no_good_value_at_all_is_refused(tmp_path):
    with pytest.raises(DataError, match="No training sample is free of NaN"):
        built(tmp_path, table=frame().assign(width=np.nan), on_bad_values="drop")


def edited(**columns):
    return frame().assign(**columns)


def test_empty_labels_are_refused_by_row(tmp_path):
    table = frame()
    table.loc[[3, 9], "color"] = None
    with pytest.raises(
        DataError, match=r"2 labels `color` of .*table\.csv are empty.*\[3, 9\], counted from 0 \(data\.attributes\)"
    ):
        built(tmp_path, table=table)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attributes": ["shape"]}, r"data\.attributes is \['shape'\]; name at least two"),
        ({"attributes": ["shape", "shape"]}, "at least two different"),
        ({"attributes": ["shape", "taste"]}, r"data\.attributes is taste; .*table\.csv has color"),
        ({"mode": "taste"}, r"data\.mode is taste; .* has color"),
        ({"protocol": "leave_one_group_out", "group": None}, r"data\.group is None"),
        (
            {"protocol": "split_column", "split": "person"},
            r"column person of .*table\.csv holds a, b, c, d, e, f; expected train",
        ),
        ({"protocol": "leave_one_group_out", "folds": 7, "test_group": 0}, r"6 values, which cannot make 7 groups"),
        ({"protocol": "leave_one_group_out", "folds": 1, "test_group": 0}, r"cannot make 1 groups"),
        ({"protocol": "leave_one_group_out", "test_group": 6}, r"data\.test_group is 6; there are groups 0 to 5"),
        ({"protocol": "leave_one_group_out"}, r"data\.test_group is None; there are groups 0 to 5"),
        (
            {"inputs": ["height", "person"]},
            r"`person` of .*table\.csv are not numbers: row 0, counted from 0, holds `.+` \(data.inputs\)",
        ),
        ({"inputs": "depth"}, r"data\.inputs is depth; .* has color"),
        ({"labels": {"color": ["red", "blue"]}}, r"labels `color` of .*table\.csv hold green; known are red, blue"),
        ({"labels": {"taste": ["sweet"]}}, r"data\.labels names taste"),
        ({"labels": {"shape": ["circle", "square", "circle"]}}, "names a value of shape twice"),
        ({"labels": {"shape": ["circle", "square", "star"]}}, "no training sample has shape = star"),
        ({"val_fraction": 0.0}, r"data\.val_fraction is 0\.0"),
        ({"test_fraction": 1.0}, r"data\.test_fraction is 1\.0"),
        ({"file": "other.csv"}, r"There is no file .*other\.csv"),
        ({"file": "table.xlsx"}, r"should end in \.npz, \.csv"),
        ({"root": "nowhere"}, r"There is no file nowhere/table\.csv"),
    ],
)
def test_wrong_arguments_name_the_key_and_what_the_file_has(tmp_path, arguments, message):
    write(frame(), tmp_path, "csv")
    defaults = {"root": str(tmp_path), "file": "table.csv", "attributes": NAMES, **OTHERS}
    with pytest.raises(DataError, match=message):
        OwnArrays(**{**defaults, **arguments}).setup()
    assert {path.name for path in tmp_path.iterdir()} == {"table.csv"}


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"", "Cannot read"),
        ("x.csv", b"height,shape,color\n", "has no rows"),
        ("x.csv", b"\xff\xfe\x00\x01", "Cannot read"),
        ("x.csv", b"a,b\n1,2\n1,2,3\n", "Cannot read"),
        ("x.npz", b"", "Cannot read"),
        ("x.npz", b"no archive", "Cannot read"),
        ("x.parquet", b"", "Cannot read"),
        ("x.parquet", b"no table", "Cannot read"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"{message}.*{name}|{name}.*{message}"):
        OwnArrays(root=str(tmp_path), file=name, attributes=NAMES)


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_truncated_or_altered_files_are_refused(tmp_path, kind):
    path = tmp_path / write(frame(), tmp_path, kind)
    whole = path.read_bytes()
    altered = bytearray(whole)
    altered[len(whole) // 3] ^= 0xFF
    contents = [whole[: len(whole) // 2], *([altered] if kind == "npz" else [])]  # parquet pages have no checksum
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"Cannot read .*table.{kind}"):
            OwnArrays(root=str(tmp_path), file=path.name, attributes=NAMES)


def test_archives_with_objects_are_not_executed(tmp_path, capsys):
    labels = {name: frame()[name].to_numpy().astype(str) for name in NAMES}
    np.savez(tmp_path / "x.npz", x=np.array([Evil()] * N), **labels)
    with pytest.raises(DataError, match=r"Cannot read .*x\.npz.*array of strings, not of objects"):
        OwnArrays(root=str(tmp_path), file="x.npz", attributes=NAMES)
    np.save(tmp_path / "lone.npy", np.zeros(3))
    (tmp_path / "lone.npy").rename(tmp_path / "lone.npz")
    with pytest.raises(DataError, match="Cannot read"):
        OwnArrays(root=str(tmp_path), file="lone.npz", attributes=NAMES)
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((N - 1, 2))}, r"different numbers of rows: `x` has shape \(119, 2\), `shape` \(120,\)"),
        ({"x": np.zeros(N)}, r"one array of shape \(samples, \.\.\.\) of .*not \(120,\)"),
        ({"x": np.zeros((N, 8, 8, 3))}, r"expected \(samples, channels, height, width\): move the last axis"),
        ({"x": np.zeros((N, 2), dtype=complex)}, r"not numbers but of type complex128 \(data.inputs"),
        ({"y": np.zeros((N, 2))}, r"data\.inputs is x; .* has color, shape, y"),
        ({"x": np.zeros((N, 2)), "color": np.zeros((N, 2))}, r"labels `color` .* one value per row.*\(120, 2\)"),
        ({"x": np.zeros((N, 2)), "color": np.float64(1.0)}, r"`color` has shape \(\)"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_with_their_shapes(tmp_path, arrays, message):
    labels = {name: frame()[name].to_numpy().astype(str) for name in NAMES}
    np.savez(tmp_path / "x.npz", **{**labels, **arrays})
    with pytest.raises(DataError, match=message):
        OwnArrays(root=str(tmp_path), file="x.npz", attributes=NAMES)


def test_lists_in_a_column_are_refused(tmp_path):
    frame().assign(color=[[1, 2]] * N).to_parquet(tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"labels `color` of .*x\.parquet must be one value per row"):
        OwnArrays(root=str(tmp_path), file="x.parquet", attributes=NAMES)


def test_rare_first_attribute_is_refused_or_kept(tmp_path):
    table = frame()
    table.loc[0, "shape"] = "star"
    file, outcomes = write(table, tmp_path, "csv"), set()
    for seed in range(12):
        module, complaint = attempted(root=str(tmp_path), file=file, seed=seed)
        outcomes.add("no training sample has shape = star" in complaint)
        assert module is None or (module.datasets["train"].a[:, 0] == 2).sum() == 1
    assert outcomes == {True, False}


# -------------------------------------------------------------------------------------------------- from fit to predict

CONFIG = {
    "dataset": "mine",
    "method": "base",
    "model": {"class_path": "Base"},
    "trainer": {"max_epochs": 4, "enable_progress_bar": False, "logger": False},
}


def fitted(folder, **data):
    config = {**CONFIG, "data": data}
    config["trainer"] = {**CONFIG["trainer"], "default_root_dir": str(folder / "runs")}
    (folder / "config.yaml").write_text(json.dumps(config))
    assert main(["fit", "-c", str(folder / "config.yaml")]) == 0
    return next((folder / "runs").rglob("last.ckpt"))


def predicted(checkpoint, *arguments):
    assert main(["predict", "--ckpt_path", str(checkpoint), "--trainer.enable_progress_bar=false", *arguments]) == 0
    return pd.read_csv(checkpoint.parents[1] / "predictions" / "test.csv")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a table of 400 rows with text labels, the second attribute's values unsorted in the file."""
    folder = tmp_path_factory.mktemp("own")
    write(frame(400), folder, "csv")
    arguments = {"root": str(folder), "file": "table.csv", "attributes": NAMES, **OTHERS, "batch_size": 32}
    return fitted(folder, class_path="OwnArrays", init_args=arguments)


def test_new_rows_without_labels_are_predicted_in_the_names_of_training(trained, tmp_path):
    new = frame(200).iloc[100:]
    # only one of the labels' values, columns in another order, one more column of numbers
    new[["width", "height"]].assign(id=np.arange(100) * 1000).to_csv(tmp_path / "new.csv", index=False)
    table = predicted(trained, f"--data.root={tmp_path}", "--data.file=new.csv", "--data.protocol=predict")
    assert table["row"].tolist() == list(range(100))
    assert (table["shape"] == new["shape"].to_numpy()).mean() > 0.95
    assert (table["color"] == new["color"].to_numpy()).mean() > 0.95
    assert table["shape_probability"].between(0.5, 1).all()


def test_dropped_rows_do_not_shift_the_others(trained, tmp_path):
    new = frame(50)
    new.loc[[0, 20], "height"] = np.nan
    new[["height", "width"]].to_csv(tmp_path / "new.csv", index=False)
    arguments = (f"--data.root={tmp_path}", "--data.file=new.csv", "--data.protocol=predict")
    table = predicted(trained, *arguments, "--data.on_bad_values=drop")
    assert table["row"].tolist() == [row for row in range(50) if row not in (0, 20)]
    assert (table["color"] == new["color"].iloc[table["row"]].to_numpy()).mean() > 0.95


def test_labelled_rows_are_tested_also_with_values_never_seen(trained, tmp_path, capsys):
    new = frame(60)
    new = new[new["shape"] == "square"].assign(color="violet")  # one of the known shapes, no known color
    new.to_csv(tmp_path / "new.csv", index=False)
    arguments = ["--ckpt_path", str(trained), f"--data.root={tmp_path}", "--data.file=new.csv"]
    arguments += ["--data.protocol=predict", "--trainer.enable_progress_bar=false"]
    assert main(["test", *arguments]) == 0
    shown = capsys.readouterr().out
    assert ["test", "shape"] in [line.split()[:2] for line in shown.splitlines()]
    assert "color" not in shown
    new.drop(columns="shape").to_csv(tmp_path / "new.csv", index=False)
    assert main(["test", *arguments]) == 1
    assert "use `codid predict`" in capsys.readouterr().err


def test_rows_without_labels_need_a_checkpoint_or_names(tmp_path):
    frame()[["height", "width"]].to_csv(tmp_path / "new.csv", index=False)
    arguments = {"root": str(tmp_path), "file": "new.csv", "attributes": NAMES, "protocol": "predict"}
    with pytest.raises(DataError, match=r"has no column shape; .*--ckpt_path.*data\.labels"):
        OwnArrays(**arguments)
    module = OwnArrays(**arguments, labels={"shape": ["circle", "square"], "color": ["blue", "green", "red"]})
    module.setup()
    assert module.test_attributes == ()
    assert (module.datasets["test"].a == -1).all()


def test_checkpoint_of_other_labels_is_refused(trained, tmp_path, capsys):
    frame().replace("red", "crimson").to_csv(tmp_path / "table.csv", index=False)
    assert main(["test", "--ckpt_path", str(trained), f"--data.root={tmp_path}"]) == 1
    assert "hold crimson; known are blue, green, red" in capsys.readouterr().err


def test_pictures_from_fit_to_predict(folder):
    arguments = {"root": str(folder), "attributes": ["parity", "rest"], "image_size": 8, "batch_size": 8}
    checkpoint = fitted(folder, class_path="OwnImages", init_args=arguments)
    pd.DataFrame({"path": ["pictures/7.png", "pictures/2.jpg"]}).to_csv(folder / "new.csv", index=False)
    table = predicted(checkpoint, "--data.file=new.csv", "--data.protocol=predict")
    assert table["row"].tolist() == [0, 1]
    assert set(table["parity"]) <= {"even", "odd"}
    assert set(table["rest"]) <= {0, 1, 2, 3}


def test_no_warning_about_a_plain_table(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built(tmp_path)


def test_random_parts_of_images_are_those_of_their_boxes():
    """Pictures of their own coordinates: a resized part shows coordinates that are linear in its rows and columns."""
    size, n = 64, 300
    middle = (torch.arange(size) + 0.5) / size
    picture = torch.stack([middle[None, :].expand(size, size), middle[:, None].expand(size, size)])
    x = crop_and_flip(picture.expand(n, -1, -1, -1), torch.Generator().manual_seed(0))
    inner = x[:, :, 8:-8, 8:-8]  # borders repeat the picture's outermost half pixel
    columns, rows = inner[:, 0].mean(1), inner[:, 1].mean(2)
    for lines, channel in ((columns, inner[:, 0]), (rows, inner[:, 1].transpose(1, 2))):
        assert torch.allclose(channel, lines[:, None].expand_as(channel), atol=1e-5)
        steps = lines.diff(dim=1)
        assert torch.allclose(steps, steps[:, :1].expand_as(steps), atol=1e-4)
    width, height = columns.diff(dim=1).mean(1) * size, rows.diff(dim=1).mean(1) * size
    mirrored = width < 0
    assert 0.4 < mirrored.float().mean() < 0.6
    assert (height > 0).all()
    area, ratio = width.abs() * height, width.abs() / height
    assert (area.min() > 0.66, area.max() <= 1.0001) == (True, True)
    assert (ratio.min() > 0.74, ratio.max() < 1.34) == (True, True)
    assert area.std() > 0.05
    assert torch.equal(x, crop_and_flip(picture.expand(n, -1, -1, -1), torch.Generator().manual_seed(0)))


def test_metadata_in_the_layout_of_wilds(tmp_path):
    """The columns and numbers of Waterbirds' metadata.csv; a few pictures in its folders."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(60):
        name = f"{number // 20:03d}.Bird/Bird_{number}.jpg"
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(tmp_path / name)
        y, place = number % 2, int(rng.integers(2))
        rows.append({"img_id": number, "img_filename": name, "y": y, "split": number % 3, "place": place})
    table = pd.DataFrame(rows)
    table.to_csv(tmp_path / "metadata.csv", index=False)
    arguments = {"path": "img_filename", "protocol": "split_column", "split": "split", "image_size": 16}
    data = OwnImages(root=str(tmp_path), attributes=["y", "place"], **arguments)
    data.setup()
    assert data.test_names == ("test",)
    for number, name in enumerate(("train", "val", "test")):
        part = table[table["split"] == number]
        assert data.datasets[name].rows.tolist() == part.index.tolist()
        assert data.datasets[name].a.tolist() == part[["y", "place"]].to_numpy().tolist()
    table.assign(split=table["split"] + 1).to_csv(tmp_path / "metadata.csv", index=False)
    with pytest.raises(DataError, match="holds 1, 2, 3; expected train"):
        OwnImages(root=str(tmp_path), attributes=["y", "place"], **arguments)
