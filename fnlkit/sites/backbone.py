"""Features that sites compute themselves with the backbone of the project."""

import hashlib
import os
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.paths import display_path
from fnlkit.artifacts.provenance import provenance
from fnlkit.components.spec import Spec, bind, find, own_names, parse
from fnlkit.datasets.embed import BACKBONES, View, embed, embed_parts
from fnlkit.datasets.features import with_features
from fnlkit.errors import InputError

if TYPE_CHECKING:
    import torch

    from fnlkit.datasets.dataset import Dataset


_PACKAGES = {
    "torchvision": "torchvision",
    "timm": "timm",
    "open-clip": "open_clip_torch",
    "efficientnet-lite0": "efficientnet-lite-pytorch",
}


def definition(data: "Dataset", text: str) -> tuple[str, Any, str, str]:
    """Return (spec, width, checksum, version) of a backbone for images.

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
        raise InputError("`backbone`: the samples of `dataset` are no images; give images like those of the sites")
    few = View(data.x_train[:1], data.x_train[:1], data.kind)
    return str(spec), embed(few, spec, device="cpu").shape[1], checksum_of(data, spec), version_of(spec)


def common(text: str) -> Spec:
    """Return the Spec of a backbone that computes the same features at each site.

    Raises
    ------
    InputError
        If it is a user's file, is fitted on samples, or reads weights from a path.
    """
    spec = parse(text, "`backbone`")
    if not own_names(spec):
        find(spec, BACKBONES, "backbone")  # imports a package's backbone
    if own_names(spec):
        raise InputError(f"`backbone`: {spec.name} is a component of your own, which no site has; name one of fnlkit")
    if spec.name == "pca":
        raise InputError("`backbone` pca: is fitted on the samples of one place; name a network such as efficientnet-lite0")
    weights = str(dict(spec.parameters).get("weights", ""))
    if weights not in ("", "imagenet", "random"):
        raise InputError(f"`backbone`: weights={weights} is a file of this machine; name weights that each site can install")
    return spec


def checksum_of(data: "Dataset", spec: str | Spec) -> str:
    """Return the SHA-256 over names and values of the weights of a backbone."""
    total = hashlib.sha256()

    def forward(module: "torch.nn.Module", *how, **settings) -> np.ndarray:
        for name, values in sorted(module.state_dict().items()):
            values = np.ascontiguousarray(values.numpy())
            total.update(f"\0{name} {values.dtype} {values.shape}\0".encode())
            total.update(values.tobytes())
        return np.zeros((0, 1), np.float32)

    spec = parse(spec, "`backbone`")
    few = View(data.x_train[:1], data.x_train[:1], data.kind)
    bind(spec, find(spec, BACKBONES, "backbone"), "backbone")(few, forward)
    return total.hexdigest()


def version_of(spec: str | Spec) -> str:
    """Return name and version of the package that defines a backbone."""
    package = _PACKAGES.get(parse(spec, "`backbone`").name, "fnlkit")
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} of unknown version"


def with_backbone(data: "Dataset", task, memory: str, source: str) -> "Dataset":
    """Return the data set of a site with features of the project's backbone, computed once and stored in `memory`.

    Parameters
    ----------
    data : fnlkit.datasets.Dataset
        Images.
    task : fnlkit.sites.terms.Task
    memory : str
        The site's folder `memory`.
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
            f"features of images by {task.backbone}; give images"
        )
    facts = hashlib.sha256(f"{data.checksum} {task.backbone} {task.backbone_checksum}".encode()).hexdigest()[:16]
    path = os.path.join(memory, f"features-{facts}.npz")
    if not os.path.exists(path):
        if (found := checksum_of(data, task.backbone)) != task.backbone_checksum:
            raise InputError(
                f"backbone {task.backbone}: the weights here (SHA-256 {found[:12]}, {version_of(task.backbone)}) are not the "
                f"agreed ones ({task.backbone_checksum[:12]}, {task.backbone_version}); install the agreed version"
            )
        parts = {"embeddings": data.x_train} | ({"test": data.x_test} if len(data.y_test) else {})
        arrays = {name: np.asarray(rows) for name, rows in embed_parts(data, parts, task.backbone, device="cpu").items()}
        made = provenance("embed", dataset=data.name, backbone=task.backbone, checksum=data.checksum)
        meta = {"dataset": data.name, "checksum": data.checksum, "backbone": task.backbone, "provenance": [made]}
        saving.private_folder(memory)
        files.write(files.Artifact("fnlkit.embeddings/1", arrays, meta), path)
    return with_features(data, Path(path))
