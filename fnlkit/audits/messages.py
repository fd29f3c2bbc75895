"""Both messages of a site in an audit from sums: their arrays, and the constants on which the site and the server agree.

Sums of few samples reveal these samples.  A class with fewer than LEAST samples is therefore left out everywhere.  Second
moments have at most a quarter as many dimensions as the site has samples.  The counts of the second message are multiples of 5.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.core.declarations import Sent
from fnlkit.kernels.streams import stream

# A statistic of fewer samples would describe single samples: such classes and sites are left out.
LEAST = 5
# Numbers of features that a site can send; it sends the first ones, at most one for PER_FEATURE samples.
SIZES, PER_FEATURE = (8, 16, 32, 64, 128, 256), 4
# Features are clipped to norm CLIP * sqrt(number of features), and single columns of a table to FARTHEST standard deviations.
CLIP, FARTHEST = 1.5, 5.0
# In the coarse description of the inputs, values within this many standard deviations of the agreed scale are not clipped.
UNCLIPPED = 2.0
# Tables of the second file, by predicted (or true) and given class.
TABLES = "predicted", "within", "expected", "doubted"
LARGEST = 1e6  # of an entry of a head or of its message
# A site describes its columns only with at least this many samples, and each quantile is the mean of LEAST neighboring values.
LEAST_COLUMNS = 20
# Columns beyond this number are not compared one by one.
MOST_COLUMNS = 4096
# Values of columns are clipped to this many spreads from the center.
CLIPPED = 5
# Images are described by their means in GRID x GRID squares, vectors by at most MOST_FEATURES columns or projections.
GRID, MOST_FEATURES = 4, 16
# Of vectors with more columns, at most this many columns that seem to differ are described beside the projections.
MOST_SUSPECTS = 8
LIMIT: dict[str, Any] = {"low": -1e30, "high": 1e30}
_ONE, _TWO = "first message", "second message"
_FIVES: dict[str, Any] = {"when": _TWO, "dtype": "int64", "low": 0}
_MATRICES = {
    "predicted": "numbers of samples by predicted and given class",
    "within": "numbers of samples by given class and the prediction of a cross-validated model of the site itself",
    "expected": "expected numbers of samples by true and given class",
    "doubted": "numbers of samples for which both models predict the same other class",
}
SENDS = {
    "known": Sent.counts("numbers of known values by column", "once", ("d",)),
    "total": Sent("sums of the columns", "once", ("d",), **LIMIT),
    "squares": Sent("sums of squared differences from the site's mean by column", "once", ("d",), low=0),
    "counts": Sent.counts("numbers of samples by class, of classes with 5 samples or more", _ONE, ("C",)),
    "withheld": Sent.counts("classes with 1 to 4 samples, which are left out", _ONE, ("C",)),
    "observations": Sent.counts("number of independent samples: a group, such as a patient, counts as one", _ONE),
    "width": Sent("number of features", _ONE, (), "int64", low=0),
    "sums": Sent("sums of clipped features by class", _ONE, ("C", "summed"), **LIMIT),
    "moments": Sent("second moments of at most a quarter as many features as samples", _ONE, ("summed", "summed"), **LIMIT),
    "columns": Sent("mean, standard deviation, 10, 50 and 90 % quantile by column, of 20 samples or more, each quantile a mean "
                    "of 5 values; images: of all pixels", _ONE, (5, "columns"), **LIMIT),
    "class_columns": Sent("mean and standard deviation by given label (5 samples or more) and column; images: none", _ONE,
                          (2, "C", "columns"), **LIMIT),
    **{name: Sent(f"{what}; multiples of 5", shape=("C", "C"), **_FIVES) for name, what in _MATRICES.items()},
    **{
        f"{name}_wrong": Sent(f"number of labels in {name} of another class; multiples of 5", shape=("C",), **_FIVES)
        for name in _MATRICES
    },
    "chosen": Sent("number of the change of the inputs with which the classifier fits best", shape=(), **_FIVES),
    "supported": Sent("number of labels that only the site's own model predicts; a multiple of 5", shape=(), **_FIVES),
    "certain": Sent(
        "samples of which the own model is most certain: other predictions (a multiple of 5), all", shape=(2,), **_FIVES
    ),
    **{
        name: Sent(f"{what} end of the range of the number of wrong labels; a multiple of 5", shape=(), **_FIVES)
        for name, what in (("low", "lower"), ("high", "upper"))
    },
    "class_means": Sent("means of a coarse description of the inputs by possible change and given label (5 samples or more)",
                        _TWO, ("changes", "C", "features"), **LIMIT),
    "covariances": Sent("covariances of this description within the given labels, by possible change", _TWO,
                        ("changes", "features", "features"), **LIMIT),
}  # fmt: skip


def scale_of(mean: ArrayLike, std: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Compute (mean, std) of columns, rounded so that sums in another order give the same scale.

    Parameters
    ----------
    mean, std : (d,)
    """
    std = np.array([float(f"{value:.3g}") for value in np.asarray(std, np.float64)])
    return np.round(np.asarray(mean, np.float64) / std, 3) * std, std


def described_columns(image: bool, values: int) -> tuple[int, int]:
    """Numbers of columns of `columns` and `class_columns`: of images and of wide vectors, all values are one column."""
    return (1, 0) if image or values > MOST_COLUMNS else (values, values)


def described_features(image: bool, values: int) -> int:
    """Largest number of features in the coarse description of the inputs: each with its square; images also contrasts."""
    return 2 * GRID**2 + 2 if image else 2 * min(values, MOST_FEATURES)


def dimensions(samples: int, width: int) -> int:
    """Number of the `width` features that a site with this many samples may send."""
    return max((size for size in {*SIZES, width} if size <= min(width, samples // PER_FEATURE)), default=0)


def bound_of(width: int) -> float:
    """Largest norm of the features of a sample."""
    return CLIP * np.sqrt(width)


def rotation(width: int) -> np.ndarray:
    """Draw the random rotation (width, width) of the values of samples, or the projection to SIZES[-1] of more values."""
    draws = stream(0, "summaries").standard_normal((width, min(width, SIZES[-1])))
    return draws / np.sqrt(width) if width > SIZES[-1] else np.linalg.qr(draws)[0]


def widen(center: np.ndarray, scale: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Widen the spreads (2, d) of columns so that no value near the mean of the agreed scale is clipped.

    The description of the inputs clips values at 5 spreads from the center.  A narrow range could single out a sample of which
    all others are clipped.  The range therefore contains UNCLIPPED standard deviations around the mean.

    Parameters
    ----------
    center : (2, d)
    scale : (mean (d,), std (d,))
    """
    needed = (np.abs(center[0] - scale[0]) + UNCLIPPED * scale[1]) / CLIPPED
    return np.stack([center[0], np.maximum(center[1], needed)])


def classes_to_describe(counts: np.ndarray) -> np.ndarray:
    """Mask (..., C) of classes that a site with these numbers of samples describes.

    Each has at least LEAST samples.  If 1 to LEAST - 1 samples remain, the smallest of these classes is left out as well:
    totals over all samples, such as the moments of a training, minus the classes would describe the remaining samples.

    Parameters
    ----------
    counts : int (..., C)

    Examples
    --------
    >>> from fnlkit.audits.messages import classes_to_describe
    >>> classes_to_describe([[30, 8, 1], [30, 8, 0], [30, 4, 3]]).tolist()
    [[True, False, False], [True, True, False], [True, False, False]]
    """
    counts = np.asarray(counts)
    mask = counts >= LEAST
    others = np.where(mask, 0, counts).sum(-1)
    smallest = np.where(mask, counts, np.iinfo(np.int64).max).argmin(-1)[..., None]
    few = ((others > 0) & (others < LEAST))[..., None] & (np.arange(counts.shape[-1]) == smallest)
    return mask & ~few
