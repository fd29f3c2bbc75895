"""Learn a matrix between a network's predictions and the labels, with predictions that do not change."""

import numpy as np

from fnlkit._kernels import learning as compiled
from fnlkit.core.errors import InputError
from fnlkit.kernels import checks


def learn_matrix(
    values: np.ndarray,
    probabilities: np.ndarray,
    labels: np.ndarray,
    *,
    rate: float,
    steps: int,
    base: np.ndarray,
    factor: np.ndarray | None = None,
    floor: float = 1e-12,
) -> np.ndarray:
    """Learn values (C, C) float64 by Adam steps on the mean loss of all samples.

    The loss is -log((p T)_y + floor), where T is the positive part of base + values with rows scaled to sum to 1; with
    `factor`, factor / ((p T)_y + floor).

    Parameters
    ----------
    values : (C, C)
    probabilities : (n, C)
    labels : (n,) int in 0 ... C - 1
    rate : float > 0
        Learning rate; the other constants are the same as in torch.optim.Adam.
    steps : int >= 0
    base : (C, C)
    factor : (n,)
    floor : float >= 0

    Raises
    ------
    InputError
        If the arguments do not fit each other.

    Examples
    --------
    >>> p = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]])
    >>> learned = learn_matrix(np.zeros((2, 2)), p, [1, 1, 0], rate=0.1, steps=200, base=np.full((2, 2), 0.5))
    >>> learned.argmax(1).tolist()
    [1, 0]
    """
    p = checks.contiguous(checks.array(probabilities, "probabilities"), np.float64)
    labels = checks.integers(labels, "labels", len(p), "row of `probabilities`")
    classes = p.shape[-1]
    values = np.array(values, np.float64, order="C")
    base = checks.contiguous(checks.array(base, "base"), np.float64)
    if p.ndim != 2 or values.shape != (classes, classes) or base.shape != values.shape:
        shapes = f"{p.shape}, {values.shape} and {base.shape}"
        raise InputError(f"`probabilities`, `values` and `base` must be (n, C), (C, C) and (C, C), found {shapes}")
    checks.check_range(labels, "labels", classes)
    factor = np.zeros(0) if factor is None else checks.contiguous(factor, np.float64)
    if factor.shape not in ((0,), labels.shape):
        raise InputError(f"`factor` must have shape {labels.shape}, found {factor.shape}")
    if labels.size:
        compiled.learn(p, labels, base, values, factor, float(floor), float(rate), int(steps))
    return values
