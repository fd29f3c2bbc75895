"""Options of an estimate, declared once for Python and for the command `fnlkit estimate-noise`."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

from fnlkit.components.options import option, show_keywords
from fnlkit.errors import InputError

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
    engine, device : str
        As in fnlkit.experiment.Experiment.
    say : callable(str), optional
        Called with each note about an assumption, such as the default embedding or in-sample predictions.
    progress : callable(done, total, what), optional
        Called after each round of a training with the finished client-rounds, their total and the name of the training.
    sites : fnlkit.sites.remote.Remote, optional
        Real sites that hold the samples.  The federation then contains only the numbers of samples.

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
    sites: object = None

    def __post_init__(self):
        if self.form not in get_args(Form):
            raise InputError(f"{self.form!r}: write {' or '.join(get_args(Form))}", parameter="form")


NAMES = tuple(f.name for f in fields(EstimateOptions))


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Show the fields of EstimateOptions in the signature of a function that accepts them as its last ``**keywords``.

    Parameters that the function declares are not changed.
    """
    return cast(Callable[..., Any], show_keywords(function, EstimateOptions))
