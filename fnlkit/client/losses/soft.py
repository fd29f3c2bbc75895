"""Losses towards inferred labels."""

from typing import TYPE_CHECKING

from fnlkit.components.declarations import declare
from fnlkit.kernels.terms import FusedLoss

if TYPE_CHECKING:
    import torch

    from fnlkit.client.client import Batch


def _soft_terms(visit, *, kept=False):
    rows, kind = visit.client.rows, visit.model.weights.dtype
    keep = rows["keep"].to(kind).numpy() if kept else None
    return FusedLoss(kind="soft", soft=rows["inferred"].to(kind).numpy(), keep=keep)


@declare(terms=_soft_terms)
def soft_cross_entropy(logits: "torch.Tensor", batch: "Batch", *, kept: bool = False) -> "torch.Tensor":
    """Return -<q, log p>, (..., B), with inferred label distributions q, ``rows["inferred"]`` (..., B, C).

    Parameters
    ----------
    kept : bool
        Weight the samples by ``rows["keep"]``, as `kept_cross_entropy` does.
    """
    values = -(batch.rows["inferred"].to(logits) * logits.log_softmax(-1)).sum(-1)
    return batch.rows["keep"].to(values) * values if kept else values
