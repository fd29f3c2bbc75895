"""Load training and test samples with labels by name, file or folder.

Files are downloaded only on request.  Labels are read at once, and samples on first use.
"""

import importlib
import inspect
import os
import pathlib
from collections.abc import Callable
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts import large, paths
from fnlkit.artifacts.names import REAL_SITES
from fnlkit.artifacts.stored import Rows
from fnlkit.core import own
from fnlkit.core.errors import InputError, nearest
from fnlkit.core.retired import refuse_retired
from fnlkit.core.spec import FileText, Spec, bind, parse
from fnlkit.datasets import places
from fnlkit.datasets.places import cache_folder
from fnlkit.datasets.table import ENDINGS

if TYPE_CHECKING:
    from fnlkit.datasets.dataset import Dataset


# Name -> (module in this package, one-line description).  The function in the module has the same name, with "_" for "-"; it
# accepts cache=<folder> and its own keyword parameters.
_KNOWN = {
    "digits": ("public_sets", "1,797 handwritten digits, 8x8, part of this package"),
    "spoken-digits": ("public_sets", "3,000 spoken digits of six speakers, included"),
    "mriqc": ("embedded", "quality of 1,101 brain scans from 17 sites by three raters, included"),
    "heart": ("embedded", "920 heart patients of four hospitals, missing values, included"),
    "mnist": ("public_sets", "70,000 handwritten digits, 28x28"),
    "fashion-mnist": ("public_sets", "70,000 articles of clothing, 28x28"),
    "cifar10": ("public_sets", "60,000 photographs of 10 classes, 32x32"),
    "cifar100": ("public_sets", "60,000 photographs of 100 classes in 20 superclasses, 32x32"),
    "eurosat": ("public_sets", "27,000 satellite images of 10 land uses, 64x64"),
    "pathmnist": ("public_sets", "97,176 colon tissue images of 9 classes, 28x28"),
    "speechcommands": ("public_sets", "one-second words of 35 classes by 2,618 speakers, 16 kHz"),
    "speechcommands12": ("public_sets", "ten of these words, `unknown` and `silence`: 12 classes, 16 kHz"),
    "clothing1m": ("clothing1m", "1,000,000 shop photographs of 14 classes with real label noise"),
    "folder": ("class_folders", "any folder of images or wav files with a sub-folder per class"),
    "manifest": ("manifest", "any CSV or Parquet with one row per sample: file or features, label, site"),
    "crowdtruth": ("crowdtruth", "medical relations by distant supervision, crowd and expert"),
    "votes": ("loading", "any data set with the labels of several annotators: a row per vote"),
}


def registry() -> dict[str, str]:
    """List the known data sets: names and one-line descriptions."""
    return {name: line for name, (_, line) in _KNOWN.items()}


@large.discard_on_error()
def load(
    name: str | os.PathLike[str] | Spec,
    *,
    cache: str | os.PathLike[str] | None = None,
    download: bool = False,
    of_site: bool = False,
) -> "Dataset":
    """Load a data set by name, spec or path.

    Parameters
    ----------
    name : str, os.PathLike or Spec
        A name of `registry()`; a spec such as ``folder(path="photos", size=64)``; the path of an npz with x_train, y_train,
        x_test and y_test, of a CSV or Parquet file with one row per sample, or of an image folder; or a loader of yours,
        ``FILE.py:NAME``, a function that returns a Dataset or a dict of the arrays of an npz.
    cache : str or os.PathLike, optional
        Folder with the files of known data sets.  Default: `cache_folder()`.
    download : bool
        Download missing files.  Default: False, which never downloads.
    of_site : bool
        Whether an image folder is that of a single site of a deployment, which can have one class and no test sample.

    Returns
    -------
    Dataset

    Raises
    ------
    InputError
        If the data set does not exist, or if a file is missing or unusable.  The message names a missing file and the folder.

    Examples
    --------
    >>> from fnlkit.datasets import load
    >>> digits = load("digits")
    >>> digits.x_train.shape, digits.x_test.shape, digits.classes
    ((1438, 8, 8, 1), (359, 8, 8, 1), 10)
    """
    text = str(name) if isinstance(name, Spec) else os.fspath(name)
    cache = pathlib.Path(cache) if cache is not None else cache_folder()
    path = paths.from_home(text)
    if text not in _KNOWN and os.path.exists(path):  # False if the name is too long for a path
        from fnlkit.datasets.array_files import npz
        from fnlkit.datasets.manifest import manifest

        if path.is_dir():
            return _load_folder(path.resolve(), cache, of_site)
        if path.suffix.lower() in ENDINGS:
            return manifest(file=str(path), cache=cache)
        try:
            return npz(path.resolve(), cache=cache, of_site=of_site)
        except InputError as error:
            if path.suffix.lower() == ".npz":
                raise
            if path.suffix == ".py":
                raise InputError(f"data set {text}: write {text}:NAME, a function in it that returns arrays") from error
            raise InputError(f"{error}; a table ends in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}") from error
    if text.endswith((".npz", "/", *ENDINGS)) or ("/" in text.partition("(")[0] and ".py:" not in text):
        shown = text if len(text) < 1000 else f"{text[:100]}... ({len(text):,} characters)"
        raise InputError(f"data set {shown}: no such file or folder")
    spec = name if isinstance(name, Spec) else parse(text, "DATA" if of_site else "`dataset`")
    if ":" in spec.name:
        return _of_user(spec)
    if spec.name not in _KNOWN:
        refuse_retired("data set", spec.name)
        if spec.name == REAL_SITES:
            raise InputError("the samples of this run are at the sites; `fnlkit site predict` predicts them there")
        raise InputError(
            f"no data set {spec.name!r}{nearest(spec.name, _KNOWN)}; `fnlkit data` lists all; a data set is also a path of an "
            ".npz, a .csv, a .parquet or an image folder"
        )
    more = {"of_site": of_site} if spec.name == "folder" else {}
    return bind(spec, _reader(spec.name), "data set", given=("cache", "download", "of_site"))(
        cache=cache, download=download, **more
    )


def _load_folder(path, cache, of_site):
    """Load the data set in a folder: x_train.npy and related files, Clothing1M's lists, one npz per site, or class folders."""
    from fnlkit.datasets.array_files import npy
    from fnlkit.datasets.class_folders import folder, sub_folders
    from fnlkit.datasets.clothing1m import clothing1m, folder_of_lists
    from fnlkit.datasets.sites import npz_per_site

    if (path / "x_train.npy").is_file():
        return npy(path, cache=cache, of_site=of_site)
    if folder_of_lists(path):
        return clothing1m(path=str(path), cache=cache)
    if next(path.glob("*.npz"), None) is not None:
        return npz_per_site(path, cache=cache)
    if next(path.glob("*.npy"), None) is not None and not sub_folders(path):
        return npy(path, cache=cache, of_site=of_site)  # which names the missing arrays
    return folder(path=str(path), cache=cache, of_site=of_site)


def _reader(name):
    module = importlib.import_module(f"fnlkit.datasets.{_KNOWN[name][0]}")
    return getattr(module, name.replace("-", "_"))


def required_parameters(name: str) -> list[str]:
    """Parameters without which a known data set cannot be read, such as ``path`` of ``folder``.

    Parameters
    ----------
    name : str
        A name of `registry()`.
    """
    known = inspect.signature(_reader(name)).parameters.values()
    return [p.name for p in known if p.default is p.empty and p.kind is p.KEYWORD_ONLY and p.name != "cache"]


def _of_user(spec):
    """Load the data set of a user's loader, ``FILE.py:NAME``: a function that returns a Dataset, or arrays as in an npz.

    Raises
    ------
    InputError
        If a file names the loader, because reading the data would run its code; if it fails; or if it returns something else.
    """
    from fnlkit.datasets.array_files import from_arrays
    from fnlkit.datasets.dataset import Dataset

    if issubclass(spec.origin, FileText):
        raise InputError(
            f"a file names the data set {str(spec)!r}, a loader of yours: reading it runs that code; read the code, then write "
            f"`dataset` {str(spec)!r}"
        )
    dataset = bind(spec, own.load_function(spec.name, "data set"), "data set")()
    if isinstance(dataset, dict):
        try:
            dataset = from_arrays(str(spec), dataset)
        except InputError as error:
            raise InputError(f"data set {spec.name}: {error}") from error
    if not isinstance(dataset, Dataset):
        kind = type(dataset).__name__
        raise InputError(f"data set {spec.name}: returned {kind}; return arrays x_train, y_train, x_test, y_test in a dict")
    dataset.name = str(spec)
    return dataset


def votes(*, data: str | Spec, cache: pathlib.Path, download: bool = False) -> "Dataset":
    """Load a data set with one row per vote of an annotator on a training sample; see fnlkit.datasets.votes.by_vote.

    Parameters
    ----------
    data : str
        A data set with votes: an npz with ``votes_train`` (n, A), a table with an annotator column, or ``mriqc``.
    """
    from fnlkit.datasets.votes import by_vote

    return by_vote(load(data, cache=cache, download=download))


def sibling_path(name: str, suffix: str, *, cache: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Path of a file next to a data set, or in the cache folder.

    The suffix is appended to the path of a user's data set.  For a known data set, the file is in the cache folder.

    Parameters
    ----------
    name : str
        As in a federation's ``dataset``: a name or spec of `registry()`, or a path.
    suffix : str
        For example ``.ledger``.
    cache : str or os.PathLike, optional

    Examples
    --------
    >>> str(sibling_path("/data/mine.npz", ".ledger")), str(sibling_path("digits", ".ledger", cache="/cache"))
    ('/data/mine.npz.ledger', '/cache/digits.ledger')
    """
    cache = pathlib.Path(cache) if cache is not None else cache_folder()
    if name not in _KNOWN and (os.sep in name.partition("(")[0] or pathlib.Path(name).exists()):
        return pathlib.Path(f"{os.path.abspath(os.path.expanduser(name))}{suffix}")
    spec = parse(name, "`dataset`")
    user_path = spec.parameters.get("file" if spec.name == "manifest" else "path")
    if isinstance(user_path, str):
        return pathlib.Path(f"{os.path.abspath(os.path.expanduser(user_path))}{suffix}")
    return cache / f"{spec.name}{suffix}"


def ledger_path(chosen: str | os.PathLike[str] | None, dataset: str) -> str | os.PathLike[str] | None:
    """Path of the ledger: as given, next to the data by default, None for ``none``."""
    if chosen is not None:
        return None if chosen == "none" else chosen
    return sibling_path(dataset, ".ledger")


def new_samples(
    like: Any, source: str, *, unlabeled: bool = False, skip_damaged: bool = False, say: Callable[[str], object] | None = None
) -> tuple[list[str], np.ndarray | Rows]:
    """Read (names, samples) of new data; see fnlkit.datasets.new_data."""
    from fnlkit.datasets import new_data

    options: dict[str, Any] = {"unlabeled": unlabeled, "skip_damaged": skip_damaged, "say": say}
    return new_data.new_samples(like, source, cache=cache_folder(), load=load, **options)


def present(name: str, *, cache: str | os.PathLike[str] | None = None) -> bool:
    """Whether the files of a known data set exist, without reading them.

    Parameters
    ----------
    name : str
        A name of `registry()`.  ``folder`` is always present.
    cache : str or os.PathLike, optional
    """
    cache = pathlib.Path(cache) if cache is not None else cache_folder()
    return name not in places.PLACES or places.find_path(name, cache) is not None


def card(name: str) -> str:
    """Read the card (Markdown) of a known data set."""
    if name not in _KNOWN:
        raise InputError(f"no card for {name!r}{nearest(name, _KNOWN)}; `fnlkit data` lists all")
    cards = resources.files("fnlkit.data").joinpath("cards.md").read_text(encoding="utf-8")
    return "# " + cards.partition(f"\n# {name}: ")[2].partition("\n# ")[0]


def to_dataset(dataset: "str | os.PathLike[str] | Spec | Dataset") -> "Dataset":
    """Load the Dataset of a name or path. A Dataset is returned unchanged."""
    return load(dataset) if isinstance(dataset, (str, os.PathLike, Spec)) else dataset
