"""Read embeddings or probabilities of the training samples from a file."""

from functools import partial

import numpy as np

from fnlkit.artifacts import large, paths
from fnlkit.artifacts.stored import blocks
from fnlkit.datasets.facts import remembered
from fnlkit.datasets.loading import cache_folder
from fnlkit.errors import InputError

_ALSO = {"probabilities": ("probs", "pred_probs"), "embeddings": ("features",)}


def read_rows(path, name, federation):
    """Return an array (n, d) with a row for each training sample; arrays above 64 MiB stay on disk.

    Parameters
    ----------
    path : str
        A file of `fnlkit embed`, or an npz or npy file: the array called `name`, or the only array with two axes.  An array
        ``index`` (r,) in the same file gives the training samples of its r rows. The other samples then get rows of NaN, and
        the result is in memory.
    name : "embeddings" or "probabilities"
    federation : fnlkit.artifacts.federation.Federation

    Raises
    ------
    InputError
        If the file is invalid; the one-line message names the file.
    """
    if path == "-":
        raise InputError(f"{name} cannot come from the pipe, which carries the federation; name a file")
    where = cache_folder()
    arrays = large.open_arrays(path, decoded=where / "decoded")
    if arrays.get("kind") is not None:
        remember = partial(remembered, files=[path], where=where)
        artifact = large.open_artifact(path, kinds=[f"fnlkit.{name}"], decoded=where / "decoded", remember=remember)
        arrays, made_of = artifact.arrays, artifact.meta.get("checksum")
        ours = federation.meta.get("dataset_checksum")
        if made_of and ours and made_of != ours:
            raise InputError(
                f"{paths.shown(path)}: {name} of {artifact.meta.get('dataset', 'another data set')}, but the federation "
                f"is over {federation.dataset} (the checksums differ); make {name} of this data set"
            )
    wide = [key for key, values in arrays.items() if values.ndim == 2]
    key = next((key for key in (name, *_ALSO[name]) if key in arrays), wide[0] if len(wide) == 1 else None)
    if key is None:
        held = ", ".join(f"{key} {values.shape}" for key, values in arrays.items()) or "no arrays"
        raise InputError(f"{paths.shown(path)}: no array `{name}` (n, d); found {held}")
    values, size = arrays[key], len(federation.given)
    if "index" not in arrays:
        if values.ndim != 2 or len(values) != size:
            raise InputError(
                f"{paths.shown(path)}: `{key}` has shape {values.shape}; expected {size:,} rows, one per training "
                f"sample of {federation.dataset}, or an array `index` with the sample of each row"
            )
        return values
    index = np.asarray(arrays["index"])
    fits = values.ndim == 2 and index.shape == (len(values),) and index.dtype.kind in "iu"
    if not fits or (len(index) and not 0 <= index.min() <= index.max() < size):
        raise InputError(
            f"{paths.shown(path)}: `index` is {index.dtype} {index.shape} for `{key}` {values.shape}; expected one "
            f"position below {size:,} for each row"
        )
    out = np.full((size, values.shape[1]), np.nan, np.result_type(values.dtype, np.float32))
    for a, b in blocks(values):
        out[index[a:b]] = values[a:b]
    return out
