"""Compare the scale of new images with that of the images of a run, and convert it where it is certain."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fnlkit.artifacts.stored import Changed, Rows, blocks
from fnlkit.core.errors import InputError

# Images whose values are read to find their range.
_MOST = 1000
# New values may be above the range of the training images by this many ranges, or by _ROUNDED for bytes, and below it by as
# much, or by _ROUNDED if there are no negative ones.  Their largest value has at least the share _SHARE of the range.
_OUTSIDE, _ROUNDED, _SHARE = 3, 0.05, 1 / 128
# Bytes can have any values if those of the training images span this share of 0 to 1.
_WIDE = 1 / 4
# Images of 0 to 255 have a value above this one.
_BRIGHT = 32
_BYTES_OF_16 = 255 / 65535


def scale_of(x: np.ndarray | Rows) -> dict[str, object]:
    """Find ``dtype`` and ``range`` [low, high] of images (n, H, W, channels) as a network gets them: bytes are 0 to 1.

    The result is empty without images, such as at the server of a deployment.
    """
    if not len(x) or not getattr(x, "here", True):
        return {}
    if x.dtype == np.uint8:
        return {"dtype": str(x.dtype), "range": [0.0, 1.0]}
    rows = x[np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST)).astype(np.int64))]
    return {"dtype": str(x.dtype), "range": [float(rows.min()), float(rows.max())]}


def as_bytes(x: np.ndarray | Rows, known: Sequence[float]) -> np.ndarray | Rows:
    """Convert integers of 0 to 255 in a type with more bytes to uint8; other arrays are unchanged.

    `known` is the range of the training images: those of 16 bits can have such values.
    """
    if x.dtype.kind not in "iu" or x.dtype == np.uint8 or not len(x):
        return x
    if x.dtype == np.uint16 and known[1] <= 2 * _BYTES_OF_16:
        return x
    low, high = _ends(x)
    return _through(x, partial(np.asarray, dtype=np.uint8)) if 0 <= low and high <= 255 else x


def match_scale(x: np.ndarray | Rows, dtype: str, known: Sequence[float], name: str) -> tuple[np.ndarray | Rows, str]:
    """Convert new images to the scale of the training images: (images, a note or "").

    Values of 0 to 255 are bytes in any type.

    Parameters
    ----------
    x : array (n, H, W, channels), uint8 or float32
    dtype, known
        Type and range of the training images, as returned by `scale_of`.
    name : str
        Of the new data, for messages.

    Raises
    ------
    InputError
        If the scale differs and cannot be converted with certainty.
    """
    low, high = known
    unit, of_bytes = 0 <= low and high <= 1, 0 <= low and 1 < high <= 255
    if x.dtype == np.uint8 and (dtype == "uint8" or (unit and high - low >= _WIDE)):
        return x, ""
    smallest, largest = _ends(x)
    scale, note = (1 / 255 if x.dtype == np.uint8 else 1.0), ""
    if of_bytes and high > _BRIGHT and x.dtype == np.uint8:
        scale = 1.0
    elif of_bytes and high > _BRIGHT and 0 <= smallest and 0 < largest <= 1:
        scale, note = 255.0, "values of 0 to 1 were multiplied by 255"
    elif unit and x.dtype != np.uint8 and 0 <= smallest and _BRIGHT <= largest <= 255:
        scale, note = 1 / 255, "values of 0 to 255 were divided by 255"
    elif dtype == "uint8" and x.dtype != np.uint8 and 0 <= smallest and 0 < largest <= _BYTES_OF_16 * (1 + 1e-6):
        scale, note = 257.0, "values of 0 to 255 in 16 bits were read as bytes"
    first, last, span = smallest * scale, largest * scale, high - low
    above, below = (_ROUNDED if dtype == "uint8" else _OUTSIDE), (_ROUNDED if low >= 0 else _OUTSIDE)
    if last > high + above * span or first < low - below * span or first < last < low + _SHARE * span:
        raise InputError(
            f"{name}: the images have values from {first:.4g} to {last:.4g}, and the run was trained on {low:.4g} to "
            f"{high:.4g}; convert them to the scale of the training images"
        )
    if scale != (1 / 255 if x.dtype == np.uint8 else 1.0) or (x.dtype == np.uint8 and not unit):
        x = _through(x, partial(_multiply, scale=np.float32(scale)))
    return x, f"{name}: {note}, as in training" if note else ""


def _multiply(x, *, scale):
    return x.astype(np.float32) * scale


def _through(x, function: Callable[[np.ndarray], np.ndarray]):
    return Changed(x, function) if isinstance(x, Rows) else function(x)


def _ends(x):
    parts = [(part.min(), part.max()) for part in (x[a:b] for a, b in blocks(x))]
    return float(min(low for low, _ in parts)), float(max(high for _, high in parts))
