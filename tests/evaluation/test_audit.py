"""The audit on planted data: what it must find, what it must not, and what must not get into its page."""

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binomtest, chi2_contingency, fisher_exact
from torch.nn.functional import one_hot

from codid_lightning.analysis.audit import associations, audit, cells, largest_fall
from codid_lightning.analysis.evaluation import Encoded, LoadedRun
from codid_lightning.analysis.modes import Modes, discover
from codid_lightning.analysis.pages.audit_page import audit_page
from codid_lightning.cli.main import main
from codid_lightning.methods.baselines import Base
from datamodules.base import AttributeDataModule, AttributeDataset

EVIL = "<script>alert(1)</script>"


class Planted(AttributeDataModule):
    """Two modes under each of two values at known places; a_2 follows the mode as strongly as asked for."""

    input_shape = (4,)
    attribute_names = ("kind", EVIL)
    value_names = (("left", EVIL), ("no", "yes"))
    mode_sizes = ((2, 2), None)
    test_names = ("test",)
    test_attributes = (0, 1)

    def __init__(self, correlation: float) -> None:
        super().__init__()
        self.correlation = correlation

    def build(self):
        return {
            "train": self.draw(800, self.correlation, 0),
            "val": self.draw(100, self.correlation, 1),
            "test": self.draw(600, 0.0, 2),
        }

    def draw(self, count, correlation, seed):
        generator = torch.Generator().manual_seed(100 + seed)
        mode = torch.randint(4, (count,), generator=generator)
        follows = torch.rand(count, generator=generator) < 0.5 + correlation / 2
        a2 = torch.where(follows, mode % 2, 1 - mode % 2)
        x = torch.zeros(count, 4)
        x[:, 0], x[:, 1], x[:, 2] = 10.0 * (mode // 2), 10.0 * (mode % 2), 10.0 * a2
        x += 0.5 * torch.randn(x.shape, generator=generator)
        unknown = torch.full_like(mode, -1)
        return AttributeDataset(x, torch.stack([mode // 2, a2], 1), torch.stack([mode, unknown], 1))


class Encoder(torch.nn.Module):
    """z_1 shows the place of the mode, or a_2 instead; z_2 shows a_2."""

    def __init__(self, second: int) -> None:
        super().__init__()
        self.second = second

    def forward(self, x):
        blank = torch.zeros_like(x[:, :2])
        z1 = torch.cat([x[:, [0, self.second]], blank], 1)
        return torch.stack([z1, torch.cat([x[:, 2:3], x[:, 3:], blank], 1)], 1)


def planted_run(correlation, second=1, shortcut=0.0):
    """A model that predicts a_1 from its place, and from what z_1 shows second as much as `shortcut` says."""
    data = Planted(correlation)
    data.setup()
    model = Base(data.input_shape, data.attribute_sizes, data.test_names, data.test_attributes, latent_dim=4)
    model.encoder = Encoder(second)
    with torch.no_grad():
        for predictor, weights, threshold in zip(model.predictors, ((1, shortcut), (1, 0)), (5.0, 5.0), strict=True):
            predictor.weight.zero_()
            predictor.weight[1, :2] = torch.tensor(weights)
            predictor.bias.copy_(torch.tensor([threshold, 0.0]))
    return LoadedRun(model.eval(), data, Path("nowhere/last.ckpt"), {"method": EVIL, "dataset": "planted"})


@pytest.fixture(scope="module")
def tied():
    return audit(planted_run(0.8))


@pytest.fixture(scope="module")
def free():
    return audit(planted_run(0.0))


class TestVerdict:
    def test_modes_are_found_without_codid(self, tied):
        assert [mode // tied.modes.slots for mode in tied.modes.ids] == [0, 0, 1, 1]
        assert "mixture" in tied.modes.source

    def test_hidden_correlation(self, tied):
        assert tied.hidden == "yes"
        (finding,) = tied.findings
        # within a value the modes are a fair coin and a_2 follows it with probability 0.9
        expected = 1 + 0.9 * torch.tensor(0.9).log2() + 0.1 * torch.tensor(0.1).log2()
        assert finding.information == pytest.approx(float(expected), abs=0.06)
        assert finding.p_value < 0.01
        assert all(a.p_value < 1e-6 and a.strength == pytest.approx(0.8, abs=0.1) for a in tied.associations)
        assert not tied.hurt

    def test_no_hidden_correlation(self, free):
        assert free.hidden == "no"
        (finding,) = free.findings
        assert finding.information < 0.01
        assert finding.p_value > 0.05
        assert all(a.p_value > 0.05 for a in free.associations)
        assert finding.leaked < 0.05
        assert finding.probe == pytest.approx(0.5, abs=0.06)

    def test_pages_differ_in_their_verdict(self, tied, free):
        pages = [audit_page(planted_run(c), found) for c, found in ((0.8, tied), (0.0, free))]
        assert "Hidden correlation: some kinds of rows" in pages[0]
        assert "No shortcut was found" in pages[1]
        assert all("The model is not visibly hurt" in page for page in pages)

    def test_the_answer_about_the_data_does_not_depend_on_the_model(self):
        """The modes of this model are the other attribute."""
        found = audit(planted_run(0.0, second=2))
        assert found.hidden == "no"
        assert found.findings[0].leaked > 0.9
        assert found.findings[0].explained <= found.findings[0].leaked
        assert "No shortcut was found" in audit_page(planted_run(0.0, second=2), found)


class TestCells:
    """All samples of one mode with a_2 = 1 are predicted wrongly."""

    @pytest.fixture(scope="class")
    @classmethod
    def parts(cls):
        data = Planted(0.5)
        data.setup()
        encoded = []
        for split in ("train", "test"):
            part = data.datasets[split]
            z = torch.stack([part.x, part.x], 1)
            wrong = (part.mode[:, 0] == 3) & (part.a[:, 1] == 1)
            predicted = torch.stack([torch.where(wrong, 1 - part.a[:, 0], part.a[:, 0]), part.a[:, 1]], 1)
            encoded.append(Encoded(z, part.a, part.mode, one_hot(predicted).float()))
        labels = encoded[0].a[:, 0] * 16 + encoded[0].mode[:, 0] % 2
        z1 = encoded[0].z[:, 0].clone()
        z1[:, 2:] = 0
        return Modes(z1, encoded[0].a[:, 0], labels, 16, "planted"), *encoded

    def test_the_worst_cell_comes_first_and_is_the_only_one_hurt(self, parts):
        modes, train, test = parts
        found = cells(modes, train, {"test": test})
        worst = found[0]
        assert (worst.test, worst.mode, worst.attribute, worst.value, worst.accuracy) == ("test", 17, 1, 1, 0)
        assert worst.rest == 1
        assert [cell.hurt for cell in found] == [True] + [False] * (len(found) - 1)
        assert sum(cell.count for cell in found) == len(parts[2].a)
        assert sum(cell.training for cell in found) == len(parts[1].a)

    def test_new_samples_get_the_mode_they_lie_in(self, parts):
        modes, _, test = parts
        z = test.z[:, 0].clone()
        z[:, 2:] = 0
        assert torch.equal(modes.of(z, test.a[:, 0]), test.a[:, 0] * 16 + test.mode[:, 0] % 2)

    def test_exemplars_lie_nearest_to_the_centroid(self, parts):
        modes = parts[0]
        inside = (modes.labels == 16).nonzero().flatten().tolist()
        centre = modes.z[inside].mean(0)
        expected = sorted(inside, key=lambda i: float((modes.z[i] - centre).norm()))[:5]
        assert modes.nearest(16, 5).tolist() == expected

    def test_holm_corrects_the_whole_table(self, parts):
        modes, train, _ = parts
        table = associations(modes, train)
        raw = []
        for a in table:
            here = train.a[:, 0] == a.mode // 16
            crossed = pd.crosstab((modes.labels == a.mode)[here].numpy(), train.a[here, 1].numpy())
            raw.append(chi2_contingency(crossed, correction=False).pvalue)
        order = np.argsort(raw)
        expected = np.minimum(1, np.maximum.accumulate(np.array(raw)[order] * (4 - np.arange(4))))
        assert [table[i].p_value for i in order] == pytest.approx(expected.tolist(), rel=1e-9)
        assert all(torch.allclose(a.inside.sum(), torch.tensor(1.0)) for a in table)


class TestFalseAlarms:
    """A model that is equally good everywhere may be found hurt in 5 % of audits, the level of the tests."""

    RUNS, MOST = 150, 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5

    def test_cells_of_the_same_samples_under_other_values(self):
        generator = torch.Generator().manual_seed(0)
        values = torch.arange(120) % 2
        z = 10.0 * values[:, None]
        modes, alarms, pooled_alarms = Modes(z, values, 16 * values, 16, "planted"), 0, 0
        for _ in range(self.RUNS):
            right = torch.rand(120, generator=generator) < 0.7  # whatever the other attribute is
            drawn = torch.rand(120, generator=generator)
            tests = {f"test{i}": self.encoded(z, values, drawn < 0.3 + 0.1 * i, right) for i in (1, 2, 3)}
            train = tests["test1"]
            pooled = Encoded(*(torch.cat([getattr(test, name) for test in tests.values()]) for name in vars(train)))
            alarms += any(cell.hurt for cell in cells(modes, train, tests))
            pooled_alarms += any(cell.hurt for cell in cells(modes, train, {"pooled": pooled}))
        assert alarms / self.RUNS <= self.MOST
        assert pooled_alarms / self.RUNS > self.MOST  # every sample counts three times

    @pytest.mark.parametrize(
        ("sizes", "accuracy", "opposite"),
        [((60, 60, 60), 0.8, False), ((60, 60), 0.5, True), ((40, 60, 80), 0.8, False)],
    )
    def test_falls_between_test_sets(self, sizes, accuracy, opposite):
        generator = torch.Generator().manual_seed(1)
        alarms = 0
        for _ in range(self.RUNS):
            sets = [torch.rand(size, generator=generator) < accuracy for size in sizes]
            if opposite:  # a sample is right in one set where it is wrong in the other
                sets[1] = ~sets[0]
            alarms += largest_fall({f"test{i}": hits for i, hits in enumerate(sets)}) is not None
        assert alarms / self.RUNS <= self.MOST

    @staticmethod
    def encoded(z, a1, a2, right):
        a = torch.stack([a1, a2.long()], 1)
        predicted = torch.stack([torch.where(right, a1, 1 - a1), a[:, 1]], 1)
        return Encoded(z[:, None].expand(-1, 2, -1), a, -a, one_hot(predicted).float())


class TestFalls:
    def test_the_largest_significant_one_is_found(self):
        hits = torch.arange(1000)
        right = {"middle": hits < 900, "low": hits % 10 < 7, "high": hits < 950}
        fall = largest_fall(right)
        assert (fall.best, fall.worst) == ("high", "low")
        raw = [binomtest(*map(int, ((a & ~b).sum(), (a ^ b).sum()))).pvalue for a, b in combinations(right.values(), 2)]
        assert fall.p_value == pytest.approx(min(3 * min(raw), 1))

    def test_sets_of_different_sizes_are_compared_by_fishers_test(self):
        one, other = torch.arange(200) < 180, torch.arange(100) < 70
        fall = largest_fall({"other": other, "one": one})
        assert (fall.best, fall.worst) == ("one", "other")
        assert fall.p_value == pytest.approx(fisher_exact([[180, 20], [70, 30]]).pvalue)

    def test_small_or_uncertain_differences_are_none(self):
        hits = torch.arange(10_000)
        assert largest_fall({"one": hits < 9000, "other": hits < 8600}) is None  # significant, but 4 points
        assert largest_fall({"one": hits[:20] < 20, "other": hits[:20] < 18}) is None  # 10 points of 20 samples
        assert largest_fall({"only": hits < 5}) is None


def test_nothing_from_the_data_is_markup(tied):
    text = audit_page(planted_run(0.8), tied)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert re.findall(r'(?:src|href)="(?!data:image/png;base64,)', text) == []  # nothing is loaded from elsewhere


def test_a_model_that_uses_the_other_attribute_is_hurt():
    run = planted_run(0.8, second=2, shortcut=1.0)
    found = audit(run)
    assert found.hurt
    assert "The model is hurt" in audit_page(run, found)


class TestCommand:
    def test_clusters_of_codid_are_its_modes(self, codid_run, tmp_path, capsys):
        page = tmp_path / "page.html"
        assert main(["audit", str(codid_run), "--output", str(page)]) == 0
        assert "Hidden correlations:" in capsys.readouterr().out
        assert "the clusters the method trained with" in page.read_text()

    def test_the_page_lies_with_the_run_by_default(self, base_run):
        assert main(["audit", str(base_run)]) == 0
        assert "<h1>Audit of BASE on toy</h1>" in (base_run / "audit.html").read_text()

    def test_output_needs_a_name(self, base_run, capsys):
        assert main(["audit", str(base_run), "--output"]) == 1
        assert "--output needs" in capsys.readouterr().err


def test_modes_of_a_method_without_any_are_searched_for():
    run = planted_run(0.8)
    train = run.data.datasets["train"]
    z = run.model(train.x).detach()
    found = discover(run.model, Encoded(z, train.a, train.mode, one_hot(train.a).float()))
    assert len(found.ids) == 4
    truth = train.mode[:, 0]
    assert all(len(truth[found.labels == mode].unique()) == 1 for mode in found.ids)
