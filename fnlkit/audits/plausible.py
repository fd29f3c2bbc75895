"""Refuse descriptions of the inputs that no samples have: a bad reply must not end an audit, and the site is named."""

from typing import Any

import numpy as np
import torch

from fnlkit.server.replies import of_one_shape, quote

# Share of the trace by which a covariance can be asymmetric, or its smallest eigenvalue negative: rounding errors.
ROUNDING = 1e-6


def impossible_descriptions(replies: "dict[Any, dict[str, torch.Tensor]]") -> dict[Any, str]:
    """Return {key: reason} of replies with another shape than most, or with moments or quantiles that no samples have.

    For the steps of fnlkit.audits.shifts: `compare` of fnlkit.server.clients.Clients.round.

    Parameters
    ----------
    replies : dict of {name: Tensor}
        By any key.
    """
    reasons = of_one_shape(replies)
    for key, reply in replies.items():
        for name, values in reply.items():
            if key not in reasons and (reason := _impossible(name, values.double().numpy())):
                reasons[key] = f"{quote(name)} {reason}"
    return reasons


def _impossible(name, values):
    """Return the reason why no samples can have these values, or "" if there is none."""
    if name.endswith("covariances"):
        if values.shape[-1] != values.shape[-2]:
            return "is not square"
        tolerance = ROUNDING * np.maximum(values.trace(axis1=-2, axis2=-1), 1e-9)
        asymmetric = np.abs(values - values.swapaxes(-1, -2)).max((-2, -1), initial=0) > tolerance
        if asymmetric.any() or values.size and (np.linalg.eigvalsh(values).min(-1) < -tolerance).any():
            return "is not the covariance of any samples"
    # mean, standard deviation, and for columns three quantiles
    if name in ("columns", "class_columns", "embedding_moments"):
        if (values[1] < 0).any():
            return "has negative standard deviations"
        if (np.diff(values[2:], axis=0) < 0).any():
            return "has quantiles in a wrong order"
    return ""
