"""Statistics against SciPy and against a published example."""

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import bootstrap, t, wilcoxon

from codid_lightning.analysis.comparison import bootstrap_interval, interquartile_mean, paired_p_value, ranking
from codid_lightning.metrics import holm

# AUC of decision trees on 14 data sets: table 6 of Demsar (2006), Statistical comparisons of classifiers over multiple
# data sets, JMLR 7; its table 2 is the first two columns. The printed ranks break one tie of rounded values, here by
# 0.9751 for 0.975.
DEMSAR = {
    "C4.5": [0.763, 0.599, 0.954, 0.628, 0.882, 0.936, 0.661, 0.583, 0.775, 1.0, 0.940, 0.619, 0.972, 0.957],
    "C4.5+m": [0.768, 0.591, 0.971, 0.661, 0.888, 0.931, 0.668, 0.583, 0.838, 1.0, 0.962, 0.666, 0.981, 0.978],
    "C4.5+cf": [0.771, 0.590, 0.968, 0.654, 0.886, 0.916, 0.609, 0.563, 0.866, 1.0, 0.965, 0.614, 0.9751, 0.946],
    "C4.5+m+cf": [0.798, 0.569, 0.967, 0.657, 0.898, 0.931, 0.685, 0.625, 0.875, 1.0, 0.962, 0.669, 0.975, 0.970],
}


class TestRanking:
    def test_published_example(self):
        found = ranking(DEMSAR)
        assert found.methods == ("C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5")
        assert found.ranks == pytest.approx((1.964, 2.000, 2.893, 3.143), abs=5e-4)
        assert found.datasets == 14
        assert found.friedman < 0.05  # the paper's corrected statistic, F = 3.69, rejects at 5 %, too
        assert not ranking({name: DEMSAR[name] for name in ("C4.5", "C4.5+m")}).alike  # z = -2.54

    def test_methods_that_do_not_differ_by_brute_force(self):
        generator = np.random.default_rng(3)
        seen = set()
        for _ in range(60):
            level = generator.normal(size=(5, 1)) * generator.choice([0.0, 0.5, 1.5])
            table = dict(zip("abcde", level + generator.normal(size=(5, 14)), strict=True))
            found = ranking(table)
            names = [(i, j) for i in range(5) for j in range(i + 1, 5)]
            values = [table[name] for name in found.methods]
            p = dict(zip(names, holm([wilcoxon(values[i], values[j]).pvalue for i, j in names]), strict=True))
            flat = {(i, j) for i, j in names if all(p[pair] >= 0.05 for pair in names if i <= pair[0] and pair[1] <= j)}
            longest = {(i, j) for i, j in flat if not {(i - 1, j), (i, j + 1)} & flat}
            assert set(found.alike) == longest
            seen.add(len(longest))
            assert list(found.ranks) == sorted(found.ranks)
        assert len(seen) > 1

    def test_few_data_sets_cannot_differ(self):
        """2 of 2^5 outcomes are as extreme as five wins of five."""
        better = {"a": [2.0, 3, 4, 5, 6], "b": [1.0, 1, 1, 1, 1], "c": [0.0] * 5}
        assert ranking(better).alike == ((0, 2),)
        assert not ranking(better).can_differ
        assert ranking(better).ranks == (1, 2, 3)

    @pytest.mark.parametrize(("datasets", "methods"), [(6, 2), (7, 2), (7, 3), (10, 6), (10, 7), (11, 10)])
    def test_whether_data_sets_suffice(self, datasets, methods):
        """Every method is better than the next one everywhere."""
        level = 10.0 * np.arange(methods)[:, None] * np.arange(1, datasets + 1) + np.arange(datasets)
        found = ranking({f"{i}": row for i, row in enumerate(level)})
        assert found.can_differ == (found.alike == ())

    def test_equal_methods(self):
        found = ranking({name: [0.5, 0.6, 0.7] for name in "abc"})
        assert (found.ranks, found.friedman, found.alike) == ((2, 2, 2), 1.0, ((0, 2),))


class TestPairs:
    def test_student_s_test_by_hand(self):
        first, second = [0.9, 0.8, 0.85, 0.95, 0.7], [0.8, 0.75, 0.86, 0.9, 0.6]
        d = np.subtract(first, second)
        statistic = d.mean() / (d.std(ddof=1) / np.sqrt(len(d)))
        assert paired_p_value(first, second) == pytest.approx(2 * t.sf(statistic, len(d) - 1))
        assert paired_p_value(second, first) == paired_p_value(first, second)

    def test_without_spread(self):
        assert paired_p_value([1, 2, 3], [1, 2, 3]) == 1
        assert paired_p_value([2.0, 3.0, 4.0], [1.0, 2.0, 3.0]) == 0


class TestIntervals:
    values = tuple(np.random.default_rng(1).normal(size=12))
    others = tuple(np.random.default_rng(2).normal(3, 2, size=7))

    def test_of_a_mean_equals_scipy_s(self):
        found = bootstrap_interval([self.values], draws=20_000)
        kind = {"method": "percentile", "n_resamples": 20_000, "vectorized": True}
        assert found == pytest.approx(bootstrap([self.values], np.mean, **kind).confidence_interval, abs=0.02)

    def test_of_strata_equals_scipy_s(self):
        def statistic(*samples, axis=-1):
            return interquartile_mean(np.concatenate(samples, axis=axis), axis=axis)

        kind = {"method": "percentile", "n_resamples": 20_000, "vectorized": True}
        expected = bootstrap([self.values, self.others], statistic, **kind).confidence_interval
        found = bootstrap_interval([self.values, self.others], interquartile_mean, draws=20_000)
        assert found == pytest.approx(expected, abs=0.05)

    def test_the_same_values_give_the_same_interval(self):
        assert bootstrap_interval([self.values]) == bootstrap_interval([self.values])
        levels = [bootstrap_interval([self.values], level=level) for level in (0.5, 0.8, 0.95)]
        assert all(b[0] < a[0] < a[1] < b[1] for a, b in pairwise(levels))

    def test_interquartile_mean_leaves_out_a_quarter_at_both_ends(self):
        assert interquartile_mean(np.array([100.0, 1, 2, 3, 4, -50, 5, 6])) == pytest.approx((2 + 3 + 4 + 5) / 4)
