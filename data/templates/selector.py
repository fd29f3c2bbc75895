"""A selector of your own: which clients train in a round.

Save this as mine.py and run it:

    fnlkit partition --clients 4 | fnlkit inject-noise -o noisy.npz
    fnlkit train noisy.npz --selector 'mine.py:part(least=100)' --rounds 2 --fraction 0.5 -o run.pt
"""

from dataclasses import dataclass

import numpy as np

from fnlkit.streams import stream


@dataclass(frozen=True, kw_only=True)
class part:
    """Draw from the clients that hold at least `least` samples; fraction is the run's --fraction."""

    fraction: float = 0.1
    least: int = 1

    def __call__(self, clients, model, among=None):
        """Return the numbers of the clients that train now, ascending; among (N,) says who may, where a method does."""
        able = clients.sizes.numpy() >= self.least
        able &= True if among is None else among
        count = max(1, round(self.fraction * len(clients)))
        # Draws come from a stream, under the run's seed and the round: so runs resume to the bit.
        rng = stream(clients.seed, "selection", clients.rounds)
        return np.sort(rng.permutation(np.flatnonzero(able))[:count])
