"""Cross entropy with the working labels: plain, smoothed, or of selected samples; and with inferred labels."""

from typing import Annotated

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Range
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.parts import select_label


@declare(fused_kernel="cross_entropy")
def cross_entropy(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The cross entropy, the usual loss without protection against wrong labels.

    Return the cross entropy with the working labels, (..., B) in nats.

    Parameters
    ----------
    logits : Tensor (..., B, C)
    batch : fnlkit.federated.client.client.Batch
    """
    return -select_label(logits.log_softmax(-1), batch.y)


@declare(fused_kernel="smoothed", cite="Szegedy 2016")
def smoothed_cross_entropy(
    logits: torch.Tensor, batch: Batch, *, rate: Annotated[float, Range(-10, 1, open_high=True)] = 0.1
) -> torch.Tensor:
    """Smooth the labels: a share of each target is spread over all classes.

    Return the cross entropy with smoothed labels (1 - rate) one-hot + rate / C, (..., B) (Szegedy 2016, Section 7).

    Parameters
    ----------
    rate : float below 1
        0.2 in FedLN's comparison, 0.1 in FLR's.  Negative rates move the target away from the other classes (negative
        label smoothing, Wei 2022, eq. 2), -0.05 in FLR's comparison; values can then be negative.
    """
    logp = logits.log_softmax(-1)
    return -(1 - rate) * select_label(logp, batch.y) - rate * logp.mean(-1)


@declare(fused_kernel="kept")
def kept_cross_entropy(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Cross entropy weighted by ``rows["keep"]``, (..., B): 0 for pruned samples, n / kept for the others.

    The mean over an epoch is then the mean over the kept samples, independent of the batches.
    """
    return batch.rows["keep"].to(logits.dtype) * -select_label(logits.log_softmax(-1), batch.y)


@declare(fused_kernel="soft")
def soft_cross_entropy(logits: torch.Tensor, batch: Batch, *, kept: bool = False) -> torch.Tensor:
    """Loss -<q, log p>, (..., B), with inferred label distributions q, ``rows["inferred"]`` (..., B, C).

    Parameters
    ----------
    kept : bool
        Weight the samples by ``rows["keep"]``, as `kept_cross_entropy` does.
    """
    values = -(batch.rows["inferred"].to(logits) * logits.log_softmax(-1)).sum(-1)
    return batch.rows["keep"].to(values) * values if kept else values
