import io
import math

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from rich.console import Console
from sklearn.metrics import mutual_info_score

from codid_lightning.analysis.summary import informations, mode_names, tables
from codid_lightning.cli.main import main
from datamodules import ColoredDigits, OwnArrays, Toy, ToyFourAttributes
from tests import fakes


def built(data):
    data.prepare_data()
    data.setup()
    return data


def shown(data) -> str:
    console = Console(file=io.StringIO(), width=200)
    for table in tables(data):
        console.print(table)
    return console.file.getvalue()


def row(text: str, title: str) -> list[str]:
    return next(line.split()[len(title.split()) :] for line in text.splitlines() if line.strip().startswith(title))


@pytest.mark.parametrize("data", [ColoredDigits(), ToyFourAttributes(samples=3000)])
def test_information_matches_scikit_learn(data):
    names = built(data).attribute_names
    for split, dataset in data.datasets.items():
        found = informations(data, split)
        a, mode = dataset.a.numpy(), dataset.mode[:, 0].numpy()
        pair = mutual_info_score(a[:, 0], a[:, 1]) / math.log(2)
        given = sum(
            (a[:, 0] == value).mean() * mutual_info_score(mode[a[:, 0] == value], a[a[:, 0] == value, 1])
            for value in (0, 1)
        )
        assert found[f"I({names[0]}; {names[1]})"].bits == pytest.approx(pair, abs=1e-9)
        assert found[f"I({names[0]}'s mode; {names[1]} | {names[0]})"].bits == pytest.approx(
            given / math.log(2), abs=1e-9
        )
    expected = {2: 2, 4: 6 + 2 * 3}[len(names)]  # pairs, and others given each attribute with modes
    assert len(found) == expected


def test_chance_is_what_independent_labels_would_share():
    data = built(ColoredDigits())
    found = informations(data, "test2")["I(parity's mode; color | parity)"]
    # (modes - 1) (colors - 1) degrees of freedom under each value of parity
    assert found.chance == pytest.approx((2 + 1) / (2 * len(data.datasets["test2"]) * math.log(2)), rel=0.6)
    assert found.bits < 4 * found.chance
    assert informations(data, "train")["I(parity's mode; color | parity)"].bits > 20 * found.chance


def test_counts_are_those_of_the_data():
    data = built(Toy(samples_per_mode=100))
    text = shown(data)
    assert row(text, "samples") == ["540", "60", "300", "300", "300"]
    for mode, name in enumerate(mode_names(data, 0)):
        train = data.datasets["train"]
        own = train.a[train.mode[:, 0] == mode, 1]
        cells = row(text, name)
        assert cells[:5] == ["90", "10", "50", "50", "50"]
        assert cells[5] == f"{(own == 0).float().mean():.1%}"


def test_unlabelled_rows_are_counted_without_their_labels(tmp_path):
    pd.DataFrame({"x": range(5), "y": range(5)}).to_csv(tmp_path / "new.csv", index=False)
    labels = {"a": ["0", "1"], "b": ["0", "1"]}
    data = OwnArrays(root=str(tmp_path), file="new.csv", attributes=["a", "b"], protocol="predict", labels=labels)
    text = shown(built(data))
    assert row(text, "samples") == ["5"]
    assert "I(" not in text


CONFIGS = {
    "cmnist": ("fakes", []),
    "canine_bg": ("fakes", ["--data.image_size=32", "--data.val_fraction=0.2"]),
    "uci_har": ("fakes", []),
    "toy": ("", ["--data.samples_per_mode=50"]),
    "toy_four_attributes": ("", ["--data.samples=500"]),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_command_prints_tables_and_draws_samples(name, tmp_path, capsys):
    source, arguments = CONFIGS[name]
    if source:
        fakes.FAKES[name](tmp_path)
        arguments = [*arguments, f"--data.root={tmp_path}"]
    picture = tmp_path / "out" / "samples.png"
    command = ["data", "summary", "-c", f"configs/{name}/codid.yaml", *arguments, "--output", str(picture)]
    if name == "toy_four_attributes":
        command[3] = f"configs/{name}/base.yaml"
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "inputs of shape" in out
    assert "samples per value of" in out
    assert f"Samples are in {picture}" in " ".join(out.split())
    pixels = np.asarray(Image.open(picture).convert("L"))
    assert pixels.std() > 5  # something is drawn


def test_class_alone_is_enough_and_the_picture_has_a_default_place(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "summary", "--data", "ColoredDigits", "--data.correlation=0.5"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    expected = ColoredDigits(correlation=0.5).hidden_correlation
    assert f"({expected:.4f} nats) in training" in out
    assert (tmp_path / "coloreddigits-samples.png").is_file()


@pytest.mark.parametrize(
    ("shape", "kind"), [((5,), "points"), ((1,), "points"), ((2, 30), "traces"), ((1, 9, 9), "grid")]
)
def test_own_data_of_any_shape_is_drawn(shape, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = {"a": np.array(["p", "q"])[rng.integers(0, 2, 60)], "b": rng.integers(0, 3, 60)}
    np.savez("own.npz", x=rng.normal(size=(60, *shape)), **labels)
    command = ["data", "summary", "--data", "OwnArrays", "--data.root=.", "--data.file=own.npz"]
    assert main([*command, "--data.attributes=[a, b]", "--output", f"{kind}.png"]) == 0
    assert np.asarray(Image.open(f"{kind}.png").convert("L")).std() > 5


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["summary"], ["summary", "--help"], ["summary", "--data", "Toy", "-h"]]
)
def test_help(arguments, capsys):
    assert main(["data", *arguments]) == 0
    out = capsys.readouterr().out
    assert "usage: codid data summary" in out
    assert "--output" in out


def test_mistakes_are_explained(tmp_path, capsys):
    assert main(["data", "sumary"]) == 2
    assert "`summary`" in capsys.readouterr().err
    assert main(["data", "summary", "--data", "CMNIST", f"--data.root={tmp_path}", "--data.download=false"]) == 1
    assert "Place the unpacked idx files" in capsys.readouterr().err
    assert main(["data", "summary", "--data", "ColoredDigit"]) == 2
    assert "ColoredDigits" in capsys.readouterr().err


def test_same_seed_same_picture():
    from codid_lightning.analysis.figures.samples import samples

    data = built(ColoredDigits())
    grids = [samples(data).axes[0].get_images()[0].get_array() for _ in range(2)]
    assert np.array_equal(*grids)
    assert torch.isfinite(torch.from_numpy(np.asarray(grids[0]))).all()
