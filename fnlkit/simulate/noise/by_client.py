"""Noise by client: some clients are noisy, each with a different noise level."""

from typing import Literal

import numpy as np

from fnlkit.core.declarations import declare
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Share, check_arguments
from fnlkit.kernels import matrices
from fnlkit.simulate.noise.by_class import target_of
from fnlkit.simulate.noise.ground import Corruption, Ground, need_clients


@declare(cite="Xu 2022")
@check_arguments
def clients(
    ground: Ground,
    *,
    rho: Share = 0.6,
    tau: Share = 0.5,
    exact: bool = False,
    exact_samples: bool = False,
    kind: Literal["symmetric", "asymmetric", "pairflip"] = "symmetric",
    map: str = "",
) -> Corruption:
    """Make some clients noisy, each with a random noise level (FedCorr, Xu 2022, Sec. 4.1).

    Client k is noisy with probability rho; the noise level is mu_k ~ U(tau, 1).  Each sample of a noisy client is picked with
    probability mu_k, as in the authors' code, and receives a label drawn from all classes, so the share of wrong labels is
    mu_k (C - 1) / C.  The authors' code draws from the first 10 classes for every data set; this function draws from all.

    Parameters
    ----------
    rho : float in [0, 1]
        Probability that a client is noisy.
    tau : float in [0, 1]
        Smallest level of a noisy client; levels are drawn from tau to 1.
    exact : bool
        Choose exactly rho N clients and mu_k n_k samples (rounded) instead of independent draws (FLR, Kim 2024).
    exact_samples : bool
        Choose exactly mu_k n_k samples (rounded) of clients that are drawn independently (text of FedCorr).
    kind : {"symmetric", "asymmetric", "pairflip"}
        New label of a picked sample: any class; the published map, which changes only some classes; the next class.
    map : str
        The published map of kind=asymmetric. Default: the name of the data set.
    """
    need_clients(ground, "clients")
    if map and kind != "asymmetric":
        raise InputError(f"clients: kind={kind} has no map; write kind=asymmetric, or remove map")
    count, rng = len(ground.clients), ground.rng()
    if exact:
        noisy = np.zeros(count, bool)
        noisy[rng.permutation(count)[: round(rho * count)]] = True
    else:
        noisy = rng.random(count) < rho
    level = np.where(noisy, tau + (1 - tau) * rng.random(count), 0.0)
    target = target_of(ground, kind, map)
    labels = ground.labels.copy()
    # Stream 0 belongs to the whole training set, stream k + 1 to client k.
    for k in np.flatnonzero(noisy):
        own, members = ground.rng(k + 1), ground.clients[k]
        if exact or exact_samples:
            picked = members[own.permutation(len(members))[: round(level[k] * len(members))]]
        else:
            picked = members[own.random(len(members)) < level[k]]
        labels[picked] = own.integers(0, ground.classes, len(picked)) if target is None else target[labels[picked]]
    base = np.full((ground.classes,) * 2, 1 / ground.classes) if target is None else matrices.map_classes(target, 1.0)
    T = (1 - level)[:, None, None] * np.eye(ground.classes) + level[:, None, None] * base
    return Corruption(labels, T, noisy)
