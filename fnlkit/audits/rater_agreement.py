"""Agreement of annotators beyond chance."""

import numpy as np

from fnlkit.datasets.votes import count_votes


def krippendorff(votes: np.ndarray, classes: int) -> float | None:
    """Krippendorff's alpha of nominal labels: 1 for full agreement, 0 for agreement by chance.

    None if it is undefined: no sample has two votes, or all votes on such samples are of one class, so that agreement by
    chance is full agreement, too.

    Parameters
    ----------
    votes : int (m, A)
        -1 for no vote.
    classes : int

    Notes
    -----
    Krippendorff 2011, Computing Krippendorff's alpha-reliability, section C.  The result does not depend on the order of
    samples and annotators.
    """
    counts = count_votes(votes, classes)
    counts = counts[counts.sum(1) > 1]
    many = counts.sum(1)
    total = int(many.sum())
    among = counts.sum(0)
    chance = int((among * (total - among)).sum())
    if not chance:
        return None
    # Whole numbers are summed before the division, so that the order of the samples has no effect.
    differing = np.bincount(many, (counts * (many[:, None] - counts)).sum(1))
    seen = sum(differing[size] / (size - 1) for size in range(2, len(differing)))
    return float(1 - seen * (total - 1) / chance)


def fleiss(votes: np.ndarray, classes: int) -> float | None:
    """Fleiss's kappa (Fleiss 1971), or None if it is undefined.

    It requires the same number of votes for each sample, two or more, and votes of two classes.
    """
    counts = count_votes(votes, classes)
    many = counts.sum(1)
    if not len(many) or many.min() != many.max() or many[0] < 2 or (counts.sum(0) > 0).sum() < 2:
        return None
    chance = float(((counts.sum(0) / counts.sum()) ** 2).sum())
    seen = int((counts * (counts - 1)).sum()) / (len(many) * int(many[0]) * (int(many[0]) - 1))
    return float((seen - chance) / (1 - chance))
