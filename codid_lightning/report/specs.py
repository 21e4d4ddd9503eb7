"""Which tables there are: their rows, their columns and how numbers are printed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from codid_lightning.report.names import DATASETS, EXTENSIONS, METHODS, dataset_title
from codid_lightning.report.scores import Run

OURS = "codid"
BASELINES = (
    *("base", "mmd", "dann", "coral", "irm", "rex", "dts", "ide_vc"),
    *("mi", "a_cmi", "hfs", "coda", "id_facevc", "diosc"),
)
INVARIANT = ("dann", "coral", "irm", "rex")  # the paper gives no disentanglement scores for these
CLUSTERING = ("km", "itkm", "itdpm", "wo_sc", "ua")
VARIANTS = ("km_mp", "km_mc", "km_id", "km_sd", *CLUSTERING)
IMAGES = ("cmnist", "cfashion_mnist", "canine_bg")
SERIES = ("uci_har", "realworld", "hhar", "mfd")
TESTS = {"test1": "Test 1 (correlated)", "test2": "Test 2 (uncorrelated)", "test3": "Test 3 (anticorrelated)"}

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
    """Rows and columns of one table; `gain` asks for the improvement over the best other method."""

    name: str
    title: str
    methods: tuple[str, ...]
    columns: tuple[Column, ...]
    gain: bool = False
    design: tuple[str, ...] = ()


def table_specs(runs: Sequence[Run]) -> list[TableSpec]:
    """All tables of the paper, widened by data sets and methods that only the runs have."""
    present = {run.dataset for run in runs}
    datasets = [d for d in DATASETS if d in present] + sorted(present - set(DATASETS))
    methods = tuple(sorted({run.method for run in runs} - set(METHODS) - set(EXTENSIONS)))
    shifted = {run.dataset for run in runs if "test3/acc" in run.metrics} - {"toy_four_attributes"}
    three_tests = (*IMAGES, *(d for d in datasets if d in shifted and d not in IMAGES))
    one_test = (*SERIES, *(d for d in datasets if d not in (*three_tests, *SERIES, "toy_four_attributes")))
    accuracy = tuple(
        column
        for d in (*three_tests, *one_test)
        for column in _prediction(d, "test3" if d in three_tests else "test", dataset_title(d))
    )
    clusters = tuple(column for d in three_tests for column in _clustering(d))
    counts = (Column(d, "modes/count", dataset_title(d), "clusters", 1, 1, None) for d in (*three_tests, *one_test))
    factors = tuple(column for d in three_tests for column in _disentanglement(d))
    extended = any(run.method in EXTENSIONS for run in runs)
    beyond = tuple(column for d in (*three_tests, *one_test) for column in _beyond(d, d in three_tests))
    separable = tuple(b for b in BASELINES if b not in INVARIANT)
    return [
        TableSpec("baselines", "Comparison with baselines", (*BASELINES, *methods, OURS), accuracy, gain=True),
        TableSpec("ablation", "Comparison with variants", tuple(CHOICES), accuracy, design=DESIGN),
        *(_all_tests(d, methods) for d in three_tests),
        TableSpec("clustering", "Discovered modes against true modes", (*CLUSTERING, OURS), clusters),
        TableSpec("counts", "Number of clusters", ("truth", *CLUSTERING, OURS), tuple(counts)),
        TableSpec("disentanglement", "Disentanglement", (*separable, *methods, OURS), factors),
        TableSpec("attributes", "Toy data with four attributes", ("base", "a_cmi", "km", "t", OURS), _attributes()),
        TableSpec("toy", "Toy data with nine modes", ("base", "itdpm", OURS), _nine_modes()),
        *([TableSpec("beyond", "Beyond the paper", ("base", "coda", *EXTENSIONS, OURS), beyond)] if extended else []),
    ]


def _all_tests(dataset: str, methods: tuple[str, ...]) -> TableSpec:
    columns = tuple(column for test, title in TESTS.items() for column in _prediction(dataset, test, title))
    title = f"All test sets of {dataset_title(dataset)}"
    return TableSpec(f"full_{dataset}", title, (*BASELINES, *methods, OURS), columns, gain=True)


def _prediction(dataset: str, test: str, heading: str) -> tuple[Column, Column]:
    return Column(dataset, f"{test}/acc", heading, "Acc."), Column(dataset, f"{test}/f1", heading, "Mac. F1")


def _beyond(dataset: str, shifted: bool) -> tuple[Column, ...]:
    heading = dataset_title(dataset)
    tests = {f"test{i}/acc": f"Test {i}" for i in (1, 2, 3)} if shifted else {"test/acc": "Test"}
    accuracies = (Column(dataset, metric, heading, label) for metric, label in tests.items())
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
