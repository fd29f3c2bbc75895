"""Auto: choose between two methods by the number of samples and by a test for curved class borders.

A method of this project (docs/auto.md).  The rule and its two numbers were chosen on the first two parts of the recipe
`league-real`, and judged on its third part.
"""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import torch

from fnlkit.components.declarations import Sent, method
from fnlkit.components.parameters import NotNegative, Share, check_arguments
from fnlkit.methods.fedavg import Round, refuse_mixup
from fnlkit.methods.fedem import fedem
from fnlkit.methods.forward import confident_learning
from fnlkit.methods.label_inference import SENDS, SUMS, gaussian_head, symmetric, triangle
from fnlkit.methods.prestopping import ACCURACY, monitoring_rounds
from fnlkit.methods.warmup import warmup_sixth

if TYPE_CHECKING:
    from fnlkit.client.client import Client, LocalModel
    from fnlkit.client.network import Model
    from fnlkit.server.clients import Clients
    from fnlkit.server.optimizers.optimizer import FedOpt


# The test needs a covariance of the inputs; with more of them it is left out.
MOST_INPUTS = 1024
RIDGE = 1.0  # as in `gaussian_head`
_ONCE = "all clients once, if there are few samples"
_INPUTS: dict[str, Any] = {
    "input_products": Sent("upper triangle of the sum of x x' over samples, x inputs", _ONCE, ("D(D+1)/2",), "float32", **SUMS),
    "class_inputs": Sent("sum of inputs by given class", _ONCE, ("C", "D"), **SUMS),
}
_AGREED = {"agreed": Sent("samples whose label two classifiers predict", _ONCE, (2,), low=0, high="n", summed=True)}


# ---- on the client
def _inputs_of(client, model):
    """Return the inputs (n, D) of a client, scaled as for the network, and their features (n, d), as float64 on the CPU."""
    return model.inputs.plain(client.x).flatten(1).cpu().double(), model.features(client.x).cpu().double()


# A private name: a server of real sites must not request these sums (fnlkit.deploy.allowed).
def _sum_inputs(client, model, received):
    """Reply the sums of a Gaussian classifier of the given labels on inputs, and of one on features of the network."""
    x, features = _inputs_of(client, model)
    given = torch.nn.functional.one_hot(client.y.cpu(), client.classes).double()
    reply = {
        "input_products": triangle(x.T @ x).float(),
        "class_inputs": given.T @ x,
        "products": triangle(features.T @ features).float(),
        "class_features": given.T @ features,
        "counts": given.sum(0).diag(),
    }
    client.state |= {f"own_{name}": value.double() for name, value in reply.items()}
    return reply


def count_agreement(client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Reply how many labels the classifiers of the other clients predict, on inputs and on features (2,).

    ``received`` has the sums of all clients.  A client that they include subtracts its own.
    """
    names = ("input_products", "class_inputs", "products", "class_features", "counts")
    own = {name: client.state.pop(f"own_{name}", None) for name in names}
    sums = {name: received[name].double().cpu() for name in names}
    if own["counts"] is not None and received["included"]:
        sums = {name: total - own[name] for name, total in sums.items()}
    counts, agreed = sums["counts"].diagonal(), []
    for values, products, by_class in zip(_inputs_of(client, model), names[::2], names[1::2], strict=False):
        if counts.sum() < 1:  # no other client
            agreed.append(0)
            continue
        head = gaussian_head(symmetric(sums[products]), sums[by_class], counts, RIDGE)
        agreed.append(int(((values @ head[:-1] + head[-1]).argmax(-1) == client.y.cpu()).sum()))
    return {"agreed": torch.tensor(agreed, dtype=torch.float64)}


# ---- the server
def compare_borders(clients: "Clients", model: "Model") -> tuple[float, float]:
    """Return the shares of labels that a linear and a curved classifier of the other clients predict.

    Gaussian classifiers with a common covariance, of the given labels: one on the inputs, one on the features of the untrained
    network.
    """
    replies = clients.round(range(len(clients)), model, _sum_inputs, expect=tuple(_INPUTS | SENDS))
    told = {name: replies[name].sum(0, dtype=torch.float64) for name in _INPUTS | SENDS}
    included = torch.isin(torch.arange(len(clients)), torch.as_tensor(replies.ids)).double()
    replies = clients.round(
        range(len(clients)), model, count_agreement, expect=tuple(_AGREED), broadcast=told, scatter={"included": included}
    )
    linear, curved = (replies["agreed"].sum(0) / max(1.0, float(clients.sizes[replies.ids].sum()))).tolist()
    return linear, curved


def count_inputs(model: "Model") -> float:
    """Return the number of inputs of a network that begins with a linear layer, infinity for others."""
    first = next(iter(model.network.module.parameters()))
    return first.shape[1] if first.ndim == 2 else float("inf")


def find_schedule(rounds: int) -> tuple[int, tuple[int, int]]:
    """Return the parts of both methods' schedules that depend on the rounds."""
    return warmup_sixth(-1, rounds), monitoring_rounds(rounds, -1, -1)


@method(sends=SENDS | _INPUTS | _AGREED | ACCURACY, loss="own", schedule=find_schedule)
@check_arguments
def auto(
    clients: "Clients",
    model: "Model",
    opt: "FedOpt",
    select: Callable[..., Any],
    *,
    rounds: int,
    few: NotNegative = 5.5,
    curved: Share = 0.02,
) -> "Generator[Round, None, Model]":
    """Choose confident learning for few samples without curved class borders, otherwise FedEM.

    With few samples, the Gaussian classifier of `fedem` on the features of the network learns single wrong labels.  Pruning
    by the predictions of an early network is better there, but fails if early predictions are linear and the class borders are
    not.  Two Gaussian classifiers decide, each on labels of a client that it was not made from: one on the inputs, one on the
    features of the untrained network.

    Parameters
    ----------
    rounds : int
    few : float >= 0
        Fewer samples of all clients than `few` for each feature of the network count as few.
    curved : float in [0, 1]
        Borders count as curved if the classifier on features agrees with at least this share more of the labels.

    Notes
    -----
    With enough samples, or a network that does not begin with a linear layer of at most 1,024 inputs, the method is `fedem`,
    without the test.

    The test costs bytes and no client-round.  **The sums of a single client reveal its samples** (docs/privacy.md); with two
    clients, each can compute the sums of the other.  A run stores only sums over all clients.  Real sites refuse the method.

    Reports
    -------
    rows_per_feature, and if there are few linear_agreement and curved_agreement, shares of the given labels; once.
    """
    refuse_mixup(opt, "auto")
    rows = float(clients.sizes.sum()) / getattr(model.network.module, "width", 1)  # a network of a user may not state it
    chosen, report = fedem, {"rows_per_feature": rows}
    if rows < few and count_inputs(model) <= MOST_INPUTS:
        linear, bent = compare_borders(clients, model)
        chosen = confident_learning if bent - linear < curved else fedem
        report |= {"linear_agreement": linear, "curved_agreement": bent}
    training = chosen(clients, model, opt, select, rounds=rounds)
    while True:
        try:
            step = next(training)
        except StopIteration as end:
            return end.value
        yield step._replace(report=step.report | report)
        report = {}


def explain_choice(history: list[dict[str, Any]]) -> str:
    """Return the choice of a run as a sentence.

    Parameters
    ----------
    history : list of dict
        Rows of a run of `auto`.
    """
    first = history[0]
    name = "confident-learning" if first["stage"] == "prestopping" else "fedem"
    text = f"auto chose {name}: there are {first['rows_per_feature']:.1f} samples for each feature of the network"
    if "linear_agreement" not in first:
        return f"{text}."
    linear, curved = (100 * first[f"{kind}_agreement"] for kind in ("linear", "curved"))
    return f"{text}; of the labels, a linear classifier of the other clients predicts {linear:.0f} %, a curved {curved:.0f} %."
