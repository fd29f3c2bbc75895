"""Losses: (logits (..., B, C), batch) -> values (..., B), or (values, rows to write back).

They act on the last axis and broadcast over the rest, so that one client and a stacked cohort share the code.
"""

import torch


def cross_entropy(logits, batch, *, smoothing=0.0):
    """Return the cross entropy with the working labels, (..., B) in nats.

    Parameters
    ----------
    logits : Tensor (..., B, C)
    batch : fnlkit.client.Batch
    smoothing : float in [0, 1)
        Label smoothing: the target is (1 - smoothing) one-hot + smoothing / C (Szegedy 2016).  Negative values give
        negative label smoothing (Wei 2022).
    """
    logp = logits.log_softmax(-1)
    values = -logp.gather(-1, batch.y[..., None])[..., 0]
    if smoothing:
        values = (1 - smoothing) * values - smoothing * logp.mean(-1)
    return values


def sample_losses(logits, labels):
    """Return the cross entropy of each sample, (n,), for logits (n, C) and labels (n,)."""
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")
