"""The one layout of samples: images (n, H, W, channels), waves (n, T), vectors (n, d)."""

from functools import partial

import numpy as np

from fnlkit.artefacts.stored import Changed, Rows
from fnlkit.errors import InputError


def rate_of(values):
    """Return the Hz that an array ``sample_rate`` of one number says; InputError for anything else."""
    if values.size != 1 or values.dtype.kind not in "iuf" or not 100 <= float(values.reshape(-1)[0]) <= 1_000_000:
        raise InputError(f"`sample_rate` is {values.reshape(-1)[:3].tolist()}; expected a number of Hz, 100 to 1,000,000")
    return int(values.reshape(-1)[0])


def laid_out(x, name, rate):
    """Return samples in the one layout that Dataset promises, and their kind.

    Parameters
    ----------
    x : array (n, ...)
        Numpy's, or of fnlkit.artefacts.stored, which then stays unread.
    name : str
        What messages call it.
    rate : int
        Hz, of waves; else 0.

    Raises
    ------
    InputError
    """
    if x.dtype.kind == "f":
        x = _through(x, partial(_floats, name=name))
    elif x.dtype.kind not in "iu":
        raise InputError(f"`{name}` is {x.dtype}; expected uint8, int16 or floats")
    if not x.shape or not len(x):
        raise InputError(f"`{name}` is empty")
    if rate:
        if x.ndim != 2 or (x.dtype.kind != "f" and x.dtype != np.int16):
            raise InputError(f"`{name}` is {x.dtype} {x.shape}; with sample_rate expected int16 or float waves (n, T)")
        return x, "wave"
    if x.ndim == 2:
        return (x if x.dtype == np.float32 else _through(x, partial(_floats, name=name))), "vector"
    if x.ndim in (3, 4) and x.dtype == np.uint16:
        x = _through(x, _sixteen_bits)
    if x.ndim == 3:
        x = _through(x, _one_channel)
    if x.ndim != 4 or (x.dtype.kind != "f" and x.dtype != np.uint8):
        raise InputError(
            f"`{name}` is {x.dtype} {x.shape}; expected vectors (n, d), images (n, H, W, channels) of uint8 or floats, "
            "or waves (n, T) with sample_rate"
        )
    if x.shape[3] not in (1, 3) and x.shape[1] in (1, 3):
        x = _through(x, _channels_last)
    return x, "image"


def _sixteen_bits(x):
    """Return images of 16 bits as float32 from 0 to 1, in which each of their values stays another one."""
    return x.astype(np.float32) / 65535


def _through(x, function):
    """Return what a function makes of samples: at once, or block by block when they are read from a file."""
    return Changed(x, function) if isinstance(x, Rows) else function(x)


def _floats(x, *, name):
    if not np.isfinite(x).all():
        raise InputError(f"`{name}` holds NaN or infinity; replace them before")
    return x.astype(np.float32, copy=False)


def _one_channel(x):
    return x[..., None]


def _channels_last(x):
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))
