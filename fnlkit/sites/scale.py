"""Scale of vectors and tables from the sums of the sites: the value of missing cells, mean and standard deviation.

The task `scale` computes the scale once.  Later tasks receive it with the run configuration, because sites agree to the source
of the scale and not to the numbers.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from fnlkit.core.errors import InputError
from fnlkit.datasets import columns as features

TASK = "scale"  # the task that computes the scale


def number_places(columns: Any) -> list[int]:
    """Find the positions of numbers and ranks, which can be missing, among the features of a table."""
    places, at = [], 0
    for column in columns or ():
        if "fill" in column:
            places.append(at)
        at += len(features.features([column]))
    return places


def add_scale(project, text: str):
    """Add a scale of fnlkit.sites.server.scale.scale_of_replies to a Project.

    Raises
    ------
    InputError
        If the text is empty, or no scale of these samples.
    """
    if not text:
        raise InputError(
            "scale: this project takes the scale from the sites; run `fnlkit sites run DIR --task scale -o scale.json` first, "
            "and give `scale='scale.json'`"
        )
    try:
        fills, mean, std = ([float(word) for word in part.split(",") if word] for part in text.split(";"))
        width, places = math.prod(project.shape), number_places(project.columns)
        if (len(fills), len(mean), len(std)) != (len(places), width, width) or min(std) <= 0:
            raise ValueError
        if not all(map(math.isfinite, fills + mean + std)):
            raise ValueError
    except ValueError:
        raise InputError("scale: is no scale of these samples; give the file of `fnlkit sites run DIR --task scale`") from None
    return replace(project, mean=mean, std=std, columns=fill_columns(project.columns, fills))


def fill_columns(columns: Any, fills: Iterable[float]) -> Any:
    """Set the values for missing numbers in the columns of a table, in their order."""
    fills = iter(fills)
    return columns and [column | {"fill": next(fills)} if "fill" in column else column for column in columns]


def remove_fills(project):
    """Let missing numbers of a Project stay NaN, for `fnlkit.federated.client.scaling.reply_moments`."""
    fills = [math.nan] * len(number_places(project.columns))
    return replace(project, columns=fill_columns(project.columns, fills), mean=[], std=[])
