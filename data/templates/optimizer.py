"""A custom optimizer: change the local gradients and the server's update.

Save this as mine.py and run it:

    fnlkit partition --clients 4 | fnlkit inject-noise -o noisy.npz
    fnlkit train noisy.npz --optimizer 'mine.py:part(pull=0.1)' --rounds 2 --fraction 0.5 -o run.pt
"""

from functools import partial

from fnlkit.federated.server.optimizers import Additions, FedOpt


def towards_start(w, w_start, batch, *, pull):
    """Return a gradient term that pulls the model towards its start in this round."""
    return pull * (w - w_start)


def half_way(updates, merged):
    """Return the new global model, half way from the last one to the clients' mean."""
    return (updates.start + merged) / 2


def part(fit, *, pull=0.01, **settings):
    """Return a FedOpt; fit and settings are supplied by the run and passed on."""
    correction = partial(towards_start, pull=pull)
    return FedOpt(fit, server=half_way, prepare=lambda request: Additions(corrections=(correction,)), **settings)
