"""Class-dependent noise with sparse matrices: one matrix for all clients, or one per client."""

from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fnlkit.core.declarations import declare
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Share, check_arguments
from fnlkit.kernels import matrices
from fnlkit.simulate.noise.ground import Corruption, Ground, need_clients


@declare(cite="Northcutt 2021")
@check_arguments
def sparse(
    ground: Ground,
    *,
    level: Share = 0.4,
    sparsity: Share = 0.4,
    per_client: bool = False,
    noisy_share: Share = 1.0,
    clean_level: Share = 0.0,
    construction: Literal["auto", "confident-learning", "fedln", "fedln-code"] = "auto",
) -> Corruption:
    """Change labels with a sparse matrix for all clients (FedEFC) or with one per client (FedLN).

    Parameters
    ----------
    level : float in [0, 1)
        Mean of 1 - T[i, i].
    sparsity : float in [0, 1]
        Share of zeros among the off-diagonal entries. At 1 the classes form random pairs that are confused both ways
        (FedLN, Definition 2.2); with construction=fedln-code each class is confused with a random other class.
    per_client : bool
        Draw a separate matrix for each client. Requires a partitioned federation.
    noisy_share : float in [0, 1]
        With per_client: the share F of clients with `level`, rounded and drawn at random.
    clean_level : float in [0, 1)
        With per_client: the level of the other clients (FedLN, Table 6).
    construction : {"auto", "confident-learning", "fedln", "fedln-code"}
        confident-learning draws unequal diagonal entries and changes exactly as many labels as the matrix states, by largest
        remainders (FedEFC; auto with one matrix).  fedln keeps 1 - level of every class and draws labels independently (FedLN,
        Definitions 2.1 and 2.2; auto with per_client): with unequal entries, the most common label of a class at a client can
        be wrong, which no vote within the client can detect.  fedln-code is the same except at sparsity 1, where the public
        code of FedLN draws a random map.
    """
    if construction == "auto":
        construction = "fedln" if per_client else "confident-learning"

    def corrupt(
        labels: np.ndarray, rate: float, rng: np.random.Generator, shares: np.ndarray | None
    ) -> tuple[np.ndarray | NDArray[np.integer[Any]], Any]:
        if construction in ("fedln", "fedln-code"):
            paired = sparsity == 1 and construction == "fedln"
            build = matrices.pairs if paired else partial(matrices.sparse_as_fedln, sparsity=sparsity)
            T = build(ground.classes, rate, rng=rng)
            return matrices.draw(labels, T, rng), T
        T = matrices.sparse(ground.classes, rate, sparsity, rng, shares)
        return matrices.exact(labels, T, rng), T

    if not per_client:
        if noisy_share != 1 or clean_level:
            raise InputError("sparse: noisy_share and clean_level go with per_client=true")
        shares = np.bincount(ground.labels, minlength=ground.classes) / len(ground.labels)
        labels, T = corrupt(ground.labels, level, ground.rng(), shares)
        return Corruption(labels, T)
    need_clients(ground, "sparse(per_client=true)")
    count = len(ground.clients)
    noisy = np.zeros(count, bool)
    noisy[ground.rng().permutation(count)[: round(noisy_share * count)]] = True
    labels, T = ground.labels.copy(), np.empty((count, ground.classes, ground.classes))
    for k, members in enumerate(ground.clients):
        rate = level if noisy[k] else clean_level
        labels[members], T[k] = corrupt(ground.labels[members], rate, ground.rng(k + 1), None)
    return Corruption(labels, T, noisy)
