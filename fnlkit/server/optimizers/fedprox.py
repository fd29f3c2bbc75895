"""FedProx: local models are held near the global one.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks. MLSys 2020.
"""

from functools import partial

from fnlkit.client.drift import proximal
from fnlkit.parameters import NotNegative, checked
from fnlkit.server.optimizers.optimizer import FedOpt


@checked
def fedprox(fit, *, mu: NotNegative = 0.001, **settings):
    """Hold local models near the common one by a penalty on their distance.

    Return FedProx (Li 2020): the local loss gains mu/2 ||w - w_global||^2.

    Parameters
    ----------
    mu : float >= 0
        1 in FedCorr's comparison, 0.001 in FLR's.
    """
    return FedOpt(fit, corrections=(partial(proximal, mu=mu),), **settings)
