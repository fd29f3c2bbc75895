"""Losses towards inferred labels."""

from typing import TYPE_CHECKING

from fnlkit.core.declarations import declare

if TYPE_CHECKING:
    import torch

    from fnlkit.federated.client.client import Batch


@declare(fused_kernel="soft")
def soft_cross_entropy(logits: "torch.Tensor", batch: "Batch", *, kept: bool = False) -> "torch.Tensor":
    """Loss -<q, log p>, (..., B), with inferred label distributions q, ``rows["inferred"]`` (..., B, C).

    Parameters
    ----------
    kept : bool
        Weight the samples by ``rows["keep"]``, as `kept_cross_entropy` does.
    """
    values = -(batch.rows["inferred"].to(logits) * logits.log_softmax(-1)).sum(-1)
    return batch.rows["keep"].to(values) * values if kept else values
