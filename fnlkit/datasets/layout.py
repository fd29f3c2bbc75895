"""Convert samples to one layout.

Images are (n, H, W, channels), waves (n, T) and vectors (n, d).
"""

from functools import partial
from operator import itemgetter

import numpy as np

from fnlkit.artifacts.stored import Changed, Rows
from fnlkit.core.errors import InputError

LAYOUTS = ("channels-last", "channels-first")
_USUAL = (1, 3)


def layout_of(values: np.ndarray) -> str:
    """Read the text of the array ``layout``, which must be one of `LAYOUTS`."""
    text = str(values.reshape(-1)[0]) if values.size == 1 else ""
    if text not in LAYOUTS:
        raise InputError(f"`layout` is {values.reshape(-1)[:3].tolist()}; write one text, {' or '.join(LAYOUTS)}")
    return text


def rate_of(values: np.ndarray) -> int:
    """Read the sample rate in Hz from the array ``sample_rate``.

    InputError is raised unless the array contains one valid number.
    """
    if values.size != 1 or values.dtype.kind not in "iuf" or not 100 <= float(values.reshape(-1)[0]) <= 1_000_000:
        raise InputError(f"`sample_rate` is {values.reshape(-1)[:3].tolist()}; expected a number of Hz, 100 to 1,000,000")
    return int(values.reshape(-1)[0])


def lay_out(x: np.ndarray | Rows, name: str, rate: int, layout: str = "") -> tuple[np.ndarray | Rows, str, str]:
    """Lay out samples as in Dataset: (samples, kind, a note or "").

    Parameters
    ----------
    x : array (n, ...)
        A NumPy array, or an array of fnlkit.artifacts.stored, which is not read.
    name : str
        Name of the array in messages.
    rate : int
        Sample rate of waves in Hz; 0 for other samples.
    layout : str
        Layout of images with four dimensions, one of `LAYOUTS`.  Default: "", which detects it.  The note states whether
        channels were moved.

    Raises
    ------
    InputError
    """
    if x.dtype.kind == "f":
        x = _through(x, partial(_floats, name=name))
    elif x.dtype.kind not in "iu":
        raise InputError(f"`{name}` is {x.dtype}; expected uint8, int16 or floats")
    if not x.shape or not x.size:
        raise InputError(f"`{name}` is empty")
    if rate:
        if x.ndim != 2 or (x.dtype.kind != "f" and x.dtype != np.int16):
            raise InputError(f"`{name}` is {x.dtype} {x.shape}; with sample_rate expected int16 or float waves (n, T)")
        return x, "wave", ""
    if x.ndim == 2:
        return (x if x.dtype == np.float32 else _through(x, partial(_floats, name=name))), "vector", ""
    if x.ndim in (3, 4) and x.dtype == np.uint16:
        x = _through(x, _sixteen_bits)
    alone = x.ndim == 3
    if alone:
        x = _through(x, itemgetter((..., None)))
    if x.ndim != 4 or (x.dtype.kind != "f" and x.dtype != np.uint8):
        raise InputError(
            f"`{name}` is {x.dtype} {x.shape}; expected vectors (n, d), images (n, H, W, channels) of uint8 or floats, "
            "or waves (n, T) with sample_rate"
        )
    x, note = channels_last(x, name, LAYOUTS[0] if alone else layout)
    return x, "image", note


def channels_last(x: np.ndarray | Rows, name: str, layout: str = "") -> tuple[np.ndarray | Rows, str]:
    """Move channels of images to the last axis: (images, a note or "").

    If only one end of the shape is 1 or 3, this end is the channels.  Otherwise, the two equal sides are height and width, or
    the channels are the end that is smaller than both other sides.

    Parameters
    ----------
    x : array (n, H, W, channels) or (n, channels, H, W)
    name : str
        Name of the array in messages.
    layout : str
        One of `LAYOUTS`.  Default: "", which detects it.

    Raises
    ------
    InputError
        If the shape fits both layouts.

    Examples
    --------
    >>> channels_last(np.zeros((5, 3, 32, 32)), "x")[0].shape
    (5, 32, 32, 3)
    """
    if not (_channels_first(x.shape, name) if not layout else layout == LAYOUTS[1]):
        return x, ""
    note = f"`{name}` {tuple(x.shape)} has the channels first; they were moved last"
    return _through(x, _channels_last), note if layout else f'{note} (if they are not first, declare layout="{LAYOUTS[0]}")'


def _channels_first(shape, name):
    first, middle, last = shape[1:]
    if (first in _USUAL) != (last in _USUAL):
        return first in _USUAL
    if last not in _USUAL:
        for a, b in ((first == middle, middle == last), (last < min(first, middle), first < min(middle, last))):
            if a != b:
                return b
    elif first == middle == last == 1:
        return False
    raise InputError(
        f'`{name}` {tuple(shape)}: the channels can be first or last; declare layout="{LAYOUTS[0]}" or "{LAYOUTS[1]}", in an '
        "npz as an array `layout` with this text, for a table of npy files in the data set's spec"
    )


def _sixteen_bits(x):
    """Convert 16-bit images to float32 in [0, 1]; different values stay different."""
    return x.astype(np.float32) / 65535


def _through(x, function):
    """Apply a function to samples, block by block if they are read from a file."""
    return Changed(x, function) if isinstance(x, Rows) else function(x)


def _floats(x, *, name):
    if not np.isfinite(x).all():
        raise InputError(f"`{name}` contains NaN or infinity; replace these values")
    if x.size and x.dtype.itemsize > 4 and max(abs(float(x.min())), abs(float(x.max()))) > float(np.finfo(np.float32).max):
        raise InputError(f"`{name}` contains values beyond float32, such as codes of missing values; replace them")
    return x.astype(np.float32, copy=False)


def _channels_last(x):
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))
