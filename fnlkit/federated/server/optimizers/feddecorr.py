"""FedDecorr: local training that keeps the features of a network from collapsing to few dimensions.

Shi, Liang, Zhang, Tan, Bai. Towards understanding and mitigating dimensional collapse in heterogeneous federated learning.
ICLR 2023.  The benchmark FNBench (Jiang 2025, arXiv:2505.06684) adds it to methods for noisy labels as its representation-aware
regularization.
"""

from functools import partial

from fnlkit.core.declarations import declare
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import NotNegative, check_arguments
from fnlkit.federated.client.drift import decorrelate
from fnlkit.federated.client.network import Network
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers.optimizer import FedOpt
from fnlkit.models.pair import Pair


def must_have_features(network: Network) -> None:
    """Raise InputError if a network is a pair, whose features are the logits of both networks."""
    if isinstance(network.module, Pair):
        raise InputError("feddecorr regularizes one network, and this method trains two; omit it", parameter="optimizer")


@declare(cite="Shi 2023")
@check_arguments
def feddecorr(fit: Fit, *, strength: NotNegative = 0.1, **settings) -> FedOpt:
    """Keep features uncorrelated, so that a network does not use few dimensions only.

    Return FedDecorr (Shi 2023): FedAvg with `penalties.decorrelate` of the last features added to the loss of
    every method.

    Parameters
    ----------
    strength : float >= 0
        beta; 0.1 in FNBench's public code.

    Notes
    -----
    In FNBench this is the representation-aware regularization, for methods with noisy labels.  Value and gradient equal its
    public code (tests/golden/feddecorr.npz).  Only abstract and public code of FNBench were available, not its equations.

    Methods that train two networks are refused; FNBench's code regularizes only the first of two networks.  With mixup, the
    features are those of mixed samples.  With `akd`, they include the output of the additional head.  A perceptron without
    hidden layers has no features that training can change.
    """
    penalized = fit.changed(penalty=partial(decorrelate, strength=strength), features=True)
    return FedOpt(penalized, suits=must_have_features, **settings)
