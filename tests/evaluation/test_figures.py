"""`codid figure`: every figure is drawn from a run, and what it shows are the run's numbers."""

import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from matplotlib.colors import to_hex
from PIL import Image

from codid_lightning import metrics
from codid_lightning.analysis.evaluation import encode, load_run
from codid_lightning.analysis.figures import evolution, representations, results, toy, training
from codid_lightning.analysis.figures.embedding import evenly
from codid_lightning.analysis.figures.results import FigureError
from codid_lightning.analysis.figures.style import COLORS, value_colors
from codid_lightning.analysis.modes import discover
from codid_lightning.cli.arguments import FIGURES
from codid_lightning.cli.main import main
from codid_lightning.training.callbacks.snapshots import Snapshot, read_snapshots
from codid_lightning.training.runs import read_result


@pytest.fixture
def few_points(monkeypatch):
    """t-SNE of few samples: the figures are the same, only sooner there."""
    for module in (training, evolution):
        monkeypatch.setattr(module, "MAX_POINTS", 60)
    monkeypatch.setattr(representations, "PER_SPLIT", 60)


@pytest.fixture
def images(tmp_path):
    """A run directory with a config of an image set."""
    data = {"class_path": "ColoredDigits", "init_args": {"val_fraction": 0.2}}
    model = {"class_path": "Base", "init_args": {"latent_dim": 4}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"data": data, "model": model}))
    return tmp_path


def test_help_lists_every_figure_and_what_it_needs(capsys):
    assert main(["figure", "--help"]) == 0
    text = capsys.readouterr().out
    for name, entry in FIGURES.items():
        assert f"  {name} " in text
        assert entry.shows in text
        assert entry.needs in text


@pytest.mark.parametrize(
    "name", ["boundaries", "weights", "subclustering", "evolution", "iterations", "complexity", "curves", "shift"]
)
def test_drawn_from_a_training(name, codid_run, few_points, tmp_path):
    path = tmp_path / "figure.png"
    assert main(["figure", name, str(codid_run), "--output", str(path)]) == 0
    pixels = np.asarray(Image.open(path).convert("L"))
    assert pixels.shape[1] > 300
    assert (pixels < 100).any()


def test_the_title_of_the_config_is_in_the_result(codid_run):
    assert read_result(codid_run)["title"] == "CoDID"


def test_samples_come_from_a_run_or_a_config(images, tmp_path):
    for i, source in enumerate((images, images / "config.yaml")):
        assert main(["figure", "samples", str(source), "--output", str(tmp_path / f"{i}.svg")]) == 0
    text = (tmp_path / "0.svg").read_text()
    assert "<image" in text
    assert text == (tmp_path / "1.svg").read_text()  # the same data, the same picture


@pytest.fixture(scope="module")
def series_run(tmp_path_factory):
    """A short run on windows of two channels: activity `go` has a slow and a fast mode, `rest` has one."""
    folder = tmp_path_factory.mktemp("series")
    generator = np.random.default_rng(0)
    speed = np.repeat([0.0, 1.0, 4.0], 60)
    waves = np.sin(speed[:, None, None] * np.linspace(0, 6, 32) + np.array([0, 1.5])[:, None])
    x = (waves + 0.05 * generator.normal(size=waves.shape)).astype(np.float32)
    activity = np.where(speed > 0, "go", "rest")
    np.savez(folder / "series.npz", x=x, activity=activity, user=generator.choice(["u", "v"], 180))
    config = {
        "data": {
            "class_path": "OwnArrays",
            "init_args": {"file": "series.npz", "root": str(folder), "attributes": ["activity", "user"]},
        },
        "model": {"class_path": "Base", "init_args": {"latent_dim": 8}},
        "trainer": {"max_epochs": 3, "accelerator": "cpu", "enable_progress_bar": False},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["fit", "-c", str(folder / "config.yaml"), "--run_dir", str(folder / "run")]) == 0
    return folder / "run"


def test_signals_of_an_activity_are_shown_by_mode(series_run):
    figure = representations.signals([series_run], "go")
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert len(titles) >= 2
    assert all(title.startswith("go ") for title in titles)
    run = load_run([str(series_run)])
    train = run.data.datasets["train"]
    modes = discover(run.model, encode(run.model, train))
    largest = max((m for m in modes.ids if m < modes.slots), key=lambda m: int((modes.labels == m).sum()))
    typical = train.inputs(modes.nearest(largest, 1))[0, 0]
    assert figure.axes[0].get_lines()[-1].get_ydata() == pytest.approx(typical.numpy())
    shown = {tuple(line.get_ydata()) for line in figure.axes[0].get_lines()[:-1]}
    own = {tuple(x[0].numpy()) for x in train.inputs((modes.labels == largest).nonzero().flatten())}
    assert len(shown) == representations.SIGNALS
    assert shown <= own


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["weights", "{base}", "--output", "x.png"], "configs/callbacks/snapshots.yaml"),
        (["signals", "{base}", "--output", "x.png"], "has no signals"),
        (["samples", "nowhere", "--output", "x.png"], "neither a run directory nor a config"),
        (["evolution", "{codid}", "--output", "x.png", "--value", "7"], "there are 0, 1"),
        (["curves", "{codid}", "--output", "x.png", "--value", "1"], "takes no --value"),
        (["curves", "{codid}", "--output", "x.txt"], ".png, .pdf, .svg"),
        (["robustness", "{base}", "--output", "x.png"], "data.init_args.correlation"),
        (["sensitivity", "{base}", "--output", "x.png"], "differ in an argument of the model"),
        (["curves", "nowhere", "--output", "x.png"], "no result.json"),
    ],
)
def test_says_what_is_missing(arguments, says, base_run, codid_run, capsys):
    assert main(["figure", *(a.format(base=base_run, codid=codid_run) for a in arguments)]) == 1
    assert says in capsys.readouterr().err


def planted(**changes):
    """A snapshot of 40 samples: two clusters under value 0, the first of two modes that go with a_2."""
    index = np.arange(40)
    mode = np.where(index < 20, index % 2, 2)
    fields = {
        **{"epoch": 3, "kind": "split", "attribute": 0, "max_clusters": 4},
        "z": np.random.default_rng(0).normal(size=(40, 3)).astype(np.float16),
        "a": np.stack([np.zeros(40, dtype=int), np.where(mode == 2, index // 2 % 2, mode)], 1),
        "mode": mode,
        **{"before": np.where(index < 20, 0, 2), "cluster": np.where(index < 20, 0, 2)},
        **{"half": mode % 2, "mixture_cluster": np.where(index < 20, 0, 2), "mixture_half": index // 10 % 2},
        **{"divergence": np.linspace(0, 1, 400), "same_mode": np.arange(400) < 200},
        "moves": [{"kind": "split", "value": 0, "slots": [k], "accepted": False} for k in (2, 0)],
        "names": {"attributes": ["a", "b"], "values": [["0"], ["red", "blue"]], "modes": []},
    }
    return Snapshot(**(fields | changes))


@pytest.fixture
def planted_run(base_run, tmp_path):
    shutil.copytree(base_run, tmp_path / "run")
    for snapshot in (planted(), planted(epoch=5, kind="end", moves=[], half=np.zeros(40, dtype=int))):
        snapshot.write(tmp_path / "run" / "snapshots")
    return tmp_path / "run"


class TestSnapshotFigures:
    def test_share_of_pairs_falls_where_it_was_planted(self, planted_run):
        (panel,) = training.weight_patterns([planted_run]).axes
        x, share = panel.get_lines()[0].get_data()
        assert len(x) == 10
        assert share.tolist() == pytest.approx([1] * 5 + [0] * 5, abs=0.06)

    def test_accuracies_of_halves_are_the_metrics(self, planted_run):
        (panel,) = training.subclustering([planted_run]).axes
        net, mixture = (line.get_ydata() for line in panel.get_lines())
        assert net.tolist() == pytest.approx([1, (0.5 + 1) / 2])  # both clusters right; one half for everything
        expected = metrics.subcluster_accuracy(
            *(torch.from_numpy(x) for x in (planted().mixture_half, planted().mode, planted().before))
        )
        assert mixture[0] == pytest.approx(expected)

    def test_the_cluster_with_the_strongest_correlation_is_shown(self, planted_run):
        figure = training.subclusters([planted_run])
        assert "Cluster 0-0" in figure.get_suptitle()  # the second cluster holds a single mode
        assert "p$ = 7.7e-06" in figure.get_suptitle()
        assert [panel.get_title() for panel in figure.axes] == [
            "True modes",
            "DPGMM (Acc. = 0.500)",
            "S net (Acc. = 1.000)",
        ]

    def test_accepted_moves_are_written_in(self, planted_run):
        moves = [
            {"kind": "merge", "value": 1, "slots": [0, 3], "accepted": True},
            {"kind": "merge", "value": 0, "slots": [1, 2], "accepted": False},
        ]
        planted(kind="merge", epoch=4, moves=moves).write(planted_run / "snapshots")
        labels = [panel.get_xlabel() for panel in evolution.iterations([planted_run]).axes]
        assert "merge 1-(0,3)" in labels
        assert not any("(1,2)" in label for label in labels)

    def test_evolution_shows_the_samples_of_one_value(self, codid_run, few_points):
        figure = evolution.evolution([codid_run], "0")
        assert [panel.get_title() for panel in figure.axes[:4]] == [
            f"Epoch {s.epoch}" for s in read_snapshots(codid_run)
        ]
        assert "a1 = 0" in figure.get_suptitle()


def write_run(root, name, method, accuracy, config, seconds=60.0, parameters=1_000_000):
    folder = root / name
    folder.mkdir()
    record = {
        **{"schema": 1, "method": method, "dataset": "cmnist", "seed": int(name[-1]), "group": None, "epochs": 1},
        **{"config_hash": "", "seconds": seconds, "parameters": parameters, "selection": "last"},
        "metrics": {f"test{i}/acc": accuracy for i in (1, 2, 3)},
    }
    (folder / "result.json").write_text(json.dumps(record))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


class TestResultFigures:
    def test_cost(self, tmp_path):
        for seed, seconds in enumerate((60, 120)):
            write_run(tmp_path, f"base{seed}", "base", 0.5, {"seed_everything": seed}, seconds)
        write_run(tmp_path, "other2", "base", 0.5, {"model": {"init_args": {"latent_dim": 9}}}, 9999)
        left, right = results.complexity([tmp_path]).axes
        assert [bar.get_width() for bar in left.patches] == [1]
        assert [bar.get_width() for bar in right.patches] == [1.5]

    def test_a_sweep_varies_one_thing_at_a_time(self, tmp_path):
        points = [(1.0, 0.2, 0.8), (0.5, 0.2, 0.7), (0.0, 0.2, 0.6), (1.0, 0.4, 0.1), (1.0, 0.0, 0.9)]
        for i, (correlation, noise, accuracy) in enumerate(points):
            for seed, shift in enumerate((-0.01, 0.01)):
                init = {"correlation": correlation, "noise": noise, "seed": seed}
                config = {"seed_everything": seed, "data": {"init_args": init}}
                write_run(tmp_path, f"{i}-{seed}", "base", accuracy + shift, config)
        panels = results.robustness([tmp_path]).axes
        assert len(panels) == 6
        x, y = panels[0].get_lines()[0].get_data()
        assert (list(x), list(y)) == ([0.0, 0.5, 1.0], pytest.approx([0.6, 0.7, 0.8]))
        x, y = panels[3].get_lines()[0].get_data()
        assert (list(x), list(y)) == ([0.0, 0.2, 0.4], pytest.approx([0.9, 0.8, 0.1]))

    def test_hyperparameters(self, tmp_path):
        for i, (lr, accuracy) in enumerate(((0.1, 0.5), (0.2, 0.6))):
            write_run(tmp_path, f"run{i}", "base", accuracy, {"model": {"init_args": {"lr": lr, "strength": 1}}})
        both = {"model": {"init_args": {"lr": 0.3, "strength": 2}}}
        write_run(tmp_path, "other2", "base", 0.1, both)  # differs in two things: belongs to neither sweep
        (panel,) = results.sensitivity([tmp_path]).axes
        assert panel.get_xlabel() == "lr"
        assert panel.get_lines()[0].get_ydata().tolist() == pytest.approx([0.5, 0.6])
        assert panel.get_xscale() == "linear"

    def test_a_method_looks_the_same_in_every_panel(self, tmp_path):
        for i, (lr, strength) in enumerate(((0.1, 1), (10.0, 1), (0.1, 2), (0.1, 3))):
            write_run(tmp_path, f"dann{i}", "dann", 0.5, {"model": {"init_args": {"lr": lr, "strength": strength}}})
        write_run(tmp_path, "base4", "base", 0.6, {"model": {"init_args": {"lr": 10.0, "strength": 1}}})
        left, right = results.sensitivity([tmp_path]).axes
        colors = [{line.get_label(): line.get_color() for line in panel.get_lines()} for panel in (left, right)]
        assert [sorted(of) for of in colors] == [["BASE", "DANN"], ["DANN"]]
        assert colors[0]["DANN"] == colors[1]["DANN"]
        assert (left.get_xscale(), right.get_xscale()) == ("log", "linear")


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_values_named_after_a_colour_are_drawn_in_it():
    colors = [to_hex(color) for color in value_colors(["Red", "0", "blue", "cat"], first=3)]
    assert colors == ["#ff0000", COLORS[4].lower(), "#0000ff", COLORS[6].lower()]
    assert value_colors(["0", "b", "0.5"]) == list(COLORS[:3])  # matplotlib would take these for colours, too


def test_evolution_draws_red_in_red(planted_run):
    (legend, *_) = [panel.get_legend() for panel in evolution.evolution([planted_run]).axes if panel.get_legend()]
    handles = {h.get_label(): to_hex(h.get_color()) for h in legend.legend_handles}
    assert handles == {"red": "#ff0000", "blue": "#0000ff"}


def test_curves_say_that_they_are_of_training_data(codid_run):
    assert all("training" in panel.get_title() for panel in results.learning_curves([codid_run]).axes)


def test_epochs_are_counted_from_one_as_a_run_prints_them(codid_run):
    (*_, loss) = results.learning_curves([codid_run]).axes
    assert loss.get_lines()[0].get_xdata().tolist() == [1, 2, 3, 4, 5]
    snapshots = [epoch for panel in training.subclustering([codid_run]).axes for epoch in panel.get_xticks()]
    assert all(epoch == int(epoch) for epoch in snapshots)


def test_shift_explains_colours_edges_and_markers(codid_run, few_points):
    texts = legend_texts(representations.shift([codid_run]))
    assert {"a1: 0", "a1: 1", "training", "test3", "mode 1", "mode 2"} <= set(texts)


def test_signals_and_samples_explain_their_lines(series_run):
    figure = representations.signals([series_run], "go")
    assert legend_texts(figure) == ["random windows", "nearest to the centroid"]
    assert {"Channel 1", "Channel 2"} <= {panel.get_ylabel() for panel in figure.axes}
    traces = representations.samples([series_run])
    assert legend_texts(traces) == ["Channel 1", "Channel 2"]
    assert traces.axes[-1].get_xlabel() == "Time step"


def test_evenly_keeps_both_ends():
    assert evenly(list(range(9)), 3) == [0, 4, 8]
    assert evenly([1, 2], 5) == [1, 2]


@pytest.mark.slow
def test_decision_boundaries_are_of_the_plane_only(tmp_path):
    short = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=1", "--data.samples=60"]
    assert main(["fit", "-c", "configs/toy_four_attributes/base.yaml", f"--run_dir={tmp_path}", *short]) == 0
    with pytest.raises(FigureError, match="plane"):
        toy.decision_boundaries([tmp_path])
