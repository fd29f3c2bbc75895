"""Auto: train several methods on parts of the samples, and weight them by labels that they were not trained on.

A method of this project (docs/auto.md).  `fnlkit.experiment.crossfit` trains the methods, and
`fnlkit.federated.server.agreement` counts how often each agrees with held-out labels.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fnlkit.core.declarations import Sent, method
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Range, check_arguments

if TYPE_CHECKING:
    from fnlkit.federated.types import Clients, FedOpt, Model, Round

CANDIDATES = ("fedavg", "rofl", "fedefc", "confident-learning", "fedem")
SENDS = {
    "expected": Sent(
        "expected numbers of held-out samples by true and given class", "all clients, ten times after the folds", ("C", "C"),
        low=0, high="n", summed=True,
    ),
    "products": Sent(
        "sum of v v' over held-out samples, v = (1, corrected agreement of each method)", "all clients, once after the folds",
        ("methods + 1", "methods + 1"), summed=True,
    ),
    "agreed": Sent.counts(
        "held-out samples whose given label a method predicts", "all clients, once after the folds", ("methods",), summed=True
    ),
}  # fmt: skip


@method(sends=SENDS, loss="own", needs=("folds",), schedule=lambda rounds: rounds)
@check_arguments
def auto(
    clients: "Clients",
    model: "Model",
    opt: "FedOpt",
    select: Callable[..., Any],
    *,
    rounds: int,
    of: Sequence[Any] = CANDIDATES,
    folds: Annotated[int, Range(2, 20)] = 5,
) -> "Generator[Round, None, Model]":
    """Average several methods, weighted by the probability that each predicts held-out samples best.

    Each client divides its samples into folds.  For each fold and each method, a model is trained without the samples of the
    fold and predicts them.  From these predictions and the given labels, a transition matrix of the labels is estimated, and
    each method's accuracy.  The weight of a method is the probability that its accuracy is the largest.  Methods with a weight
    are then trained on all samples, and predict together: with the weighted mean of their probabilities.

    Parameters
    ----------
    rounds : int
        Rounds of each training.
    of : list of methods
        For example ``[fedem, rofl(forget=0.3), mine.py:m]``.  Methods that need two networks, embeddings, public samples or
        true labels are refused.
    folds : int from 2 to 20
        Parts into which each client divides its samples.

    Notes
    -----
    **The costs are those of many trainings**: 25 on four fifths of the samples with the defaults, and one to five on all
    samples.  The run contains a network for each method with a weight.

    The estimate of accuracy is unbiased if errors do not depend on the input, given the class, and if the matrix is right
    (`fnlkit.kernels.committees`).  If errors follow the inputs, as those of weak labelers do, a method that repeats them looks
    best.  With few samples the probabilities are similar, and the prediction is nearly an equal mean; with many it is that of
    the best method.  A method with a probability below 5 % has no weight, nor one of which a training fails.

    A client with one sample always trains.  Labels of the same sample at several clients are in the same fold.

    Real sites refuse the method.

    Reports
    -------
    For each method agreement_NAME, the share of held-out given labels that it predicts, and weight_NAME; once.
    """
    raise InputError("`auto` trains methods on parts of the samples, which only `train` can do; use it as `method`")
    yield


def explain_choice(last: dict[str, Any]) -> str:
    """State the weights of a run in a sentence.

    Parameters
    ----------
    last : dict
        The last row of a run of `auto`.
    """
    shares = {name.removeprefix("weight_"): value for name, value in last.items() if name.startswith("weight_")}
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])
    parts = [f"{name} {100 * share:.0f} % (agreement {100 * last[f'agreement_{name}']:.1f} %)" for name, share in ranked]
    return f"auto weights methods by their predictions for held-out samples: {', '.join(parts)}."
