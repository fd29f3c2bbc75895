"""Open-set noise: samples of no class with labels of the client's classes."""

import numpy as np

from fnlkit.components.parameters import PositiveShare, check_arguments
from fnlkit.errors import InputError
from fnlkit.noise.ground import Corruption, Ground, need_clients


@check_arguments
def openset_inputs(ground: Ground, *, share: PositiveShare = 0.3, clients: PositiveShare = 1.0) -> Corruption:
    """Replace samples of some clients by inputs of no class, which receive the labels of the replaced samples.

    The client's sizes and labels stay unchanged.  The data set must contain inputs of no class:
    ``--dataset 'open-set(data=digits, source=shuffled)'``.  Held-out samples are not replaced.

    Parameters
    ----------
    share : float in (0, 1]
        Share of a client's training samples that are replaced (rounded).
    clients : float in (0, 1]
        Share of the clients with such inputs (rounded, at least one), drawn at random.
    """
    need_clients(ground, "openset-inputs")
    count, rng = len(ground.training), ground.rng()
    noisy = np.zeros(count, bool)
    noisy[rng.permutation(count)[: max(1, round(clients * count))]] = True
    replaced = [
        here[ground.rng(k + 1).permutation(len(here))[: round(share * len(here))]]
        for k, here in enumerate(ground.training)
        if noisy[k]
    ]
    old = np.concatenate(replaced)
    if len(old) > len(ground.spare):
        raise InputError(
            f"openset-inputs: {len(old):,} samples are to be replaced, but the data set has {len(ground.spare):,} unused "
            "inputs of no class; lower `share` or `clients`, or a `dataset` 'open-set(data=..., source=...)' with more inputs"
        )
    new = ground.spare[rng.permutation(len(ground.spare))[: len(old)]]
    labels = ground.labels.copy()
    labels[new] = labels[old]
    return Corruption(labels, np.eye(ground.classes), noisy, exchanged=(old, new))
