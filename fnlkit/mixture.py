"""Two one-dimensional Gaussians: which values belong to the upper one."""

import warnings
from typing import NamedTuple

import numpy as np


class TwoComponents(NamedTuple):
    """Two Gaussians fitted to values, the one with the smaller mean first.

    Attributes
    ----------
    upper : bool (n,)
        Whether a value belongs to the component with the larger mean.
    means, variances, shares : float64 (2,)
    """

    upper: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    shares: np.ndarray


def two_components(values, *, seed=0):
    """Return the TwoComponents of values (n,).

    A mixture of two always splits unless all values are equal, even where there is only one group: `upper` says "the
    larger ones", not "there are two groups".  Equal values (and fewer than two) give no True.

    Parameters
    ----------
    values : (n,) finite numbers
    seed : int
        Of scikit-learn's k-means initialization.

    Source: FedCorr (Xu 2022), Section 3.2, steps 1 and 2; the mixture is sklearn.mixture.GaussianMixture.
    """
    values = np.asarray(values, np.float64).reshape(-1, 1)
    if len(values) < 2 or np.ptp(values) == 0:
        mean = values[:1, 0] if len(values) else np.zeros(1)
        return TwoComponents(np.zeros(len(values), bool), np.repeat(mean, 2), np.zeros(2), np.array([1.0, 0.0]))
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    with warnings.catch_warnings():
        # Two distinct values among many copies: k-means says that it found fewer clusters; the split is still right.
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture = GaussianMixture(2, random_state=seed).fit(values)
    order = np.argsort(mixture.means_[:, 0], kind="stable")
    upper = mixture.predict(values) == order[1]
    return TwoComponents(upper, mixture.means_[order, 0], mixture.covariances_[order, 0, 0], mixture.weights_[order])
