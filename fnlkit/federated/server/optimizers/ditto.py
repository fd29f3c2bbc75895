"""Ditto: each client also trains a personal model, which is regularized towards the common model.

Li, Hu, Beirami, Smith. Ditto: Fair and robust federated learning through personalization. ICML 2021.
"""

from functools import partial

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import NotNegative, check_arguments
from fnlkit.federated.client.client import Client, LocalModel, Received
from fnlkit.federated.client.drift import towards_global
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers.optimizer import Additions, FedOpt, Request


# ---- on the client
def take_personal(client: Client, model: LocalModel, received: Received) -> None:
    """Load v_k, initially the first model received, and store the common model."""
    p = model.network.parameters_count
    client.state["global"] = model.start[:p].clone()
    model.weights = client.state.get("personal", model.start).clone()


def keep_personal(client: Client, model: LocalModel, received: Received) -> None:
    """Store v_k and return to the common model."""
    client.state["personal"], model.weights = model.weights.clone(), model.start
    del client.state["global"]


# ---- the server
def train_both(request: Request, *, strength: float) -> Additions:
    """Train v_k on loss + lambda/2 ||v_k - w||^2 before the common model, in the same batches."""
    personal = request.fit.changed(corrections=(partial(towards_global, strength=strength),))
    return Additions(before=(take_personal, personal, keep_personal))


@declare(cite="Li 2021")
@check_arguments
def ditto(fit: Fit, *, strength: NotNegative = 0.1, **settings) -> FedOpt:
    """Train the common model, and for each client a personal model that stays near it.

    Return Ditto (Li 2021, Algorithm 1): FedAvg, and personal models v_k in ``client.state["personal"]`` (P + Q,).

    Clients send no additional replies.  The common model, which a run stores and evaluates, is that of FedAvg.  A client
    trains twice per round.

    Parameters
    ----------
    strength : float >= 0
        lambda; 0.1 to 2 in the paper.  With 0 a personal model is trained without the common model.
    """
    return FedOpt(fit, prepare=partial(train_both, strength=strength), **settings)
