"""The scale from the replies of the sites, at the server."""

from typing import Any

import numpy as np

from fnlkit.core.errors import InputError
from fnlkit.datasets import columns as features
from fnlkit.federated.client.scaling import Moments, pool_moments
from fnlkit.sites.scale import number_places

FARTHEST = 1e4  # units differ by factors up to 1,000 (grams and kilograms)


def scale_of_replies(replies: Any, project) -> dict[str, Any]:
    """Compute the result of the task scale.

    Parameters
    ----------
    replies : dict of array (N, d)
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
    known, total, squares = (replies[name] for name in ("known", "total", "squares"))
    names = features.features(project.columns) if project.columns else [f"feature {i}" for i in range(known.shape[1])]
    count = known.sum(0)
    if not count.all():
        raise InputError(
            f"{names[int(np.argmin(count))]}: no site has enough known values; write a project without this column"
        )
    mean, std = pool_moments(map(Moments, known, total, squares))
    parts = [mean[number_places(project.columns)], mean, std]
    text = ";".join(",".join(map(repr, values.tolist())) for values in parts)
    rows = [
        {"name": name, "known": int(n), "mean": float(m), "std": float(s)}
        for name, n, m, s in zip(names, count, mean, std, strict=True)
    ]
    return {"rows": rows, "scale": text}


def implausible(replies: Any) -> dict[Any, str]:
    """Find {key: reason} of sites with values of another order of magnitude than the values of the other sites.

    The sum of a single site enters the scale of all sites. A feature is compared if at least three sites have it: the mean and
    the standard deviation of a site must be within `FARTHEST` times the larger of the median standard deviation and the median
    absolute mean of the other sites.

    Parameters
    ----------
    replies : dict of {name: array (d,)}
        By any key, as `fnlkit.federated.client.scaling.SENDS` declares.
    """
    keys = list(replies)
    known, total, squares = (np.array([replies[k][name] for k in keys]) for name in ("known", "total", "squares"))
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
