"""FedAvg's optimizer: plain local training and plain averaging.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-efficient learning of deep networks from decentralized
data. AISTATS 2017.
"""

from fnlkit.core.declarations import declare
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers.optimizer import FedOpt


@declare(cite="McMahan 2017")
def fedavg(fit: Fit, **settings) -> FedOpt:
    """Train locally without additional terms and average the models by their numbers of samples.

    Return FedAvg (McMahan 2017): local SGD, mean weighted by the number of samples.
    """
    return FedOpt(fit, **settings)
