"""Reference: every client trains alone; nothing is averaged."""

from fnlkit.methods.fedavg import Round
from fnlkit.methods.sends import Sent
from fnlkit.parameters import checked

SENDS = {"weights": Sent("its own model, which is only tested; no other client receives it", "every round", ("P",), "float32")}


def needs(**parameters):
    """Return what a run must have: ``own`` tests each client's ``state["own"]`` in place of a common model."""
    return ("own",)


# ---- on the client
def take_own(client, model, received):
    """Continue with the client's own model, which starts as the first one received."""
    model.weights = client.state.get("own", model.start).clone()


def keep_own(client, model, received):
    client.state["own"] = model.weights.clone()


# ---- the server
@checked
def local(clients, model, opt, select, *, rounds):
    """Train each client's own model in the rounds in which it is selected; none of them learns of another.

    The accuracy of a run is the mean over all clients of their own models' accuracy on the common test set; clients that
    were not selected yet count with the model that all start from.

    Parameters
    ----------
    rounds : int
    """
    for _ in range(rounds):
        _, said = opt.round(clients, select(clients, model), model, before=(take_own,), after=(keep_own,))
        yield Round(model, "training", said)
    return model
