"""Schedule of the clients of a cohort that take a step together.

An epoch consists of slots: first the full batches, then the short batches at the end of the epoch. In each slot only clients
with equal batch sizes are stacked. Batches are therefore never padded, which is safe for networks that mix the samples of a
batch. A client that has finished is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


class Group(NamedTuple):
    """Clients that take a step together.

    Attributes
    ----------
    who : int64 (g,)
        Positions in the cohort, ascending; 0..g-1 if possible.
    step : int64 (g,)
        Step number of each client.
    size : int
        Batch size of each client.
    first : bool
        Whether this is the first step of an epoch.
    """

    who: np.ndarray
    step: np.ndarray
    size: int
    first: bool


def timetable(sizes: Sequence[int], batch_size: int, epochs: int) -> Iterator[Group]:
    """Yield the Groups of local training.

    Because clients are sorted by decreasing size, full batches belong to the first g clients.

    Parameters
    ----------
    sizes : sequence of int (K,)
        Numbers of samples in decreasing order.
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
            # For clients without a full batch, the short step is the first step of the epoch. They form a separate group.
            for alone in (False, True):
                who = np.flatnonzero((rest == size) & ((full == 0) == alone))
                if len(who):
                    yield Group(who, epoch * steps[who] + full[who], size, alone)
