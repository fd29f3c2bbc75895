"""Options of an audit, declared once for Python and `fnlkit audit`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from fnlkit.components.options import option

# Types of values; the command line, which reads this module, does not need their modules.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from fnlkit.datasets.dataset import Dataset

_Path = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of an audit; `fnlkit audit --help` describes those with a help text.

    Attributes
    ----------
    dataset : str, path or Dataset, optional
        Location of the samples. Default: the location recorded in the federation.
    seed : int
    """

    embeddings: "_Path | ArrayLike | None" = option(
        None,
        "A file of vectors by your own program; labels are judged by these features.",
        metavar="FILE",
    )
    backbone: str = option(
        "auto",
        "Pretrained network whose features judge the labels: a spec, none, or auto: an installed one for photographs of 32 "
        "pixels or more, texts and sounds.",
        metavar="SPEC",
    )
    probabilities: "_Path | ArrayLike | None" = option(
        None,
        "Class probabilities (npz, npy, csv) by your own model, which was not trained on these samples; replaces the "
        "classifiers of the other sites.",
        metavar="FILE",
        flag="--probs",
    )
    detectors: Sequence[str] = option(
        ("confident", "knn"),
        "Detectors that flag samples in addition to `em`, separated by commas: confident, knn, aum; none: only `em`.",
        metavar="LIST",
    )
    device: str = option("auto", "Device of the backbone; auto uses a GPU if there is one.")
    dataset: "_Path | Dataset | None" = None
    seed: int = 0
