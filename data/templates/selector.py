"""A custom selector: choose the clients that train in a round.

Save this as mine.py and run it:

    fnlkit partition --clients 4 | fnlkit inject-noise -o noisy.npz
    fnlkit train noisy.npz --selector 'mine.py:part(least=100)' --rounds 2 --fraction 0.5 -o run.pt
"""

from dataclasses import dataclass

import numpy as np

from fnlkit.kernels.streams import stream


@dataclass(frozen=True, kw_only=True)
class part:
    """Draw from the clients with at least `least` samples.

    fraction is the run's --fraction.
    """

    fraction: float = 0.1
    least: int = 1

    def __call__(self, clients, model, among=None):
        """Return the numbers of the clients that train in this round, ascending.

        If a method passes among (N,), only these clients can be selected.
        """
        able = clients.sizes.numpy() >= self.least
        able &= True if among is None else among
        count = max(1, round(self.fraction * len(clients)))
        # Draws use a stream with the run's seed and the round, so that a resumed run gives identical bytes.
        rng = stream(clients.seed, "selection", clients.rounds)
        return np.sort(rng.permutation(np.flatnonzero(able))[:count])
