"""Read Clothing1M (Xiao et al., CVPR 2015) from the folder and lists that its authors send."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fnlkit.artifacts import files
from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError
from fnlkit.core.spec import Spec
from fnlkit.datasets import places
from fnlkit.datasets.class_folders import as_folder, dataset_of_files
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.decoding import Decoded, load_small

_CLOTHING = ["T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker", "Jacket", "Down Coat", "Suit",
             "Shawl", "Dress", "Vest", "Underwear"]  # fmt: skip


def clothing1m(*, path: str = "", size: int = 224, cache: Path, download: bool = False) -> Dataset:
    """Load Clothing1M from a folder with images/ and the published lists.

    The lists are in the folder or in annotations/.  The training set has one million noisy labels without known true labels.
    The test set consists of the 10,526 clean test images.

    Parameters
    ----------
    path : str
        Default: the folder clothing1m in the cache folder.
    size : int
        Side in pixels.  Images are resized to 8/7 of this side and center-cropped, as usual for 256 and 224.
    """
    path = as_folder(path or places.first("clothing1m", cache), must_exist=False)
    if not (lists := folder_of_lists(path)):
        raise InputError(
            f"clothing1m: no noisy_train_key_list.txt in {display_path(path)}; the authors send it on request: "
            "unpack it there, or write `dataset=PATH`"
        )
    noisy, clean = (_key_values(lists / f"{kind}_label_kv.txt") for kind in ("noisy", "clean"))
    parts = []
    for keys, labels in (("noisy_train", noisy), ("clean_test", clean)):
        chosen = files.read_text(lists / f"{keys}_key_list.txt", max_bytes=2**28).split()
        unknown = [key for key in chosen if key not in labels or labels[key] >= len(_CLOTHING)]
        if unknown:
            raise InputError(f"clothing1m: {len(unknown):,} keys of {keys}_key_list.txt have no label, first {unknown[0]!r}")
        if any(key.startswith("/") or ".." in key for key in chosen):
            raise InputError(f"clothing1m: {keys}_key_list.txt names files outside its folder")
        parts.append([(path / key, labels[key]) for key in chosen])

    def content(order: np.ndarray) -> Iterator[bytes]:
        yield b"upright\n"  # since photos are decoded by their EXIF orientation; the files themselves are not read here
        for file, label in (*parts[0], *parts[1]):
            yield f"{file.relative_to(path).as_posix()} {label} {size}\n".encode("utf-8", "surrogateescape")

    options = {"size": size, "crop": True} if size else {}
    data, read = dataset_of_files(path, options, parts[0], parts[1], _CLOTHING, cache, content)
    shape = (size, size, 3) if size else read(parts[0][0][0]).shape
    # Checking a million files before work begins would take too long.
    data.samples = lambda: tuple(load_small(Decoded([file for file, _ in part], read, shape, np.uint8)) for part in parts)
    data.name = str(path) if size == 224 else str(Spec("clothing1m", {"path": str(path), "size": size}))
    data.in_files = False
    data.forms = None
    data.test_true = True
    return data


def folder_of_lists(path: Path) -> Path | None:
    """Find the folder of the published lists: `path` or annotations/ in it; None if there is none."""
    places = (path, path / "annotations")
    return next((place for place in places if (place / "noisy_train_key_list.txt").is_file()), None)


def _key_values(path):
    labels = {}
    try:
        for line in files.read_text(path, max_bytes=2**28).splitlines():
            if line.strip():
                key, label = line.rsplit(maxsplit=1)
                labels[key] = int(label)
    except InputError as error:
        raise InputError(f"{error}; the lists of Clothing1M must be in the same folder") from error
    except ValueError as error:
        raise InputError(f"{display_path(path)}: expected a key and a label per line: {error}") from error
    return labels
