"""Read images or wav files in a folder per class."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fnlkit.artifacts.federation import must_be_names
from fnlkit.artifacts.paths import display_path, resolve
from fnlkit.core.errors import InputError, list_names
from fnlkit.core.spec import Spec
from fnlkit.datasets import decoding
from fnlkit.datasets.dataset import Dataset, Unlabeled
from fnlkit.datasets.dicom import choose_window, span
from fnlkit.datasets.groups import class_of_groups, number_groups, of_parts
from fnlkit.datasets.labels import doubts, note_empty_classes
from fnlkit.datasets.layout import LAYOUTS
from fnlkit.datasets.places import cache_json
from fnlkit.datasets.spelling import order_texts
from fnlkit.kernels.streams import stream

UNLABELED = ("_unlabeled", "_unlabelled")  # folders next to the class folders, for samples without a label


def folder(
    *,
    path: str,
    size: int = 0,
    crop: bool = False,
    label: int = 0,
    group: int = 0,
    window: str = "",
    pixels: str = "",
    seconds: float = 0.0,
    skip_damaged: bool = False,
    cache: Path,
    download: bool = False,
    of_site: bool = False,
) -> Dataset:
    """Load the data set of a folder of images or wav files.

    The folder has the form PATH/train/CLASS/* with PATH/test/CLASS/*, or PATH/CLASS/*, which is split 80 to 20.
    PATH/SITE/CLASS/* has no test set: `partition` holds out a share at each site.  Files are recognized by their extension, or
    by their content if the extension is unknown.  Files that are neither images nor sounds are listed in `Dataset.notes`.

    Parameters
    ----------
    path : str
    size : int
        Side in pixels after resizing.  Default: 0, if all images have the same size.
    crop : bool
        Keep proportions and cut off borders, as in earlier versions (fnlkit.datasets.decoding.image).
    label : 0, 1 or 2
        Level of the class folders.  1: PATH/CLASS/...; 2: PATH/SITE/CLASS/..., with the site as field `site`.  0 means 1, but
        raises an error if 2 is also possible: the first level contains only folders, and some of their sub-folders share names.
    group : int
        Level of the folders of groups, such as patients, whose files are never divided (fnlkit.datasets.groups).  2 with
        ``label=1``: PATH/CLASS/GROUP/...; 1 with ``label=2``: PATH/GROUP/CLASS/..., without sites; 3 with ``label=2``:
        PATH/SITE/CLASS/GROUP/....  A file above this level is a group of its own.  Default: 0, no groups.
    window : str
        Of DICOM images, ``center/width`` in physical units.  Default: the range of all files.
    pixels : str
        Of TIFF images with 32 bits per pixel, ``low/high``: the values that become 0 and 1.  Default: 0/1.
    seconds : float
        Length in seconds to which all sounds are cut or padded with silence.  Default: 0, if all have the same length.
    skip_damaged : bool
        Leave out files that cannot be read; a note names them.
    of_site : bool
        Whether the folder is that of a single site of a deployment, which can have one class and no test sample.

    Notes
    -----
    Files in a folder `_unlabeled` (or `_unlabelled`) next to the class folders have no label (`Dataset.unlabeled`).
    """
    path = as_folder(path)
    span(window)
    decoding.pixel_range(pixels)
    if label not in (0, 1, 2):
        raise InputError(f"folder: label is {label}; write 1 if the first level of folders is the class, or 2 for the second")
    parts = [path / "train", path / "test"]
    if not all(part.is_dir() for part in parts):
        parts = [path]
    if group == label != 0 or not 0 <= group <= 9:
        raise InputError(
            f"folder: group is {group}; write the level of the folders of groups, another one than that of the classes"
        )
    label = label or (2 if group == 1 else 1 if group else 0)
    names, inner = _names_below(parts), _names_below([child for part in parts for child in sub_folders(part)])
    if label == 0 and len(inner) > 1 and _can_be_sites(parts):
        raise InputError(
            f"{display_path(path)}: classes can be {', '.join(names[:4])} or the sub-folders {', '.join(inner[:4])}; "
            f"write the data set as 'folder(path=\"{display_path(path)}\", label=1)' for the first "
            "or label=2 for the second"
        )
    names = [name for name in (inner if label == 2 else names) if name not in UNLABELED]
    least = 1 if of_site else 2
    if len(names) < least:
        tables = "of tables, name one file, with a column `site` for several sites"
        raise InputError(f"{display_path(path)}: {len(names)} sub-folders; expected one per class, at least {least}; {tables}")
    per_class, skipped = [], _beside(path, parts, label)
    for part in parts:
        for number, name in enumerate(names):
            per_class.append([(f, number) for f in _samples_of(part, name, label, skipped)])
    spare = [file for part in parts for name in UNLABELED for file in _samples_of(part, name, label, skipped)]
    damaged: dict[str, str] = {}
    if skip_damaged:
        every = [*(file for part in per_class for file, _ in part), *spare]
        damaged = cache_json(
            "damaged", lambda: decoding.find_damaged(every, pixels=pixels), files=every, cache=cache, reading=pixels
        )
        per_class = [[pair for pair in part if str(pair[0]) not in damaged] for part in per_class]
        spare = [file for file in spare if str(file) not in damaged]
    if len(parts) == 2:
        train, test = sum(per_class[: len(names)], []), sum(per_class[len(names) :], [])
    else:
        train, test = sum(per_class, []), []
        if train and label != 2:  # of several sites, `partition --holdout` holds out a share at each one
            grouped = number_groups(_group_names([file for file, _ in train], parts, label, group)) if group else None
            chosen = split(np.array([label for _, label in train]), groups=grouped)
            train, test = [[train[i] for i in half] for half in chosen]
    # Positions and the split follow the names as texts, as in earlier versions; the numbers of classes follow their values.
    classes = order_texts(names)
    train, test = ([(file, classes.index(names[number])) for file, number in part] for part in (train, test))
    empty = [] if of_site else note_empty_classes(classes, [np.array([label for _, label in [*train, *test]])], None, True)
    left = [*_note_skipped(path, skipped), *decoding.note_damaged(damaged), *empty]
    if not train or not (test or label == 2 or of_site):
        wanted = f"expected images ({', '.join(decoding.IMAGES)}, or other files with image content) or wav files"
        raise InputError("; ".join([f"{display_path(path)}: {len(train)} training, {len(test)} test files, {wanted}", *left]))

    every = [*(file for file, _ in (*train, *test)), *spare]
    window, stored_window, more = choose_window(every, window, display_path(path), cache, of_site)
    left += more
    reading = f"{size}{stored_window}{seconds or ''}"
    if size and (stored_window or seconds):  # without separators, size=1 and window=40/400 would equal size=14 and window=0/400
        reading = f"size={size} window={stored_window} seconds={seconds}"
    reading += " whole" if size and not crop else ""  # earlier versions cropped
    reading += f" pixels={pixels}" if pixels else ""

    def content(order: np.ndarray) -> Iterator[bytes]:
        for file, label in (*train, *test):
            yield f"{file.relative_to(path).as_posix()} {order[label]} {reading}\n".encode("utf-8", "surrogateescape")
            yield decoding.digest_of(file)

    options = {"size": size, "crop": crop, "label": label, "group": group, "window": window, "pixels": pixels,
               "seconds": seconds, "skip_damaged": skip_damaged}  # fmt: skip
    parameters = {name: value for name, value in options.items() if value}
    decoding.must_be_used(decoding.kind_of(train[0][0]), size=size, crop=crop, window=window, pixels=pixels, seconds=seconds)
    dataset, read = dataset_of_files(path, parameters, train, test, classes, cache, content)
    dataset.notes += left
    if dataset.kind == "image":
        dataset.notes += dataset.remember("pages", lambda: decoding.note_pages([file for file, _ in (*train, *test)]))
    dataset.paths = dataset.ids = np.array([file.relative_to(path).as_posix() for file, _ in train])
    if group:
        level = [_group_names([file for file, _ in half], parts, label, group) for half in (train, test)]
        if not any(level[0]):
            raise InputError(f"{display_path(path)}: no file is in a folder of level {group}, which `group` names")
        dataset.groups, dataset.groups_test, more = of_parts(*level)
        dataset.notes += more
    if label == 2 and group != 1:
        dataset.fields["site"] = np.array([_site_of(file, parts) for file, _ in train])
        known = {_site_of(file, parts) for file in (*dict(train), *dict(test), *spare)}
        bare = {home.name for part in parts for home in sub_folders(part)} - known
        dataset.notes += [f"no image or sound in {list_names(sorted(bare))}"] if bare else []
    if spare:
        sites = [_site_of(file, parts) for file in spare] if "site" in dataset.fields else None
        ids = [file.relative_to(path).as_posix() for file in spare]
        alike = lambda: decoding.decode_files([spare], read, shape=dataset.x_train.shape[1:])[0]  # noqa: E731
        dataset.unlabeled = Unlabeled(alike, ids, sites)
    return dataset


def _group_names(files, parts, label, group):
    """Folder of each file at the level `group`, with the site, or "" for a file above this level."""
    names = []
    for file in files:
        below = next(file.relative_to(part) for part in parts if file.is_relative_to(part)).parts[:-1]
        site = below[0] if label == 2 and group > 1 else ""
        names.append(f"{site}/{below[group - 1]}" if len(below) >= group else "")
    return names


def _samples_of(part, name, label, skipped):
    """List the samples in the folders of a class, sorted by name.

    A class has one folder, or one at each site.  Other files are appended to `skipped`.
    """
    files = []
    for home in [part / name] if label != 2 else [site / name for site in sub_folders(part)]:
        samples, others = samples_in(home)
        files += samples
        skipped += others
    return files


def _beside(path, parts, label):
    """List the files outside all class folders.

    They are at the top, next to train and test, or next to the class folders of a site.
    """
    homes = {path, *parts, *(site for part in parts for site in sub_folders(part) if label == 2)}
    files = [file for home in sorted(homes) for file in home.iterdir() if file.is_file()]
    unused = [] if parts == [path] else [home for home in sub_folders(path) if home not in parts]
    return files + [file for home in unused for file in home.rglob("*") if file.is_file()]


def _note_skipped(path, skipped):
    """Note skipped files in one sentence, or an empty list."""
    if not skipped:
        return []
    names = list_names(display_path(file.relative_to(path).as_posix()) for file in sorted(skipped))
    return [f"{len(skipped):,} files skipped that are not images or sounds in a class folder: {names}"]


def _site_of(file, parts):
    return next(home.name for home in file.parents if home.parent in parts)


def sub_folders(path: Path) -> list[Path]:
    """List the folders in a folder that are not hidden, sorted."""
    return sorted(child for child in path.iterdir() if child.is_dir() and child.name[0] != ".")


def _names_below(paths):
    return sorted({child.name for path in paths for child in sub_folders(path)})


def _can_be_sites(parts):
    """Whether the first level can be sites.

    It contains only folders, without samples, and some of their sub-folders share names.
    """
    first = sub_folders(parts[0])
    if any(f.is_file() and decoding.kind_of(f) for child in first for f in child.iterdir()):
        return False
    below = [child.name for home in first for child in sub_folders(home)]
    return len(first) > 1 and len(set(below)) < len(below)


def samples_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """List (images or wav files, other files) of a folder and sub-folders, sorted; files in hidden folders are others.

    Raises
    ------
    InputError
        If a sample is not a regular file, such as a pipe, which has no end.
    """
    taken, others = [], []
    for file in sorted(_walk(folder)):
        if _is_hidden(file.parent, folder):
            others += [file] if file.is_file() else []
        elif decoding.kind_of(file):
            if not file.is_file():
                name = "an image" if decoding.kind_of(file) == "image" else "a sound"
                raise InputError(f"{display_path(file)}: has the name of {name} but is not a regular file; remove it")
            taken.append(file)
        elif file.is_file():
            others.append(file)
    return taken, others


def _walk(folder):
    """Yield the files and folders below a folder.

    Links to folders outside hidden folders are followed, after all other folders, so that no folder is read twice.  A link to
    a folder that contains it, or contains a link on its path, is skipped.
    """
    read: set[str] = set()  # real folders
    homes = [folder]
    for start in homes:
        end = os.path.realpath(start)
        if start != folder and any(Path(os.path.realpath(above)).is_relative_to(end) for above in start.parents):
            continue
        for home, folders, names in os.walk(start):
            real = os.path.realpath(home)
            if real in read:
                folders.clear()
                continue
            folders.sort()
            yield from (Path(home, name) for name in (*folders, *names))
            if not _is_hidden(Path(home), folder):
                read.add(real)
                homes += [child for name in folders if name[0] != "." and (child := Path(home, name)).is_symlink()]


def _is_hidden(file, folder):
    """Whether a file or folder is hidden, or in a hidden folder below `folder`."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def as_folder(path, must_exist=True):
    path = path.name if isinstance(path, Spec) else path
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f'`path` is {path}; write path="FOLDER"')
    path = resolve(path)
    if must_exist and not path.is_dir():
        raise InputError(f"{display_path(path)}: no such folder")
    return path


def dataset_of_files(path, parameters, train, test, names, cache, content):
    """Make (Dataset of images or sounds, the function that reads one file)."""
    must_be_names(list(names), len(names))
    labels = np.array([label for _, label in train], np.int64)
    parts = [[file for file, _ in part] for part in (train, test)]
    files = sum(parts, [])
    kinds = {}
    for file in files:
        kinds.setdefault(decoding.kind_of(file), []).append(file)
    if {"image", "wave"} <= kinds.keys():
        both = " and ".join(
            f"{len(kinds[kind]):,} {kind}s such as {display_path(kinds[kind][0])}" for kind in ("image", "wave")
        )
        raise InputError(f"{display_path(path)}: contains {both}; a data set has one kind of samples: remove the others")
    reading = {name: value for name, value in parameters.items() if name not in ("label", "group", "skip_damaged")}
    kind, read = decoding.reader(files, **reading)
    whole = decoding.reader(files, **reading | {"size": 0})[1] if parameters.get("size") and kind == "image" else None
    remember = partial(cache_json, files=files, cache=cache, reading=f"4 {parameters}")  # the form of the checksum
    dataset = Dataset(
        name=str(Spec("folder", {"path": str(path), **parameters})) if parameters else str(path),
        kind=kind,
        y_train=labels,
        y_test=np.array([label for _, label in test], np.int64),
        observed=True,
        class_names=list(names),
        sample_rate=decoding.sample_rate(files) if kind == "wave" else 0,
        notes=doubts(names, labels, f"name the folder {UNLABELED[0]}"),
        samples=lambda: tuple(decoding.decode_files(parts, read, remember=remember)),
        content=content,
        remember=remember,
        in_files=True,
        whole=None if whole is None else lambda position: whole(train[position][0]),
        forms=lambda: tuple(remember("forms", lambda: [list(map(decoding.form_of, part)) for part in parts])),
        layout=LAYOUTS[0],
    )
    return dataset, read


def split(labels: np.ndarray, share: float = 0.2, groups: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Draw (train, test) positions of a fixed stratified split.

    The split is the same on every machine.

    Parameters
    ----------
    labels : (n,) int
    share : float
        Share of each class for the test set, rounded.  At least one sample per class stays in the training set.
    groups : (n,) int, optional
        Samples with equal numbers are in the same part.  The class of a group is its most frequent label.
    """
    if groups is not None:
        _, group, labels = class_of_groups(labels, groups)
        train, held = split(labels, share)
        return np.flatnonzero(np.isin(group, train)), np.flatnonzero(np.isin(group, held))
    test = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        size = min(round(share * len(members)), len(members) - 1)
        test.append(stream(0, "split", client=int(label)).permutation(members)[:size])
    test = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), test), test
