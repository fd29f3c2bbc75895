"""A custom regularizer: the loss of FedCorr's local training.

Save this as mine.py and run it:

    fnlkit partition --clients 4 | fnlkit inject-noise -o noisy.npz
    fnlkit train noisy.npz --method 'fedcorr(regularizer=mine.py:part(rate=0.2))' --rounds 4 --fraction 0.5 -o run.pt
"""

from functools import partial

from fnlkit.federated.client.losses.cross_entropy import smoothed_cross_entropy


def part(r, rounds, *, rate=0.1):
    """Return keywords of FedOpt.round for round r of `rounds`, and numbers to report.

    In this example labels are smoothed with a rate that rises to `rate`.
    """
    now = rate * min(1, (r + 1) / rounds)
    return {"loss": partial(smoothed_cross_entropy, rate=now)}, {"rate": now}
