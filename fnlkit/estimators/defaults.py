"""Default settings of the short training that some estimators need."""

from typing import Any

# Differences from the defaults of fnlkit.experiment.Settings.
WARM_UP: dict[str, Any] = {"rounds": 25, "fraction": 0.2, "augment": "none"}
# Smallest cohort of a round, or all clients if there are fewer: a model trained by one or two clients memorizes their labels.
LEAST_COHORT = 10


def warm_up_of(clients: int, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the warm-up settings for this number of clients; `given` settings take precedence.

    The result contains fields of fnlkit.experiment.Settings.
    """
    fraction = max(WARM_UP["fraction"], min(1.0, LEAST_COHORT / clients))
    return WARM_UP | {"fraction": fraction} | (given or {})
