"""The audit of data and predictions: planted correlations with known answers."""

import json
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from scipy.stats import fisher_exact
from sklearn.metrics import mutual_info_score
from sklearn.mixture import GaussianMixture

from benchmarks.audit_calibration import coin, coin_with_effects, four_sites, measured, modes, plain_only, planted
from codid_lightning.analysis.data_audit import Samples, audit_samples
from codid_lightning.analysis.data_audit.dependence import correlation, readability
from codid_lightning.analysis.data_audit.features import content_features
from codid_lightning.analysis.data_audit.hidden import _Fit, harmonised, hidden_correlation, merged, one_hot
from codid_lightning.analysis.data_audit.model import DIAL, judge_predictions
from codid_lightning.analysis.data_audit.verdict import judge

DRAWS = 79  # at least


def rng(seed=0):
    return np.random.default_rng(seed)


class TestVerdicts:
    """A verdict is "yes" where a shortcut was planted and "no" where none was, whatever the device does."""

    @pytest.mark.parametrize(
        ("draw", "threat", "hides"),
        [
            (coin, "no", "no"),
            (coin_with_effects, "no", "no"),
            (four_sites, "no", "no"),
            (plain_only, "yes", "no"),
            (lambda r: planted(r, 800, 0.8), "yes", "yes"),
        ],
    )
    def test_planted(self, draw, threat, hides):
        for seed in (0, 1):
            found = judge(Samples.of(*draw(rng(seed))), DRAWS)
            assert (found.threat, found.hides) == (threat, hides), seed

    def test_how_much_is_hidden(self):
        x, y, site = planted(rng(3), 1000, 0.8)
        found = hidden_correlation(x, y, site, DRAWS)
        expected = 1 + 0.9 * np.log2(0.9) + 0.1 * np.log2(0.1)  # two equal modes, the site follows in nine of ten cases
        assert found.information == pytest.approx(expected, abs=0.1)
        assert found.available == pytest.approx(1, abs=0.02)

    def test_an_attribute_that_never_varies_within_the_target_cannot_be_tested(self):
        x, y, _ = modes(rng(), 200)
        found = judge(Samples.of(x, y, y), DRAWS)
        assert found.attributes[0].hidden is None
        assert found.attributes[0].correlated
        assert found.threat == "yes"

    def test_rows_of_one_person_count_once(self):
        """Ten copies of a person's row make chance look like a law."""
        x, y, _ = modes(rng(1), 60)
        site = rng(2).integers(2, size=60)
        copies = np.repeat(np.arange(60), 10)
        alone = Samples.of(x[copies], y[copies], site[copies])
        grouped = Samples.of(x[copies], y[copies], site[copies], groups=copies)
        p_values = [correlation(s.target.labels, s.others[0].labels, s.groups).p_value for s in (alone, grouped)]
        assert p_values[0] < p_values[1]
        assert judge(grouped, DRAWS).rows == 60


class TestParts:
    def test_harmonised_rows_do_not_depend_on_what_devices_do(self):
        x, y, _ = modes(rng(), 300)
        order = np.argsort(y)
        x, site = x[order], rng(1).integers(3, size=300)
        bounds = [(0, int((y == 0).sum())), (int((y == 0).sum()), 300)]
        member = one_hot(torch.from_numpy(site)[None])
        one, other = (
            harmonised(torch.from_numpy(rows), member, bounds) for rows in (x, measured(rng(5), x, site, 1.0))
        )
        assert torch.allclose(one - one.mean(1), other - other.mean(1), atol=1e-3)

    def test_a_mixture_without_sites_is_scikit_learns(self):
        """With one site and one value, EM of the first mixture raises the likelihood to that of scikit-learn."""
        x, y, m = modes(rng(), 400, apart=8.0)
        x, m = x[y == 0], m[y == 0]
        x, n = (x - x.mean(0)) / x.std(0), len(m)
        fit = _Fit(torch.from_numpy(x)[None], one_hot(torch.zeros(1, n, dtype=torch.long)), [(0, n)], [m])
        expected = GaussianMixture(2, covariance_type="diag", random_state=0, n_init=3).fit(x).score(x) * n
        found = float(fit._run(own=False)) + 0.5 * n * 10 * -np.log(2 * np.pi)
        assert found == pytest.approx(expected, rel=0.02)

    def test_components_that_go_along_with_the_same_value_are_one_mode(self):
        site = rng().integers(2, size=600)
        components = np.where(
            site == 1, rng(1).choice([0, 1], 600, p=[0.8, 0.2]), rng(1).choice([0, 1], 600, p=[0.2, 0.8])
        )
        split = components * 2 + rng(2).integers(2, size=600)  # each cut in two at random
        found = merged(split, np.zeros(600, dtype=int), site)
        assert len(set(zip(found.tolist(), components.tolist(), strict=True))) == 2

    def test_likelihood_never_falls(self):
        x, y, site = planted(rng(1), 300, 0.5)
        order = np.argsort(y, kind="stable")
        z, own = torch.from_numpy(x[order] / x.std(0))[None], torch.from_numpy(site[order])[None]
        n = int((y == 0).sum())
        fit = _Fit(z, one_hot(own), [(0, n), (n, 300)], [rng(2).integers(3, size=k) for k in (n, 300 - n)])
        found = []
        for _ in range(20):
            found.append(float(fit._expect()))
            fit._move_maps()
            fit._components(fit.content(), own=True)
        assert all(after > before - 0.5 for before, after in pairwise(found))  # priors move it

    def test_correlation_is_mutual_information(self):
        y = rng().integers(3, size=5000)
        site = np.where(rng(1).random(5000) < 0.7, y, rng(2).integers(3, size=5000))
        found = correlation(y, site)
        assert found.information == pytest.approx(mutual_info_score(y, site) / np.log(2), abs=1e-3)
        assert found.interval[0] < found.information < found.interval[1]
        assert found.p_value < 1e-6
        assert found.shortcut == pytest.approx(0.8, abs=0.02)

    def test_intervals_cover_the_truth(self):
        truth = 1 + 0.7 * np.log2(0.7) + 0.3 * np.log2(0.3)
        covered = 0
        for seed in range(40):
            y = rng(seed).integers(2, size=300)
            site = np.where(rng(1000 + seed).random(300) < 0.7, y, 1 - y)
            low, high = correlation(y, site, seed=seed).interval
            covered += low <= truth <= high
        assert covered >= 34  # 38 are expected

    def test_readability(self):
        x, y, _ = modes(rng(), 400)
        site = rng(1).integers(2, size=400)
        x[:, 0] += 10 * site
        assert readability(x, y, site).accuracy > 0.98
        assert readability(x[:, 1:], y, site).p_value > 0.05

    def test_colors_do_not_show_in_features_of_content(self):
        grey, color = rng().random((50, 8, 8)), rng(1).integers(2, size=50)
        x = np.zeros((50, 3, 8, 8))
        x[np.arange(50), color] = grey
        other = np.zeros_like(x)
        other[np.arange(50), 1 - color] = grey
        assert np.allclose(np.abs(content_features(x)), np.abs(content_features(other)), atol=1e-5)

    def test_a_gain_is_a_shift_in_features_of_series(self):
        x = rng().normal(size=(40, 2, 64))
        shift = content_features(3 * x) - content_features(x)
        assert np.allclose(shift, np.log(9), atol=1e-3)


class TestPredictions:
    @pytest.fixture(scope="class")
    @classmethod
    def shortcut(cls):
        """A model that looks at the site in half of the rows."""
        x, y, site = planted(rng(), 800, 0.8)
        predicted = np.where(rng(1).random(800) < 0.5, site, y)
        return Samples.of(x, y, site), predicted

    def test_a_shortcut_is_found_and_an_even_error_is_not(self, shortcut):
        samples, predicted = shortcut
        assert judge_predictions(samples, predicted).hurt
        even = np.where(rng(2).random(800) < 0.3, 1 - samples.target.labels, samples.target.labels)
        assert not judge_predictions(samples, even).hurt

    def test_cells_are_tested_by_fishers_test_with_holms_correction(self, shortcut):
        samples, predicted = shortcut
        found = judge_predictions(samples, predicted)
        y, site = samples.target.labels, samples.others[0].labels
        right = predicted == y
        raw = {}
        for v, o in product((0, 1), (0, 1)):
            here, there = right[(y == v) & (site == o)], right[(y == v) & (site != o)]
            table = [[here.sum(), (~here).sum()], [there.sum(), (~there).sum()]]
            raw[v, o] = fisher_exact(table, alternative="less").pvalue
        smallest = min(raw, key=raw.__getitem__)
        cell = next(c for c in found.cells if (c.value, c.other) == smallest)
        assert cell.p_value == pytest.approx(min(1, 4 * raw[smallest]))
        assert sum(c.count for c in found.cells) == 800

    def test_simulation(self, shortcut):
        samples, predicted = shortcut
        (simulation,) = judge_predictions(samples, predicted).simulations
        right = predicted == samples.target.labels
        y, site = samples.target.labels, samples.others[0].labels
        assert simulation.accuracy[0] == pytest.approx(right.mean())  # the correlation of the data themselves
        weights = {
            (v, o): (y == v).mean() * (site == o).mean() for v, o in product((0, 1), (0, 1))
        }  # independent, with the same shares of values
        expected = sum(w * right[(y == v) & (site == o)].mean() for (v, o), w in weights.items())
        assert simulation.accuracy[DIAL.index(0)] == pytest.approx(expected)

    def test_persons_are_the_unit_of_tests_and_intervals(self, shortcut):
        samples, predicted = shortcut
        y = samples.target.labels
        persons = Samples.of(samples.x, y, samples.others[0].labels, groups=np.arange(800) // 100)
        found = judge_predictions(persons, predicted)
        assert not found.hurt  # eight persons are too few
        low, high = found.interval
        assert low < found.accuracy < high

    def test_json(self, shortcut):
        found = audit_samples(*shortcut, draws=DRAWS)
        written = json.loads(json.dumps(found.as_dict()))
        assert written["problems"] == ["hurt", "shortcut"]
        assert written["attributes"][0]["hidden"]["answer"] == "yes"
        assert [claim.light for claim in found.claims()] == ["red", "red"]
