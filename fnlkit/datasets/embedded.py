"""Read the tables of real sites that are included in this package.

data/make_sites.py makes the files; data/cards.md describes them.
"""

from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np

from fnlkit.artifacts import files
from fnlkit.core.parameters import check_arguments
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.manifest import Manifest
from fnlkit.datasets.table import Table

RATERS = ("rater_1", "rater_2", "rater_3")
# UCI's codes that are categories, and attributes that FLamby leaves out because many values are missing.
_CODED = ("sex", "cp", "fbs", "restecg", "exang", "slope", "thal")
_SPARSE = ("slope", "ca", "thal")
_NEVER_ZERO = ("trestbps", "chol")


@check_arguments
def mriqc(
    *, label: Literal["published", "rater_1", "rater_2", "rater_3"] = "published", cache: Path, download: bool = False
) -> Dataset:
    """Load the image-quality metrics of 1,101 brain scans from 17 sites.

    The fields `rater_1`, `rater_2` and `rater_3` contain the ratings: exclude, doubtful, accept, or "" without a rating.  The
    label is exclude, or accept for both other ratings.  The test set contains 265 scans of two other sites, with the ratings
    of their only rater.

    Parameters
    ----------
    label : "published", "rater_1", "rater_2" or "rater_3"
        Source of the training labels: one rater, or the rating of rater 1 or 2 that the published evaluation used.  Scans
        without a rating have no label.
    """
    arrays = _arrays("mriqc")
    test = arrays["split"] == "test"
    rating = np.where(test, arrays["rater_1"], arrays[label])
    columns = {name: arrays[name].tolist() for name in ("id", "site", "split", *RATERS)}
    columns["label"] = ["accept" if text == "doubtful" else text for text in rating.tolist()]
    columns |= dict(zip(arrays["metrics"].tolist(), arrays["x"].astype(np.float64), strict=True))
    chosen = "mriqc" if label == "published" else f"mriqc(label={label})"
    data = _dataset(chosen, columns, cache, drop=list(RATERS))
    ratings = np.stack([data.fields[name] for name in RATERS], 1)
    data.votes = np.where(ratings == "", -1, ratings == "exclude").astype(np.int64)
    data.annotators = list(RATERS)
    return data


@check_arguments
def heart(*, flamby: bool = False, cache: Path, download: bool = False) -> Dataset:
    """Load UCI's heart disease data: 920 patients of four hospitals.

    The labels are results of angiography, the reference standard, and are declared true.  The test set contains the 254 test
    patients of FLamby (fed_heart_disease).  The field `num` is the diagnosis in UCI's table, 0 to 4.  A blood pressure or
    cholesterol of 0 is a missing value.

    Parameters
    ----------
    flamby : bool
        Use the 740 patients and 10 attributes of FLamby: without slope, ca and thal, and without patients that miss another
        value.  Zeros are values.
    """
    arrays = _arrays("heart")
    values = dict(zip(arrays["columns"].tolist(), arrays["x"].astype(np.float64), strict=True))
    rows = np.ones(len(arrays["site"]), bool)
    for name in _NEVER_ZERO:
        values[name] = values[name] if flamby else np.where(values[name] == 0, np.nan, values[name])
    if flamby:
        values = {name: column for name, column in values.items() if name not in _SPARSE}
        rows = ~np.isnan(list(values.values())).any(0)
    columns = {name: arrays[name][rows].tolist() for name in ("site", "split")}
    columns["label"] = np.where(values["num"][rows] > 0, "disease", "no disease").tolist()
    columns |= {name: column[rows] for name, column in values.items()}
    coded = [name for name in _CODED if name in values]
    data = _dataset("heart(flamby=true)" if flamby else "heart", columns, cache, drop=["num"], categorical=coded)
    data.observed = False
    return data


def _arrays(name):
    return files.read_arrays(resources.files("fnlkit.data").joinpath(f"{name}.npz").read_bytes())


def _dataset(name, columns, cache, **lists):
    """Make the Dataset of a table, encoded like a user's table."""
    table = Table(name, columns, list(range(1, len(columns["label"]) + 1)))
    data = Manifest(name, lists=lists, table=table).dataset(cache)
    data.name = name
    return data
