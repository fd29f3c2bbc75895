"""The cross entropy minus that with a random label: peer loss, CORES, FedDPCont."""

from fnlkit.client.losses.parts import at


def contrastive(logits, batch, *, strength=1.0, expected=False, floor=0.0):
    """Return CE(y) - strength CE(y'), y' ~ ``received["prior"]`` (C,), (..., B) (FedDPCont eq. 2).

    The second term has no lower bound: the values may be negative, and grow without end when `strength` is large.

    Parameters
    ----------
    strength : float >= 0
        beta of the proofs; 1 in the paper's eq. 2.
    expected : bool
        Take the expectation over y' instead of the draw ``batch.uniform`` (CORES, Cheng 2021, eq. 4): less variance.
    floor : float >= 0
        Added to the probability inside the second logarithm, which then is at most -log(floor) (peer loss's public
        code: 1e-5).
    """
    logp = logits.log_softmax(-1)
    away = (logp.exp() + floor).log() if floor else logp
    prior = batch.received["prior"].to(logits.device)
    if expected:
        contrast = -(prior.to(logits.dtype) * away).sum(-1)
    else:
        contrast = -at(away, draw_classes(batch.uniform, prior))
    return -at(logp, batch.y) - strength * contrast


def draw_classes(uniform, prior):
    """Return classes int64 (..., B) drawn from probabilities (C,) by inversion of draws in [0, 1)."""
    edges = prior.double().cumsum(-1)[:-1]
    return (uniform.double()[..., None] >= edges).sum(-1)
