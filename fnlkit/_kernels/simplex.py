"""Nearest point of the probability simplex (Michelot 1986): a sort-free iteration that ends exactly."""

from fnlkit._kernels._compile import kernel


@kernel
def project_rows(vectors, start, stop, out):
    """Write to `out` the nearest non-negative vector of sum 1 for the rows start..stop of `vectors` (n, C).

    Each step takes the threshold at which the classes still in sum to 1 and drops those below it; a class once dropped
    never comes back, so there are at most C steps.  Rounding can bring back a class that lies on the threshold; that its
    set no longer shrinks ends the iteration, not that it stays.
    """
    classes = vectors.shape[1]
    for i in range(start, stop):
        # Distances from the largest entry: the answer is the same and large entries lose no digits.
        top = vectors[i, 0]
        for c in range(1, classes):
            top = max(top, vectors[i, c])
        inside, threshold = classes, -1.0 / classes
        shifted = 0.0
        for c in range(classes):
            # One that is 1 below the largest is out anyway; huge differences would add up to infinity.
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
