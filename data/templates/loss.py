"""A loss of your own: one value a sample, lower where the model does what you want.

Save this as mine.py and run it:

    fnlkit partition --clients 4 | fnlkit inject-noise -o noisy.npz
    fnlkit train noisy.npz --loss 'mine.py:part(power=2)' --rounds 2 --fraction 0.5 -o run.pt
"""


def part(logits, batch, *, power=1.0):
    """Return (1 - p)^power, p the probability of the given label: wrong labels pull less than in the cross entropy.

    logits is (..., B, C) and batch.y (..., B); what comes back is (..., B).  Parameters after the * can be written in
    the spec.
    """
    p = logits.softmax(-1).gather(-1, batch.y[..., None])[..., 0]
    return (1 - p) ** power
