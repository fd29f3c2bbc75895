"""The cross entropy minus that with a random label: peer loss, CORES, FedDPCont."""

from fnlkit.client.losses.parts import at


def contrastive(logits, batch, *, strength=1.0, expected=False, floor=1e-5):
    """Return -log(p_y + floor) + strength log(p_y' + floor), y' ~ ``received["prior"]`` (C,), (..., B) (FedDPCont eq. 2).

    Values may be negative.  A label pulls at its logit with p / (p + floor), in the first term as in the second: far
    from the decision both terms let go together, whether the label there is right or wrong.  With a floor in the second
    alone, a wrong label would keep its whole force where a right one has none left.

    Parameters
    ----------
    strength : float >= 0
        beta of the proofs; 1 in the paper's eq. 2.
    expected : bool
        Take the expectation over y' instead of the draw ``batch.uniform`` (CORES, Cheng 2021, eq. 4): less variance.
    floor : float >= 0
        Added to the probability inside both logarithms, which then are at least log(floor) (peer loss's public code:
        1e-5); 0 is eq. 2 as printed, whose second term has no bound.
    """
    logp = logits.log_softmax(-1)
    bounded = (logp.exp() + floor).log() if floor else logp
    prior = batch.received["prior"].to(logits.device)
    if expected:
        other = (prior.to(logits.dtype) * bounded).sum(-1)
    else:
        other = at(bounded, draw_classes(batch.uniform, prior))
    return strength * other - at(bounded, batch.y)


def draw_classes(uniform, prior):
    """Return classes int64 (..., B) drawn from probabilities (C,) by inversion of draws in [0, 1)."""
    edges = prior.double().cumsum(-1)[:-1]
    return (uniform.double()[..., None] >= edges).sum(-1)
