"""Majority vote of the k nearest neighbors from a matrix of inner products (Tsouvalas et al. 2024, section 4.1)."""

import math

import numpy as np

from fnlkit._kernels._compile import inline, kernel
from fnlkit._kernels.lanes import at_most, choose, compress, count_bits, load, splat, store
from fnlkit._kernels.select import ROOM, kth_smallest


@inline
def winner(tally: np.ndarray, classes: int, draw: float) -> int:
    """Return the class with most votes.

    Ties are broken by `draw` in [0, 1); the lowest class wins if `draw` is negative.
    """
    most, ties = -1, 0
    for c in range(classes):
        if tally[c] > most:
            most, ties = tally[c], 1
        elif tally[c] == most:
            ties += 1
    skip = min(int(draw * ties), ties - 1) if draw > 0 else 0
    for c in range(classes):
        if tally[c] == most:
            if skip == 0:
                return c
            skip -= 1
    return 0


@kernel
def midst(points: np.ndarray, out: np.ndarray) -> None:
    """Write the mean of a few of the points (n, d) to `out` (d,), rounded to the power of two below their spread."""
    # Any point near the middle is sufficient, and a few points are enough to find one.
    some = points[:: max(1, len(points) // 16)]
    mean = np.zeros(points.shape[1])
    for row in some:
        mean += row
    mean /= len(some)
    squares = 0.0
    for row in some:
        for c in range(len(mean)):
            squares += (row[c] - mean[c]) ** 2
    spread_of_all = math.sqrt(squares / some.size)
    if 0 < spread_of_all < math.inf:
        step = 2.0 ** math.floor(math.log2(spread_of_all))
        for c in range(len(mean)):
            out[c] = np.rint(mean[c] / step) * step
    else:
        for c in range(len(out)):
            out[c] = points[0, c]


@inline
def pack_within(values: np.ndarray, names: np.ndarray, padded: int, limit: float, out: np.ndarray) -> None:
    """Write the names of all values <= limit to the front of `out`, in their order."""
    width = 64 // values.itemsize
    edge = splat(limit)
    held = 0
    for at in range(0, padded, width):
        bits = at_most(load(values, at), edge)
        store(out, held, compress(load(names, at), bits))
        held += count_bits(bits)


@inline
def count_nearest(values: np.ndarray, names: np.ndarray, size: int, k: int, radius: float, tally: np.ndarray) -> None:
    """Add the names of the k smallest values to `tally`; of values equal to the radius, the first are added."""
    open_places = k
    for i in range(size):
        inside = values[i] < radius
        tally[int(names[i])] += inside
        open_places -= inside
    for i in range(size):
        if open_places == 0:
            break
        if values[i] == radius:
            tally[int(names[i])] += 1
            open_places -= 1


@kernel
def vote_products(
    products: np.ndarray,
    squares: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray,
    classes: int,
    k: int,
    include_self: bool,
    draws: np.ndarray,
    first: int,
    votes: np.ndarray,
    shares: np.ndarray,
) -> None:
    """Write votes and shares of some members of a client, from inner products with all members.

    Parameters
    ----------
    products : (rows * padded,)
        The inner products of member `first + r` with all members start at r * padded; the padding can have any values.
    squares : (padded,)
        Squared length of each member; the padding can have any values.
    labels, draws : (members,)
    groups : (members,) or (0,)
        Members of the same group are no neighbors.
    k : int
        At most the number of available neighbors, without groups.
    votes, shares : (members,)
        Written at first..first + rows.
    """
    padded = len(squares)
    width = 64 // products.itemsize
    members = len(labels)
    rows = len(products) // padded
    distances = np.empty(padded, products.dtype)
    short = np.empty(k + ROOM * width, products.dtype)
    names = np.zeros(padded, products.dtype)  # labels of the members, as numbers that fit a lane
    for j in range(members):
        names[j] = labels[j]
    near = np.empty(len(short), products.dtype)
    tally = np.zeros(classes, np.int64)
    nothing = splat(products.dtype.type(0))
    guess = products.dtype.type(0)
    for r in range(rows):
        me = first + r
        mine = splat(squares[me])
        for at in range(0, padded, width):
            product = load(products, r * padded + at)
            distance = mine + load(squares, at) - (product + product)
            # Rounding can make a distance near zero negative, and bit patterns of negative numbers have the reverse order.
            store(distances, at, choose(at_most(distance, nothing), nothing, distance))
        distances[members:] = math.inf
        available = members
        if len(groups):
            for j in range(members):
                if groups[j] == groups[me]:
                    distances[j] = math.inf
                    available -= 1
            available += include_self
        use = min(k, available) if len(groups) else k
        distances[me] = 0 if include_self else math.inf
        if use < 1:
            votes[me], shares[me] = labels[me], 0.0
            continue
        radius, guess, held = kth_smallest(distances, padded, use, guess, short)
        tally[:] = 0
        if held > 0:
            pack_within(distances, names, padded, guess, near)
            count_nearest(short, near, held, use, radius, tally)
        else:
            count_nearest(distances, names, members, use, radius, tally)
        votes[me] = winner(tally, classes, draws[me])
        shares[me] = 1.0 - tally[labels[me]] / use


@kernel
def vote_neighbors(
    neighbors: np.ndarray,
    first: int,
    labels: np.ndarray,
    groups: np.ndarray,
    classes: int,
    k: int,
    draws: np.ndarray,
    start: int,
    stop: int,
    votes: np.ndarray,
    shares: np.ndarray,
) -> None:
    """Write votes and shares of the samples start..stop, given neighbors of sample `first` and the next, nearest first.

    Neighbors of the same group (n,) do not vote; of the others, the first k do.  `groups` is empty if there are none.
    """
    tally = np.zeros(classes, np.int64)
    for i in range(start, stop):
        tally[:] = 0
        used = 0
        for j in range(neighbors.shape[1]):
            other = neighbors[i - first, j]
            if used < k and (len(groups) == 0 or other == i or groups[other] != groups[i]):
                tally[labels[other]] += 1
                used += 1
        if used == 0:
            votes[i], shares[i] = labels[i], 0.0
            continue
        votes[i] = winner(tally, classes, draws[i])
        shares[i] = 1.0 - tally[labels[i]] / used


@kernel
def drop_self(found: np.ndarray, points: np.ndarray, out: np.ndarray) -> None:
    """Write each row of `found` (rows, k + 1) to `out` (rows, k) without the point that the row is of, `points` (rows,).

    If copies of a sample displace the sample from the list, the farthest neighbor is removed instead.
    """
    rows, wide = found.shape
    for r in range(rows):
        put = 0
        for j in range(wide):
            if found[r, j] != points[r] and put < wide - 1:
                out[r, put] = found[r, j]
                put += 1
