"""Data sets behind one function: a name, a file or a folder in; training and test samples with labels out.

Nothing is downloaded unless asked for.  Samples are read when they are first needed, labels at once.
"""

import hashlib
import os
import pathlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from fnlkit.errors import InputError
from fnlkit.spec import bind, nearest, parse

# Name -> (module:function, one line).  The function takes where=<cache folder> and its own keyword parameters.
_KNOWN = {
    "digits": ("fnlkit.datasets_known:digits", "1,797 handwritten digits, 8x8, part of this package"),
    "mnist": ("fnlkit.datasets_known:mnist", "70,000 handwritten digits, 28x28"),
    "fashion-mnist": ("fnlkit.datasets_known:fashion_mnist", "70,000 articles of clothing, 28x28"),
    "cifar10": ("fnlkit.datasets_known:cifar10", "60,000 photographs of 10 classes, 32x32"),
    "cifar100": ("fnlkit.datasets_known:cifar100", "60,000 photographs of 100 classes in 20 superclasses, 32x32"),
    "eurosat": ("fnlkit.datasets_known:eurosat", "27,000 satellite images of 10 land uses, 64x64"),
    "pathmnist": ("fnlkit.datasets_known:pathmnist", "97,176 colon tissue images of 9 classes, 28x28"),
    "speechcommands": (
        "fnlkit.datasets_known:speechcommands",
        "one-second words of 35 classes by 2,618 speakers, 16 kHz",
    ),
    "clothing1m": (
        "fnlkit.datasets_local:clothing1m",
        "1,000,000 shop photographs of 14 classes with real label noise",
    ),
    "folder": ("fnlkit.datasets_local:folder", "any image folder with a sub-folder per class"),
}
# A file or folder that says that a data set is there, in the cache folder or absolute.
_MARKERS = {
    "mnist": ("MNIST/raw",),
    "fashion-mnist": ("FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"),
    "cifar10": ("cifar-10-batches-py",),
    "cifar100": ("cifar-100-python",),
    "eurosat": ("eurosat/2750",),
    "pathmnist": ("pathmnist.npz",),
    "speechcommands": ("SpeechCommands/speech_commands_v0.02",),
    "clothing1m": ("clothing1m",),
}


@dataclass
class Dataset:
    """Training and test samples with their labels.

    Attributes
    ----------
    name : str
        What `load` understands: a name, a spec, or an absolute path.
    kind : {"image", "wave", "vector"}
    y_train, y_test : (n,) int64
    class_names : list of str
        C names; labels are 0 to C - 1.
    samples : callable
        Returns (x_train, x_test): images (n, H, W, channels) uint8 or float32; waves (n, T) int16 or float32; vectors
        (n, d) float32.  Called once, when x_train or x_test is first used.
    statistics : (tuple, tuple) or None
        Published mean and standard deviation per channel; None computes them.
    sample_rate : int
        Of waves, in Hz; 0 otherwise.
    fields : dict of str to (n,) array
        What else is known of each training sample, for example its speaker.
    superclass : (C,) int64 or None
    observed : bool
        True when y_train holds real, noisy labels whose truth nobody knows.
    content : callable or None
        Returns what the checksum is taken over, where reading all samples would take too long.
    """

    name: str
    kind: str
    y_train: np.ndarray
    y_test: np.ndarray
    class_names: list
    samples: Any
    statistics: tuple = None
    sample_rate: int = 0
    fields: dict = field(default_factory=dict)
    superclass: np.ndarray = None
    observed: bool = False
    content: Any = None

    @property
    def classes(self):
        """C, the number of classes."""
        return len(self.class_names)

    @cached_property
    def _x(self):
        train, test = self.samples()
        if len(train) != len(self.y_train) or len(test) != len(self.y_test):
            raise InputError(
                f"{self.name}: {len(train):,} and {len(test):,} samples but {len(self.y_train):,} and "
                f"{len(self.y_test):,} labels"
            )
        return train, test

    @property
    def x_train(self):
        """Training samples; see `samples`."""
        return self._x[0]

    @property
    def x_test(self):
        """Test samples; see `samples`."""
        return self._x[1]

    @cached_property
    def _moments(self):
        if self.statistics is not None:
            return self.statistics
        return moments(self.x_train) if self.kind == "image" else ((), ())

    @property
    def mean(self):
        """Mean per channel of the training images, uint8 ones scaled to [0, 1]; () for other kinds."""
        return self._moments[0]

    @property
    def std(self):
        """Standard deviation per channel of the training images, uint8 ones scaled to [0, 1]; () for other kinds."""
        return self._moments[1]

    @cached_property
    def checksum(self):
        """SHA-256 over the content, as 64 hexadecimal digits."""
        total = hashlib.sha256()
        if self.content is not None:
            for chunk in self.content():
                total.update(chunk)
        else:
            for array in (self.x_train, self.y_train, self.x_test, self.y_test):
                array = np.ascontiguousarray(array)
                total.update(f"{array.dtype.str}{array.shape}".encode())
                total.update(array.reshape(-1).view(np.uint8))
        return total.hexdigest()


def moments(x):
    """Return (mean, std) per channel of images (n, H, W, channels), uint8 ones scaled to [0, 1].

    Exact for uint8: computed from sums of whole numbers.  A constant channel gets std 1.
    """
    if x.dtype == np.uint8:
        first = second = 0
        for start in range(0, len(x), 1000):
            part = x[start : start + 1000].astype(np.uint16)  # 255 squared still fits
            first = first + part.sum(0, dtype=np.int64)
            second = second + (part * part).sum(0, dtype=np.int64)
        count = x.size // x.shape[-1]
        mean = first.sum((0, 1)) / count / 255
        variance = second.sum((0, 1)) / count / 255**2 - mean**2
    else:
        flat = x.reshape(-1, x.shape[-1])
        mean, variance = flat.mean(0, dtype=np.float64), flat.var(0, dtype=np.float64)
    std = np.sqrt(np.maximum(variance, 0))
    return tuple(mean.tolist()), tuple(np.where(std > 1e-8, std, 1.0).tolist())


def catalogue():
    """Return the known data sets as a dict of name to one line of description."""
    return {name: line for name, (_, line) in _KNOWN.items()}


def cache_folder():
    """Return the one folder that downloads go to: FNLKIT_CACHE, else XDG_CACHE_HOME/fnlkit, else ~/.cache/fnlkit."""
    if os.environ.get("FNLKIT_CACHE"):
        return pathlib.Path(os.environ["FNLKIT_CACHE"])
    if os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(os.environ["XDG_CACHE_HOME"]) / "fnlkit"
    try:
        return pathlib.Path.home() / ".cache" / "fnlkit"
    except RuntimeError:  # no HOME and no entry in the user table
        import tempfile

        return pathlib.Path(tempfile.gettempdir()) / "fnlkit-cache"


def load(name, *, cache=None, download=False):
    """Return a data set by name, spec or path.

    Parameters
    ----------
    name : str or os.PathLike
        A name of `catalogue()`; a spec such as ``folder(path="photos", size=64)``; the path of an npz with x_train,
        y_train, x_test and y_test; or the path of an image folder.
    cache : str or os.PathLike, optional
        Where files of known data sets lie; `cache_folder()` without it.
    download : bool
        Fetch what is missing; nothing is ever fetched without it.

    Returns
    -------
    Dataset

    Raises
    ------
    InputError
        When there is no such data set, when a file is missing (says which, and where to put it) or not usable.

    Examples
    --------
    >>> from fnlkit.datasets import load
    >>> digits = load("digits")
    >>> digits.x_train.shape, digits.x_test.shape, digits.classes
    ((1438, 8, 8, 1), (359, 8, 8, 1), 10)
    """
    import importlib

    text = os.fspath(name)
    where = pathlib.Path(cache) if cache is not None else cache_folder()
    path = pathlib.Path(text).expanduser()
    if text not in _KNOWN and path.exists():
        from fnlkit import datasets_local

        if path.is_dir():
            return datasets_local.at(path.resolve(), where=where)
        return datasets_local.npz(path.resolve())
    if text.endswith((".npz", "/")) or "/" in text.partition("(")[0]:
        raise InputError(f"data set {text}: no such file or folder")
    spec = parse(text, "--dataset")
    if spec.name not in _KNOWN:
        raise InputError(
            f"no data set {spec.name!r}{nearest(spec.name, _KNOWN)}; known: {', '.join(_KNOWN)}, "
            "or the path of an .npz or an image folder"
        )
    module, _, function = _KNOWN[spec.name][0].partition(":")
    reader = getattr(importlib.import_module(module), function)
    return bind(spec, reader, "data set", given=("where", "download"))(where=where, download=download)


def present(name, *, cache=None):
    """Return whether a known data set's files seem to be on this machine; they are read only by `load`.

    Parameters
    ----------
    name : str
        A name of `catalogue()`; ``folder`` is always there.
    cache : str or os.PathLike, optional
    """
    where = pathlib.Path(cache) if cache is not None else cache_folder()
    return name not in _MARKERS or any((where / marker).exists() for marker in _MARKERS[name])


def card(name):
    """Return the card (Markdown) of a known data set."""
    from importlib import resources

    if name not in _KNOWN:
        raise InputError(f"no card for {name!r}{nearest(name, _KNOWN)}; known: {', '.join(_KNOWN)}")
    return resources.files("fnlkit.data").joinpath(f"{name}.md").read_text(encoding="utf-8")
