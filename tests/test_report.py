import csv
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console
from scipy.stats import ttest_rel

from codid_lightning.analysis.comparison import bootstrap_interval
from codid_lightning.analysis.figures.ranks import average_ranks
from codid_lightning.analysis.figures.results import FigureError
from codid_lightning.analysis.pages.page import Picture
from codid_lightning.analysis.pages.report_page import report_page
from codid_lightning.analysis.paper import paper_numbers
from codid_lightning.analysis.tables import (
    Score,
    build_tables,
    load_runs,
    marked,
    names,
    not_shown,
    one_setting_each,
    score,
)
from codid_lightning.analysis.tables.names import NEEDS
from codid_lightning.analysis.tables.render import (
    MARKDOWN,
    cell_text,
    label,
    legend,
    lines,
    to_csv,
    to_latex,
    to_markdown,
    to_terminal,
)
from codid_lightning.analysis.tables.specs import IMAGES, PREDICTION, SERIES
from codid_lightning.cli.arguments import METRICS
from codid_lightning.cli.commands.report import main
from codid_lightning.metrics import holm
from codid_lightning.training.config_files import config_folder
from codid_lightning.training.identity import config_hash


def write(root, method, dataset, seed, metrics, group=None, config=None, **more):
    folder = root / f"{len(list(root.glob('*')))}"
    folder.mkdir(parents=True)
    record = {
        "schema": 1,
        "method": method,
        "dataset": dataset,
        "seed": seed,
        "group": group,
        "config_hash": "c",
        "versions": {},
        "git_revision": "0",
        "epochs": 50,
        "seconds": 12.5,
        "parameters": 1000,
        "selection": "last",
        "metrics": metrics,
        **more,
    }
    (folder / "result.json").write_text(json.dumps(record))
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def prediction(value):
    return {f"test{i}/{m}": value for i in (1, 2, 3) for m in ("acc", "f1")}


@pytest.fixture
def three_methods(tmp_path):
    """BASE, IRM and CoDID on CMNIST with three seeds; known means, CoDID clearly ahead of BASE alone."""
    for seed, (base, irm, codid) in enumerate([(0.80, 0.85, 0.86), (0.79, 0.83, 0.85), (0.81, 0.87, 0.87)]):
        for method, value in (("base", base), ("irm", irm), ("codid", codid)):
            write(tmp_path, method, "cmnist", seed, prediction(value))
    return tmp_path


def cells(table, method):
    row = next(row for row in table.rows if row.method == method)
    return {cell.column.dataset + ":" + cell.column.metric: cell for cell in row.cells}


def table(runs, name, datasets=None):
    return next(t for t in build_tables(runs, datasets) if t.name == name)


class TestOrigins:
    """Runs of other code or other data than those they are compared with."""

    @pytest.fixture
    def runs(self, tmp_path):
        for seed in range(3):
            for method in ("base", "irm", "codid"):
                code = {"git_revision": "a" * 40, "code_checksum": "new" if method == "irm" and seed == 2 else "old"}
                data = "other" if method == "codid" and seed == 0 else "usual"
                write(tmp_path, method, "cmnist", seed, prediction(0.8), data_checksum=data, **code)
        return tmp_path

    def test_marks(self, runs):
        kept, messages = marked(load_runs([runs])[0])
        shown = build_tables(kept)[0]
        marks = {row.method: {cell_text(c).rest[-5:] for c in row.cells if c.ours} for row in shown.rows}
        assert marks["irm"] == {"‡ [3]"}
        assert marks["codid"] == {"§ [3]"}
        assert {text[0] for text in marks["base"]} <= {" ", "0", "*"}
        assert messages == [
            "cmnist: 1 of 9 runs are of other code: 1 of irm aaaaaaaa",
            "cmnist: 1 of 9 runs are of other data: 1 of codid other",
        ]

    def test_every_format_explains_them(self, runs, capsys):
        for ending in ("md", "tex", "html", "csv"):
            assert main([str(runs), "--output", str(runs / f"report.{ending}")]) == 0
        assert "of other code: 1 of irm" in capsys.readouterr().err
        assert "‡ Some runs are of other code" in (runs / "report.md").read_text()
        assert r"$\ddagger$ Some runs" in (runs / "report.tex").read_text()
        assert "‡ Some runs are of other code" in (runs / "report.html").read_text()
        rows = list(csv.DictReader((runs / "report.csv").open()))
        assert {row["method"] for row in rows if row["other_code"] == "1"} == {"irm"}
        assert {row["method"] for row in rows if row["other_data"] == "1"} == {"codid"}

    def test_one_origin_has_no_marks(self, three_methods):
        kept, messages = marked(load_runs([three_methods])[0])
        assert messages == []
        assert "‡" not in to_markdown(build_tables(kept))

    def test_held_out_groups_and_seeds_of_data_have_data_of_their_own(self, tmp_path):
        for group in (1, 2):
            for seed in (0, 1):
                config = {"data": {"init_args": {"seed": seed, "test_group": group}}}
                kind = {"data_checksum": f"{group}{seed}", "config": config}
                write(tmp_path, "base", "hhar", seed, prediction(0.8), group=group, **kind)
        assert marked(load_runs([tmp_path])[0])[1] == []

    def test_revisions_count_where_checksums_are_missing(self, tmp_path):
        """Results of earlier versions, and runs without any origin, which nothing is said about."""
        for seed, revision in enumerate(["a", "a", "b", None]):
            checksum = "c" if seed == 0 else None
            write(tmp_path, "base", "toy", seed, prediction(0.8), git_revision=revision, code_checksum=checksum)
        kept, messages = marked(load_runs([tmp_path])[0])
        assert [run.other_code for run in kept] == [False, False, True, False]
        assert messages == ["toy: 1 of 4 runs are of other code: 1 of base b"]


class TestAveraging:
    def test_over_seeds(self, three_methods):
        runs, complaints = load_runs([three_methods])
        assert complaints == []
        found = score(runs, "cmnist", "base", "test3/acc")
        assert (found.mean, found.std, found.seeds) == pytest.approx((0.80, 0.01, 3))
        assert score(runs, "cmnist", "rex", "test3/acc") is None
        assert score(runs, "mfd", "base", "test/acc") is None

    def test_one_seed_has_no_spread(self, tmp_path):
        write(tmp_path, "base", "cmnist", 0, prediction(0.8))
        assert score(load_runs([tmp_path])[0], "cmnist", "base", "test3/acc").std is None

    def test_groups_are_averaged_before_seeds(self, tmp_path):
        values = {(0, 0): 0.6, (0, 1): 0.8, (1, 0): 0.7, (1, 1): 0.9}
        for (seed, group), value in values.items():
            write(tmp_path, "base", "mfd", seed, {"test/acc": value}, group=group)
        found = score(load_runs([tmp_path])[0], "mfd", "base", "test/acc")
        assert found.by_seed == pytest.approx({0: 0.7, 1: 0.8})
        assert not found.partial

    def test_seeds_with_missing_groups_are_left_out_or_marked(self, tmp_path):
        for seed, group, value in ((0, 0, 0.6), (0, 1, 0.8), (1, 0, 0.9)):
            write(tmp_path, "base", "mfd", seed, {"test/acc": value}, group=group)
        write(tmp_path, "irm", "mfd", 0, {"test/acc": 0.5}, group=1)
        runs, _ = load_runs([tmp_path])
        assert score(runs, "mfd", "base", "test/acc").by_seed == pytest.approx({0: 0.7})
        assert score(runs, "mfd", "irm", "test/acc").partial

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
    def test_a_mean_of_fewer_seeds_than_were_run_says_so(self, three_methods, value):
        write(three_methods, "base", "cmnist", 3, prediction(0.8) | {"test3/acc": value})
        runs, complaints = load_runs([three_methods])
        assert complaints == [f"{runs[-1].directory}: test3/acc is not a finite number; means leave it out"]
        found = score(runs, "cmnist", "base", "test3/acc")
        assert (found.mean, found.seeds, found.all_seeds) == pytest.approx((0.80, 3, 4))
        shown = cells(table(runs, "baselines"), "base")
        assert cell_text(shown["cmnist:test3/acc"]).rest.endswith("[3 of 4]")
        assert cell_text(shown["cmnist:test3/f1"]).rest.endswith("[4]")
        rows = list(csv.DictReader(io.StringIO(to_csv([table(runs, "baselines")]))))
        row = next(row for row in rows if (row["method"], row["metric"]) == ("base", "test3/acc"))
        assert (row["seeds"], row["all_seeds"]) == ("3", "4")

    def test_a_seed_with_a_missing_group_is_counted_as_left_out(self, tmp_path):
        for seed, group, value in ((0, 0, 0.6), (0, 1, 0.8), (1, 0, 0.9), (1, 1, float("nan"))):
            write(tmp_path, "base", "mfd", seed, {"test/acc": value}, group=group)
        found = score(load_runs([tmp_path])[0], "mfd", "base", "test/acc")
        assert (found.mean, found.seeds, found.all_seeds) == pytest.approx((0.7, 1, 2))


class TestReading:
    def test_what_could_not_be_computed_is_missing_and_named(self, tmp_path):
        write(tmp_path, "base", "cmnist", 0, {"test3/acc": float("nan"), "test3/f1": None, "val/acc": 0.5})
        (run,), (complaint,) = load_runs([tmp_path])
        assert run.metrics == {"val/acc": 0.5}
        assert "test3/acc, test3/f1 are not finite numbers" in complaint

    def test_newest_of_equal_runs_counts(self, tmp_path):
        write(tmp_path / "first", "base", "cmnist", 0, prediction(0.5))
        write(tmp_path / "second", "base", "cmnist", 0, prediction(0.9))
        runs, complaints = load_runs([tmp_path])
        assert [run.metrics["test3/acc"] for run in runs] == [0.9]
        assert "first" in complaints[0]

    def test_other_configs_stay_out_of_the_average(self, tmp_path):
        for noise, seeds in ((0.1, 1), (0.2, 2), (0.3, 1)):
            for seed in range(seeds):
                config = {"seed_everything": seed, "data": {"init_args": {"noise": noise, "seed": seed}}}
                write(tmp_path, "base", "cmnist", seed, prediction(noise), config=config)
        runs, complaints = load_runs([tmp_path])
        assert (len(runs), complaints) == (4, [])
        kept, complaints = one_setting_each(runs)
        assert score(kept, "cmnist", "base", "test3/acc").by_seed == {0: 0.2, 1: 0.2}
        assert len(complaints) == 1
        assert "3 different configs" in complaints[0]
        assert "leave 2 runs out" in complaints[0]

    @pytest.mark.parametrize(
        "change",
        [
            {"trainer": {"callbacks": [{"class_path": "lightning.pytorch.callbacks.EarlyStopping"}]}},
            {"trainer": {"plugins": {"class_path": "lightning.pytorch.plugins.HalfPrecision", "init_args": {"x": 1}}}},
            {"data": {"class_path": "datamodules.OwnArrays", "init_args": {"root": "elsewhere"}}},
        ],
        ids=["callbacks", "plugins", "root"],
    )
    def test_different_experiments_are_no_duplicates(self, tmp_path, change):
        """What counts for a run's identity counts in reports, too."""
        plain = {
            "trainer": {"callbacks": None, "plugins": None},
            "data": {"class_path": "datamodules.OwnArrays", "init_args": {"root": "data"}},
        }
        for config in (plain, {**plain, **change}):
            write(tmp_path, "base", "own", 0, prediction(0.8), config=config)
        runs, complaints = load_runs([tmp_path])
        assert (len(runs), complaints) == (2, [])
        assert "2 different configs" in one_setting_each(runs)[1][0]

    @pytest.mark.parametrize("damage", ["", "{", "[]", '{"schema": 2}', '{"schema": 1}'])
    def test_damaged_results_are_named_not_fatal(self, three_methods, damage):
        broken = three_methods / "broken"
        broken.mkdir()
        (broken / "result.json").write_text(damage)
        runs, complaints = load_runs([three_methods])
        assert len(runs) == 9
        assert len(complaints) == 1
        assert str(broken / "result.json") in complaints[0]

    def test_paths_without_results_are_named(self, tmp_path):
        assert "no result.json" in load_runs([tmp_path / "nowhere"])[1][0]

    def test_a_file_and_its_folder_count_once(self, three_methods):
        file = next(three_methods.rglob("result.json"))
        runs, complaints = load_runs([three_methods, file, file.parent])
        assert (len(runs), complaints) == (9, [])


class TestTables:
    def test_ranks_and_too_few_seeds_for_a_test(self, three_methods):
        found = table(load_runs([three_methods])[0], "baselines")
        marks = {m: cells(found, m)["cmnist:test3/acc"] for m in ("base", "irm", "codid")}
        assert {m: cell.rank for m, cell in marks.items()} == {"base": None, "irm": 2, "codid": 1}
        assert [cell.comparison and cell.comparison.pairs for cell in marks.values()] == [3, 3, None]
        assert not any(cell.comparison.differs for cell in marks.values() if cell.comparison)  # three pairs are too few
        assert "4 of 4 comparisons with CoDID are not tested, for fewer than 5 pairs." in found.note

    def test_ties_share_a_rank_as_printed(self, tmp_path):
        for method, value in (("base", 0.66001), ("mmd", 0.65999), ("irm", 0.7), ("codid", 0.5)):
            write(tmp_path, method, "cmnist", 0, prediction(value))
        found = table(load_runs([tmp_path])[0], "baselines")
        assert [cells(found, m)["cmnist:test3/acc"].rank for m in ("base", "mmd", "irm", "codid")] == [2, 2, 1, None]

    def test_improvement_is_over_the_best_baseline(self, three_methods):
        found = table(load_runs([three_methods])[0], "baselines")
        gain = found.gains[0]
        assert gain.ours == pytest.approx(0.86 - 0.85)

    def test_the_papers_numbers_give_the_papers_improvement_row(self, three_methods):
        found = table(load_runs([three_methods])[0], "baselines", [*IMAGES, *SERIES])
        printed = [3.5, 3.7, 4.8, 4.6, 12.3, 12.2, 11.3, 12.2, 4.9, 5.0, 5.9, 5.8, 11.9, 11.6]
        assert [round(100 * gain.paper, 1) for gain in found.gains] == printed

    def test_missing_cells_are_counted(self, three_methods):
        runs, _ = load_runs([three_methods])
        assert "24 of 30 cells have no run. No runs at all of CFashion-MNIST, " in table(runs, "baselines").note
        whole = table(runs, "baselines", [*IMAGES, *SERIES])
        assert whole.note.startswith("204 of 210 cells have no run. 4 of 4 comparisons")

    def test_only_tables_with_runs_and_chosen_data_sets(self, three_methods):
        runs, _ = load_runs([three_methods])
        assert [t.name for t in build_tables(runs)] == ["baselines", "ablation", "full_cmnist"]
        assert {c.dataset for t in build_tables(runs) for c in t.columns} == {"cmnist"}
        chosen = build_tables(runs, ["cmnist", "mfd"])[0]
        assert {c.dataset for c in chosen.columns} == {"cmnist", "mfd"}
        assert build_tables(runs, ["mfd"]) == []

    def test_own_methods_and_data_sets_get_a_place(self, tmp_path):
        write(tmp_path, "my_method", "my_data", 0, {"test/acc": 0.9})
        found = table(load_runs([tmp_path])[0], "baselines")
        assert cells(found, "my_method")["my_data:test/acc"].ours.mean == 0.9

    @pytest.mark.parametrize("method", ["mine", "listed"])
    def test_no_method_disappears(self, tmp_path, method, monkeypatch):
        """It has a row in every table that has a column for one of its numbers, also if the order names it."""
        monkeypatch.setattr(names, "PAPER_ORDER", (*names.PAPER_ORDER, "listed"))
        modes = {f"modes/{m}": 0.5 for m in ("acc", "ari", "nmi", "count")}
        metrics = prediction(0.5) | modes | {"disentanglement/mi": 0.1}
        for name in (method, "codid"):
            for dataset in ("cmnist", "toy_nine_modes", "toy_four_attributes"):
                write(tmp_path, name, dataset, 0, metrics)
        found = build_tables(load_runs([tmp_path])[0])
        assert len(found) == 10
        for table in found:
            rows = [row.method for row in table.rows]
            assert rows[rows.index(method) + 1] == "codid", table.name

    def test_only_numbers_make_a_row(self, tmp_path):
        for method, metrics in (("zeta", prediction(0.6)), ("alpha", prediction(0.5)), ("codid", prediction(0.7))):
            write(tmp_path, method, "cmnist", 0, metrics)
        write(tmp_path, "codid", "toy_nine_modes", 0, prediction(0.7))
        found = {t.name: [row.method for row in t.rows] for t in build_tables(load_runs([tmp_path])[0])}
        assert found["full_cmnist"][-3:] == ["alpha", "zeta", "codid"]
        assert not {"alpha", "zeta"} & {*found["toy"], *found["full_toy_nine_modes"]}
        assert "alpha" not in table(load_runs([tmp_path])[0], "toy").note

    def test_our_methods_have_a_row_where_their_own_table_has_no_column(self, tmp_path):
        write(tmp_path, "codid_plus", "cmnist", 0, {"disentanglement/mi": 0.1, "modes/count": 5.0})
        found = build_tables(load_runs([tmp_path])[0])
        assert {t.name for t in found if "codid_plus" in [r.method for r in t.rows]} == {"counts", "disentanglement"}

    def test_runs_that_no_table_shows_are_named(self, tmp_path):
        write(tmp_path, "base", "rivers", 0, {"upstream/acc": 0.5})
        write(tmp_path, "base", "cmnist", 0, prediction(0.5))
        runs = load_runs([tmp_path])[0]
        (complaint,) = not_shown(runs, build_tables(runs))
        assert complaint.startswith("base on rivers:")
        assert "upstream/acc" in complaint

    def test_methods_of_ours_stay_out_of_the_papers_tables(self, three_methods):
        before = table(load_runs([three_methods])[0], "baselines")
        assert "beyond" not in [t.name for t in build_tables(load_runs([three_methods])[0])]
        write(three_methods, "counterfactual", "cmnist", 0, prediction(0.99) | {"gate/accepted": 1.0})
        runs = load_runs([three_methods])[0]
        assert table(runs, "baselines") == before
        beyond = table(runs, "beyond")
        assert cells(beyond, "counterfactual")["cmnist:test3/acc"].ours.mean == 0.99
        assert cells(beyond, "counterfactual")["cmnist:gate/accepted"].ours.mean == 1
        assert cells(beyond, "base")["cmnist:test3/acc"].ours.mean == pytest.approx(0.8)

    def test_less_is_better_for_disentanglement(self, tmp_path):
        for method, mi in (("base", 0.4), ("codid", 0.3), ("hfs", 0.9)):
            write(tmp_path, method, "cmnist", 0, {"disentanglement/mi": mi})
        found = table(load_runs([tmp_path])[0], "disentanglement")
        ranks = {m: cells(found, m)["cmnist:disentanglement/mi"].rank for m in ("base", "codid", "hfs")}
        assert ranks == {"base": 2, "codid": 1, "hfs": None}

    def test_every_table_of_the_paper_appears(self, tmp_path):
        modes = {f"modes/{m}": 0.5 for m in ("acc", "ari", "nmi", "count")}
        for method in ("base", "codid", "itdpm"):
            for dataset in ("cmnist", "toy_nine_modes", "toy_four_attributes"):
                write(tmp_path, method, dataset, 0, prediction(0.5) | modes | {"disentanglement/mi": 0.1})
        names = [t.name for t in build_tables(load_runs([tmp_path])[0])]
        full = ["full_cmnist", "full_toy_nine_modes"]
        rest = ["clustering", "counts", "disentanglement", "attributes", "toy", "overall"]
        assert names == ["baselines", "ablation", *full, *rest]


class TestStatistics:
    @pytest.fixture(scope="class")
    @classmethod
    def five_seeds(cls, tmp_path_factory):
        """BASE, IRM, DANN and CoDID on two data sets; REx with four seeds."""
        root, generator = tmp_path_factory.mktemp("five"), np.random.default_rng(0)
        means = {"base": 0.7, "dann": 0.71, "irm": 0.8, "codid": 0.8, "rex": 0.6}
        for dataset in ("cmnist", "cfashion_mnist"):
            for method, mean in means.items():
                for seed in range(4 if method == "rex" else 5):
                    accuracy = {f"test3/{m}": generator.normal(mean, 0.02) for m in ("acc", "f1")}
                    write(root, method, dataset, seed, accuracy | {"test3/ece": generator.normal(1 - mean, 0.02)})
        return load_runs([root])[0]

    @pytest.mark.parametrize("reference", ["codid", "base"])
    def test_paired_tests_with_holms_correction_over_the_table(self, five_seeds, reference):
        found = next(t for t in build_tables(five_seeds, reference=reference) if t.name == "baselines")
        values = {}
        for run in sorted(five_seeds, key=lambda run: run.seed):
            for metric, value in run.metrics.items():
                values.setdefault((run.dataset, metric, run.method), []).append(value)
        keys = [key for key in values if key[2] not in (reference, "rex")]
        adjusted = holm([ttest_rel(values[key], values[(*key[:2], reference)]).pvalue for key in keys])
        expected = dict(zip(keys, adjusted, strict=True))
        assert len(expected) == 3 * 6
        shown = {(c.column.dataset, c.column.metric, row.method): c for row in found.rows for c in row.cells if c.ours}
        tested = {key: cell.comparison.p_value for key, cell in shown.items() if cell.comparison}
        assert {key: p for key, p in tested.items() if p is not None} == pytest.approx(expected)
        assert {key for key, p in tested.items() if p is None} == {key for key in shown if key[2] == "rex"}
        stars = {key for key, cell in shown.items() if "*" in cell_text(cell).rest}
        assert stars == {key for key, p in expected.items() if p < 0.05}
        assert 0 < len(stars) < len(expected)
        assert f"6 of 24 comparisons with {found.reference} are not tested, for fewer than 5 pairs." in found.note
        assert f"* Differs from {found.reference}:" in legend([found])

    def test_held_out_groups_are_the_pairs_where_there_are_more(self, tmp_path):
        generator = np.random.default_rng(1)
        values = {m: generator.normal(mean, 0.02, (3, 6)) for m, mean in (("base", 0.7), ("codid", 0.75))}
        for method, table_of in values.items():
            for seed, group in np.ndindex(3, 6):
                write(tmp_path, method, "hhar", seed, {"test/acc": table_of[seed, group]}, group=group)
        runs = load_runs([tmp_path])[0]
        cell = cells(table(runs, "baselines"), "base")["hhar:test/acc"]
        assert cell.comparison.pairs == 6
        assert cell.comparison.p_value == pytest.approx(ttest_rel(*(v.mean(0) for v in values.values())).pvalue)
        assert cell.ours.std == pytest.approx(values["base"].mean(1).std(ddof=1))  # the table shows seeds

    def test_pairs_are_of_runs_that_both_have(self):
        first = Score({(seed, None): seed / 10 for seed in range(6)})
        second = Score({(seed, None): seed / 5 for seed in (5, 3, 7)})
        assert first.pairs(second) == [(0.3, 0.6), (0.5, 1.0)]

    def test_intervals(self, five_seeds):
        found = next(t for t in build_tables(five_seeds, intervals=True) if t.name == "baselines")
        cell = cells(found, "base")["cmnist:test3/acc"]
        low, high = bootstrap_interval([list(cell.ours.by_seed.values())])
        assert cell_text(cell).rest.startswith(f" ({100 * low:.1f} to {100 * high:.1f})")
        few = cells(found, "rex")["cmnist:test3/acc"]
        assert cell_text(few).rest.startswith(f" ±{100 * few.ours.std:.1f}")
        assert "95 % bootstrap interval" in legend([found])

    def test_over_all_data_sets(self, five_seeds):
        found = table(five_seeds, "overall")
        columns = [(column.heading, column.label) for column in found.columns]
        assert columns == [(name, kind) for name in ("Acc.", "Mac. F1", "ECE") for kind in ("IQM", "Av. rank")]
        values = sorted(run.metrics["test3/acc"] for run in five_seeds if run.method == "irm")
        mean, rank = cells(found, "irm")[":acc/iqm"], cells(found, "irm")[":acc/rank"]
        assert mean.ours.mean == pytest.approx(np.mean(values[2:8]))
        assert mean.ours.seeds == 10
        assert mean.interval[0] < mean.ours.mean < mean.interval[1]
        assert rank.ours.seeds == 2
        by_dataset = {d: {} for d in ("cmnist", "cfashion_mnist")}
        for dataset, means in by_dataset.items():
            for method in ("base", "dann", "irm", "codid", "rex"):
                means[method] = score(five_seeds, dataset, method, "test3/acc").mean
        places = [sorted(means.values(), reverse=True).index(means["irm"]) + 1 for means in by_dataset.values()]
        assert rank.ours.mean == np.mean(places)
        assert cells(found, "rex")[":ece/rank"].ours.mean == 5  # less is better
        assert "CMNIST, CFashion-MNIST. Friedman's test: p = " in found.note

    def test_a_method_that_lacks_a_data_set_is_left_out_and_named(self, five_seeds):
        runs = [run for run in five_seeds if (run.method, run.dataset) != ("irm", "cmnist")]
        found = table(runs, "overall")
        assert "irm" not in [row.method for row in found.rows]
        assert "Not on all of them: IRM." in found.note
        alone = [run for run in five_seeds if run.dataset == "cmnist" or run.method == "irm"]
        assert "overall" not in [t.name for t in build_tables(alone)]

    def test_figure_of_ranks(self, five_seeds, tmp_path):
        folder = five_seeds[0].directory.parent
        figure = average_ranks([folder])
        (panel,) = figure.axes
        written = [text.get_text().split() for text in panel.texts]
        ranks = {name: float(n) for pair in written for name, n in [sorted(pair, key=lambda w: w[0].isdigit())]}
        found = table(five_seeds, "overall")
        expected = {row.title: cells(found, row.method)[":acc/rank"].ours.mean for row in found.rows}
        assert ranks == pytest.approx(expected, abs=0.005)
        assert "2 data sets are too few" in figure.get_supxlabel()
        (bar,) = [line for line in panel.get_lines() if line.get_linewidth() == 3]
        assert bar.get_xdata() == pytest.approx([min(ranks.values()), max(ranks.values())], abs=0.1)
        assert "ECE" in average_ranks([folder], "ece").get_suptitle()
        for value, says in (("auroc", "ranks need two methods"), ("nothing", "--value is nothing")):
            with pytest.raises(FigureError, match=says):
                average_ranks([folder], value)

    def test_command(self, five_seeds, tmp_path, capsys):
        folder, output = five_seeds[0].directory.parent, tmp_path / "report.md"
        assert main([str(folder), "--reference", "nobody"]) == 2
        assert "--reference is nobody; runs are of base, codid, dann, irm, rex" in capsys.readouterr().err
        choices = ["--reference", "irm", "--metrics", "acc", "--intervals", "--output", str(output)]
        assert main([str(folder), *choices]) == 0
        text = output.read_text()
        assert "Differs from IRM" in text
        assert "Mac. F1" not in text
        assert main([str(folder), "--output", str(tmp_path / "report.html")]) == 0
        assert "Average ranks over data sets" in (tmp_path / "report.html").read_text()

    def test_a_method_of_our_own_as_reference_is_in_the_papers_tables(self, five_seeds, tmp_path):
        for seed in range(5):
            write(tmp_path, "group_dro", "cmnist", seed, prediction(0.9))
        runs = [*five_seeds, *load_runs([tmp_path])[0]]
        found = next(t for t in build_tables(runs, ["cmnist"], reference="group_dro") if t.name == "baselines")
        assert cells(found, "irm")["cmnist:test3/acc"].comparison.differs
        assert found.gains[0].ours == pytest.approx(0.9 - score(runs, "cmnist", "codid", "test3/acc").mean, abs=0.02)
        assert found.gains[0].paper is None


class TestMetrics:
    def test_the_command_knows_the_scores_of_the_tables(self):
        assert tuple(PREDICTION) == METRICS

    def test_are_shown_where_a_run_has_them_and_missing_elsewhere(self, three_methods):
        more = {f"test{i}/{m}": 0.5 for i in (1, 2, 3) for m in ("worst_group_acc", "auroc", "ece", "a2/auroc")}
        write(three_methods, "rex", "cmnist", 0, prediction(0.8) | more)
        runs = load_runs([three_methods])[0]
        found = table(runs, "full_cmnist")
        assert [c.label for c in found.columns][:5] == ["Acc.", "Mac. F1", "Worst gr.", "AUROC", "ECE"]
        assert cells(found, "base")["cmnist:test1/auroc"].ours is None
        assert cells(found, "rex")["cmnist:test1/auroc"].ours.mean == 0.5
        assert label(found.columns[4]) == "ECE ↓"

    def test_can_be_chosen(self, three_methods):
        runs = load_runs([three_methods])[0]
        chosen = build_tables(runs, metrics=["adjusted_acc", "acc"])
        for name in ("baselines", "ablation"):
            shown = next(t for t in chosen if t.name == name)
            assert [c.metric for c in shown.columns] == ["test3/adjusted_acc", "test3/acc"]


class TestTitles:
    def rows(self, root):
        return {row.method: row.title for t in build_tables(load_runs([root])[0]) for row in t.rows}

    def test_come_from_the_run_then_from_the_shipped_config_then_from_the_name(self, tmp_path):
        write(tmp_path, "mine", "cmnist", 0, prediction(0.5), title="My Method")
        write(tmp_path, "nameless", "cmnist", 0, prediction(0.5), title="")
        write(tmp_path, "rex", "cmnist", 0, prediction(0.5))
        write(tmp_path, "km", "cmnist", 0, prediction(0.5))
        found = self.rows(tmp_path)
        assert [found[m] for m in ("mine", "nameless", "rex", "km")] == ["My Method", "nameless", "REx", "CoDID-km"]

    def test_are_no_part_of_the_experiment(self):
        """Runs from before there were titles are still found by their config."""
        assert config_hash({"title": "My Method", "method": "mine"}) == config_hash({"method": "mine"})

    def test_of_the_config_below_an_overlay_is_not_the_overlays(self, tmp_path):
        """`-c configs/cmnist/codid.yaml -c mine.yaml` leaves CoDID's title where mine.yaml gives none."""
        write(tmp_path, "codid", "cmnist", 0, prediction(0.5), title="CoDID")
        write(tmp_path, "mine", "cmnist", 0, prediction(0.5), title="CoDID")
        assert (self.rows(tmp_path)["codid"], self.rows(tmp_path)["mine"]) == ("CoDID", "mine")

    def test_that_two_methods_claim_are_replaced_by_their_names(self, tmp_path):
        write(tmp_path, "one", "cmnist", 0, prediction(0.5), title="Same")
        write(tmp_path, "two", "cmnist", 0, prediction(0.5), title="Same")
        assert (self.rows(tmp_path)["one"], self.rows(tmp_path)["two"]) == ("one", "two")


class TestNeeds:
    def rows(self, root):
        return {row.method: row.needs for t in build_tables(load_runs([root])[0]) for row in t.rows}

    def test_are_those_of_the_shipped_config_or_else_of_the_run(self, tmp_path):
        for method in ("base", "dfr", "jtt", "lisa", "t", "codid_adaptive"):
            write(tmp_path, method, "cmnist", 0, prediction(0.5))
        write(tmp_path, "mine", "cmnist", 0, prediction(0.5), config={"needs": ["modes"], "method": "mine"})
        write(tmp_path, "silent", "cmnist", 0, prediction(0.5))
        found = self.rows(tmp_path)
        assert (found["base"], found["jtt"], found["lisa"], found["dfr"]) == ("nothing", "nothing", "a2", "val. a2")
        assert (found["t"], found["codid_adaptive"]) == ("a2, modes", "a2, val. a2")
        assert (found["mine"], found["silent"]) == ("modes", "")

    def test_every_shipped_method_says_what_it_needs_in_all_its_configs(self):
        said = {}
        for file in sorted(config_folder().glob("*/*.yaml")):
            config = yaml.safe_load(file.read_text())
            if isinstance(config, dict) and {"method", "title"} <= config.keys():
                assert set(config["needs"]) <= set(NEEDS), file
                assert said.setdefault(config["method"], config["needs"]) == config["needs"], file

    def test_are_no_part_of_the_experiment(self):
        assert config_hash({"needs": ["a2"], "method": "mine"}) == config_hash({"method": "mine"})


class TestPaper:
    def test_numbers_are_the_papers(self):
        numbers = paper_numbers()
        assert numbers["cmnist", "codid", "test3/acc"] == (0.852, 0.027)
        assert numbers["mfd", "wo_sc", "modes/count"] == (12.7, 0.9)
        assert numbers["canine_bg", "hfs", "disentanglement/mi"] == (0.845, None)
        assert numbers["toy_four_attributes", "t", "test3/a2/acc"] == (0.964, None)
        assert numbers["cmnist", "truth", "modes/count"].mean == 5

    def test_fractions_stay_fractions(self):
        shares = [n.mean for (_, _, metric), n in paper_numbers().items() if metric != "modes/count"]
        assert min(shares) >= 0
        assert max(shares) <= 1


GOLDEN = """\
## All test sets of CMNIST

| Method | Needs | Test 1 (correlated) Acc. | Test 1 (correlated) Mac. F1 | Test 2 (uncorrelated) Acc. |"""


class TestFormats:
    @pytest.fixture
    def tables(self, three_methods):
        return build_tables(load_runs([three_methods])[0], ["cmnist"])

    def test_markdown(self, tables):
        text = to_markdown(tables)
        assert GOLDEN in text
        grid = {}
        for line in text[text.index(GOLDEN) :].splitlines():
            if line.startswith("| "):
                name, _, *values = (cell.strip() for cell in line.strip("|").split("|"))
                grid[name] = values
        assert grid["BASE"][0] == r"80.0 ±1.0 \[3\]<br><sub>95.4 ±0.3</sub>"
        assert grid["IRM"][4] == r"<u>85.0</u> ±2.0 \[3\]<br><sub>81.0 ±3.5</sub>"
        assert grid["CoDID"][4] == r"**86.0** ±1.0 \[3\]<br><sub>85.2 ±2.7</sub>"
        assert grid["REx"][0] == "–<br><sub>96.0 ±0.5</sub>"
        assert grid["Improvement"][4] == "+1.0<br><sub>+3.5</sub>"
        assert len({len(values) for values in grid.values()}) == 1

    @pytest.mark.parametrize(("render", "file"), [(to_markdown, "tables.md"), (to_latex, "tables.tex")])
    def test_the_same_runs_give_the_same_bytes(self, render, file, three_methods, tmp_path_factory):
        """Those of a file that was looked through once, also if runs are found in another order."""
        again = tmp_path_factory.mktemp("again")
        for number, folder in enumerate(sorted(three_methods.iterdir(), reverse=True)):
            shutil.copytree(folder, again / f"{number}")
        for root in (three_methods, again):
            text = render(build_tables(load_runs([root])[0], ["cmnist"]))
            assert text.encode() == (Path(__file__).parent / "golden" / file).read_bytes()

    def test_latex_has_balanced_rows(self, tables):
        text = to_latex(tables)
        for block in re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", text, re.DOTALL):
            width = len(re.search(r"\\begin\{tabular\}\{([lcr]+)\}", block)[1])
            rows = re.search(r"\\midrule\n(.*)\\bottomrule", block, re.DOTALL)[1].strip().splitlines()
            assert all(row.count("&") - row.count(r"\&") == width - 1 for row in rows)
        assert r"\textbf{86.0} $\pm$1.0 [3]" in text
        assert r"\underline{85.0}" in text

    def test_csv_is_exact(self, tables):
        rows = list(csv.DictReader(io.StringIO(to_csv(tables))))
        row = next(r for r in rows if (r["table"], r["method"], r["metric"]) == ("baselines", "base", "test3/acc"))
        assert (float(row["mean"]), float(row["std"])) == pytest.approx((0.8, 0.01))
        assert (row["seeds"], row["paper_mean"], row["paper_std"]) == ("3", "0.792", "0.009")
        assert (row["pairs"], row["p_value"], row["low"], row["high"]) == ("3", "", "", "")
        empty = next(r for r in rows if r["method"] == "rex")
        assert (empty["mean"], empty["paper_mean"]) == ("", "0.817")

    @pytest.mark.parametrize("width", [80, 110, 300])
    def test_terminal_shows_every_column_whatever_the_width(self, tables, width):
        out = io.StringIO()
        to_terminal(tables, Console(file=out, width=width))
        text = out.getvalue()
        assert "…" not in text
        assert text.count("Test 3") >= 2
        assert "86.0 ±1.0 [3]" in text

    def test_html_escapes_what_came_from_data(self, tmp_path):
        evil = "<script>alert(1)</script>"
        write(tmp_path, evil, evil, 0, {"test/acc": 0.5})
        picture = Picture(evil, b"")
        text = report_page(build_tables(load_runs([tmp_path])[0]), [picture], [evil])
        assert "<script" not in text
        assert text.count("&lt;script&gt;") >= 2 + 3  # method, data set; two places of the caption, complaint

    def test_html_shows_the_cells_that_markdown_shows(self, tables):
        """Tags for tags, every cell is the same."""
        marks = {"<strong>": "**", "</strong>": "**", '<span class="paper">': "<sub>", "</span>": "</sub>"}
        for table, part in zip(tables, report_page(tables, [], []).split("<h2>")[1:], strict=True):
            written = [re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall("<tr><th scope=.row.*", part)]
            expected = [line.stacked("<br>") for line in lines(table, MARKDOWN)]
            assert len(written) == len(expected) > 3
            for cells_of_row, markdown in zip(written, expected, strict=True):
                texts = [cell.replace('<span class="missing">–</span>', "–") for cell in cells_of_row]
                for tag, mark in marks.items():
                    texts = [text.replace(tag, mark) for text in texts]
                assert texts == [re.sub(r"\\(.)", r"\1", cell) for cell in markdown]

    def test_names_mean_nothing_to_tex_markdown_and_rich(self, tmp_path):
        write(tmp_path, "a_b%c|[red]", "cmnist", 0, prediction(0.5))
        tables = build_tables(load_runs([tmp_path])[0])
        assert r"a\_b\%c|[red]" in to_latex(tables)
        assert r"a\_b%c\|\[red\]" in to_markdown(tables)
        out = io.StringIO()
        to_terminal(tables, Console(file=out, width=200))
        assert "a_b%c|[red]" in out.getvalue()


def test_what_no_table_shows_is_said(three_methods, capsys):
    write(three_methods, "base", "rivers", 0, {"upstream/acc": 0.5})
    output = three_methods / "report.html"
    assert main([str(three_methods), "--output", str(output)]) == 0
    complaint = "base on rivers: no table has a column for its metrics (upstream/acc)"
    assert complaint in capsys.readouterr().err
    assert complaint in output.read_text()


def test_json_holds_the_results_of_the_runs_in_the_tables(three_methods):
    write(three_methods, "base", "mfd", 0, prediction(0.5))
    output = three_methods / "kept.json"
    assert main([str(three_methods), "--output", str(output), "--datasets", "cmnist"]) == 0
    kept = json.loads(output.read_text())
    assert [(run["method"], run["seed"]) for run in kept] == [
        (m, s) for m in ("base", "codid", "irm") for s in range(3)
    ]
    assert kept[0]["metrics"]["test3/acc"] == 0.80
    assert kept[0]["git_revision"] == "0"
