from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

from codid_lightning.clustering import DPGMM, KMeans


def exceptions(estimator: BaseEstimator) -> dict[str, str]:
    """Checks an estimator is not meant to pass, and why."""
    searches = isinstance(estimator, DPGMM) and estimator.max_rounds > 0
    return {"check_clustering": "n_clusters is where the search starts, not a bound"} if searches else {}


@parametrize_with_checks(
    [DPGMM(max_clusters=20), DPGMM(max_rounds=0), KMeans(n_clusters=3)], expected_failed_checks=exceptions
)
def test_estimator_contract(estimator, check):
    check(estimator)
