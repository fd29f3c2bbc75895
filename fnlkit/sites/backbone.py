"""Features that sites compute themselves with the backbone of the project."""

from importlib import metadata
from typing import Any

from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError
from fnlkit.core.spec import Spec, find, own_names, parse
from fnlkit.datasets.dataset import Dataset
from fnlkit.encoders.embed import BACKBONES, View, embed
from fnlkit.encoders.encoding import weights_of
from fnlkit.encoders.features import with_backbone

_PACKAGES = {
    "torchvision": "torchvision",
    "timm": "timm",
    "open-clip": "open_clip_torch",
    "efficientnet-lite0": "efficientnet-lite-pytorch",
}


def definition(data: Dataset, text: str) -> tuple[str, Any, str, str]:
    """Define (spec, width, checksum, version) of a backbone for images.

    Parameters
    ----------
    data : fnlkit.datasets.Dataset
        Images like those of the sites.
    text : str

    Raises
    ------
    InputError
        If sites cannot compute the same features.
    """
    spec = common(text)
    if data.kind != "image" or data.features is not None:
        raise InputError(": the samples of `dataset` are no images; give images like those of the sites", parameter="backbone")
    few = View(data.x_train[:1], data.x_train[:1], data.kind)
    return str(spec), embed(few, spec, device="cpu").shape[1], weights_of(spec), version_of(spec)


def common(text: str) -> Spec:
    """Write the Spec of a backbone so that it computes the same features at each site.

    Raises
    ------
    InputError
        If it is a user's file, is fitted on samples, or reads weights from a path.
    """
    spec = parse(text, "`backbone`")
    if not own_names(spec):
        find(spec, BACKBONES, "backbone")  # imports a package's backbone
    if own_names(spec):
        raise InputError(f": {spec.name} is your own component, which no site has; name one of fnlkit", parameter="backbone")
    if spec.name == "pca":
        raise InputError(
            "pca: is fitted on the samples of one place; name a network such as efficientnet-lite0", parameter="backbone"
        )
    weights = str(dict(spec.parameters).get("weights", ""))
    if weights not in ("", "imagenet", "random"):
        raise InputError(f": weights={weights} is a file here; name weights that each site can install", parameter="backbone")
    return spec


def version_of(spec: str | Spec) -> str:
    """Name and version of the package that defines a backbone."""
    package = _PACKAGES.get(parse(spec, "`backbone`").name, "fnlkit")
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} of unknown version"


def encode_samples(data: Dataset, project: Any, source: str) -> Dataset:
    """Encode the data set of a site by the project's backbone, once; the features are stored in the cache folder.

    Parameters
    ----------
    data : fnlkit.datasets.Dataset
        Images.
    project : fnlkit.sites.project.Project
    source : str
        The data, as named by the site.

    Raises
    ------
    InputError
        If the samples are no images, or if the weights differ from the agreed ones.
    """
    if data.kind != "image":
        raise InputError(
            f"{display_path(source)}: the samples are {data.kind} {tuple(data.x_train.shape[1:])}, and the partners agreed on "
            f"features of images by {project.backbone}; give images"
        )
    if (found := weights_of(project.backbone)) != project.backbone_checksum:
        raise InputError(
            f"backbone {project.backbone}: the weights here (SHA-256 {found[:12]}, {version_of(project.backbone)}) are not the "
            f"agreed ones ({project.backbone_checksum[:12]}, {project.backbone_version}); install the agreed version"
        )
    return with_backbone(data, project.backbone, device="cpu")
