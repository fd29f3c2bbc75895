"""Read PathMNIST from MedMNIST's file pathmnist.npz."""

from pathlib import Path
from typing import TYPE_CHECKING

from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError
from fnlkit.datasets import places
from fnlkit.datasets.local import npz
from fnlkit.datasets.public_sets import find_or_fetch

if TYPE_CHECKING:
    from fnlkit.datasets.dataset import Dataset


CLASSES = ["adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa",
           "cancer-associated stroma", "colorectal adenocarcinoma epithelium"]  # fmt: skip


def pathmnist(*, where: Path, download: bool = False) -> "Dataset":
    """Load PathMNIST at 28 pixels, without validation images.

    The file is in the cache folder, or in the folder of the package medmnist.

    Raises
    ------
    InputError
        If the file is missing and `download` is False, or if it has other images or labels than this data set.

    References
    ----------
    Yang et al. (2023), MedMNIST v2, Scientific Data 10, 41.
    """
    target = places.first("pathmnist", where)
    remedy = f"put pathmnist.npz at {display_path(target)}"
    place = find_or_fetch("pathmnist", where, download, lambda: _fetch(target), remedy)
    data = npz(place, where=where)
    if data.kind != "image" or data.x_train.shape[1:3] != (28, 28) or data.classes > len(CLASSES) or not len(data.y_test):
        raise InputError(f"{display_path(place)}: is not MedMNIST's pathmnist.npz; download it again")
    data.name, data.class_names, data.observed = "pathmnist", CLASSES, False
    return data


def _fetch(target):
    """Download the file with the package medmnist."""
    try:
        from medmnist import PathMNIST
    except ImportError:
        raise InputError("pathmnist: package medmnist is not installed; pip install 'fnlkit[medmnist]'") from None
    target.parent.mkdir(parents=True, exist_ok=True)
    PathMNIST(split="train", root=str(target.parent), size=28, download=True)
