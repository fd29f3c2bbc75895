"""Two one-dimensional Gaussians: which values belong to the upper one."""

import warnings

import numpy as np


def upper_component(values, *, seed=0, full=False):
    """Return a boolean mask (n,): True where a value belongs to the component with the larger mean.

    A mixture of two always splits unless all values are equal, even where there is only one group: the mask says "the
    larger ones", not "there are two groups".  Equal values (and fewer than two) give no True.

    Parameters
    ----------
    values : (n,) finite numbers
    seed : int
        Of scikit-learn's k-means initialisation.
    full : bool
        Return (mask, means (2,), variances (2,), shares (2,)) with components in ascending order of the mean.

    Source: FedCorr (Xu 2022), Section 3.2, steps 1 and 2; the mixture is sklearn.mixture.GaussianMixture.
    """
    values = np.asarray(values, np.float64).reshape(-1, 1)
    if len(values) < 2 or np.ptp(values) == 0:
        mask = np.zeros(len(values), bool)
        centre = values[:1, 0] if len(values) else np.zeros(1)
        return (mask, np.repeat(centre, 2), np.zeros(2), np.array([1.0, 0.0])) if full else mask
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    with warnings.catch_warnings():
        # Two distinct values among many copies: k-means says that it found fewer clusters; the split is still right.
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture = GaussianMixture(2, random_state=seed).fit(values)
    order = np.argsort(mixture.means_[:, 0], kind="stable")
    mask = mixture.predict(values) == order[1]
    if not full:
        return mask
    return mask, mixture.means_[order, 0], mixture.covariances_[order, 0, 0], mixture.weights_[order]
