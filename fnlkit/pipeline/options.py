"""Options of an audit, declared once for Python and `fnlkit audit`."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fnlkit.components.options import option
from fnlkit.components.parameters import Range
from fnlkit.estimators import DETECTORS

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
    checkpoints : path, optional
        Folder in which trained models are saved during the audit. After an interruption, an audit with equal arguments
        continues these models and returns the same result. Remove the folder afterwards.
    """

    embeddings: "_Path | ArrayLike | None" = option(
        None,
        "Embeddings by `fnlkit embed` or your own program; the models judge labels by these features.",
        metavar="EMB.npz",
    )
    backbone: str = option(
        "auto",
        "Network that computes embeddings first, as for `fnlkit embed`. auto: a pretrained network for images of 64 pixels and "
        "more, if installed; none: use the samples themselves.",
        metavar="SPEC",
    )
    probabilities: "_Path | ArrayLike | None" = option(
        None,
        "Class probabilities (npz, npy, csv) by your own model, which was not trained on these samples; replaces the models of "
        "the other sites.",
        metavar="FILE",
        flag="--probs",
    )
    detectors: Sequence[str] = option(
        DETECTORS,
        "Detectors that flag samples in addition to `em`, separated by commas; none: only `em`.",
        metavar="LIST",
    )
    folds: Annotated[int, Range(2)] = option(5, "Number of models; each judges the sites that it was not trained on.")
    rounds: int = option(25, "Training rounds of each model.")
    fraction: float = option(1.0, "Share of the sites that train in each round, above 0 and at most 1.")
    model: str = option("auto", "Network, as for `fnlkit.train(model=...)`; auto selects by the samples.", metavar="SPEC")
    device: str = option("auto", "Device; auto uses a GPU if there is one.")
    quick: bool = option(
        False,
        "Audit from sums of the sites in seconds, as `fnlkit site summarize` and `fnlkit site judge` do with files. Trains no "
        "model and searches no copies.",
    )
    dataset: "_Path | Dataset | None" = None
    seed: int = 0
    checkpoints: _Path | None = None
