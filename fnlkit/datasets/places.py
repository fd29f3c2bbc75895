"""Folders and files of the known data sets.

The readers, `data list` and `data get` use this table.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile

_IDX = tuple(f"{part}-{what}" for part in ("train", "t10k") for what in ("images-idx3-ubyte", "labels-idx1-ubyte"))
# Name -> (folders in order of preference, relative to the cache folder, absolute or in the home folder; required files).
PLACES = {
    "mnist": (("MNIST/raw",), _IDX),
    "fashion-mnist": (("FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"), _IDX),  # the second folder is used by Debian
    "cifar10": (("cifar-10-batches-py",), ()),
    "cifar100": (("cifar-100-python",), ()),
    "eurosat": (("eurosat/2750",), ()),
    "pathmnist": (("pathmnist.npz", "~/.medmnist/pathmnist.npz"), ()),
    "speechcommands": (("SpeechCommands/speech_commands_v0.02",), ("testing_list.txt", "validation_list.txt")),
    "speechcommands12": (("SpeechCommands/speech_commands_v0.02",), ("testing_list.txt", "validation_list.txt")),
    "clothing1m": (("clothing1m", "clothing1m/annotations"), ("noisy_train_key_list.txt",)),
    "crowdtruth": (("Medical-Relation-Extraction",), ("ground_truth_cause.csv", "ground_truth_treat.csv")),
}


def first(name: str, where: pathlib.Path) -> pathlib.Path:
    """Preferred path of a data set's files, which `data get` uses."""
    return where / PLACES[name][0][0]


def find_path(name: str, where: pathlib.Path) -> pathlib.Path | None:
    """Find the first path that contains a data set's files, or None.

    Parameters
    ----------
    name : str
        A key of `PLACES`.
    where : pathlib.Path
        The cache folder.
    """
    places, needed = PLACES[name]
    for place in places:
        with contextlib.suppress(RuntimeError):  # there is no home folder
            path = where / pathlib.Path(place).expanduser()
            if path.exists() and all(find_file(path, file) for file in needed):
                return path
    return None


def find_file(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    """Find the path of a file in a folder or None; an idx file can be gzipped."""
    names = (name, f"{name}.gz") if name in _IDX else (name,)
    return next((folder / file for file in names if (folder / file).is_file()), None)


def idx_files(folder: pathlib.Path) -> list[pathlib.Path | None]:
    """Find the four files of an MNIST-like set: training and test images, labels."""
    return [find_file(folder, name) for name in _IDX]


def cache_folder() -> pathlib.Path:
    """Choose the cache folder: FNLKIT_CACHE, XDG_CACHE_HOME/fnlkit or ~/.cache/fnlkit."""
    if os.environ.get("FNLKIT_CACHE"):
        return pathlib.Path(os.environ["FNLKIT_CACHE"])
    if os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(os.environ["XDG_CACHE_HOME"]) / "fnlkit"
    try:
        return pathlib.Path.home() / ".cache" / "fnlkit"
    except RuntimeError:  # no HOME and no entry in the user table
        return pathlib.Path(tempfile.gettempdir()) / "fnlkit-cache"
