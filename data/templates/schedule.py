"""A custom schedule: the learning rate over the rounds of a run.

Save this as mine.py and run it:

    fnlkit partition --clients 4 | fnlkit inject-noise -o noisy.npz
    fnlkit train noisy.npz --schedule 'mine.py:part(power=2)' --rounds 2 -o run.pt
"""


def part(done, total, *, power=1.0):
    """Return the factor on the learning rate after `done` of `total` rounds.

    It falls from 1 to 0; a higher `power` lowers it sooner.
    """
    return (1 - done / total) ** power
