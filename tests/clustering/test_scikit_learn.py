import subprocess
import sys

from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from codid_lightning.clustering import DPGMM, KMeans


def exceptions(estimator: BaseEstimator) -> dict[str, str]:
    """Checks an estimator is not meant to pass, and why."""
    searches = isinstance(estimator, DPGMM) and estimator.max_rounds > 0
    reasons = {
        "check_clustering": "n_clusters is where the search starts, not a bound",
        "check_sample_weight_equivalence_on_dense_data": "centres are drawn at random, others if samples repeat",
    }
    return reasons if searches else {}


@parametrize_with_checks([DPGMM(), DPGMM(max_rounds=0), KMeans(n_clusters=3)], expected_failed_checks=exceptions)
def test_estimator_contract(estimator, check):
    check(estimator)


def test_clustering_loads_neither_lightning_nor_matplotlib():
    names = "{name.partition('.')[0] for name in sys.modules}"
    code = f"import sys; from codid_lightning.clustering import DPGMM; print(*{names})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "sklearn" in loaded
    assert not {"lightning", "matplotlib", "torchmetrics", "torchvision", "wandb", "datamodules"} & set(loaded)
