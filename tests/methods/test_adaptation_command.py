"""`codid adapt` on a table with planted modes, and what `test`, `predict` and Python make of its file."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from codid_lightning import CoDID
from codid_lightning.analysis import adaptation as analysis
from codid_lightning.analysis.adaptation import Place, mode_titles, reading
from codid_lightning.analysis.figures.adaptation import MAX_PANELS
from codid_lightning.analysis.figures.adaptation import adaptation as figure
from codid_lightning.errors import RunError
from codid_lightning.methods.codid.adaptation import (
    FILE,
    Adaptation,
    ClusterShares,
    Dial,
    ModePrior,
    Uniform,
    fingerprint,
)
from codid_lightning.methods.codid.parts.decoding import DecodedSamples
from codid_lightning.methods.codid.parts.prior import PriorInLogits
from codid_lightning.training import LoadedRun, build, load, runs, stages
from codid_lightning.training.callbacks.predictions import PredictionWriter
from codid_lightning.training.identity import config_hash
from datamodules import ArrayDataModule
from tests.codid.tiny import bench, tiny_codid, tiny_data, tiny_trainer
from tests.commands import codid, fit_toy

GATE = "codid_lightning.methods.codid.parts.gate"
QUIET = "--trainer.enable_progress_bar=false"
CENTRES = np.array([[0.0, 0.0], [2.2, 0.0], [0.0, 2.2], [2.2, 2.2]])  # of modes a, b of circles, c, d of squares
P_RED = np.array([0.95, 0.05, 0.05, 0.95])  # in training


def table(rows: int, p_red: np.ndarray, seed: int) -> pd.DataFrame:
    """Two columns of content, in which modes overlap, and one that shows the color."""
    rng = np.random.default_rng(seed)
    mode = rng.integers(4, size=rows)
    red = rng.random(rows) < p_red[mode]
    width, height = (CENTRES[mode] + 0.9 * rng.normal(size=(rows, 2))).T
    labels = {
        "shape": np.where(mode < 2, "circle", "square"),
        "kind": np.array(list("abcd"))[mode],
        "color": np.where(red, "red", "blue"),
    }
    return pd.DataFrame({"width": width, "height": height, "tint": red + 0.1 * rng.normal(size=rows), **labels})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with given modes as the prior in the logits."""
    folder = tmp_path_factory.mktemp("own")
    table(1500, P_RED, 0).to_csv(folder / "table.csv", index=False)
    discovery = {"n_clusters": 2, "start": 1, "every": None, "clusterer": {"class_path": "TrueModes"}}
    parts = {"discovery": discovery, "mode_loss": {"class_path": "PriorInLogits"}, "alignment": None, "splits": None}
    arguments = {"root": str(folder), "file": "table.csv", "attributes": ["shape", "color"], "mode": "kind"}
    config = {
        "dataset": "mine",
        "method": "prior",
        "title": "PRIOR",
        "data": {"class_path": "OwnArrays", "init_args": {**arguments, "inputs": ["width", "height", "tint"]}},
        "model": {"class_path": "CoDID", "init_args": {"latent_dim": 8, "reconstruction": 0.0, **parts}},
        "trainer": {"max_epochs": 8, "enable_progress_bar": False, "logger": False},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert codid("fit", "-c", folder / "config.yaml", f"--run_dir={folder / 'run'}", "--trainer.accelerator=cpu") == 0
    return folder / "run"


@pytest.fixture
def new(tmp_path) -> Path:
    """A table of a place where the correlation is reversed."""
    table(400, 1 - P_RED, 1).to_csv(tmp_path / "new.csv", index=False)
    return tmp_path / "new.csv"


@pytest.fixture
def fresh(run, tmp_path) -> Path:
    """A copy of the run that a test may write to."""
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def adapted(run: Path, data: object, output: Path, *arguments: object) -> str:
    """The JSON that the command writes."""
    assert codid("adapt", run, "--data", data, "--output", output, *arguments) == 0
    return output.read_text()


def found(run: Path, data: object, **options: object) -> str:
    """The same without command and figure."""
    return json.dumps(analysis.adapt(*analysis.load([str(run)], str(data)), **options).to_json(), indent=1) + "\n"


def accuracy(run: Path, data: Path, *arguments: object) -> float:
    keys = {"ckpt_path": str(run / "checkpoints" / "last.ckpt"), "data.file": str(data), "data.protocol": "predict"}
    given = dict(argument.split("=", 1) for argument in map(str, arguments))
    return stages.test(build({**keys, **given, "trainer.enable_progress_bar": False}, record=False))["test/acc"]


# -------------------------------------------------------------------------------------------------- what it is good for


def test_a_reversed_correlation_is_found_and_used(fresh, new, capsys):
    plain = accuracy(fresh, new)
    assert codid("adapt", fresh, "--data", new, "--samples", 200) == 0
    shown = capsys.readouterr().out
    stored = json.loads((fresh / "checkpoints" / FILE).read_text())
    assert stored["chosen"] == "modes"
    assert "PRIOR on mine" in shown
    assert "200 of 400 samples; color is given." in shown
    assert "as in training" in shown
    assert "circle 2" in shown
    assert "Predictions use the frequencies of modes now." in shown
    assert (fresh / "checkpoints" / "adaptation.png").stat().st_size > 10_000
    assert accuracy(fresh, new, "adapted=true") > plain + 0.03


def test_nothing_changes_where_nothing_is_correlated(fresh, tmp_path):
    table(400, np.full(4, 0.5), 2).to_csv(tmp_path / "new.csv", index=False)
    stored = json.loads(adapted(fresh, tmp_path / "new.csv", tmp_path / "a.json"))
    assert stored["chosen"] == "uniform"
    assert stored["clusters"]["value"] == [0, 0, 1, 1]
    assert np.abs(np.array(stored["clusters"]["now"]) - 0.25).max() < 0.15
    assert accuracy(fresh, tmp_path / "new.csv") == accuracy(
        fresh, tmp_path / "new.csv", f"adapted={tmp_path / 'a.json'}"
    )


def test_a_test_set_of_the_run_is_like_training(run, tmp_path):
    assert json.loads(adapted(run, "test", tmp_path / "a.json"))["chosen"] == "train"


def test_predictions_are_those_of_the_adapted_model(fresh, new):
    (fresh / "checkpoints" / FILE).write_text(found(fresh, new))
    arguments = (f"--data.file={new}", "--data.protocol=predict", QUIET)
    checkpoint = (f"--ckpt_path={fresh / 'checkpoints' / 'last.ckpt'}", f"--run_dir={fresh}")
    assert codid("predict", *checkpoint, *arguments, "--adapted=true") == 0
    with_color = pd.read_csv(fresh / "predictions" / "test.csv")
    overrides = {"data.file": str(new), "data.protocol": "predict", "adapted": True}
    trained = load(fresh, overrides)
    batch = trained.data.datasets["test"][torch.arange(400)]
    probabilities = trained.model.attribute_logits(trained.model(batch["x"]), batch["a"])[0].softmax(1).max(1).values
    assert np.allclose(with_color["shape_probability"], probabilities.detach(), atol=1e-5)
    assert codid("predict", *checkpoint, *arguments) == 0
    plain = pd.read_csv(fresh / "predictions" / "test.csv")
    assert (plain["shape"] != with_color["shape"]).mean() > 0.03


def test_python_gives_the_same_numbers(run, new):
    stored = json.loads(found(run, new))
    trained = load(run, {"data.file": str(new), "data.protocol": "predict"})
    batch = trained.data.datasets["test"][torch.arange(400)]
    own = trained.model.adapt(batch["x"], batch["a"][:, 1:])
    assert own.likelihoods == pytest.approx(stored["held_out_log_likelihood"], abs=1e-6)
    assert own.model == stored["model"]
    assert trained.model.adaptation is own


# --------------------------------------------------------------------------------------------------------------- labels


def test_labels_are_never_read(run, new, tmp_path):
    """The same bits come out if labels are permuted, wrong, missing or not there at all."""
    rows = pd.read_csv(new)
    first = adapted(run, new, tmp_path / "first.json")
    permuted = rows.assign(shape=rows["shape"].sample(frac=1, random_state=0).to_numpy())
    some = rows.assign(shape=rows["shape"].where(rows.index % 2 == 0))
    for changed in (permuted, rows.assign(shape="hexagon"), some, rows.drop(columns=["shape", "kind"])):
        changed.to_csv(tmp_path / "changed.csv", index=False)
        assert found(run, tmp_path / "changed.csv") == first


def test_labels_of_a_test_set_are_never_read(run):
    trained, place = analysis.load([str(run)], "test")
    before, a = analysis.adapt(trained, place), place.samples.a
    a[:, 0] = a[torch.randperm(len(a), generator=torch.Generator().manual_seed(0)), 0]
    assert analysis.adapt(trained, place).to_json() == before.to_json()


def test_other_attributes_are_predicted_where_they_are_not_given(run, new, tmp_path, capsys):
    pd.read_csv(new)[["tint", "height", "width"]].to_csv(tmp_path / "plain.csv", index=False)
    without = adapted(run, tmp_path / "plain.csv", tmp_path / "a.json")
    assert "color is predicted." in capsys.readouterr().out
    assert not json.loads(without)["others_given"]
    assert found(run, new, predict_others=True) == without
    assert codid("adapt", run, "--data", new, "--predict_others=yes") == 2


# ----------------------------------------------------------------------------------------------------- forms of samples


def test_a_part_is_drawn_by_its_seed(run, new, tmp_path):
    first, other = (adapted(run, new, tmp_path / "a.json", "--samples=100", f"--seed={seed}") for seed in (0, 1))
    trained, place = analysis.load([str(run)], str(new))
    assert analysis.adapt(trained, place.some(100, 0)).to_json() == json.loads(first)
    assert first != other
    assert json.loads(first)["samples"] == 100


def test_parquet_gives_what_a_table_gives(run, new, tmp_path):
    pytest.importorskip("pyarrow")
    pd.read_csv(new).to_parquet(tmp_path / "new.parquet")
    assert found(run, tmp_path / "new.parquet") == found(run, new)


@pytest.mark.parametrize("form", ["config", "section"])
def test_a_data_config_is_a_place(form, run, new, tmp_path):
    """It is read with the scaling of training, although its own rows differ."""
    arguments = {"root": str(tmp_path), "file": "new.csv", "attributes": ["shape", "color"], "protocol": "predict"}
    section = {"class_path": "OwnArrays", "init_args": arguments}
    config = section if form == "section" else {"data": section, "model": {"class_path": "Base"}}
    (tmp_path / "place.yaml").write_text(yaml.safe_dump(config))
    assert found(run, tmp_path / "place.yaml") == found(run, new)


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> Path:
    """A run on toy data whose gate was made to accept, so that it has a dial; its modes mean nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("MIN_OBEDIENCE", "MIN_SURVIVAL"):
            patch.setattr(f"{GATE}.{name}", -1e9)
        arguments = ("--trainer.max_epochs=3", "--model.discovery.start=1", "--model.decoding.epochs=1")
        return fit_toy(tmp_path_factory.mktemp("toy"), *arguments, config="configs/toy/codid_adaptive.yaml")


def test_the_dial_is_shown_in_words(toy, tmp_path, capsys):
    stored = json.loads(adapted(toy, "test3", tmp_path / "a.json"))
    shown = capsys.readouterr().out
    for value, gain in enumerate(stored["dial"]):
        low, high = stored["dial_95"][value]
        assert low < gain < high
        sentence = f"The correlation of a2 with content within a1 {value} is {gain:.2f} [{low:.2f}, {high:.2f}] of tr"
        assert sentence in shown


def test_several_test_sets_of_a_config_need_a_choice(toy, tmp_path, capsys):
    place = {"class_path": "Toy", "init_args": {"samples_per_mode": 30, "seed": 7}}
    (tmp_path / "place.yaml").write_text(yaml.safe_dump(place))
    assert codid("adapt", toy, "--data", tmp_path / "place.yaml") == 1
    assert "choose one with --split: test1, test2, test3" in capsys.readouterr().err
    stored = adapted(toy, tmp_path / "place.yaml", tmp_path / "a.json", "--split=test3", "--data.samples_per_mode=20")
    assert json.loads(stored)["samples"] == 60


def test_arrays_serve_a_run_on_another_kind_of_data(toy, tmp_path):
    """The inputs are as the model takes them, and labels have the names of training."""
    data = load(toy).data.datasets["test3"]
    batch = data[torch.arange(len(data))]
    np.savez(tmp_path / "new.npz", x=batch["x"].numpy(), a2=batch["a"][:, 1].numpy())
    assert found(toy, tmp_path / "new.npz") == found(toy, "test3")


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Path:
    """A run with two other attributes and two targets."""
    return fit_several(tmp_path_factory.mktemp("several"), clusters=2)


def fit_several(folder: Path, clusters: int) -> Path:
    table(300, P_RED, 0).assign(size=np.random.default_rng(0).choice(["big", "small"], 300)).to_csv(
        folder / "table.csv", index=False
    )
    arguments = {"root": str(folder), "file": "table.csv", "attributes": ["shape", "color", "size"]}
    discovery = {"n_clusters": clusters, "start": 1, "every": None, "clusterer": {"class_path": "KMeans"}}
    parts = {"discovery": discovery, "mode_loss": {"class_path": "PriorInLogits"}, "alignment": None, "splits": None}
    config = {
        "data": {"class_path": "OwnArrays", "init_args": {**arguments, "inputs": ["width", "height", "tint"]}},
        "model": {"class_path": "CoDID", "init_args": {"latent_dim": 8, "targets": [0, 1], "moded": [0], **parts}},
        "trainer": {"max_epochs": 2, "enable_progress_bar": False, "logger": False, "accelerator": "cpu"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert codid("fit", "-c", folder / "config.yaml", f"--run_dir={folder / 'run'}") == 0
    return folder / "run"


def test_several_targets_and_other_attributes(several, tmp_path, capsys):
    stored = json.loads(adapted(several, "test", tmp_path / "a.json"))
    shown = capsys.readouterr().out
    assert "color and size are given" in shown
    assert "Only predictions of shape, the first attribute, are adapted." in shown
    assert "blue, small" in shown
    assert np.shape(stored["clusters"]["now"]) == (4, 4)


def test_a_model_without_content_and_modes_assumes_no_correlation_and_says_so(tmp_path, capsys):
    run = fit_several(tmp_path, clusters=1)
    stored = json.loads(adapted(run, "test", tmp_path / "a.json"))
    assert (stored["chosen"], stored["dial"], stored["clusters"]) == ("uniform", None, None)
    assert "cannot show the correlation of shape's modes and color and size" in capsys.readouterr().out
    assert not (tmp_path / "a.png").exists()


def test_some_of_the_other_attributes_are_not_enough(several, new, tmp_path, capsys):
    assert codid("adapt", several, "--data", new, "--output", tmp_path / "a.json") == 1
    assert "has the column color, but not size" in capsys.readouterr().err


def test_a_model_without_the_first_attribute_among_its_targets_is_not_adapted():
    model = tiny_codid(tiny_data(), targets=[1], mode_loss=PriorInLogits(), alignment=None, splits=None)
    with pytest.raises(RunError, match="for the first attribute"):
        model.adapt(torch.zeros(30, 3))


# ------------------------------------------------------------------------------------------------------------- mistakes


BAD = {
    "too few": (lambda rows: rows.head(19), "19 unlabelled samples; adaptation needs at least 20"),
    "other columns": (lambda rows: rows.rename(columns={"height": "size"}), "height"),
    "a value never seen": (
        lambda rows: rows.assign(color=rows["color"].where(rows.index != 7, "violet")),
        "Row 7 of {file} has color = violet; in training its values are blue, red.",
    ),
    "an empty value": (
        lambda rows: rows.assign(color=rows["color"].where(rows.index != 7)),
        "Row 7 of {file} has no color; in training its values are blue, red.",
    ),
    "not finite": (lambda rows: rows.assign(width=np.inf), "NaN or infinity"),
    "not numbers": (lambda rows: rows.assign(width="wide"), "not numbers"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_bad_samples_are_named(fault, run, new, tmp_path, capsys):
    changed, message = BAD[fault]
    changed(pd.read_csv(new)).to_csv(new, index=False)
    assert codid("adapt", run, "--data", new, "--output", tmp_path / "a.json") == 1
    assert message.format(file=new) in capsys.readouterr().err
    assert not (tmp_path / "a.json").exists()


ARGUMENTS = {
    "no such test set": (["--data", "tset"], "The test sets of the run are test"),
    "no such file": (["--data", "nowhere.csv"], "There is no file nowhere.csv"),
    "no such config": (["--data", "nowhere.yaml"], "neither a run directory nor a config"),
    "too many": (["--data", "test", "--samples", "5000"], "--samples is 5000; test has 300 samples"),
    "another ending": (["--data", "test", "--output", "a.txt"], "should end in .json"),
    "other labels": (["--data", "configs/toy/data.yaml", "--split", "test1"], "was trained on attributes"),
}


@pytest.mark.parametrize("fault", ARGUMENTS)
def test_bad_arguments_are_named(fault, run, capsys):
    arguments, message = ARGUMENTS[fault]
    assert codid("adapt", run, *arguments) == 1
    assert message in capsys.readouterr().err


def test_data_are_required(run, capsys):
    assert codid("adapt", run) == 2
    assert "--data" in capsys.readouterr().err


def test_samples_of_another_shape_are_named(toy, tmp_path, capsys):
    np.savez(tmp_path / "new.npz", x=np.zeros((50, 5), dtype="float32"))
    assert codid("adapt", toy, "--data", tmp_path / "new.npz") == 1
    assert "new.npz has samples of shape (5,); the model was trained on" in capsys.readouterr().err


def test_a_run_without_the_prior_is_named(tmp_path, capsys):
    assert codid("adapt", fit_toy(tmp_path), "--data", "test3") == 1
    assert "PriorInLogits" in capsys.readouterr().err


def test_a_run_that_has_not_finished_is_named(fresh, capsys):
    (fresh / runs.RESULT).unlink()
    assert codid("adapt", fresh, "--data", "test") == 1
    assert "has not finished" in capsys.readouterr().err
    (fresh / "checkpoints" / "last.ckpt").unlink()
    assert codid("adapt", fresh, "--data", "test") == 1
    assert "has not finished an epoch" in capsys.readouterr().err


def test_an_adaptation_of_another_model_is_not_used(fresh, new, toy, tmp_path, capsys):
    checkpoint = f"--ckpt_path={fresh / 'checkpoints' / 'last.ckpt'}"
    assert codid("test", checkpoint, QUIET, "--adapted=true") == 1
    assert "There is no adaptation" in capsys.readouterr().err
    (tmp_path / "toy.json").write_text(found(toy, "test3"))
    for command in ("test", "predict"):
        assert codid(command, checkpoint, QUIET, f"--adapted={tmp_path / 'toy.json'}") == 1
        assert "belongs to another model" in capsys.readouterr().err
    with pytest.raises(RunError, match="belongs to another model"):
        load(fresh, {"adapted": str(tmp_path / "toy.json")})
    (tmp_path / "own.json").write_text(found(fresh, new))
    state = torch.load(fresh / "checkpoints" / "last.ckpt", weights_only=True)
    state["state_dict"]["predictors.0.bias"] += 1  # as after more training
    torch.save(state, fresh / "checkpoints" / "last.ckpt")
    with pytest.raises(RunError, match="belongs to another model"):
        load(fresh, {"adapted": str(tmp_path / "own.json")})


def test_training_takes_no_adaptation(tmp_path, capsys):
    assert codid("fit", "-c", "configs/toy/base.yaml", f"--run_dir={tmp_path}", "--adapted=true") == 1
    assert "test and predict" in capsys.readouterr().err


def test_use_does_not_change_the_identity_of_a_run(run):
    config = runs.read_config(run)
    assert config_hash({**config, "adapted": "there.json"}) == config_hash({**config, "adapted": False})


def test_evaluation_agrees_with_the_test_and_keeps_adapted_scores_apart(fresh, new, capsys):
    before = runs.read_result(fresh)["metrics"]
    assert codid("evaluate", fresh) == 0
    after = runs.read_result(fresh)["metrics"]
    assert after["test/acc"] == pytest.approx(before["test/acc"])
    (fresh / "checkpoints" / FILE).write_text(found(fresh, new))
    assert codid("evaluate", fresh, "--adapted=true") == 0
    assert runs.read_result(fresh)["metrics"] == after


# --------------------------------------------------------------------------------------------------------------- pieces


@pytest.mark.parametrize(
    ("gain", "interval", "words"),
    [
        (0.97, (0.9, 1.04), "as in training"),
        (0.5, (0.4, 0.6), "weaker than in training"),
        (1.5, (1.2, 1.8), "stronger than in training"),
        (0.02, (-0.1, 0.14), "no correlation"),
        (-0.9, (-1.2, -0.6), "reversed"),
        (-0.5, (-0.7, -0.3), "reversed, and weaker than in training"),
        (-1.5, (-1.8, -1.2), "reversed, and stronger than in training"),
        (0.4, (-0.5, 1.3), "unclear, the interval is too wide"),
    ],
)
def test_readings_in_words(gain, interval, words):
    assert reading(gain, interval) == words


def test_modes_are_numbered_where_a_value_has_several():
    assert mode_titles([0, 0, 1], ("even", "odd")) == ["even 1", "even 2", "odd"]


def test_the_figure_shows_dial_and_modes():
    train = torch.rand(6, 3).double()
    shares = ClusterShares(torch.tensor([0, 0, 1]), train, train + torch.arange(6)[:, None] / 10)
    shown = Adaptation(Uniform(), 50, "modes", dial=[-0.8, 0.1], intervals=[(-1, -0.6), (-0.1, 0.3)], clusters=shares)
    names = {"first": ("even", "odd"), "others": list("uvwxyz"), "modes": ["even 1", "even 2", "odd"]}
    drawn = figure(shown, ("parity", "letter"), **names)
    titles = [axes.get_title() for axes in drawn.axes]
    assert titles == ["Correlation with letter", *(f"Modes where letter is {name}" for name in "wxyz")]
    assert len(titles) == 1 + MAX_PANELS
    dial = drawn.axes[0]
    assert [label.get_text() for label in dial.get_yticklabels()] == ["even", "odd"]
    assert [label.get_text() for label in dial.get_xticklabels()] == ["-1\nreversed", "0\nnone", "1\nas in training"]
    assert [patch.get_height() for patch in drawn.axes[1].patches[3:]] == pytest.approx(shares.now[2].tolist())


def test_the_fingerprint_is_of_names_shapes_and_numbers():
    state = {"a": torch.arange(6.0), "b": torch.tensor(True), "c": {"extra": 1}}
    assert fingerprint(state) == fingerprint(dict(reversed(state.items())))
    for other in ({**state, "a": torch.arange(6.0).view(2, 3)}, {**state, "a": torch.zeros(6)}, {"z": state["a"]}):
        assert fingerprint(other) != fingerprint(state)


@pytest.mark.parametrize("belief", [Uniform(), Dial(torch.ones(2), torch.zeros(2, 2)), ModePrior(torch.zeros(2, 5))])
def test_beliefs_move_to_the_device_of_the_model(belief):
    like = torch.zeros((), device="meta", dtype=torch.bfloat16)
    moved = vars(belief.to(like)).values()
    assert all(value.device.type == "meta" and value.dtype == like.dtype for value in moved)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_model_on_a_gpu_is_adapted_and_predicts(run, new):
    trained = load(run, {"data.file": str(new), "data.protocol": "predict", "trainer.accelerator": "gpu"})
    batch = trained.data.datasets["test"][torch.arange(400)]
    own = trained.model.adapt(batch["x"], batch["a"][:, 1:])
    assert own.clusters.now.device.type == "cpu"
    z = trained.model(batch["x"].cuda())
    assert trained.model.attribute_logits(z, batch["a"].cuda())[0].isfinite().all()


def image_model(a: torch.Tensor) -> CoDID:
    """An untrained model of images with random clusters, whose gate has accepted."""
    parts = {"mode_loss": PriorInLogits(), "alignment": None, "splits": None, "decoding": DecodedSamples()}
    module = CoDID((3, 28, 28), (2, 2), ("test",), backbone="mlp", max_clusters=4, reconstruction=0.0, **parts)
    module.training_attributes = lambda: a
    module.counterfactuals.gate_metrics = {"gate/accepted": 1.0}
    module.counterfactuals.occurring.fill_(True)
    return bench(module, a)


@pytest.mark.slow
def test_adaptation_takes_less_time_than_prediction(tmp_path):
    """10,000 images through the paper's network. Prediction includes the files that `codid predict` writes."""
    generator = torch.Generator().manual_seed(0)
    x, a = torch.rand(10_000, 3, 28, 28, generator=generator), torch.randint(2, (10_000, 2), generator=generator)
    module = image_model(a)
    test = {"test": (x.numpy(), a[:, 0].numpy(), a[:, 1].numpy())}
    data = ArrayDataModule.from_arrays(x[:200].numpy(), target=a[:200, 0].numpy(), other=a[:200, 1].numpy(), test=test)
    data.setup()
    place = Place("test", data.datasets["test"], torch.arange(10_000), a[:, 1:])
    seconds = {}
    for name in ("warm", "adapt", "predict"):
        start = time.process_time()
        if name == "predict":
            trainer = tiny_trainer(callbacks=[PredictionWriter(tmp_path)])
            trainer.predict(module, data, return_predictions=False)
        else:
            assert analysis.adapt(LoadedRun(module, data, tmp_path, {}), place.some()).dial is not None
        seconds[name] = time.process_time() - start
    assert len(pd.read_csv(tmp_path / "test.csv")) == 10_000
    assert seconds["adapt"] < seconds["predict"], seconds
