"""First message of a site: class sums and second moments of features."""

import numpy as np

from fnlkit.audits.messages import CLIP, FARTHEST, LEAST, SIZES, dimensions, rotation
from fnlkit.audits.site import inputs
from fnlkit.audits.site.samples import Samples, large_classes, values_of
from fnlkit.kernels.neighbors import on_one_blas_thread
from fnlkit.kernels.scores import effective_size
from fnlkit.kernels.streams import stream

# Random rectified features of raw images and sounds, beside their values.
RANDOM = 128
# Tables of fewer columns have random Fourier features, for curved borders: their number and inverse length scale.
CURVED = 13, 64, 1.0


def features(samples: Samples, scale: tuple[np.ndarray, np.ndarray] | None = None) -> np.ndarray:
    """Compute the features (n, D) of samples, of which the first ones are a random rotation or projection.

    Columns of a table are standardized by `scale`.  Features of a backbone and sounds are standardized within each sample.
    Images are averaged to at most 16 pixels a side.  Raw images and sounds have RANDOM rectified random features more.

    Parameters
    ----------
    samples : Samples
    scale : (mean (d,), std (d,)), optional
        Of the columns of a table.
    """
    embedded, x = samples.embedding is not None, values_of(samples)
    raw = not embedded and samples.x.ndim > 2
    if samples.image and not embedded:
        x = 2 * x - 1
    elif scale is not None and not embedded:
        x = (x - scale[0]) / scale[1]
    else:
        x = x - x.mean(1, keepdims=True)
        x = x / np.maximum(np.sqrt((x**2).mean(1, keepdims=True)), 1e-9)
    x = np.clip(x, -FARTHEST, FARTHEST)
    width = x.shape[1]
    first = x @ rotation(width)
    if raw:
        weights = stream(1, "summaries").standard_normal((width, RANDOM)) * 2 / np.sqrt(width)
        first = np.hstack([first, np.maximum(x @ weights, 0)])[:, : SIZES[-1]]
    elif not embedded and samples.x.ndim == 2 and width < CURVED[0]:
        weights = stream(2, "summaries").standard_normal((width, CURVED[1])) * CURVED[2] / np.sqrt(width)
        phases = stream(3, "summaries").uniform(0, 2 * np.pi, CURVED[1])
        first = np.hstack([first, np.sqrt(2) * np.cos(x @ weights + phases)])
    bound = CLIP * np.sqrt(first.shape[1])
    return first * np.minimum(1, bound / np.maximum(np.sqrt((first**2).sum(1, keepdims=True)), 1e-12))


def sums(points: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute counts (C,), class sums (C, D) and second moments (D, D) of features (n, D)."""
    by_class = np.eye(classes)[labels].T @ points
    return np.bincount(labels, minlength=classes), by_class, points.T @ points


@on_one_blas_thread
def summarize(samples: Samples, scale: tuple[np.ndarray, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """Make the arrays of a site's first file.

    Parameters
    ----------
    samples : Samples
    scale : (mean (d,), std (d,)), optional
        As for `features`.

    Returns
    -------
    dict
        counts (C,) (0 for withheld classes), withheld bool (C,), observations (number of independent samples: a group counts
        as one), width (number of features), sums (C, m), moments (m, m), and columns, class_columns as fnlkit.audits.messages
        declares them.
    """
    held = np.bincount(samples.y, minlength=samples.classes)
    withheld = (held > 0) & (held < LEAST)
    samples, _ = large_classes(samples)
    labels = samples.y
    points = features(samples, scale) if len(labels) else np.zeros((0, 1))
    counts, by_class, moments = sums(points[:, : dimensions(len(labels), points.shape[1])], labels, samples.classes)
    number = len(labels) if samples.groups is None or not len(labels) else max(1, round(effective_size(samples.groups)))
    first = {"counts": counts, "withheld": withheld, "observations": np.array(number), "width": np.array(points.shape[1])}
    return first | {"sums": by_class, "moments": (moments + moments.T) / 2} | inputs.describe_columns(samples)
