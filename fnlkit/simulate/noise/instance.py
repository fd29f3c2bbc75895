"""Instance-dependent noise: the new label depends on the sample."""

from typing import Annotated

import numpy as np

from fnlkit.core.declarations import declare
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Range, Share, check_arguments
from fnlkit.simulate.noise.ground import Corruption, Ground
from fnlkit.simulate.noise.own import none


@declare(cite="Xia 2020")
@check_arguments
def instance(ground: Ground, *, eta: Share = 0.4, spread: Annotated[float, Range(0, 10)] = 0.1) -> Corruption:
    """Change labels depending on the sample (Xia 2020, part-dependent transition, Algorithm 2).

    Sample i changes with probability q_i ~ Normal(eta, spread), truncated to [0, 1].  The new class is drawn from the softmax
    over the other classes of x_i W[y_i], with one standard normal matrix W per class.  All entries of the samples together
    are scaled to mean 0 and standard deviation 1.  For images of more than a few pixels the softmax is then close to one
    class, as in the authors' code.

    Parameters
    ----------
    eta : float in [0, 1]
        Mean probability that a label changes, before truncation: near 0 the mean is higher, near 1 lower. 0 changes no label.
    spread : float in [0, 10]
        Standard deviation of that probability over the samples.
    """
    x = ground.x()
    if x is None:
        raise InputError("instance: needs the samples; give x=... (on the command line the data set must be readable)")
    if len(x) != len(ground.labels):
        raise InputError(f"instance: {len(x):,} samples but {len(ground.labels):,} labels; is it another data set?")
    if eta == 0:
        return none(ground)
    rng = ground.rng()
    wrong = rng.normal(eta, spread, len(x))
    while (outside := (wrong < 0) | (wrong > 1)).any():
        wrong[outside] = rng.normal(eta, spread, outside.sum())
    uniform = rng.random(len(x))
    center, width = _spread(x)
    labels, T = ground.labels.copy(), np.eye(ground.classes)
    for label in np.unique(labels):
        members = np.flatnonzero(ground.labels == label)
        W = ground.rng(label + 1).normal(size=(int(np.prod(x.shape[1:])), ground.classes)).astype(np.float32)
        total = np.zeros(ground.classes)
        for start in range(0, len(members), 1000):  # a float copy of all images would not fit into memory
            part = members[start : start + 1000]
            flat = (np.asarray(x[part], np.float32).reshape(len(part), -1) - center) / width
            score = (flat @ W).astype(np.float64)
            score[:, label] = -np.inf
            p = np.exp(score - score.max(1, keepdims=True))
            p *= (wrong[part] / p.sum(1))[:, None]
            p[:, label] = 1 - wrong[part]
            total += p.sum(0)
            border = np.cumsum(p, 1)
            labels[part] = (uniform[part, None] * border[:, -1:] >= border).sum(1)
        T[label] = total / len(members)
    return Corruption(labels, T / T.sum(1, keepdims=True))


def _spread(x):
    first = second = count = 0.0
    for start in range(0, len(x), 1000):
        part = np.asarray(x[start : start + 1000], np.float64)
        first, second, count = first + part.sum(), second + (part * part).sum(), count + part.size
    mean = first / count
    return mean, max(np.sqrt(max(second / count - mean**2, 0)), 1e-12)
