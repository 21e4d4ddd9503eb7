"""Which tables there are: their rows, their columns and how numbers are printed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from codid_lightning.analysis.tables.names import (
    BASELINES,
    CLUSTERING,
    DATASETS,
    OURS,
    TRUTH,
    VARIANTS,
    dataset_title,
    extensions,
)
from codid_lightning.analysis.tables.scores import Run

INVARIANT = ("dann", "coral", "irm", "rex")  # the paper gives no disentanglement scores for these
IMAGES = ("cmnist", "cfashion_mnist", "canine_bg")
SERIES = ("uci_har", "realworld", "hhar", "mfd")
TESTS = {"test1": "Test 1 (correlated)", "test2": "Test 2 (uncorrelated)", "test3": "Test 3 (anticorrelated)"}

# Scores of a test that tables show; those after the first two, where runs have them.
PREDICTION: dict[str, tuple[str, Literal["high", "low"]]] = {
    "acc": ("Acc.", "high"),
    "f1": ("Mac. F1", "high"),
    "worst_group_acc": ("Worst gr.", "high"),
    "class_balanced_acc": ("Bal. acc.", "high"),
    "adjusted_acc": ("Adj. avg.", "high"),
    "auroc": ("AUROC", "high"),
    "ece": ("ECE", "low"),
}
USUAL = ("acc", "f1")

DESIGN = ("L_mp", "L_d", "IC", "IN", "L_wd", "L_sc", "PR")  # the ablation table's design choices
CHOICES = {
    "base": "-------",
    "km_mp": "+......",
    "km_mc": ".+.....",
    "km_id": "++.....",
    "km_sd": "++.....",
    "km": "++.....",
    "itkm": "+++....",
    "itdpm": "++++..+",
    "wo_sc": "+++++.+",
    "ua": "++++++.",
    "t": "-------",
    "codid": "+++++++",
}


@dataclass(frozen=True)
class Column:
    """One metric on one data set, and how it is printed."""

    dataset: str
    metric: str
    heading: str
    label: str
    scale: float = 100.0
    digits: int = 1
    better: Literal["high", "low"] | None = "high"

    def text(self, value: float, signed: bool = False) -> str:
        """A value as it is printed."""
        return f"{value * self.scale:{'+' if signed else ''}.{self.digits}f}"

    def merit(self, value: float) -> float:
        """A value as precisely as it is printed, larger meaning better."""
        printed = round(value * self.scale, self.digits)
        return -printed if self.better == "low" else printed


@dataclass(frozen=True)
class TableSpec:
    """Rows and columns of one table.

    `gain` adds a row with CoDID's improvement over the best other method. `paper_only` keeps out the methods of this
    package that are not in the paper: the table `beyond` shows them. A table without a score of one of the methods in
    `needs` is not shown; empty means any method.
    """

    name: str
    title: str
    methods: tuple[str, ...]
    columns: tuple[Column, ...]
    gain: bool = False
    design: tuple[str, ...] = ()
    paper_only: bool = False
    needs: tuple[str, ...] = ()


def table_specs(
    runs: Sequence[Run], shown: Collection[str], metrics: Sequence[str] | None = None, reference: str = OURS
) -> list[TableSpec]:
    """All tables of the paper, with a row or column for every further method or data set of the runs.

    Args:
        runs: The runs to fill the tables with.
        shown: Data sets to show.
        metrics: Scores of a test to show, of `PREDICTION`; default: all that runs on the data set have.
        reference: A method that is in every table with a number of it.
    """
    specs = _paper_specs(runs, metrics)
    listed = {method for spec in specs for method in spec.methods} - {reference}
    here = [run for run in runs if run.dataset in shown]
    return [_with_other_methods(spec, listed, here) for spec in specs]


def accuracy_columns(
    runs: Sequence[Run], datasets: Collection[str], metrics: Sequence[str] | None = None
) -> tuple[Column, ...]:
    """The scores of each data set on its test set, of three on the most shifted one."""
    three_tests, one_test = _datasets(runs)
    hardest = {**dict.fromkeys(three_tests, "test3"), **dict.fromkeys(one_test, "test")}
    return tuple(
        column
        for dataset, test in hardest.items()
        if dataset in datasets
        for column in _prediction(dataset, test, dataset_title(dataset), _shown_metrics(runs, dataset, metrics))
    )


def _shown_metrics(runs: Sequence[Run], dataset: str, chosen: Sequence[str] | None) -> tuple[str, ...]:
    """The chosen scores, or accuracy, F1 and what else a run on the data set has."""
    if chosen is not None:
        return tuple(chosen)
    tested = {name for run in runs if run.dataset == dataset for name in run.metrics if name.startswith("test")}
    there = {name.split("/")[1] for name in tested if name.count("/") == 1}
    return tuple(name for name in PREDICTION if name in USUAL or name in there)


def _with_other_methods(spec: TableSpec, listed: Collection[str], runs: Sequence[Run]) -> TableSpec:
    """Add a row for each method that no table lists and that has a number for this one."""
    metrics = {(column.dataset, column.metric) for column in spec.columns}
    others = {run.method for run in runs if any((run.dataset, metric) in metrics for metric in run.metrics)}
    others -= set(spec.methods) | (set(listed) if spec.paper_only else set(listed) - set(extensions()))
    ours = spec.methods.index(OURS)
    return replace(spec, methods=(*spec.methods[:ours], *sorted(others), *spec.methods[ours:]))


def _paper_specs(runs: Sequence[Run], metrics: Sequence[str] | None) -> list[TableSpec]:
    """The paper's tables, their columns widened by the data sets of the runs, and a table of our own methods."""
    three_tests, one_test = _datasets(runs)
    every = (*three_tests, *one_test)
    accuracy = accuracy_columns(runs, every, metrics)
    of = {d: _shown_metrics(runs, d, metrics) for d in every}
    clusters = tuple(column for d in three_tests for column in _clustering(d))
    counts = tuple(Column(d, "modes/count", dataset_title(d), "clusters", 1, 1, None) for d in every)
    factors = tuple(column for d in three_tests for column in _disentanglement(d))
    beyond = tuple(column for d in every for column in _beyond(d, d in three_tests, of[d]))
    separable, ours = tuple(b for b in BASELINES if b not in INVARIANT), extensions()
    variants = (*VARIANTS, OURS)  # the ablation with BASE alone would compare nothing
    comparison, ablation = "Comparison with baselines", "Comparison with variants"
    return [
        TableSpec("baselines", comparison, (*BASELINES, OURS), accuracy, gain=True, paper_only=True),
        TableSpec("ablation", ablation, tuple(CHOICES), accuracy, design=DESIGN, paper_only=True, needs=variants),
        *(_all_tests(d, of[d]) for d in three_tests),
        TableSpec("clustering", "Discovered modes against true modes", (*CLUSTERING, OURS), clusters),
        TableSpec("counts", "Number of clusters", (TRUTH, *CLUSTERING, OURS), counts),
        TableSpec("disentanglement", "Disentanglement", (*separable, OURS), factors),
        TableSpec("attributes", "Toy data with four attributes", ("base", "a_cmi", "km", "t", OURS), _attributes()),
        TableSpec("toy", "Toy data with nine modes", ("base", "itdpm", OURS), _nine_modes()),
        TableSpec("beyond", "Beyond the paper", ("base", "coda", *ours, OURS), beyond, needs=ours),
    ]


def _datasets(runs: Sequence[Run]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Data sets with three test sets and with one: those of the paper, then those that only the runs have."""
    present = {run.dataset for run in runs} - {"toy_four_attributes"}  # it has a table of its own
    ordered = [d for d in DATASETS if d in present] + sorted(present - set(DATASETS))
    shifted = {run.dataset for run in runs if "test3/acc" in run.metrics}
    three_tests = (*IMAGES, *(d for d in ordered if d in shifted and d not in IMAGES))
    return three_tests, (*SERIES, *(d for d in ordered if d not in (*three_tests, *SERIES)))


def _all_tests(dataset: str, metrics: Sequence[str]) -> TableSpec:
    columns = tuple(column for test, title in TESTS.items() for column in _prediction(dataset, test, title, metrics))
    title = f"All test sets of {dataset_title(dataset)}"
    return TableSpec(f"full_{dataset}", title, (*BASELINES, OURS), columns, gain=True, paper_only=True)


def _prediction(dataset: str, test: str, heading: str, metrics: Sequence[str]) -> tuple[Column, ...]:
    shown = {metric: PREDICTION[metric] for metric in metrics}
    return tuple(Column(dataset, f"{test}/{m}", heading, label, better=better) for m, (label, better) in shown.items())


def _beyond(dataset: str, shifted: bool, metrics: Sequence[str]) -> tuple[Column, ...]:
    heading = dataset_title(dataset)
    tests = {f"test{i}": f"Test {i}" for i in (1, 2, 3)} if shifted else {"test": "Test"}
    accuracies = (
        replace(column, label=title if column.label == PREDICTION["acc"][0] else f"{title} {column.label}")
        for test, title in tests.items()
        for column in _prediction(dataset, test, heading, metrics)
    )
    worst = Column(dataset, "val/worst_acc", heading, "Val. worst")
    modes = (Column(dataset, "modes/nmi_given_a2", heading, "NMI(c;m|a2)", 1, 3),) if shifted else ()
    return (*accuracies, worst, *modes, Column(dataset, "gate/accepted", heading, "gate", 1, 1, None))


def _clustering(dataset: str) -> tuple[Column, ...]:
    heading = dataset_title(dataset)
    scores = {"acc": "Acc.", "ari": "ARI", "nmi": "NMI", "nmi_given_a2": "NMI(c;m|a2)"}
    columns = (Column(dataset, f"modes/{metric}", heading, label, 1, 3) for metric, label in scores.items())
    return (*columns, Column(dataset, "modes/nmi_a2", heading, "NMI(c;a2)", 1, 3, "low"))


def _disentanglement(dataset: str) -> tuple[Column, ...]:
    scores = {"mi": "MI", "dci_i": "DCI-I"}
    heading = dataset_title(dataset)
    return tuple(Column(dataset, f"disentanglement/{m}", heading, label, 1, 3, "low") for m, label in scores.items())


def _attributes() -> tuple[Column, ...]:
    names = {"a1": "", "a2": "a2/", "a3": "a3/", "a4": "a4/"}
    return tuple(
        Column("toy_four_attributes", f"{test}/{prefix}acc", title, name, 1, 3)
        for test, title in TESTS.items()
        for name, prefix in names.items()
    )


def _nine_modes() -> tuple[Column, ...]:
    prediction = {"test1/acc": "test 1", "test2/acc": "test 2", "test3/acc": "test 3"}
    clustering = {"modes/acc": "Acc.", "modes/ari": "ARI", "modes/nmi": "NMI"}
    return tuple(
        Column("toy_nine_modes", metric, heading, label, 1, 3)
        for heading, scores in (("Prediction", prediction), ("Clustering", clustering))
        for metric, label in scores.items()
    )
