"""Penalties: functions (features (..., B, width), batch) -> (...) that are added to the mean loss of a batch.

They operate on the last two axes and broadcast over the others, so that one client and a stacked cohort share the code.
"""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from fnlkit.federated.client.client import Batch


def decorrelate(features: "torch.Tensor", batch: "Batch", *, strength: float) -> "torch.Tensor":
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
