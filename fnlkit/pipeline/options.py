"""Options of partitions and audits, declared once for Python and the commands."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from fnlkit.components.options import option
from fnlkit.components.parameters import Count

# Types of values; the command line, which reads this module, does not need their modules.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from fnlkit.datasets.dataset import Dataset

_Path = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class PartitionOptions:
    """Options of a partition; `fnlkit partition --help` describes them."""

    clients: Count | None = option(None, "Number of clients. Default: 20 for fewer than 10,000 samples, else 100.")
    min_samples: Count = option(
        1, "Smallest number of samples per client; a split with smaller clients is drawn again.", metavar="N"
    )
    labels: str = option(
        "auto",
        "Status of the labels. observed: some can be wrong; true: all are right; auto: as the data set declares.",
        metavar="WORD",
    )
    holdout: float | None = option(
        None,
        "Share of each client's samples held out for evaluation. Default: 0.2 without test samples, else 0.",
        metavar="SHARE",
    )
    gold: _Path | None = option(
        None, "Verified samples (columns id, label), used for evaluation and never for training.", metavar="IDS.csv"
    )
    public: float = option(0.0, "Share of the samples in a public set, for methods such as rhfl.", metavar="SHARE")
    duplicates: str | None = option(
        None,
        "Samples that are equal to others. together: never divided, and left out of training if they are in the test set; "
        "drop: only the first is used; allow: only counted. Default: together; allow for data sets of fnlkit.",
        metavar="WORD",
    )
    sample_column: str | None = option(
        None,
        "Column of a table that names the samples. Default: the only column that names a sample in every row.",
        metavar="NAME",
    )
    label: str | None = option(None, "Label column of a table.", metavar="COLUMN")
    group: str | None = option(
        None,
        "Column of a table, field of an npz, or level of the folders of images: samples with the same value, such as a "
        "patient, are never divided. Default: the column with a usual name.",
        metavar="COLUMN",
    )


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
