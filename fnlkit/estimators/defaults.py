"""Options of an estimate, and default settings of the short training that some estimators need."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fnlkit.core.errors import InputError
from fnlkit.core.options import option

# Differences from the defaults of fnlkit.experiment.Settings.  With 25 rounds, models have learned a part of the wrong labels:
# on spoken digits, encoded photographs and mriqc, AUC of `confident` 0.976, 0.921, 0.811 instead of 0.989, 0.945, 0.865
# (`clients(rho=0.6, tau=0.5)`, seeds 10 and 11).
WARM_UP: dict[str, Any] = {"rounds": 10, "fraction": 0.2, "augment": "none"}
# Rounds of estimators that judge clients by models that have learned; levels of `energy` are worse with 10.
ROUNDS = {"lid": 25, "energy": 25}
# Smallest cohort of a round, or all clients if there are fewer: a model trained by one or two clients memorizes their labels.
LEAST_COHORT = 10


def warm_up_of(clients: int, given: dict[str, Any] | None = None, estimator: str = "") -> dict[str, Any]:
    """Choose the warm-up settings of an estimator for this number of clients; `given` settings take precedence.

    The result contains fields of fnlkit.experiment.Settings.
    """
    fraction = max(WARM_UP["fraction"], min(1.0, LEAST_COHORT / clients))
    rounds = ROUNDS.get(estimator, WARM_UP["rounds"])
    return WARM_UP | {"fraction": fraction, "rounds": rounds} | (given or {})


Form = Literal["pooled", "federated"]


@dataclass(frozen=True, kw_only=True)
class EstimateOptions:
    """Options of an estimate: keywords of `estimate`, `EstimatorInputs` and `fnlkit.estimate_noise`.

    Parameters
    ----------
    embeddings : float (n, d), optional
        One row for each sample of the training set, for ``knn``.
    probabilities : float (n, C), optional
        Predictions of a model that did not train on the sample, for ``confident``, ``loss`` and ``anchor``.
    run : fnlkit.artifacts.run.Run, optional
        A trained model that replaces the warm-up.
    form : "pooled" or "federated"
        "pooled" reads all samples in one place, which is possible only in a simulation. "federated" runs steps at each client;
        the replies are declared (``@declare(sends=...)``) and metered.  Both give the same numbers.
    seed : int >= 0
    warm_up : dict, optional
        Fields of fnlkit.experiment.Settings for estimators that train a model. Default: the defaults of Settings with the
        changes in `fnlkit.estimators.WARM_UP`; 25 rounds for ``lid`` and ``energy``; at least 10 clients train in each round.
        ``confident`` and ``em`` train networks if a field, an engine or a device is given, and for large images
        (fnlkit.estimators.folds.heads_predict); otherwise they compute heads of ``fedsums``.
    engine, device : str
        As in fnlkit.experiment.Experiment.
    say : callable(str), optional
        Called with each note about an assumption, such as the default embedding or in-sample predictions.
    progress : callable(done, total, what), optional
        Called after each round of a training with the finished client-rounds, their total and the name of the training.

    Raises
    ------
    InputError
        If the form is unknown.
    """

    embeddings: object = option(
        None, "A backbone or a file of vectors, for the estimator knn. Default: as `backbone`.", metavar="SPEC|FILE"
    )
    probabilities: object = option(
        None, "Out-of-sample class probabilities (samples, classes) as npz or npy.", metavar="FILE", flag="--probs"
    )
    run: object = option(None, "Use the model of this run instead of training one.", metavar="RUN.pt")
    form: Form = option(
        "pooled",
        "Form: pooled uses all samples in one place (simulation only); federated uses declared replies of clients.",
    )
    seed: int = 0
    warm_up: dict[str, Any] | None = None
    engine: str = "auto"
    device: str = "auto"
    say: Callable[..., Any] | None = None
    progress: Callable[..., Any] | None = None

    def __post_init__(self):
        if self.form not in get_args(Form):
            raise InputError(f"{self.form!r}: write {' or '.join(get_args(Form))}", parameter="form")
