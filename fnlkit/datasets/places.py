"""Folders and files of the known data sets, and the cache of values that are computed from files.

The readers, `data list` and `data get` use this table.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fnlkit.artifacts import saving

IDX = tuple(f"{part}-{what}" for part in ("train", "t10k") for what in ("images-idx3-ubyte", "labels-idx1-ubyte"))
# Name -> (folders in order of preference, relative to the cache folder, absolute or in the home folder; required files).
PLACES = {
    "mnist": (("MNIST/raw",), IDX),
    "fashion-mnist": (("FashionMNIST/raw", "/usr/share/datasets/fashion-mnist"), IDX),  # the second folder is used by Debian
    "cifar10": (("cifar-10-batches-py",), ()),
    "cifar100": (("cifar-100-python",), ()),
    "eurosat": (("eurosat/2750",), ()),
    "pathmnist": (("pathmnist.npz", "~/.medmnist/pathmnist.npz"), ()),
    "speechcommands": (("SpeechCommands/speech_commands_v0.02",), ("testing_list.txt", "validation_list.txt")),
    "speechcommands12": (("SpeechCommands/speech_commands_v0.02",), ("testing_list.txt", "validation_list.txt")),
    "clothing1m": (("clothing1m", "clothing1m/annotations"), ("noisy_train_key_list.txt",)),
    "crowdtruth": (("Medical-Relation-Extraction",), ("ground_truth_cause.csv", "ground_truth_treat.csv")),
}


def first(name: str, cache: pathlib.Path) -> pathlib.Path:
    """Preferred path of a data set's files, which `data get` uses."""
    return cache / PLACES[name][0][0]


def find_path(name: str, cache: pathlib.Path) -> pathlib.Path | None:
    """Find the first path that contains a data set's files, or None.

    Parameters
    ----------
    name : str
        A key of `PLACES`.
    cache : pathlib.Path
        The cache folder.
    """
    places, needed = PLACES[name]
    for place in places:
        with contextlib.suppress(RuntimeError):  # there is no home folder
            path = cache / pathlib.Path(place).expanduser()
            if path.exists() and all(find_file(path, file) for file in needed):
                return path
    return None


def find_file(folder: pathlib.Path, name: str) -> pathlib.Path | None:
    """Find the path of a file in a folder or None; an idx file can be gzipped."""
    names = (name, f"{name}.gz") if name in IDX else (name,)
    return next((folder / file for file in names if (folder / file).is_file()), None)


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


_SETTLED = 2.0  # seconds: a more recently changed file can change again without a new time stamp


def cache_json(
    name: str, compute: Callable[[], Any], *, files: Iterable[str | os.PathLike[str]], cache: Path, reading: str = ""
) -> Any:
    """Cache ``compute()``, a plain JSON value, for files: computed only if a file has changed.

    Parameters
    ----------
    name : str
        Name of the computed value.
    compute : callable
    files : list of str or os.PathLike
        A file is unchanged if its path, size and modification time are unchanged.
    reading : str
        Options for reading the files that change the result.
    cache : pathlib.Path
        The cache folder.  If it is not writable, the value is not cached.
    """
    total, newest = hashlib.sha256(f"{name}\0{reading}".encode()), 0.0
    try:
        for file in files:
            status = os.stat(file)
            total.update(
                f"\0{os.path.abspath(file)}\0{status.st_size}\0{status.st_mtime_ns}".encode("utf-8", "surrogateescape")
            )
            newest = max(newest, status.st_mtime)
    except OSError:
        return compute()
    place = cache / "facts" / f"{total.hexdigest()[:32]}.json"
    try:
        return json.loads(place.read_text(encoding="ascii"))[name]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    value = compute()
    if time.time() - newest > _SETTLED:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            saving.write_bytes([json.dumps({name: value}).encode()], place)
        except OSError:
            pass
    return value
