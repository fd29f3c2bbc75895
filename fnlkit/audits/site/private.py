"""Both messages of a site with Gaussian noise (fnlkit.audits.private)."""

import math
from typing import Any

import numpy as np

from fnlkit.audits.private import BOUND, FEATURES, noise_of
from fnlkit.audits.site.samples import SIDE, Samples, table_of, values_of
from fnlkit.audits.site.summaries import features, sums
from fnlkit.evidence.gaussian import softmax
from fnlkit.kernels.neighbors import on_one_blas_thread
from fnlkit.kernels.streams import HiddenStream

# Factor of the frequencies of an image, whose pixels are between -1 and 1: above it, those of digits are clipped.
CONTRAST = 2.0


def frequencies(samples: Samples) -> np.ndarray:
    """The FEATURES lowest frequencies (n, m) of images, of the mean of their channels and without the brightness.

    They tell the classes of images apart better than as many random projections, and depend on no data.
    """
    from scipy.fft import dctn

    height, width = (min(side, SIDE) for side in samples.x.shape[1:3])
    x = (2 * values_of(samples) - 1).reshape(len(samples), -1, height, width).mean(1)
    rows, columns = np.indices((height, width))
    order = np.argsort(rows / height + columns / width, axis=None, kind="stable")
    return dctn(x, axes=(1, 2), norm="ortho").reshape(len(x), -1)[:, order[1 : FEATURES + 1]]


def points_of(samples: Samples, scale: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """Clip features (n, m) of a site's samples: frequencies of raw images, else as in audits from sums."""
    if samples.image and samples.embedding is None:
        points = CONTRAST * frequencies(samples)
    else:
        points = features(samples, scale)[:, :FEATURES]
    bound = BOUND * math.sqrt(points.shape[1])
    return points * np.minimum(1, bound / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1e-12))


@on_one_blas_thread
def summarize_with_noise(
    samples: Samples, scale: tuple[np.ndarray, np.ndarray] | None, *, epsilon: float, delta: float, draws: Any
) -> dict[str, np.ndarray]:
    """Make the arrays of a site's first file with noise.

    Parameters
    ----------
    samples : Samples
    scale : (mean (d,), std (d,)), optional
        Of the columns of a table; it must not depend on the samples of the site.
    epsilon, delta : float
        Of both files together.
    draws : numpy.random.Generator or fnlkit.kernels.streams.HiddenStream
        A Generator with a known seed only simulates protection.

    Returns
    -------
    dict
        counts (C,), sums (C, m), moments (m, m).
    """
    points = points_of(samples, scale)
    noise, m = noise_of(epsilon, delta, points.shape[1]), points.shape[1]
    counts, by_class, moments = sums(points, samples.y, samples.classes)
    counts = counts + noise["counts"] * draws.standard_normal(counts.shape)
    by_class = by_class + noise["sums"] * draws.standard_normal(by_class.shape)
    # A record adds x x^T, whose Frobenius norm counts each entry beside the diagonal twice.
    upper = np.triu(draws.standard_normal((m, m)))
    moments = moments + noise["moments"] * (np.diag(np.diag(upper)) + (np.triu(upper, 1) + np.triu(upper, 1).T) / math.sqrt(2))
    return {"counts": counts, "sums": by_class, "moments": (moments + moments.T) / 2}


@on_one_blas_thread
def judge_with_noise(
    samples: Samples,
    head: dict[str, np.ndarray],
    scale: tuple[np.ndarray, np.ndarray] | None,
    *,
    epsilon: float,
    delta: float,
    draws: np.random.Generator | HiddenStream,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Make (arrays of a site's second file with noise, probabilities (n, C), which stay at the site).

    Returns
    -------
    dict
        agreement (2,): labels that the classifier predicts, and others; predicted (C, C): counts by predicted and given class.
    """
    points, labels, classes = points_of(samples, scale), samples.y, samples.classes
    p = softmax(points @ head["coefficients"].T + head["offsets"])
    noise, guess = noise_of(epsilon, delta, points.shape[1]), p.argmax(1)
    right = int((guess == labels).sum())
    table = table_of(guess, labels, classes)
    agreement = np.array([right, len(labels) - right]) + noise["agreement"] * draws.standard_normal(2)
    return {"agreement": agreement, "predicted": table + noise["predicted"] * draws.standard_normal(table.shape)}, p
