"""Local intrinsic dimensionality by maximum likelihood (Amsaleg et al. 2015; Xu et al. 2022, eq. 2), all clients in one call."""

import math

import numpy as np

from fnlkit._kernels._compile import inlined, kernel
from fnlkit._kernels.lanes import load, spread, store
from fnlkit._kernels.select import kth_smallest

# A client whose neighbours are all equally far has infinite dimension in theory.
LARGEST = 1e6


@inlined
def log_sum(short, held, radius, k, scale):
    """Sum of log(v / scale) over the k smallest v, those beyond `radius` left out, ties at it counted k in all."""
    total, product, taken = 0.0, 1.0, 0
    for i in range(held):
        if short[i] < radius:
            taken += 1
            ratio = short[i] / scale
            if ratio < 1e-100:
                # Also zero: its logarithm is minus infinity, as it should be.
                total += math.log(short[i]) - math.log(scale)
            else:
                # One logarithm for many numbers; taken out before the product underflows.
                product *= ratio
                if product < 1e-200:
                    total += math.log(product)
                    product = 1.0
    return total + math.log(product) + (k - taken) * (math.log(radius) - math.log(scale))


@kernel
def lid_rows(points, offsets, k, published, start, stop, out):
    """Write the estimates of the rows start..stop to `out`.

    Parameters
    ----------
    points : (n, d)
    offsets : (K + 1,) int64
    published : bool
        The formula of FedCorr's public code instead of the paper's.
    out : (n,) float64
    """
    width = 64 // points.itemsize
    d = points.shape[1]
    client = 0
    row = start
    while row < stop:
        while offsets[client + 1] <= row:
            client += 1
        first, last = offsets[client], offsets[client + 1]
        end = min(last, stop)
        m = last - first
        use = min(k, m - 1)
        if use < 1 or (use < 2 and not published):
            out[row:end] = 0.0
            row = end
            continue
        padded = (m + width - 1) // width * width
        # One coordinate after the other, so that a vector holds one coordinate of `width` points.
        columns = np.empty(d * padded, points.dtype)
        for c in range(d):
            for j in range(m):
                columns[c * padded + j] = points[first + j, c]
            for j in range(m, padded):
                columns[c * padded + j] = math.inf
        squares = np.empty(padded, points.dtype)
        short = np.empty(use + 6 * width, points.dtype)
        guess = points.dtype.type(0)
        for i in range(row, end):
            for at in range(0, padded, width):
                far = load(columns, at) - spread(points[i, 0])
                sum_squares = far * far
                for c in range(1, d):
                    far = load(columns, c * padded + at) - spread(points[i, c])
                    sum_squares = sum_squares + far * far
                store(squares, at, sum_squares)
            squares[i - first] = math.inf
            radius, held = kth_smallest(squares, padded, use, guess, short)
            guess = radius
            if published:
                largest = math.sqrt(radius) + 1e-6
                scale = np.float64(largest * largest)
            else:
                scale = np.float64(radius)
            if radius == 0 and not published:
                out[i] = 0.0
                continue
            if held > 0:
                logs = 0.5 * log_sum(short, held, np.float64(radius), use, scale)
            else:
                logs = 0.5 * log_sum(squares, padded, np.float64(radius), use, scale)
            if published:
                out[i] = -k / (logs + 1e-6)
            else:
                out[i] = LARGEST if logs * LARGEST > -use else -use / logs
        row = end
