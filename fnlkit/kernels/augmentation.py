"""Crop, flip, cut out and normalize a batch of images in one pass from bytes to floats."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit._kernels import augment
from fnlkit._kernels.threads import even, run
from fnlkit.errors import InputError
from fnlkit.kernels import checks


def augment_batch(
    images: ArrayLike,
    index: ArrayLike,
    *,
    shift: ArrayLike | None = None,
    flip: ArrayLike | None = None,
    center: ArrayLike | None = None,
    size: int = 0,
    pad: int = 0,
    mean: ArrayLike | None = None,
    std: ArrayLike | None = None,
    out: NDArray[np.float32] | None = None,
    threads: int | None = None,
) -> NDArray[np.float32]:
    """Return a batch of network input: images cropped, flipped, scaled to [0, 1], normalized, and cut out.

    Parameters
    ----------
    images : array (n, H, W, C) of uint8
        Stored images, not modified.
    index : array (B,) of int
        The images of the batch, 0..n-1.
    shift : array (B, 2) of int, optional
        Row and column at which an H x W crop begins in the image padded by `pad` zeros on each side, 0..2 pad.
    flip : array (B,) of bool, optional
        Mirror the cropped image left to right.
    center : array (B, 2) of int, optional
        Row and column of the center of a square of `size` pixels that is set to 0 after normalization; the square
        covers center - size // 2 to center - size // 2 + size - 1, clipped to the image.
    size, pad : int
    mean, std : sequence of C floats, optional
        Of images scaled to [0, 1]. Default: no normalization, values stay in [0, 1].
    out : ndarray (B, C, H, W) of float32, optional
        C-contiguous memory for the result, to avoid its allocation.
    threads : int, optional
        Default: `get_threads()`.

    Returns
    -------
    ndarray (B, C, H, W) float32

    Raises
    ------
    InputError
        Wrong shapes or types, numbers out of range.

    Notes
    -----
    Bit-equal to torchvision's RandomCrop(padding), RandomHorizontalFlip, ToTensor, Normalize with the same draws;
    cutout is DeVries and Taylor 2017.

    Examples
    --------
    >>> images = np.arange(4, dtype=np.uint8).reshape(1, 2, 2, 1) * 85
    >>> (augment_batch(images, [0, 0], flip=[False, True]) * 255).astype(int).tolist()
    [[[[0, 85], [170, 255]]], [[[85, 0], [255, 170]]]]
    """
    images = checks.array(images, "images")
    if images.ndim != 4 or images.dtype != np.uint8:
        raise InputError(f"`images` must be uint8 of shape (n, H, W, C), found {images.dtype} of shape {images.shape}")
    images = np.ascontiguousarray(images)
    n, height, width, channels = images.shape
    index = checks.array(index, "index")
    index = checks.integers(index, "index", index.size, "image of the batch")
    checks.within(index, "index", n)
    batch = len(index)
    if pad < 0 or size < 0:
        raise InputError(f"`pad` and `size` must be at least 0, found {pad} and {size}")
    shift = _pairs(shift, "shift", batch, (2 * pad + 1, 2 * pad + 1), pad)
    if center is not None and size < 1:
        raise InputError("`center` is given but `size` is 0; say how many pixels to cut out")
    size = size if center is not None else 0
    center = _pairs(center, "center", batch, (height, width), 0)
    flip = np.zeros(batch, np.bool_) if flip is None else checks.array(flip, "flip")
    if flip.shape != (batch,) or flip.dtype.kind not in "biu":
        raise InputError(f"`flip` must be booleans of shape ({batch},), found {flip.dtype} of shape {flip.shape}")
    flip = np.ascontiguousarray(flip, np.bool_)
    table = _byte_table(mean, std, channels)
    if out is None:
        out = np.empty((batch, channels, height, width), np.float32)
    elif (
        not isinstance(out, np.ndarray)
        or out.dtype != np.float32
        or out.shape != (batch, channels, height, width)
        or not (out.flags.c_contiguous and out.flags.writeable)
    ):
        raise InputError(
            f"`out` must be a writeable contiguous float32 array of shape {(batch, channels, height, width)}, found "
            f"{getattr(out, 'dtype', type(out).__name__)} of shape {getattr(out, 'shape', ())}"
        )
    threads = checks.thread_count(threads)
    pieces = even(batch, min(threads, 1 + out.size // 65536))

    def work(start, stop):
        augment.augment_images(images, index, shift, flip, center, pad, size, table, start, stop, out)

    run(work, pieces, threads)
    return out


def _pairs(value, name, batch, below, default):
    """Return integer pairs (B, 2), checked against a range; `default` for each if `pairs` is None."""
    if value is None:
        return np.full((batch, 2), default, np.int64)
    array = checks.array(value, name)
    if array.shape != (batch, 2) or array.dtype.kind not in "iu":
        raise InputError(f"`{name}` must be integers of shape ({batch}, 2), found {array.dtype} of shape {array.shape}")
    array = np.ascontiguousarray(array, np.int64)
    if batch and ((array < 0) | (array >= below)).any():
        raise InputError(
            f"`{name}` must lie in 0..{below[0] - 1} and 0..{below[1] - 1}, found {array.min(0)} to {array.max(0)}"
        )
    return array


def _byte_table(mean, std, channels):
    """Return the normalized value of each byte (C, 256), by the operations of ToTensor and Normalize in float32."""
    values = np.tile(np.arange(256, dtype=np.float32) / np.float32(255), (channels, 1))
    for name, given in (("mean", mean), ("std", std)):
        if given is None:
            continue
        given = checks.array(given, name, np.float32)
        if given.shape != (channels,) or not np.isfinite(given).all():
            raise InputError(f"`{name}` must be {channels} finite numbers, one a channel; found shape {given.shape}")
        if name == "std" and not (given > 0).all():
            raise InputError(f"`std` must be positive, found {given}")
        values = values - given[:, None] if name == "mean" else values / given[:, None]
    return values
