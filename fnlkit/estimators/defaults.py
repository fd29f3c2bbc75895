"""Default settings of the short training that some estimators need."""

from typing import Any

# Differences from the defaults of fnlkit.experiment.Settings.  With 25 rounds, models have learned a part of the wrong labels:
# on spoken digits, encoded photographs and mriqc, AUC of `confident` 0.976, 0.921, 0.811 instead of 0.989, 0.945, 0.865
# (`clients(rho=0.6, tau=0.5)`, seeds 10 and 11).
WARM_UP: dict[str, Any] = {"rounds": 10, "fraction": 0.2, "augment": "none"}
# Rounds of estimators that judge clients by models that have learned; levels of `energy` are worse with 10.
ROUNDS = {"lid": 25, "energy": 25}
# Smallest cohort of a round, or all clients if there are fewer: a model trained by one or two clients memorizes their labels.
LEAST_COHORT = 10


def warm_up_of(clients: int, given: dict[str, Any] | None = None, estimator: str = "") -> dict[str, Any]:
    """Return the warm-up settings of an estimator for this number of clients; `given` settings take precedence.

    The result contains fields of fnlkit.experiment.Settings.
    """
    fraction = max(WARM_UP["fraction"], min(1.0, LEAST_COHORT / clients))
    rounds = ROUNDS.get(estimator, WARM_UP["rounds"])
    return WARM_UP | {"fraction": fraction, "rounds": rounds} | (given or {})
