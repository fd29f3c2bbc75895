"""Learn a matrix between a network's predictions and the labels, with predictions that do not change."""

from __future__ import annotations

import numpy as np

from fnlkit._kernels import learning as _learning
from fnlkit.errors import InputError

_FORMS = {"layer": _learning.LAYER, "softplus": _learning.SOFTPLUS, "scaled": _learning.SCALED}


def learn_matrix(
    form: str,
    values: np.ndarray,
    probabilities: np.ndarray,
    labels: np.ndarray,
    *,
    rate: float,
    steps: int,
    base: np.ndarray | None = None,
    factor: np.ndarray | None = None,
    floor: float = 1e-12,
    strength: float = 0.0,
) -> np.ndarray:
    """Return values (C, C) float64 after Adam steps on the mean loss of all samples.

    ``layer``: -log softmax(W p)_y with W the values.  ``softplus``: -log((p T)_y + floor) + strength trace(T), where T is the
    softplus of the values with rows scaled to sum to 1.  ``scaled``: -log((p T)_y + floor), where T is the positive part of
    base + values with rows scaled to sum to 1; with `factor`, factor / ((p T)_y + floor).

    Parameters
    ----------
    form : "layer", "softplus" or "scaled"
    values : (C, C)
    probabilities : (n, C)
    labels : (n,) int in 0 ... C - 1
    rate : float > 0
        Learning rate; the other constants are the same as in torch.optim.Adam.
    steps : int >= 0
    base : (C, C)
        Only for ``scaled``.
    factor : (n,)
        Only for ``scaled``.
    floor, strength : float >= 0

    Raises
    ------
    InputError
        If the arguments do not fit each other.

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]])
    >>> learn_matrix("layer", np.eye(2), p, [1, 1, 0], rate=0.1, steps=200).argmax(1).tolist()
    [1, 0]
    """
    if form not in _FORMS:
        raise InputError(f"`form` must be one of {', '.join(_FORMS)}, found {form!r}")
    p, labels = np.ascontiguousarray(probabilities, np.float64), np.ascontiguousarray(labels, np.int64)
    classes = p.shape[-1]
    values = np.array(values, np.float64, order="C")
    base = np.zeros((classes, classes)) if base is None else np.ascontiguousarray(base, np.float64)
    if p.ndim != 2 or labels.shape != p.shape[:1] or values.shape != (classes, classes) or base.shape != values.shape:
        shapes = f"{p.shape}, {labels.shape}, {values.shape} and {base.shape}"
        raise InputError(
            f"`probabilities`, `labels`, `values` and `base` must be (n, C), (n,), (C, C) and (C, C), found {shapes}"
        )
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        raise InputError(f"`labels` must be in 0 ... {classes - 1}, found {labels.min()} ... {labels.max()}")
    factor = np.zeros(0) if factor is None else np.ascontiguousarray(factor, np.float64)
    if factor.shape not in ((0,), labels.shape):
        raise InputError(f"`factor` must have shape {labels.shape}, found {factor.shape}")
    if form == "layer":
        p = np.ascontiguousarray(p.T)
    if labels.size:
        _learning.learn(_FORMS[form], p, labels, base, values, factor, float(floor), float(strength), float(rate), int(steps))
    return values
