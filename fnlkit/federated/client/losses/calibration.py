"""The cross entropy of sharpened or flattened predictions: baselines of FLR's entropy regularization."""

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import NotNegative, Positive
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.cross_entropy import cross_entropy


@declare(cite="Guo 2017")
def temperature_scaled(logits: torch.Tensor, batch: Batch, *, temperature: Positive = 4.0) -> torch.Tensor:
    """Train less or more confident predictions by a temperature of the softmax.

    Return the cross entropy of softmax(logits / T), (..., B) (Guo 2017, eq. 9; FLR, appendix E.6).

    Parameters
    ----------
    temperature : float > 0
        T; 4 in FLR's comparison.  Values below 1 sharpen: 0.25 multiplies logits by 4.

    Notes
    -----
    FLR calls 4.0 a sharpening temperature.  Only division gains accuracy as in its Table 7; multiplication loses
    (benchmarks/results/temperature.txt).  In short runs, division loses too.
    """
    return cross_entropy(logits / temperature, batch)


@declare(cite="Grandvalet 2004")
def entropy_minimized(logits: torch.Tensor, batch: Batch, *, strength: NotNegative = 4.0) -> torch.Tensor:
    """Train more confident predictions by an entropy term that does not depend on the label.

    Return CE + strength H(p), H(p) = -sum_j p_j log p_j, (..., B) (Grandvalet, Bengio 2004; FLR, appendix E.6).

    Parameters
    ----------
    strength : float >= 0
        4 in FLR's comparison.
    """
    logp = logits.log_softmax(-1)
    return cross_entropy(logits, batch) - strength * (logp.exp() * logp).sum(-1)
