"""FedProx: regularize local models towards the global model.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated optimization in heterogeneous networks. MLSys 2020.
"""

from functools import partial

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import NotNegative, check_arguments
from fnlkit.federated.client.drift import proximal
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers.optimizer import FedOpt


@declare(cite="Li 2020")
@check_arguments
def fedprox(fit: Fit, *, mu: NotNegative = 0.001, **settings) -> FedOpt:
    """Keep local models near the common model by a penalty on their distance.

    Return FedProx (Li 2020): mu/2 ||w - w_global||^2 is added to the local loss.

    Parameters
    ----------
    mu : float >= 0
        1 in FedCorr's comparison, 0.001 in FLR's.
    """
    return FedOpt(fit, corrections=(partial(proximal, mu=mu),), **settings)
