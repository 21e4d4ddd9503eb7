"""`codid evaluate`: every metric is there, and a planted case gets the values it must have."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, f1_score
from torch.nn.functional import one_hot

from codid_lightning import metrics
from codid_lightning.analysis.evaluation import (
    Encoded,
    cluster_scores,
    disentanglement_scores,
    encode,
    leakage_scores,
    load_run,
    prediction_scores,
)
from codid_lightning.cli.main import main
from datamodules.toy import Toy

OF_A_TEST = (
    *("acc", "f1", "a2/acc", "a2/f1", "worst_group_acc", "worst_mode_acc"),
    *("a_distance", "leakage_a2", "leakage_mode"),
)
DISENTANGLEMENT = ("mi", "mi_knn", "dci_i", "dci_i_a2")
OF_MODES = (
    *("count", "acc", "ari", "nmi", "nmi_a2", "nmi_given_a2", "silhouette", "subcluster_acc", "correlation"),
    *("dependent_share", "vi", "h_mode_given_cluster", "h_cluster_given_mode"),
)


def result(run):
    return json.loads((run / "result.json").read_text())


@pytest.fixture(scope="module")
def before_and_after(codid_run):
    before = result(codid_run)
    assert main(["evaluate", str(codid_run)]) == 0
    return before, result(codid_run)


class TestCommand:
    def test_adds_every_metric_to_the_result_and_keeps_the_rest(self, before_and_after):
        before, after = before_and_after
        expected = {f"test{i}/{name}" for i in (1, 2, 3) for name in OF_A_TEST}
        expected |= {f"disentanglement/{name}" for name in DISENTANGLEMENT} | {f"modes/{name}" for name in OF_MODES}
        assert expected - set(after["metrics"]) == set()
        assert all(np.isfinite(after["metrics"][name]) for name in expected)
        assert {key: after[key] for key in before if key != "metrics"} == {
            key: before[key] for key in before if key != "metrics"
        }
        assert set(before["metrics"]) <= set(after["metrics"])

    def test_agrees_with_what_training_measured(self, before_and_after):
        before, scores = (found["metrics"] for found in before_and_after)
        shared = [name for name in before if name.startswith("test")]
        assert len(shared) == 3 * (2 * len(("acc", "f1", "class_balanced_acc", "auroc", "ece")) + 2)
        assert {name: scores[name] for name in shared} == pytest.approx({name: before[name] for name in shared})
        assert scores["modes/acc"] == pytest.approx(before["modes/acc"])

    def test_config_and_checkpoint_name_the_same_run_as_its_directory(self, base_run):
        checkpoint = base_run / "checkpoints" / "last.ckpt"
        run = load_run(["-c", str(base_run / "config.yaml"), "--ckpt_path", str(checkpoint)])
        other = load_run([str(base_run)])
        assert run.directory == other.directory == base_run
        x = run.data.datasets["val"][torch.arange(8)]["x"]
        assert torch.equal(run.model(x), other.model(x))

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [(["-c", "configs/toy/base.yaml"], "--ckpt_path"), (["{empty}"], "has not finished an epoch")],
    )
    def test_says_what_is_missing(self, arguments, says, tmp_path, capsys):
        assert main(["evaluate", *(a.format(empty=tmp_path) for a in arguments)]) == 1
        assert says in capsys.readouterr().err


class TestPlanted:
    """z_1 shows the mode exactly and a_2 not at all, z_2 shows a_2; one (mode, a_2) cell is always wrong."""

    n = 900

    @pytest.fixture
    def encoded(self):
        generator = torch.Generator().manual_seed(7)
        mode = torch.randperm(self.n, generator=generator) % 6
        a1, a2 = mode // 3, torch.randint(2, (self.n,), generator=generator)
        z1 = one_hot(mode, 6) + 0.05 * torch.randn(self.n, 6, generator=generator)
        z2 = one_hot(a2, 6) + 0.05 * torch.randn(self.n, 6, generator=generator)
        wrong = (mode == 4) & (a2 == 1)
        predicted = torch.stack([torch.where(wrong, 1 - a1, a1), a2], 1)
        unknown = torch.full_like(mode, -1)
        labels, modes = torch.stack([a1, a2], 1), torch.stack([mode, unknown], 1)
        return Encoded(torch.stack([z1, z2], 1), labels, modes, one_hot(predicted, 2).float()), wrong

    def test_prediction(self, encoded):
        test, wrong = encoded
        scores = prediction_scores("test2", test, Toy())
        right = (~wrong).double()
        assert scores["test2/acc"] == pytest.approx(right.mean().item())
        assert scores["test2/acc"] == pytest.approx(accuracy_score(test.a[:, 0], test.predicted[:, 0]))
        assert scores["test2/f1"] == pytest.approx(f1_score(test.a[:, 0], test.predicted[:, 0], average="macro"))
        assert scores["test2/a2/acc"] == scores["test2/a2/f1"] == 1
        assert scores["test2/worst_mode_acc"] == 0
        cell = (test.a == torch.tensor([1, 1])).all(1)
        assert scores["test2/worst_group_acc"] == pytest.approx(right[cell].mean().item())
        assert "test2/adjusted_acc" not in scores  # without training samples
        alike = prediction_scores("test2", test, Toy(), test.a)
        assert alike["test2/adjusted_acc"] == pytest.approx(scores["test2/acc"])

    def test_leakage_and_disentanglement(self, encoded):
        test, _ = encoded
        leaks = leakage_scores("test2", test, test)
        assert leaks["test2/leakage_a2"] == pytest.approx(0.5, abs=0.06)
        assert leaks["test2/leakage_mode"] > 0.99
        assert leaks["test2/a_distance"] < 0.2
        train, test = (Encoded(*(t[part::2] for t in vars(test).values())) for part in (0, 1))
        scores = disentanglement_scores(train, test, (0, 1))
        assert scores["disentanglement/mi"] < 0.02
        assert scores["disentanglement/mi_knn"] < 0.1
        assert max(scores["disentanglement/dci_i"], scores["disentanglement/dci_i_a2"]) < 0.03
        swapped = [Encoded(part.z.flip(1), part.a, part.mode, part.logits) for part in (train, test)]
        entangled = disentanglement_scores(*swapped, (0, 1))
        assert entangled["disentanglement/mi"] > 0.97
        assert entangled["disentanglement/dci_i"] == pytest.approx(0.5, abs=0.1)


def test_clusters_equal_to_modes_get_perfect_scores(codid_run):
    run = load_run([str(codid_run)])
    target = run.model.target_list[0]
    modes = run.data.datasets["train"].mode[:, 0]
    target.labels = modes // 3 * target.slots + modes % 3
    train = encode(run.model, run.data.datasets["train"])
    scores = cluster_scores(run.model, target, train)
    assert scores["modes/acc"] == scores["modes/ari"] == 1
    assert scores["modes/vi"] == pytest.approx(0, abs=1e-9)
    assert scores["modes/correlation"] == pytest.approx(0, abs=1e-9)
    assert scores["modes/dependent_share"] == 0
    assert scores["modes/silhouette"] == pytest.approx(metrics.silhouette(train.z[:, 0], modes))


def test_encoding_does_not_depend_on_the_batch_size(base_run):
    run = load_run([str(base_run)])
    whole, parts = (encode(run.model, run.data.datasets["test1"], size) for size in (10_000, 7))
    assert torch.allclose(whole.z, parts.z, atol=1e-5)
    assert torch.equal(whole.predicted, parts.predicted)
