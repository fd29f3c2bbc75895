"""A regulariser of your own: what FedCorr's local training minimizes, for example FLR's loss in FLR+.

Save this as mine.py and run it:

    fnlkit partition --clients 4 | fnlkit inject-noise -o noisy.npz
    fnlkit train noisy.npz --method 'fedcorr(regulariser=mine.py:part(rate=0.2))' --rounds 4 --fraction 0.5 -o run.pt
"""

from functools import partial

from fnlkit.client.losses.cross_entropy import smoothed_cross_entropy


def part(r, rounds, *, rate=0.1):
    """Return what round r of `rounds` changes in local training, as keywords of FedOpt.round, and numbers to report.

    Here: labels are smoothed, more and more up to `rate`.
    """
    now = rate * min(1, (r + 1) / rounds)
    return {"loss": partial(smoothed_cross_entropy, rate=now)}, {"rate": now}
