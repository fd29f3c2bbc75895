"""Read the data sets of MedMNIST from their published files NAME.npz or NAME_SIZE.npz."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fnlkit.artifacts.paths import display_path, from_home
from fnlkit.components.parameters import Text, check_arguments
from fnlkit.datasets.known import fetching, missing_files
from fnlkit.datasets.local import npz
from fnlkit.errors import InputError, nearest

if TYPE_CHECKING:
    from fnlkit.datasets.dataset import Dataset


_ORGANS = ["bladder", "femur-left", "femur-right", "heart", "kidney-left", "kidney-right", "liver", "lung-left", "lung-right",
           "pancreas", "spleen"]  # fmt: skip
# Data sets of images with one label each -> class names in the order of the labels (MedMNIST 3.0.2).
CLASSES = {
    "bloodmnist": ["basophil", "eosinophil", "erythroblast", "immature granulocytes", "lymphocyte", "monocyte", "neutrophil",
                   "platelet"],
    "breastmnist": ["malignant", "normal or benign"],
    "dermamnist": ["actinic keratoses and intraepithelial carcinoma", "basal cell carcinoma", "benign keratosis-like lesions",
                   "dermatofibroma", "melanoma", "melanocytic nevi", "vascular lesions"],
    "octmnist": ["choroidal neovascularization", "diabetic macular edema", "drusen", "normal"],
    "organamnist": _ORGANS,
    "organcmnist": _ORGANS,
    "organsmnist": _ORGANS,
    "pathmnist": ["adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa",
                  "cancer-associated stroma", "colorectal adenocarcinoma epithelium"],
    "pneumoniamnist": ["normal", "pneumonia"],
    "retinamnist": ["0", "1", "2", "3", "4"],
    "tissuemnist": ["collecting duct, connecting tubule", "distal convoluted tubule", "glomerular endothelial cells",
                    "interstitial endothelial cells", "leukocytes", "podocytes", "proximal tubule segments",
                    "thick ascending limb"],
}  # fmt: skip


@check_arguments
def medmnist(*, name: Text, size: Literal[28, 64, 128, 224] = 28, where: Path, download: bool = False) -> "Dataset":
    """Return a data set of MedMNIST v2 with one label per image; the validation images are not used.

    Parameters
    ----------
    name : str
        A key of `CLASSES`, such as ``"bloodmnist"``.
    size : int
        Pixels per side.

    Raises
    ------
    InputError
        If there is no such data set, or if its file is missing and `download` is False.

    References
    ----------
    Yang et al. (2023), MedMNIST v2, Scientific Data 10, 41.
    """
    if name not in CLASSES:
        unread = name == "chestmnist" or name.endswith("3d")
        reason = "has several labels per image, or volumes" if unread else f"is unknown{nearest(name, CLASSES)}"
        raise InputError(f"medmnist: {name} {reason}; name one of {', '.join(CLASSES)}")
    return _read(f"medmnist(name={name})" if size == 28 else f"medmnist(name={name}, size={size})", name, size, where, download)


def pathmnist(*, where: Path, download: bool = False) -> "Dataset":
    """Return PathMNIST at 28 pixels from MedMNIST's file, without validation images."""
    return _read("pathmnist", "pathmnist", 28, where, download)


def _read(spec, name, size, where, download):
    """Return the Dataset of a file in the cache folder or in the folder of the package medmnist.

    Raises
    ------
    InputError
        If there is no file, or if it has other images or labels than this data set.
    """
    file = name if size == 28 else f"{name}_{size}"
    places = [where / f"{file}.npz", from_home("~/.medmnist") / f"{file}.npz"]
    place = next((path for path in places if path.exists()), None)
    if place is None and download:
        place = _fetch(spec, name, size, places[0])
    if place is None:
        raise missing_files(spec, f"put {file}.npz at {display_path(places[0])}")
    data = npz(place, where=where)
    classes, shape = CLASSES[name], data.x_train.shape[1:]
    if data.kind != "image" or shape[:2] != (size, size) or data.classes > len(classes) or not len(data.y_test):
        raise InputError(f"{display_path(place)}: is not MedMNIST's {file}.npz; download it again")
    data.name, data.class_names, data.observed = spec, classes, False
    return data


def _fetch(spec, name, size, place):
    """Download a file with the package medmnist and return its path."""
    try:
        import medmnist
    except ImportError:
        raise InputError(f"{spec}: package medmnist is not installed; pip install 'fnlkit[medmnist]'") from None
    with fetching(spec, place):
        place.parent.mkdir(parents=True, exist_ok=True)
        reader = getattr(medmnist, medmnist.INFO[name]["python_class"])
        reader(split="train", root=str(place.parent), size=size, download=True)
    return place
