"""The short training that some estimators need, where nobody chose its settings."""

# Where it differs from the defaults of fnlkit.experiment.Settings.
WARM_UP = {"rounds": 25, "fraction": 0.2, "augment": "none"}
# At least so many clients train in each of its rounds, or all where there are fewer: a model of one or two knows their labels.
LEAST_COHORT = 10


def warm_up_of(clients, given=None):
    """Return the warm-up's settings, as fields of fnlkit.experiment.Settings, for so many clients; `given` ones win."""
    fraction = max(WARM_UP["fraction"], min(1.0, LEAST_COHORT / clients))
    return WARM_UP | {"fraction": fraction} | (given or {})
