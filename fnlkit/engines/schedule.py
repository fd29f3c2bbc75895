"""Which clients of a cohort take a step together.

Clients never wait for each other's short batches: an epoch is walked in slots, first the full batches, then the short
ones that end it, and in each slot only clients with equally many samples are stacked.  So no sample is ever padded,
whatever the network does across its batch, and a client that is done is left out.
"""

from typing import NamedTuple

import numpy as np


class Group(NamedTuple):
    """Clients that take a step together.

    Attributes
    ----------
    who : int64 (g,)
        Places in the cohort, ascending; 0..g-1 where that is possible.
    step : int64 (g,)
        Each one's own step.
    size : int
        Samples in each one's batch.
    first : bool
        First step of an epoch.
    """

    who: np.ndarray
    step: np.ndarray
    size: int
    first: bool


def timetable(sizes, batch_size, epochs):
    """Yield the Groups of local training; with clients sorted by falling size, full batches concern the first g.

    Parameters
    ----------
    sizes : sequence of int (K,)
        Falling.
    batch_size, epochs : int
    """
    sizes = np.asarray(sizes)
    full, rest = sizes // batch_size, sizes % batch_size
    steps = full + (rest > 0)
    for epoch in range(epochs):
        for slot in range(full.max(initial=0)):
            who = np.flatnonzero(full > slot)
            yield Group(who, epoch * steps[who] + slot, batch_size, slot == 0)
        for size in sorted(set(rest[rest > 0].tolist()), reverse=True):
            # Whether a short step is an epoch's first differs, so that clients with no full batch go apart.
            for alone in (False, True):
                who = np.flatnonzero((rest == size) & ((full == 0) == alone))
                if len(who):
                    yield Group(who, epoch * steps[who] + full[who], size, alone)
