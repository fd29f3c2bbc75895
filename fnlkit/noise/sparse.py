"""Class-dependent noise with zeros: one matrix for everybody, or one per client."""

from typing import Literal

import numpy as np

from fnlkit.errors import InputError
from fnlkit.noise import matrices
from fnlkit.noise.ground import Corruption, need_clients
from fnlkit.parameters import Share, checked


@checked
def sparse(
    ground,
    *,
    level: Share = 0.4,
    sparsity: Share = 0.4,
    per_client=False,
    noisy_share: Share = 1.0,
    clean_level: Share = 0.0,
    construction: Literal["auto", "confident-learning", "fedln-code"] = "auto",
):
    """Class-dependent noise with zeros: one matrix for everybody (FedEFC) or one per client (FedLN).

    Parameters
    ----------
    level : float in [0, 1)
        Mean of 1 - T[i, i].
    sparsity : float in [0, 1]
        Share of zeros beside the diagonal; 1 leaves one other class: a pair's other in confident-learning, any in
        fedln-code.
    per_client : bool
        A matrix of its own for each client; needs a partitioned federation.
    noisy_share : float in [0, 1]
        With per_client: the share F of clients that get `level`, rounded, drawn at random.
    clean_level : float in [0, 1)
        With per_client: the level of the other clients (FedLN, Table 6).
    construction : {"auto", "confident-learning", "fedln-code"}
        confident-learning draws an uneven diagonal and changes exactly as many labels as the matrix announces, by largest
        remainders (FedEFC; auto with one matrix).  fedln-code has an even diagonal, 1 - level in every class, and
        independent draws (FedLN's Definition 2.1 and its code; auto with per_client): under uneven ones a class's
        commonest label on a client can be a wrong one, and no vote inside a client sees that.
    """
    if construction == "auto":
        construction = "fedln-code" if per_client else "confident-learning"

    def corrupted(labels, rate, rng, shares):
        if construction == "fedln-code":
            T = matrices.sparse_as_fedln(ground.classes, rate, sparsity, rng)
            return matrices.draw(labels, T, rng), T
        T = matrices.sparse(ground.classes, rate, sparsity, rng, shares)
        return matrices.exact(labels, T, rng), T

    if not per_client:
        if noisy_share != 1 or clean_level:
            raise InputError("sparse: noisy_share and clean_level go with per_client=true")
        shares = np.bincount(ground.labels, minlength=ground.classes) / len(ground.labels)
        labels, T = corrupted(ground.labels, level, ground.rng(), shares)
        return Corruption(labels, T)
    need_clients(ground, "sparse(per_client=true)")
    count = len(ground.clients)
    noisy = np.zeros(count, bool)
    noisy[ground.rng().permutation(count)[: round(noisy_share * count)]] = True
    labels, T = ground.labels.copy(), np.empty((count, ground.classes, ground.classes))
    for k, here in enumerate(ground.clients):
        rate = level if noisy[k] else clean_level
        labels[here], T[k] = corrupted(ground.labels[here], rate, ground.rng(k + 1), None)
    return Corruption(labels, T, noisy)
