"""Ditto: beside the common model each client trains one of its own, held near the common one.

Li, Hu, Beirami, Smith. Ditto: Fair and robust federated learning through personalization. ICML 2021.
"""

from functools import partial

from fnlkit.client.drift import towards_global
from fnlkit.parameters import NotNegative, checked
from fnlkit.server.optimizers.optimizer import Additions, FedOpt


# ---- on the client
def take_personal(client, model, received):
    """Continue with v_k, which starts as the first model received; remember the common one."""
    p = model.network.parameters_count
    client.state["global"] = model.start[:p].clone()
    model.weights = client.state.get("personal", model.start).clone()


def keep_personal(client, model, received):
    """Keep v_k and go on to the common model."""
    client.state["personal"], model.weights = model.weights.clone(), model.start
    del client.state["global"]


# ---- the server
def train_both(request, *, strength):
    """Train v_k on loss + lambda/2 ||v_k - w||^2 before the common model, in the same batches."""
    personal = request.fit.changed(corrections=(partial(towards_global, strength=strength),))
    return Additions(before=(take_personal, personal, keep_personal))


@checked
def ditto(fit, *, strength: NotNegative = 0.1, **settings):
    """Train the common model, and a personal one for each client that stays near it.

    Return Ditto (Li 2021, Algorithm 1): FedAvg, and personal models v_k in ``client.state["personal"]`` (P + Q,).

    Nothing more is sent; the common model, which a run holds and evaluates, is FedAvg's.  A round costs a client twice
    the training.

    Parameters
    ----------
    strength : float >= 0
        lambda; 0.1 to 2 in the paper, 0 trains alone.
    """
    return FedOpt(fit, prepare=partial(train_both, strength=strength), **settings)
