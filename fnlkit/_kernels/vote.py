"""Majority of the k nearest, from a matrix of inner products (Tsouvalas et al. 2024, section 4.1)."""

import math

import numpy as np

from fnlkit._kernels._compile import inlined, kernel
from fnlkit._kernels.lanes import at_most, choose, first_bit, load, spread, store
from fnlkit._kernels.select import ROOM, kth_smallest


@inlined
def winner(tally, classes, draw):
    """The class with most votes, ties broken by `draw` in [0, 1); the lowest one where it is negative."""
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
def mirror(square):
    """Write what lies below the diagonal of a matrix above it; tile by tile, so that lines of both stay in the cache."""
    size = square.shape[0]
    for top in range(0, size, 16):
        for left in range(0, top + 1, 16):
            for row in range(top, min(top + 16, size)):
                for column in range(left, min(left + 16, row)):
                    square[column, row] = square[row, column]


@kernel
def vote_products(products, squares, labels, classes, k, include_self, draws, first, votes, shares):
    """Votes and shares of some members of a client, from their inner products with all of its members.

    Parameters
    ----------
    products : (rows * padded,)
        Inner product of member `first + r` with all members at r * padded; rows filled up to whole vectors.
    squares : (padded,)
        Squared length of each member; infinity behind the last.
    labels, draws : (members,)
    k : int
        At most the number of neighbours there are.
    votes, shares : (members,)
        Written at first..first + rows.
    """
    padded = len(squares)
    width = 64 // products.itemsize
    members = len(labels)
    rows = len(products) // padded
    distances = np.empty(padded, products.dtype)
    short = np.empty(k + ROOM * width, products.dtype)
    tally = np.zeros(classes, np.int64)
    nothing = spread(products.dtype.type(0))
    guess = products.dtype.type(0)
    for r in range(rows):
        me = first + r
        mine = spread(squares[me])
        for at in range(0, padded, width):
            product = load(products, r * padded + at)
            distance = mine + load(squares, at) - (product + product)
            # Rounding can bring a distance of nearly zero below it, where its pattern would not be in order.
            store(distances, at, choose(at_most(distance, nothing), nothing, distance))
        distances[me] = 0 if include_self else math.inf
        radius, guess, _ = kth_smallest(distances, padded, k, guess, short)
        tally[:] = 0
        taken = 0
        limit = spread(radius)
        for at in range(0, padded, width):
            near = at_most(load(distances, at), limit)
            while near:
                j = at + first_bit(near)
                near &= near - 1
                if distances[j] < radius:
                    tally[labels[j]] += 1
                    taken += 1
        # Of those exactly at the radius, the first in order fill up.
        for j in range(members):
            if taken == k:
                break
            if distances[j] == radius:
                tally[labels[j]] += 1
                taken += 1
        votes[me] = winner(tally, classes, draws[me])
        shares[me] = 1.0 - tally[labels[me]] / k


@kernel
def vote_neighbours(neighbours, labels, classes, draws, start, stop, votes, shares):
    """Votes and shares of the samples start..stop, given their neighbours (n, k)."""
    tally = np.zeros(classes, np.int64)
    k = neighbours.shape[1]
    for i in range(start, stop):
        tally[:] = 0
        for j in range(k):
            tally[labels[neighbours[i, j]]] += 1
        votes[i] = winner(tally, classes, draws[i])
        shares[i] = 1.0 - tally[labels[i]] / k


@kernel
def drop_self(found, start, out):
    """Write each row of `found` (rows, k + 1) to `out` (rows, k) without the row's own number `start + row`.

    Where copies of a sample push it out of its own list, the farthest neighbour goes instead.
    """
    rows, wide = found.shape
    for r in range(rows):
        put = 0
        for j in range(wide):
            if found[r, j] != start + r and put < wide - 1:
                out[r, put] = found[r, j]
                put += 1
