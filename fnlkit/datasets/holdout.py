"""Samples that nobody trains on: a share of each client's own, and those whose labels somebody verified."""

import csv
import io
from dataclasses import replace

import numpy as np

from fnlkit.artefacts import paths
from fnlkit.errors import InputError
from fnlkit.streams import stream

# Share of each client's samples where the data set has no test samples.
USUAL = 0.2


def set_apart(federation, *, holdout=0.0, gold=None, seed=0):
    """Return the federation with samples taken out of training; they stay at their clients.

    Parameters
    ----------
    federation : fnlkit.artefacts.federation.Federation
    holdout : float in [0, 1)
        Share of each client's samples, of each given label alike (a systematic sample of the samples in order of their labels);
        a client of one sample keeps it.
    gold : (positions (g,), labels (g,)), optional
        Verified samples; those of no client are left out.
    seed : int

    Returns
    -------
    Federation
        With arrays ``holdout_client`` (n,), the client that holds a sample apart, and, of verified ones, ``gold_label`` (n,);
        -1 elsewhere.

    Raises
    ------
    InputError
        For a share outside [0, 1), or when a client would have nothing left to train on.
    """
    if not 0 <= holdout < 1:
        raise InputError(f"--holdout {holdout}: write a share from 0 to below 1, such as {USUAL}")
    size, given = len(federation.given), np.asarray(federation.given)
    owner = np.full(size, -1, np.int64)
    extra = {"holdout_client": owner, **federation.extra}
    owner = extra["holdout_client"] = extra["holdout_client"].copy()
    if gold is not None:
        extra["gold_label"] = np.full(size, -1, np.int64)
    parts = []
    for k, part in enumerate(federation.clients):
        if gold is not None:
            out = np.isin(part, gold[0])
        else:
            rng = stream(seed, "holdout", client=k)
            order = np.argsort(given[part] + rng.random(len(part)), kind="stable")
            marks = np.floor(np.arange(len(part) + 1) * holdout + rng.random())
            out = np.zeros(len(part), bool)
            out[order] = np.diff(marks) > 0
            if out.all():
                out[rng.integers(len(part))] = False
        if out.all():
            raise InputError(f"--gold: all {len(part)} samples of client {k} are verified, and none is left to train on")
        owner[part[out]] = k
        parts.append(part[~out])
    if gold is not None:
        known = owner[gold[0]] >= 0
        extra["gold_label"][gold[0][known]] = gold[1][known]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int64)
    return replace(federation, client_offsets=offsets, client_indices=np.concatenate(parts), extra=extra)


def read_gold(path, dataset):
    """Return (positions (g,), labels (g,)) of the samples that a csv says somebody verified.

    Parameters
    ----------
    path : str
        A csv with columns ``id`` and ``label``.  An id is what the data set calls a training sample (its ids, or its field
        ``id``), or its position from 0 on where it has none; a label is the name of a class.
    dataset : fnlkit.datasets.Dataset

    Raises
    ------
    InputError
        Naming the file and the line of an id or a label that does not exist.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as handle:
            rows = list(csv.DictReader(io.StringIO(handle.read())))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--gold {paths.shown(path)}: {getattr(error, 'strerror', None) or 'not a text in UTF-8'}") from error
    if not rows or not {"id", "label"} <= set(rows[0]):
        raise InputError(f"--gold {paths.shown(path)}: expected a csv with the columns id and label, and a line a sample")
    place = {text: i for i, text in enumerate(sample_ids(dataset))}
    index = {str(name): c for c, name in enumerate(dataset.class_names)}
    positions, labels = [], []
    for number, row in enumerate(rows, 2):
        where, name, label = (
            f"--gold {paths.shown(path)}, line {number}",
            (row["id"] or "").strip(),
            (row["label"] or "").strip(),
        )
        if name not in place:
            raise InputError(f"{where}: no sample {name!r} in {dataset.name}; its ids are like {next(iter(place))!r}")
        if label not in index:
            raise InputError(f"{where}: no class {label!r}; there are {', '.join(list(index)[:12])}")
        positions.append(place[name])
        labels.append(index[label])
    if len(set(positions)) < len(positions):
        raise InputError(f"--gold {paths.shown(path)}: a sample is listed twice")
    return np.array(positions, np.int64), np.array(labels, np.int64)


def sample_ids(dataset):
    """Return what each training sample is called, as a list of n texts: its id, its field ``id``, else its position."""
    values = dataset.fields.get("id") if dataset.ids is None else dataset.ids
    return [str(value) for value in (range(len(dataset.y_train)) if values is None else values)]
