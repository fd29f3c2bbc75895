"""Checks of kernel arguments; errors name the argument, the value found and the remedy."""

import math
from types import SimpleNamespace

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from fnlkit.core.errors import InputError
from fnlkit.kernels.threads import get_threads


def array(value: ArrayLike, name: str, dtype: DTypeLike | None = None) -> np.ndarray:
    """Convert an argument to a numpy array.

    Raises
    ------
    InputError
        For a tensor that numpy cannot read: with gradient, in bfloat16, or on a GPU; for sequences of unequal lengths; with
        `dtype`, for texts and complex numbers; for an array with masked entries, whose mask would be ignored.
    """
    mask = getattr(value, "mask", None)  # a method of pandas objects
    if isinstance(mask, np.ndarray) and mask.any():
        raise InputError(f"`{name}` has masked entries, which would be used; leave these rows out, or pass `{name}.data`")
    try:
        values = np.asarray(value)
        if dtype is None or values.dtype.kind in "biuf":
            return np.asarray(values, dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        if hasattr(value, "detach"):
            raise InputError(
                f"`{name}` is a tensor that numpy cannot read (gradient, bfloat16 or GPU); pass `{name}.detach().float().cpu()`"
            ) from error
        raise InputError(f"`{name}` must be an array, found {type(value).__name__}: {str(error).splitlines()[0]}") from error
    raise InputError(f"`{name}` must be an array of real numbers, found {values.dtype}")


def real(value: ArrayLike, name: str, dimensions: int, shape: str) -> np.ndarray:
    """Convert to a contiguous float32 or float64 array with the given number of dimensions."""
    values = array(value, name)
    if values.dtype.kind not in "fiu" or values.dtype.itemsize > 8:
        raise InputError(f"`{name}` must hold real numbers, found {values.dtype}; convert it to float32 or float64")
    if values.ndim != dimensions:
        raise InputError(f"`{name}` must have shape {shape}, found {values.shape}")
    kind = np.float32 if values.dtype in (np.float16, np.float32) else np.float64
    return contiguous(values, kind)


def contiguous(values: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Bring values into C order, not marked as read-only; the memory is that of `values` if possible.

    numba would compile a kernel a second time for read-only arrays. Kernels do not write to their input.
    """
    values = np.ascontiguousarray(values, dtype)
    if values.flags.writeable:
        return values
    interface = values.__array_interface__ | {"data": (values.ctypes.data, False)}
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=values))


def distributions(probs: np.ndarray, name: str, slack: float, advice: str) -> None:
    """Raise if a row (..., C) is not a probability distribution.

    Parameters
    ----------
    probs : float array (..., C)
        Rows with NaN pass, because the kernels check for NaN.
    name : str
    slack : float
        Largest deviation of a sum from 1.
    advice : str
        End of the message.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.einsum("...c->...", probs)
        wrong = np.abs(sums - 1) > slack
    if wrong.any():
        raise InputError(f"rows of `{name}` must sum to 1, found a sum of {sums[wrong][0]:.4g}; {advice}")
    if probs.size and probs.min() < -1e-6:
        raise InputError(f"`{name}` must hold probabilities, found {probs.min():.4g}; {advice}")


def finite(array: np.ndarray, name: str, advice: str = "drop such samples first") -> None:
    """Raise if an array contains NaN or infinity; `advice` ends the message."""
    # The sum of finite numbers is almost always finite, and one pass is cheaper than an array of booleans.
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(array.sum()) and not np.isfinite(array).all():
            at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise InputError(f"`{name}` must be finite, found {array[at]} at {at}; {advice}")


def exponent_of_scale(array: np.ndarray, dtype: DTypeLike | None = None) -> int:
    """Find the smallest e for which the array times 2**-e can be squared and summed in `dtype`.

    0 for usual magnitudes; otherwise the largest magnitude is scaled to 0.5 ... 1.
    """
    largest = float(max(array.max(initial=0), -array.min(initial=0)))
    low, high = (1e-12, 1e15) if (dtype or array.dtype) == np.float32 else (1e-140, 1e140)
    return 0 if largest == 0 or low <= largest <= high else math.frexp(largest)[1]


def holding(dtype: np.dtype, largest: int) -> np.dtype:
    """Choose the integer type if it can represent 0..largest, otherwise int64."""
    return dtype if dtype.kind in "iu" and largest <= np.iinfo(dtype).max else np.dtype(np.int64)


def integers(value: ArrayLike, name: str, n: int, what: str) -> np.ndarray:
    """Convert to a contiguous int64 array (n,)."""
    values = array(value, name)
    if values.dtype.kind not in "iu" and values.size:
        raise InputError(f"`{name}` must hold integers, found {values.dtype}; use astype(int) if its values are whole")
    if values.ndim != 1 or len(values) != n:
        raise InputError(f"`{name}` must have shape ({n:,},), one a {what}; found {values.shape}")
    return contiguous(values, np.int64)


def check_range(array: np.ndarray, name: str, below: int) -> None:
    """Raise if an integer array has values outside 0..below-1."""
    if len(array) and not (array.min() >= 0 and array.max() < below):
        at = int(np.argmax((array < 0) | (array >= below)))
        raise InputError(f"`{name}` must lie in 0..{below - 1}, found {array[at]} at position {at}")


def offsets(value: ArrayLike | None, n: int) -> np.ndarray:
    """Check client offsets (K + 1,) int64; a single client if none are given."""
    if value is None:
        return np.array([0, n])
    values = array(value, "client_offsets")
    if values.dtype.kind not in "iu" or values.ndim != 1 or len(values) < 2:
        raise InputError(f"`client_offsets` must be integers of shape (K + 1,), found {values.dtype} of shape {values.shape}")
    values = contiguous(values, np.int64)
    if values[0] != 0 or values[-1] != n or (np.diff(values) < 0).any():
        raise InputError(
            f"`client_offsets` must rise from 0 to {n:,}, the number of samples; found {values[0]} to {values[-1]:,}"
            f"{'' if (np.diff(values) >= 0).all() else ' with a step down'}"
        )
    return values


def positive(value: object, name: str, least: int = 1) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not least <= value < 2**63:
        limit = " and below 2**63" if isinstance(value, int) and value >= 2**63 else ""
        raise InputError(f"`{name}` must be an integer of at least {least}{limit}, found {brief(value)}")
    return int(value)


def one_of(value: object, name: str, choices: tuple[str, ...], advice: str = "") -> None:
    """Raise if an argument is none of some texts; `advice` ends the message."""
    if not (isinstance(value, str) and value in choices):
        wanted = " or ".join(f'"{choice}"' for choice in choices)
        raise InputError(f"`{name}` must be {wanted}, found {brief(value)}{advice}")


def flag(value: object, name: str) -> bool:
    """Check True or False (or 1 or 0, for which a kernel would be compiled again)."""
    value = np.asarray(value).item() if getattr(value, "shape", None) == () else value  # also of an array or a tensor
    if not (isinstance(value, int) and value in (0, 1)):
        raise InputError(f"`{name}` must be True or False, found {brief(value)}")
    return bool(value)


def brief(value: object) -> str:
    """Display an argument of any type in one short line."""
    shape = getattr(value, "shape", ())
    text = f"{type(value).__name__} of shape {tuple(shape)}" if shape else " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def uniforms(value: ArrayLike, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = array(value, name)
    if values.dtype.kind != "f" or values.shape != shape:
        raise InputError(f"`{name}` must be floats of shape {shape}, found {values.dtype} of shape {values.shape}")
    values = contiguous(values, np.float64)
    if values.size and not (values.min() >= 0 and values.max() < 1):
        raise InputError(f"`{name}` must lie in [0, 1), found {values.min()} to {values.max()}; use Generator.random")
    return values


def thread_count(threads: int | None) -> int:
    return get_threads() if threads is None else positive(threads, "threads")
