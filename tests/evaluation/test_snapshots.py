"""What the snapshots of a training hold, against the run they are of."""

import itertools

import numpy as np
import pytest
import torch

from codid_lightning.analysis.evaluation import encode, load_run
from codid_lightning.cli.main import main
from codid_lightning.errors import RunError
from codid_lightning.methods.baselines import Base
from codid_lightning.training.callbacks.snapshots import Snapshots, read_snapshots
from tests.evaluation.short import CODID, fit

CHECKPOINT = ("checkpoints", "last.ckpt")


@pytest.fixture(scope="module")
def snapshots(codid_run):
    return read_snapshots(codid_run)


def history(run):
    state = torch.load(run.joinpath(*CHECKPOINT), weights_only=True)
    return next(s["history"] for s in state["callbacks"].values() if "history" in s)


def test_there_is_one_for_every_refinement_and_the_end(snapshots, codid_run):
    refined = [(note["epoch"], note["kind"]) for note in history(codid_run)]
    assert [(s.epoch, s.kind) for s in snapshots] == [*refined, (5, "end")]
    assert refined == [(2, "fit"), (3, "split"), (4, "merge")]


def test_moves_are_those_of_the_history(snapshots, codid_run):
    assert [s.moves for s in snapshots[:-1]] == [note["moves"] for note in history(codid_run)]
    assert snapshots[-1].moves == []


def test_clusters_follow_from_one_snapshot_to_the_next(snapshots):
    assert (snapshots[0].before == -1).all()
    for earlier, later in itertools.pairwise(snapshots):
        assert np.array_equal(earlier.cluster, later.before)
    assert all(np.array_equal(s.cluster // s.max_clusters, s.a[:, 0]) for s in snapshots)


def test_the_last_one_is_the_trained_model(snapshots, codid_run):
    run = load_run([str(codid_run)])
    target, train = run.model.target_list[0], encode(run.model, run.data.datasets["train"])
    last = snapshots[-1]
    assert len(last.z) == len(train.z)  # all samples fit into `max_samples`
    assert torch.from_numpy(last.z).float().sub(train.z[:, 0]).abs().max() < 0.01  # kept in half precision
    assert np.array_equal(last.cluster, target.labels.numpy())
    assert np.array_equal(last.mode, train.mode[:, 0].numpy())
    halves = run.model.splits.subcluster_probs(target, train.z[:, 0], train.a[:, 0]).argmax(1)
    assert (last.half == halves.numpy()).mean() > 0.99


def test_pairs_are_of_one_cluster_and_know_their_modes(snapshots):
    for s in snapshots[1:]:
        assert len(s.divergence) == len(s.same_mode) > 0
        assert (s.divergence >= 0).all()
        pairs_of_one_cluster = np.equal.outer(s.before, s.before)
        expected = np.equal.outer(s.mode, s.mode)[pairs_of_one_cluster].mean()
        assert s.same_mode.mean() == pytest.approx(expected, abs=0.05)
    assert len(snapshots[0].divergence) == 0


def test_names_come_along(snapshots):
    assert snapshots[0].names == {"attributes": ["a1", "a2"], "values": [["0", "1"], ["0", "1"]], "modes": []}


def test_taking_them_does_not_change_the_training(codid_run, tmp_path):
    plain = fit(tmp_path, "-c", "configs/toy/codid.yaml", *CODID)
    with_snapshots, without = (
        torch.load(run.joinpath(*CHECKPOINT), weights_only=True)["state_dict"] for run in (codid_run, plain)
    )
    weights = [name for name, value in without.items() if isinstance(value, torch.Tensor)]
    assert all(torch.equal(with_snapshots[name], without[name]) for name in weights)


def test_other_methods_are_refused():
    with pytest.raises(RunError, match="Base has none"):
        Snapshots().setup(None, Base((2,), (2, 2)), "fit")


def test_the_overlay_is_refused_in_words_for_a_baseline(capsys, tmp_path):
    overlay = ("-c", "configs/toy/base.yaml", "-c", "configs/callbacks/snapshots.yaml")
    assert main(["fit", *overlay, "--trainer.accelerator", "cpu", "--run_dir", str(tmp_path)]) == 1
    assert "Snapshots show clusters, and Base has none" in capsys.readouterr().err
