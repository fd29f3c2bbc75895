"""Folds of each client's samples, for methods that are judged by samples that they were not trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fnlkit.errors import InputError
from fnlkit.kernels.streams import stream

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation


def assign_folds(federation: Federation, folds: int, seed: int) -> np.ndarray:
    """Return the fold (n,) of each sample: stratified by given label at each client, -1 for samples that always train.

    Samples that several clients hold have the same fold at all of them.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    folds : int >= 2
    seed : int

    Raises
    ------
    InputError
        If no client has two samples.
    """
    fold, given = np.full(len(federation.given), -1, np.int64), np.asarray(federation.given)
    shared = federation.extra.get("sample_of")
    if shared is not None:
        names, number = np.unique(shared, return_inverse=True)
        drawn = stream(seed, "folds").permutation(np.arange(len(names)) % folds)[number]
    for k, part in enumerate(federation.clients):
        if len(part) < 2:
            continue
        if shared is None:
            rng = stream(seed, "folds", client=k)
            order = np.argsort(given[part] + rng.random(len(part)), kind="stable")
            fold[part[order]] = (np.arange(len(part)) + rng.integers(folds)) % folds
        elif len(np.unique(drawn[part])) > 1:
            fold[part] = drawn[part]
    if (fold < 0).all():
        raise InputError("no client has two samples, so that none can be held out; use another `method`")
    return fold


def without(federation: Federation, positions: np.ndarray) -> Federation:
    """Return the federation without some of the clients' samples.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    positions : (m,) int
        Positions in the training set.  Each client must keep a sample.
    """
    parts = [part[~np.isin(part, positions)] for part in federation.clients]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return replace(federation, client_offsets=offsets, client_indices=np.concatenate(parts))
