"""FedNova: normalize updates by the number of local steps, so that clients with more steps do not bias the objective.

Wang, Liu, Liang, Joshi, Poor. Tackling the objective inconsistency problem in heterogeneous federated optimization.
NeurIPS 2020.
"""

import torch

from fnlkit.core.declarations import declare
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers.optimizer import FedOpt, Updates, gradient_weight


def normalize(updates: Updates) -> torch.Tensor:
    """Rescale to w + (tau_eff / ||a_k||_1) (w_k - w), (K, P), with tau_eff the weighted mean of ||a_k||_1 (eqs. 7 and 9)."""
    length = gradient_weight(updates.sizes[updates.ids], updates.fit)
    effective = (updates.weights * length).sum() / updates.weights.sum()
    scale = (effective / length).to(updates.trained)[:, None]
    return updates.start + scale * (updates.trained - updates.start)


@declare(cite="Wang 2020")
def fednova(fit: Fit, **settings) -> FedOpt:
    """Normalize updates by the number of local steps, for clients of different sizes.

    Return FedNova (Wang 2020): updates are divided by the client's accumulated steps and multiplied by the mean over the
    clients.

    The server computes the steps from each client's number of samples, so clients send no additional replies.  With local Adam
    each step counts as one.
    """
    return FedOpt(fit, rescale=normalize, **settings)
