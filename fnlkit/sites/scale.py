"""Scale of vectors and tables from the sums of the sites: the value of missing cells, mean and standard deviation.

The task `scale` computes the scale once.  Later tasks receive it with the run configuration, because sites agree to the source
of the scale and not to the numbers.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from fnlkit.core.errors import InputError
from fnlkit.datasets import columns as features
from fnlkit.federated.client.scaling import Moments, pool_moments

TASK = "scale"  # the task that computes the scale
FARTHEST = 1e4  # units differ by factors up to 1,000 (grams and kilograms)


def of_replies(replies: Any, project) -> dict[str, Any]:
    """Return the result of the task scale.

    Parameters
    ----------
    replies : dict of Tensor (N, d)
        As `fnlkit.federated.client.scaling.SENDS` declares.
    project : fnlkit.sites.project.Project

    Returns
    -------
    dict
        rows (name, known, mean and std of each feature) and scale (text for the run configuration).

    Raises
    ------
    InputError
        If no site has enough values of a feature.
    """
    known, total, squares = (replies[name].numpy() for name in ("known", "total", "squares"))
    names = features.features(project.columns) if project.columns else [f"feature {i}" for i in range(known.shape[1])]
    count = known.sum(0)
    if not count.all():
        raise InputError(
            f"{names[int(np.argmin(count))]}: no site has enough known values; write the project again without this column"
        )
    mean, std = pool_moments(map(Moments, known, total, squares))
    parts = [mean[_numbers(project.columns)], mean, std]
    text = ";".join(",".join(map(repr, values.tolist())) for values in parts)
    rows = [
        {"name": name, "known": int(n), "mean": float(m), "std": float(s)}
        for name, n, m, s in zip(names, count, mean, std, strict=True)
    ]
    return {"rows": rows, "scale": text}


def implausible(replies: Any) -> dict[Any, str]:
    """Return {key: reason} of sites with values of another order of magnitude than the values of the other sites.

    The sum of a single site enters the scale of all sites. A feature is compared if at least three sites have it: the mean and
    the standard deviation of a site must be within `FARTHEST` times the larger of the median standard deviation and the median
    absolute mean of the other sites.

    Parameters
    ----------
    replies : dict of {name: Tensor (d,)}
        By any key, as `fnlkit.federated.client.scaling.SENDS` declares.
    """
    keys = list(replies)
    known, total, squares = (np.array([replies[k][name].numpy() for k in keys]) for name in ("known", "total", "squares"))
    known = np.where(known > 0, known, np.nan)
    mean, std = total / known, np.sqrt(squares / known)
    reasons = {}
    for j, key in enumerate(keys):
        others = np.arange(len(keys)) != j
        usable = np.isfinite(mean[j]) & (np.isfinite(mean[others]).sum(0) >= 2)
        for i in np.flatnonzero(usable):
            rest = others & np.isfinite(mean[:, i])
            usual = max(np.median(std[rest, i]), np.median(np.abs(mean[rest, i])), 1e-3)
            if max(abs(mean[j, i] - np.median(mean[rest, i])), std[j, i]) > FARTHEST * usual:
                reasons[key] = f"the values of feature {i} have another order of magnitude than those of the other sites"
                break
    return reasons


def _numbers(columns):
    """Return the positions of numbers and ranks, which can be missing, among the features of a table."""
    out, at = [], 0
    for column in columns or ():
        if "fill" in column:
            out.append(at)
        at += len(features.features([column]))
    return out


def add_scale(project, text: str):
    """Return the Project with a scale of `of_replies`.

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
        width, places = math.prod(project.shape), _numbers(project.columns)
        if (len(fills), len(mean), len(std)) != (len(places), width, width) or min(std) <= 0:
            raise ValueError
        if not all(map(math.isfinite, fills + mean + std)):
            raise ValueError
    except ValueError:
        raise InputError("scale: is no scale of these samples; give the file of `fnlkit sites run DIR --task scale`") from None
    return replace(project, mean=mean, std=std, columns=fill_columns(project.columns, fills))


def fill_columns(columns: Any, fills: Iterable[float]) -> Any:
    """Return the columns of a table with these values for missing numbers, in their order."""
    fills = iter(fills)
    return columns and [column | {"fill": next(fills)} if "fill" in column else column for column in columns]


def remove_fills(project):
    """Return the Project whose missing numbers stay NaN, for `fnlkit.federated.client.scaling.reply_moments`."""
    fills = [math.nan] * len(_numbers(project.columns))
    return replace(project, columns=fill_columns(project.columns, fills), mean=[], std=[])
