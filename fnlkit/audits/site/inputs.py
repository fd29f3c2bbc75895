"""Describe the inputs of a site by declared statistics, and apply changes to them."""

from collections.abc import Sequence

import numpy as np

from fnlkit.audits.changes import TONES, TURNS, Change
from fnlkit.audits.messages import (
    CLIPPED,
    GRID,
    LEAST,
    LEAST_COLUMNS,
    MOST_COLUMNS,
    MOST_FEATURES,
    classes_to_describe,
)
from fnlkit.audits.site.samples import BLOCK, Samples, plain
from fnlkit.kernels.streams import stream

# Of more pixels than this, only every k-th is used for their mean, deviation and quantiles.
MOST_VALUES = 10**6


def describe_columns(samples: Samples) -> dict[str, np.ndarray]:
    """Compute statistics of each column, overall (`columns`) and by given label (`class_columns`)."""
    labels, x = samples.y, samples.x
    if x.ndim != 2 or x.shape[1] > MOST_COLUMNS:
        every = max(1, x.size // MOST_VALUES)
        values = plain(x.reshape(-1)[::every]).astype(np.float64)[:, None]
        by_class = np.zeros((2, samples.classes, 0))
    else:
        values = x.astype(np.float64)
        by_class = np.zeros((2, samples.classes, values.shape[1]))
        for c in _classes_to_describe(samples):
            part = values[labels == c]
            by_class[:, c] = part.mean(0), part.std(0)
    statistics = np.zeros((5, values.shape[1]))
    if len(labels) >= LEAST_COLUMNS:
        statistics = np.concatenate([[values.mean(0), values.std(0)], _quantiles(values)])
    return {"columns": statistics, "class_columns": by_class}


def describe_inputs(
    samples: Samples, message: dict[str, np.ndarray], *, changes: Sequence[Change], width: int, seed: int
) -> dict[str, np.ndarray]:
    """Compute class means and covariances of a coarse description of the inputs under each change.

    Parameters
    ----------
    samples : Samples
    message : dict of arrays
        center (2, d), suspects, tone (2,) and fits (2, d) of `fnlkit.audits.server.heads.make_heads`.
    changes : list of Change
    width : int
        Largest number of features; more are projected.
    seed : int
    """
    labels = samples.y
    features = describe(samples, message, changes)
    size = features[0].shape[1]
    if size > width:
        # The same projection at every site: with few samples, a covariance of many features cannot be inverted.
        projection = stream(seed, "shifts").standard_normal((size, width)) / np.sqrt(size)
        features = [part @ projection for part in features]
    means = np.zeros((len(features), samples.classes, features[0].shape[1]))
    classes = _classes_to_describe(samples)
    for c in classes:
        here = labels == c
        means[:, c] = [part[here].mean(0) for part in features]
    used = np.isin(labels, classes)
    within = [(part - means[t][labels])[used] for t, part in enumerate(features)]
    covariances = np.stack([part.T @ part / max(1, used.sum()) for part in within])
    return {"class_means": means, "covariances": covariances}


def _quantiles(values):
    """The 10, 50 and 90 % quantiles (3, d) of values (n, d), each the mean of LEAST neighboring order statistics."""
    places = np.round((len(values) - 1) * np.array([0.1, 0.5, 0.9])).astype(int) - LEAST // 2
    ordered = np.sort(values, 0)
    return np.stack([ordered[place : place + LEAST].mean(0) for place in places])


def _classes_to_describe(samples):
    """Choose the classes that a site describes."""
    return np.flatnonzero(classes_to_describe(np.bincount(samples.y, minlength=samples.classes)))


def describe(samples: Samples, message: dict[str, np.ndarray], changes: Sequence[Change]) -> list[np.ndarray]:
    """Describe samples by coarse features (n, D) under each change, to compare the inputs of sites; see `describe_inputs`."""
    if not samples.image:
        x = plain(samples.x)
        center, spread = message["center"]
        fitted = _rescale(x, message["fits"])
        suspects = message["suspects"]
        return [_vector(fitted if change.tone else x, center, spread, suspects) for change in changes]
    blocks = [_parts_of(plain(samples.x[start : start + BLOCK])) for start in range(0, len(samples), BLOCK)]
    squares, spread, edges, _ = (np.concatenate(part) for part in zip(*blocks, strict=True))
    own, features = tone_of(samples), []
    for change in changes:
        factor, offset = _tone(change, own, message["tone"])
        turned = _turn((factor * squares + offset)[..., None], change).reshape(len(squares), -1)
        features.append(np.column_stack([turned, turned**2, abs(factor) * spread, abs(factor) * edges]).astype(np.float64))
    return features


def tone_of(samples: Samples) -> tuple[float, float]:
    """Mean and standard deviation of all pixels of images."""
    sums = [_parts_of(plain(samples.x[start : start + BLOCK]))[3] for start in range(0, len(samples), BLOCK)]
    mean, square = np.concatenate(sums).mean(0)
    return float(mean), max(float(np.sqrt(max(0.0, square - mean**2))), 1e-9)


def _parts_of(x):
    """Means in squares (n, GRID, GRID), deviation (n,), contrast of neighbors (n,), mean and mean square (n, 2)."""
    gray = x.mean(-1)
    cuts = [np.linspace(0, side, GRID + 1).astype(int) for side in gray.shape[1:]]
    rows, columns = ([slice(a, max(b, a + 1)) for a, b in zip(cut[:-1], cut[1:], strict=True)] for cut in cuts)
    squares = np.stack([np.stack([gray[:, a, b].mean((1, 2)) for b in columns], 1) for a in rows], 1)
    edges = np.zeros(len(x), np.float32)
    for side in (1, 2):
        if gray.shape[side] > 1:
            edges = edges + np.abs(np.diff(gray, axis=side)).mean((1, 2))
    wide = x.astype(np.float64)
    return squares, gray.std((1, 2)), edges, np.stack([wide.mean((1, 2, 3)), (wide**2).mean((1, 2, 3))], 1)


def _vector(x, center, spread, suspects=()):
    """Select columns or, of many columns, the suspects and random projections of all; with their squares."""
    x = x.reshape(len(x), -1).astype(np.float64)
    z = np.clip((x - center) / spread, -CLIPPED, CLIPPED) if x.shape[1] == len(center) else x
    if z.shape[1] > MOST_FEATURES:
        single = z[:, [j for j in suspects if j >= 0]]
        size = MOST_FEATURES - single.shape[1]
        z = np.hstack([single, z @ stream(0, "shifts").standard_normal((z.shape[1], size)) / np.sqrt(z.shape[1])])
    return np.concatenate([z, z**2], 1)


def apply_change(samples: Samples, change: Change, message: dict[str, np.ndarray]) -> np.ndarray:
    """Apply a change to samples (n, ...), scaled as by `fnlkit.audits.site.samples.plain`."""
    x = plain(samples.x)
    if not samples.image:
        return _rescale(x, message["fits"])
    factor, offset = _tone(change, tone_of(samples), message["tone"])
    return np.ascontiguousarray(_turn(x * np.float32(factor) + np.float32(offset), change))


def _rescale(x, fits):
    return (x.astype(np.float64) * fits[0] + fits[1]).astype(np.float32) if x.ndim == 2 else x


def _tone(change, own, reference):
    """Find (factor, offset) that give the pixels the mean and the standard deviation of the reference."""
    sign = TONES[change.tone]
    factor = sign * reference[1] / own[1] if sign else 1.0
    return factor, reference[0] - factor * own[0] if sign else 0.0


def _turn(x, change):
    """Mirror or rotate images (n, H, W, channels)."""
    for move in TURNS[change.turn]:
        x = {"h": lambda x: x[:, :, ::-1], "v": lambda x: x[:, ::-1], "r": lambda x: x.swapaxes(1, 2)[:, :, ::-1]}[move](x)
    return x
