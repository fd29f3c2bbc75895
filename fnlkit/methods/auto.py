"""Auto: train several methods on parts of the samples, and weight them by labels that they were not trained on.

A method of this project (docs/auto.md).  `fnlkit.experiment.crossfit` trains the methods.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch

from fnlkit.core.declarations import Sent, method
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Range, check_arguments
from fnlkit.federated.client.network import nothing
from fnlkit.kernels.committees import (
    PASSES,
    correct_agreement,
    count_expected,
    first_transition,
    next_transition,
    sum_products,
    usable_inverse,
)
from fnlkit.methods.fedavg import Round

if TYPE_CHECKING:
    from fnlkit.federated.client.network import Model
    from fnlkit.federated.server.clients import Clients
    from fnlkit.federated.server.optimizers.optimizer import FedOpt

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


# ---- on the client
# Private names: a server of real sites must not request these predictions and counts (fnlkit.sites.site.allowed).
def _predict_fold(client, model, received, *, fold, method, methods):
    """Write the predicted classes rows["guesses"] (n, M), and add to the sums of probabilities rows["sums"] (n, C).

    Only samples of the fold are predicted; the class of all others is unchanged, -1 at first.
    """
    mask = client.rows["input/fold"] == fold
    if "guesses" not in client.rows:
        client.rows["guesses"] = torch.full((len(client), methods), -1, dtype=torch.int64)
        client.rows["sums"] = torch.zeros(len(client), client.classes, dtype=torch.float64)
    p = model(client.x[mask]).double().softmax(-1).cpu()
    client.rows["guesses"][mask, method] = p.argmax(-1)
    client.rows["sums"][mask] += p


def _held_out(client, received):
    """Return (predicted classes (m, M), probabilities (m, C), given labels (m,)) of samples that all methods have predicted."""
    methods, none = received["methods"].cpu(), torch.zeros(0, dtype=torch.int64)
    if "guesses" not in client.rows:  # no sample was held out, or no training of its folds finished
        return none.view(0, len(methods)).numpy(), none.view(0, 1).expand(0, client.classes).numpy(), none.numpy()
    guesses = client.rows["guesses"][:, methods]
    mask = (guesses >= 0).all(1)
    sums = client.rows["sums"][mask]
    return guesses[mask].numpy(), (sums / sums.sum(1, keepdim=True)).numpy(), client.given.cpu()[mask].numpy()


def _count_expected(client, model, received):
    """Reply the expected numbers of samples by true and given class."""
    _, p, given = _held_out(client, received)
    return {"expected": torch.from_numpy(count_expected(p, given, received["matrix"].cpu()))}


def _count_agreements(client, model, received):
    """Reply the sums from which the server computes the weights."""
    guesses, _, given = _held_out(client, received)
    values = correct_agreement(guesses.T, given, received["inverse"].cpu())
    agreed = torch.from_numpy((guesses == given[:, None]).sum(0))
    return {"products": torch.from_numpy(sum_products(values)), "agreed": agreed}


# ---- the server
def measure_agreements(clients: "Clients", methods: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the argument (M + 1, M + 1) of `fnlkit.kernels.committees.find_weights`, and the plain agreements (M,).

    Parameters
    ----------
    clients : Clients
        They have predicted their samples of all folds.
    methods : (M,) int
        Numbers of the methods.
    """
    everyone, broadcast = np.flatnonzero(clients.sizes > 1), {"methods": torch.from_numpy(methods)}
    matrix = first_transition(clients.classes)
    for _ in range(PASSES):
        sent = broadcast | {"matrix": torch.from_numpy(matrix)}
        replies = clients.round(everyone, nothing(), _count_expected, expect=("expected",), broadcast=sent)
        matrix = next_transition(replies["expected"].sum(0))
    inverse = usable_inverse(matrix)
    if inverse is None:
        clients.note("auto: the transition matrix of the labels is nearly singular; agreements with them are not corrected")
        inverse = np.eye(clients.classes)
    sent, sides = broadcast | {"inverse": torch.from_numpy(inverse)}, {"methods": len(methods), "methods + 1": len(methods) + 1}
    replies = clients.round(everyone, nothing(), _count_agreements, expect=("products", "agreed"), broadcast=sent, sides=sides)
    return replies["products"].sum(0).numpy(), replies["agreed"].sum(0).numpy()


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
    """Return the weights of a run as a sentence.

    Parameters
    ----------
    last : dict
        The last row of a run of `auto`.
    """
    shares = {name.removeprefix("weight_"): value for name, value in last.items() if name.startswith("weight_")}
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])
    parts = [f"{name} {100 * share:.0f} % (agreement {100 * last[f'agreement_{name}']:.1f} %)" for name, share in ranked]
    return f"auto weights methods by their predictions for held-out samples: {', '.join(parts)}."
