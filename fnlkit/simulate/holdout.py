"""Hold out samples from training: a share per client, and verified samples."""

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.groups import class_of_groups, of_federation
from fnlkit.datasets.identifiers import Asked, Samples, find_samples
from fnlkit.datasets.labels import class_finder
from fnlkit.datasets.table import read_table
from fnlkit.kernels.streams import stream

# Default share of each client's samples if the data set has no test samples.
USUAL = 0.2


def set_apart(
    federation: Federation, *, holdout: float = 0.0, gold: tuple[np.ndarray, np.ndarray] | None = None, seed: int = 0
) -> Federation:
    """Hold out samples, which stay at their clients.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    holdout : float in [0, 1)
        Share of each client's samples, stratified by given label (a systematic sample of the samples sorted by label).  If the
        federation has groups, the share of each client's groups, stratified by their most frequent label.  A client with one
        sample or group keeps it for training.
    gold : (positions (g,), labels (g,)), optional
        Verified samples.  Samples that belong to no client are ignored.  Other samples of their groups are held out, too.
    seed : int

    Returns
    -------
    Federation
        With the arrays ``holdout_client`` (n,), the client of each held-out sample, and, if `gold` is given, ``gold_label``
        (n,).  Both are -1 for all other samples.

    Raises
    ------
    InputError
        If the share is outside [0, 1), or if a client would have no training samples left.
    """
    if not 0 <= holdout < 1:
        raise InputError(f"{holdout}: write a share from 0 to below 1, such as {USUAL}", parameter="holdout")
    size = len(federation.given)
    owner = np.full(size, -1, np.int64)
    extra = {"holdout_client": owner, **federation.extra}
    owner = extra["holdout_client"] = extra["holdout_client"].copy()
    if gold is not None:
        extra["gold_label"] = np.full(size, -1, np.int64)
    if gold is not None:
        held_out = _of_same_group(federation, gold[0])
    elif "sample_of" in extra:
        held_out = _samples_apart(of_federation(federation), federation.clients, holdout, seed)
    else:
        held_out = _groups_apart(federation, holdout, seed)
    parts = []
    for k, part in enumerate(federation.clients):
        if held_out[part].all():
            raise InputError(
                f": all {len(part)} samples of client {k} are verified, and none is left for training", parameter="gold"
            )
        owner[part[held_out[part]]] = k
        parts.append(part[~held_out[part]])
    if gold is not None:
        known = owner[gold[0]] >= 0
        extra["gold_label"][gold[0][known]] = gold[1][known]
    return federation.with_clients(parts, extra=extra)


def _groups_apart(federation, share, seed):
    """Choose held-out samples (n,): whole groups, a share of each client's groups, or of its samples without groups.

    A group that several clients have is held out at all of them or at none.
    """
    groups, labels = of_federation(federation), np.asarray(federation.given)
    groups = np.arange(len(labels)) if groups is None else groups
    held_out, parts = np.full(groups.max() + 1, -1), []  # of each group: 1 if held out, 0 if not, -1 before it is drawn
    for k, part in enumerate(federation.clients):
        rng = stream(seed, "holdout", client=k)
        names, _, label = class_of_groups(labels[part], groups[part])
        names, label = names[held_out[names] < 0], label[held_out[names] < 0]
        order = np.argsort(label + rng.random(len(names)), kind="stable")
        marks = np.floor(np.arange(len(names) + 1) * share + rng.random())
        held_out[names[order]] = np.diff(marks) > 0
        parts.append((np.unique(groups[part]), rng))
    for names, rng in parts:
        if held_out[names].all():
            held_out[names[rng.integers(len(names))]] = 0
    return held_out[groups] == 1


def _samples_apart(sample_of, clients, share, seed):
    """Choose held-out votes (n,): votes on held-out samples, or on samples of held-out groups.

    All votes on a sample are held out together, so that no client trains on a sample that another client holds out.  A client
    without another vote keeps a sample for training, and this sample is then held out nowhere.
    """
    samples = np.unique(sample_of)
    chosen = stream(seed, "holdout").choice(samples, round(share * len(samples)), replace=False)
    for part in clients:
        if np.isin(sample_of[part], chosen).all():
            chosen = chosen[chosen != sample_of[part[0]]]
    return np.isin(sample_of, chosen)


def _of_same_group(federation, positions):
    """Select the samples (n,) at some positions or in a group with them; votes on a sample are no group."""
    groups = federation.extra.get("group", np.arange(len(federation.given)))
    return np.isin(groups, groups[positions])


def read_gold(path: str, dataset: Dataset, sample_column: str | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Read the verified samples of a table: (positions (g,), labels (g,)).

    Parameters
    ----------
    path : str
        A CSV or Parquet file with a column that names training samples (fnlkit.datasets.identifiers) by the data set's id, the
        field ``id``, the path, or, if the data set has none, the position counted from 0; and a column ``label`` in upper or
        lower case with class names.
    dataset : fnlkit.datasets.Dataset
    sample_column : str, optional
        The column that names the samples.  Default: fnlkit.datasets.identifiers.find_samples.

    Raises
    ------
    InputError
        If an id or a label does not exist.  The message names the file and the row.
    """
    name = f"`gold` {display_path(path)}"
    try:
        table = read_table(path)
    except InputError as error:
        raise InputError(f"{error}", parameter="gold") from None
    label = table.find_columns("label")
    others = {column: table.texts(column) for column in table.columns if column not in label}
    if len(label) != 1 or not others:
        raise InputError(
            f"{name}: expected a row per verified sample, with a column that names the sample, such as id, and a column label; "
            f"found the columns {table.known()}"
        )

    def fail(rows: Sequence[int], text: str) -> NoReturn:
        raise InputError(f"{table.at(rows[0])}: {text}", parameter="gold")

    known = [sample_ids(dataset), *([] if dataset.paths is None else [list(map(str, dataset.paths))])]
    positions = find_samples(others, Samples(known), Asked(fail, name, sample_column))[1]
    find = class_finder(dataset.class_names)
    words = table.texts(label[0])
    labels = [find(word) for word in words]
    if None in labels:
        row = labels.index(None)
        fail([row], f"no class {words[row]!r}; the classes are {list_names(dataset.class_names)}")
    if len(np.unique(positions)) < len(positions):
        raise InputError(f"{name}: a sample is listed twice")
    return positions, np.array(labels, np.int64)


def sample_ids(dataset: Dataset) -> list[str]:
    """List the id of each training sample as n texts.

    The id is the data set's id of the sample, or the field ``id`` if the data set has no ids, or else the position.
    """
    values = dataset.fields.get("id") if dataset.ids is None else dataset.ids
    return [str(value) for value in (range(len(dataset.y_train)) if values is None else values)]
