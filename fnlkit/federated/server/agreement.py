"""Agreement of several models with held-out labels, from sums that clients send: the weights of a committee (method `auto`)."""

import numpy as np
import torch

from fnlkit.federated.client.network import nothing
from fnlkit.federated.server.clients import Clients
from fnlkit.kernels.committees import (
    PASSES,
    correct_agreement,
    count_expected,
    first_transition,
    next_transition,
    sum_products,
    usable_inverse,
)


# ---- on the client
# Not in fnlkit.methods: a server of real sites must not request these predictions and counts (fnlkit.sites.site.allowed).
def predict_fold(client, model, received, *, fold, method, methods):
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
    """Collect predicted classes (m, M), probabilities (m, C) and given labels (m,) of samples that all methods predicted."""
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
def measure_agreements(clients: Clients, methods: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Measure the argument (M + 1, M + 1) of `fnlkit.kernels.committees.find_weights`, and the plain agreements (M,).

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
