"""Drift terms and penalties: what an optimizer adds to the gradient or to the loss of local training.

A drift term is a function (w (..., P), w_start (..., P), batch) -> term (..., P) that is added to the gradient.  A penalty is a
function (features (..., B, width), batch) -> (...) that is added to the mean loss of a batch.  They operate on the last axes
and broadcast over the others, so that one client and a stacked cohort share the code.
"""

import torch

from fnlkit.core.declarations import declare
from fnlkit.federated.client.client import Batch


@declare(fused_kernel="proximal")
def proximal(w: torch.Tensor, w_start: torch.Tensor, batch: Batch, *, mu: float) -> torch.Tensor:
    """Gradient of mu/2 ||w - w_start||^2 (FedProx, Li 2020, eq. 2)."""
    return mu * (w - w_start)


@declare(fused_kernel="control_variate")
def control_variate(w: torch.Tensor, w_start: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Correction c - c_k, c ``received["control"]`` (P,), c_k ``state["control"]`` (..., P) (SCAFFOLD, Karimireddy 2020)."""
    return (batch.received["control"].to(w) - batch.state["control"]).expand_as(w)


@declare(fused_kernel="towards_global")
def towards_global(w: torch.Tensor, w_start: torch.Tensor, batch: Batch, *, strength: float) -> torch.Tensor:
    """Gradient of strength/2 ||w - w_global||^2 with w_global ``state["global"]`` (..., P) (Ditto, Li 2021)."""
    return strength * (w - batch.state["global"])


@declare(fused_kernel="dynamic")
def dynamic(w: torch.Tensor, w_start: torch.Tensor, batch: Batch, *, alpha: float) -> torch.Tensor:
    """Gradient of alpha/2 ||w - w_start||^2 - <g, w> with g ``state["dual"]`` (FedDyn, Acar 2021, eq. 1)."""
    return alpha * (w - w_start) - batch.state["dual"]


def decorrelate(features: torch.Tensor, batch: Batch, *, strength: float) -> torch.Tensor:
    """Penalty strength times the mean squared correlation of two features, times B, (...): FedDecorr (Shi 2023).

    Features are standardized over the batch with the variance of B - 1, plus 1e-8.  With K = Z^T Z of the standardized features
    Z (B, width), the value is strength / B times the mean of the squared entries of K off the diagonal, as in FNBench's public
    code.  A batch of one sample and a network of one feature have the value 0.

    Parameters
    ----------
    features : Tensor (..., B, width)
    strength : float >= 0
    """
    size, width = features.shape[-2:]
    if size == 1 or width == 1:
        return (0 * features).sum((-2, -1))
    centered = features - features.mean(-2, keepdim=True)
    z = centered / (1e-8 + centered.square().sum(-2, keepdim=True) / (size - 1)).sqrt()
    products = z.transpose(-1, -2) @ z
    diagonal = torch.diagonal(products, dim1=-2, dim2=-1)
    off_diagonal = products.square().sum((-2, -1)) - diagonal.square().sum(-1)
    return strength * off_diagonal / (width * (width - 1) * size)
