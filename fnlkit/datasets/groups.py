"""Groups of samples that belong together, such as the images of a patient or the sentences of a document.

A data set and a federation store a number per sample; samples with equal numbers are one group.  Whatever divides samples
(held-out sets, folds, simulated clients) divides groups, because samples of one group are similar and share their errors.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.spelling import merge_spellings
from fnlkit.kernels.streams import stream

# Columns and fields with these names contain groups.
NAMES = ("patient", "patient_id", "patientid", "patient_no", "patient_nr", "subject_id", "participant", "participant_id",
         "case_id", "speaker", "speaker_id", "document_id", "doc_id", "group_id", "groups")  # fmt: skip
# These names have other meanings, too, such as the arm of a trial: a column is used if it has at least _MANY values of at most
# _LONGEST characters.
DOUBTFUL = ("group", "subject", "case", "document")
_MANY, _LONGEST = 10, 64
# A column repeats like an identifier of groups if its values occur _REPEATS times on average.
_REPEATS = 2
_NUMBERED = re.compile(r"(^|[_\s])(id|ids|no|nr|num|number|key|mrn|code)$|Id$|ID$")


def number_groups(names: Sequence[Any] | np.ndarray, within: Sequence[Any] | np.ndarray | None = None) -> np.ndarray | None:
    """Number each sample's group (n,) int64, from 0 in the order of occurrence; None if no group has two samples.

    Parameters
    ----------
    names : (n,) texts or numbers
        Equal values in different spellings are one group (fnlkit.datasets.spelling).  A sample with an empty text or NaN is a
        group of its own.
    within : (n,) texts, optional
        Sites: equal names at different sites are different groups, because sites number their patients independently.

    Examples
    --------
    >>> from fnlkit.datasets.groups import number_groups
    >>> number_groups(["p7", "p2", "p7", "", ""]).tolist()
    [0, 1, 0, 2, 3]
    """
    sites = [""] * len(names) if within is None else list(within)
    place: dict[Any, int] = {}
    numbers = np.empty(len(names), np.int64)
    (texts,), _ = merge_spellings(as_texts(names), what="groups")
    for i, (name, site) in enumerate(zip(texts, sites, strict=True)):
        key = (name, site) if name else i
        numbers[i] = place.setdefault(key, len(place))
    return numbers if len(place) < len(numbers) else None


def as_texts(values: Sequence[Any] | np.ndarray) -> list[str]:
    """Write names (n,) of groups, sites or samples as texts; NaN, None or NA, a missing name, is the empty text."""
    values = np.asarray(values)
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "backslashreplace")
    texts: list[str] = values.astype(str).tolist()
    if values.dtype.kind != "O":
        return ["" if gap else text for text, gap in zip(texts, (values != values).tolist(), strict=True)]
    import pandas

    return ["" if gap else text for text, gap in zip(texts, pandas.isna(values).tolist(), strict=True)]


def of_parts(
    train: Sequence[Any] | np.ndarray,
    test: Sequence[Any] | np.ndarray,
    sites: Sequence[Any] | np.ndarray | None = None,
    test_sites: Sequence[Any] | np.ndarray | None = None,
) -> tuple[np.ndarray | None, np.ndarray | None, list[str]]:
    """Number groups (n,) of training and (n_test,) of test samples, with notes; None, None, [] if no group has two samples.

    Parameters
    ----------
    train, test : (n,), (n_test,) texts or numbers
        As for `number_groups`.
    sites, test_sites : (n,), (n_test,) texts, optional
        Sites within which the names are unique.
    """
    (names,), merged = merge_spellings(as_texts(train) + as_texts(test), what="groups")
    places = None if sites is None else [*map(str, sites), *map(str, [""] * len(test) if test_sites is None else test_sites)]
    groups = number_groups(names, places)
    if groups is None:
        return None, None, []
    alone = sites is not None and test_sites is None  # then only the names can be compared
    keys = list(zip(names, names if alone or places is None else places, strict=True))
    notes = [*merged, *note_groups(groups[: len(train)])]
    if count := sum(name.strip() != "" for name, _ in {*keys[: len(train)]} & {*keys[len(train) :]}):
        unless = "; if equal names at other sites are other groups, add the sites of the test samples" if alone else ""
        notes.append(
            f"{count:,} groups have training samples and test samples, so that scores on the test samples are too good; move "
            f"whole groups{unless}"
        )
    if single := sum(not name.strip() for name in names):
        notes.append(f"{single:,} samples without a group are groups of their own")
    return groups[: len(train)], groups[len(train) :], notes


def note_groups(groups: np.ndarray | None) -> list[str]:
    """Note the groups (n,) of the training samples."""
    if groups is None:
        return []
    return [f"{len(groups):,} training samples belong to {len(np.unique(groups)):,} groups, which are never divided"]


def find_names(names: Collection[str], texts_of: Callable[[str], list[str]]) -> list[str]:
    """Find the columns that contain groups, by name, and by values for names with other meanings.

    Parameters
    ----------
    names : list of str
    texts_of : callable
        Returns the cells of a column as texts.
    """
    plain = {name: name.strip().lower().replace(" ", "_") for name in names}
    if sure := [name for name, text in plain.items() if text in NAMES]:
        return sure
    cells = {name: texts_of(name) for name, text in plain.items() if text in DOUBTFUL}
    return [name for name, texts in cells.items() if len(set(texts)) >= _MANY and max(map(len, texts)) <= _LONGEST]


def with_groups(dataset: Dataset, name: str) -> Dataset:
    """Add the groups of a field to a data set.

    Parameters
    ----------
    dataset : fnlkit.datasets.Dataset
    name : str
        A field, for example ``speaker``.

    Raises
    ------
    InputError
        If there is no such field.
    """
    if name not in dataset.fields:
        known = list_names(dataset.fields) or "none"
        raise InputError(
            f": the data set has no field {name!r}{nearest(name, dataset.fields)}; its fields: {known}", parameter="group"
        )
    groups = number_groups(dataset.fields[name], None if name == "site" else dataset.fields.get("site"))
    return replace(dataset, groups=groups, notes=[*dataset.notes, *note_groups(groups)])


def class_of_groups(labels: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find (sorted names (G,) of the groups, group (n,) of each sample from 0 to G - 1, class (G,) of each group).

    The class of a group is its most frequent label, and ties go to the lower class.  For labels that are not classes, it is 0.

    Parameters
    ----------
    labels : (n,) int, or labels of another task
    groups : (n,) int
    """
    names, first, group, counts = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        return names, group, np.zeros(len(names), np.int64)
    if (counts == 1).all():
        return names, group, np.asarray(labels, np.int64)[first]
    lowest = int(labels.min())
    width = int(labels.max()) - lowest + 1
    cells, counts = np.unique(group * width + (labels - lowest), return_counts=True)
    order = np.lexsort((cells, -counts, cells // width))
    most = order[np.unique(cells[order] // width, return_index=True)[1]]
    return names, group, cells[most] % width + lowest


def of_federation(federation: Federation) -> np.ndarray | None:
    """Group (n,) of each sample from 0 on, or None: the group of the data, or else the sample of a vote."""
    numbers = federation.extra.get("group", federation.extra.get("sample_of"))
    return None if numbers is None else np.unique(numbers, return_inverse=True)[1]


def count_groups(federation: Federation, positions: np.ndarray) -> int:
    """Count the groups to which samples belong; the number of samples if the federation has no groups."""
    groups = of_federation(federation)
    return len(positions) if groups is None else len(np.unique(groups[positions]))


def shared_groups(federation: Federation) -> int:
    """Count the groups with samples at several clients, which only schemes that follow the data make."""
    groups = federation.extra.get("group")
    if groups is None or not len(federation):
        return 0
    owned = np.concatenate([np.unique(groups[part]) for part in federation.whole().clients])
    return len(owned) - len(np.unique(owned))


def doubt_groups(names: Collection[str], texts_of: Callable[[str], list[str]]) -> list[str]:
    """Note each column that repeats like identifiers of groups; arguments as for `find_names`."""
    return [
        f"{name!r} has {len(set(texts)):,} values in {len(texts):,} rows, like identifiers of groups such as patients; if rows "
        f"with the same value belong together, write group={name!r}"
        for name in names
        if repeats_like_groups(name, texts := texts_of(name))
    ]


def repeats_like_groups(name: str, texts: Sequence[str]) -> bool:
    """Whether the values of a column repeat like identifiers of groups: ``p017``, or ``100231`` in a column ``mrn``.

    There are at least ten different values without spaces, each about twice or more often.  At most a fifth of them occurs
    once, and none in more than a tenth of the rows.  Nearly all have digits, and letters too, unless the name of the column
    is that of a number.

    Parameters
    ----------
    name : str
    texts : list of n str
    """
    values, counts = np.unique(np.asarray(texts, np.str_), return_counts=True)
    if len(values) < _MANY or len(texts) < _REPEATS * len(values) or counts.max() > 0.1 * len(texts):
        return False
    form = re.compile(r"[^\s.]*\d[^\s.]*" if _NUMBERED.search(name.strip()) else r"(?=[^\s]*[A-Za-z])[^\s]*\d[^\s]*")
    formed = np.mean([len(value) <= _LONGEST and form.fullmatch(value) is not None for value in values.tolist()])
    return bool(formed > 0.9 and np.mean(counts == 1) <= 0.2)


def must_have_several(groups: np.ndarray, clients: int) -> None:
    """Raise InputError unless there are as many groups as clients."""
    count = len(np.unique(groups))
    if count < clients:
        raise InputError(
            f"{clients:,} clients need as many groups, and there are {count:,}, which are never divided; lower `clients`, or "
            'write group="-" in the spec of a table if its rows do not belong together'
        )


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
    return federation.with_clients([part[~np.isin(part, positions)] for part in federation.clients])
