"""Project vectors to the probability simplex by an exact iteration without sorting (Michelot 1986)."""

import numpy as np

from fnlkit._kernels._compile import kernel


@kernel
def project_rows(vectors: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
    """Write the projection of rows start..stop of `vectors` (n, C) to `out`: the nearest distribution.

    Each step computes the threshold at which the remaining classes sum to 1 and drops the classes below it.  In exact
    arithmetic a dropped class never returns, so that at most C steps are needed.  With rounding, a class at the threshold can
    return.  The iteration therefore ends when the number of remaining classes stops decreasing.
    """
    classes = vectors.shape[1]
    for i in range(start, stop):
        # Subtract the largest entry, which does not change the result, so that large entries keep their precision.
        top = vectors[i, 0]
        for c in range(1, classes):
            top = max(top, vectors[i, c])
        inside, threshold = classes, -1.0 / classes
        shifted = 0.0
        for c in range(classes):
            # An entry that is 1 below the largest is dropped in any case; without the bound, large differences would sum to
            # infinity.
            shifted += max(vectors[i, c] - top, -1.0)
        threshold = (shifted - 1.0) / classes
        while True:
            left, shifted = 0, 0.0
            for c in range(classes):
                value = max(vectors[i, c] - top, -1.0)
                if value > threshold:
                    left += 1
                    shifted += value
            threshold = (shifted - 1.0) / left
            if left >= inside:
                break
            inside = left
        for c in range(classes):
            out[i, c] = max(vectors[i, c] - top - threshold, 0.0)
