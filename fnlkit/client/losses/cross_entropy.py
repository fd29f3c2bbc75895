"""Cross entropy with the working labels: plain, smoothed, or of the kept samples only."""

from fnlkit.client.losses.parts import at


def cross_entropy(logits, batch, *, smoothing=0.0):
    """Return the cross entropy with the working labels, (..., B) in nats.

    Parameters
    ----------
    logits : Tensor (..., B, C)
    batch : fnlkit.client.client.Batch
    smoothing : float in [0, 1)
        Label smoothing: the target is (1 - smoothing) one-hot + smoothing / C (Szegedy 2016).  Negative values give
        negative label smoothing (Wei 2022).
    """
    logp = logits.log_softmax(-1)
    values = -at(logp, batch.y)
    if smoothing:
        values = (1 - smoothing) * values - smoothing * logp.mean(-1)
    return values


def kept_cross_entropy(logits, batch):
    """Return the cross entropy weighted by ``rows["keep"]``, (..., B): 0 for pruned samples, n / kept for the others.

    The mean over an epoch is then the mean over the samples that were kept, whatever the batches.
    """
    return batch.rows["keep"].to(logits.dtype) * -at(logits.log_softmax(-1), batch.y)
