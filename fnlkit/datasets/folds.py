"""Folds of each client's samples, for methods that are judged by samples that they were not trained on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fnlkit.core.errors import InputError
from fnlkit.datasets.groups import class_of_groups, of_federation
from fnlkit.kernels.streams import stream

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation


def assign_folds(federation: Federation, folds: int, seed: int) -> np.ndarray:
    """Assign samples (n,) to folds: stratified by given label at each client, -1 for samples that always train.

    Samples of one group (fnlkit.datasets.groups) have the same fold, and so have samples that several clients hold.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    folds : int >= 2
    seed : int

    Raises
    ------
    InputError
        If no client has two samples or groups.
    """
    given, groups = np.asarray(federation.given), of_federation(federation)
    groups = np.arange(len(given)) if groups is None else groups
    drawn, shared = np.full(groups.max() + 1, -1), "sample_of" in federation.extra
    if shared:
        names = np.unique(groups)
        drawn[names] = stream(seed, "folds").permutation(np.arange(len(names)) % folds)
    for k, part in enumerate(federation.clients):
        names, _, label = class_of_groups(given[part], groups[part])
        if len(names) < 2 or shared:
            continue
        rng = stream(seed, "folds", client=k)
        names, label = names[drawn[names] < 0], label[drawn[names] < 0]  # another client can have the group, too
        order = np.argsort(label + rng.random(len(names)), kind="stable")
        drawn[names[order]] = (np.arange(len(names)) + rng.integers(folds)) % folds
    for part in federation.clients:
        if len(np.unique(drawn[groups[part]])) < 2:  # nothing would remain for training
            drawn[groups[part]] = -1
    fold = np.full(len(given), -1, np.int64)
    fold[federation.client_indices] = drawn[groups[federation.client_indices]]
    if (fold < 0).all():
        raise InputError("no client has two samples or groups, so that none can be held out; use another `method`")
    return fold


def without(federation: Federation, positions: np.ndarray) -> Federation:
    """Remove some of the clients' samples from a federation.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    positions : (m,) int
        Positions in the training set.  Each client must keep a sample.
    """
    parts = [part[~np.isin(part, positions)] for part in federation.clients]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return replace(federation, client_offsets=offsets, client_indices=np.concatenate(parts))
