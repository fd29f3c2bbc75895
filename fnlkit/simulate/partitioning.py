"""Federations from data sets: the split over clients, held-out and public samples, names of clients.

A scheme (fnlkit/simulate/schemes.py) draws once; `partition` repeats the draw, a bounded number of times, until every client
has enough samples.
"""

import inspect
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import InputError
from fnlkit.core.spec import Spec, bind, find, parse
from fnlkit.datasets.copies import find_copies, is_published, must_be_duplicates, separate
from fnlkit.datasets.dataset import Dataset, must_be
from fnlkit.datasets.groups import class_of_groups, must_have_several
from fnlkit.datasets.votes import by_vote
from fnlkit.kernels.streams import stream
from fnlkit.simulate.holdout import USUAL, read_gold, set_apart
from fnlkit.simulate.schemes import ATTEMPTS

SCHEMES = {
    "iid": "fnlkit.simulate.schemes:iid",
    "shards": "fnlkit.simulate.schemes:shards",
    "dirichlet": "fnlkit.simulate.schemes:dirichlet",
    "bernoulli-dirichlet": "fnlkit.simulate.schemes:bernoulli_dirichlet",
    "openset": "fnlkit.simulate.schemes:openset",
    "sizes": "fnlkit.simulate.schemes:sizes",
    "sites": "fnlkit.simulate.schemes:by_site",
    "annotators": "fnlkit.simulate.schemes:by_annotator",
    "field": "fnlkit.simulate.schemes:by_field",
    "file": "fnlkit.simulate.schemes:from_file",
}
# These schemes are not drawn again, because the data determine the clients and their number.
FIXED = ("sites", "annotators", "field", "file")
LABELS = ("auto", "observed", "true")


def partition(
    labels: np.ndarray,
    classes: int,
    scheme: str | Spec = "iid",
    *,
    clients: int | None,
    seed: int,
    min_samples: int = 1,
    fields: Mapping[str, Any] | None = None,
    groups: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Assign samples to clients: a list of N int64 arrays of positions.

    Positions are ascending.

    Parameters
    ----------
    labels : (n,) int
        Labels used for the split, 0 to classes - 1.
    classes : int
    scheme : str or Spec
        A name of `SCHEMES` with its parameters, or a user's ``FILE.py:NAME``, called as
        ``function(labels, classes, clients, rng, **parameters)``.
    clients : int or None
        N.  None leaves it to the scheme (sites, field, file).
    seed : int
    min_samples : int
        Smallest number of samples of a client; the scheme is drawn up to 1,000 times to reach it.
    fields : dict of str to (n,) array, optional
        Fields for ``field(name=...)``; ``sites`` is the field of ``site``, ``annotators`` of ``annotator``.
    groups : (n,) int, optional
        Samples with equal numbers belong to one client.  A scheme then draws groups instead of samples, and the class of a
        group is its most frequent label.  The schemes of `FIXED` follow the data, which can divide a group.

    Returns
    -------
    list of (n_k,) int64

    Raises
    ------
    InputError
        If the scheme cannot be drawn with these settings; the message contains a remedy.

    Examples
    --------
    >>> import numpy as np
    >>> from fnlkit.simulate.partitioning import partition
    >>> [len(part) for part in partition(np.arange(10) % 3, 3, "iid", clients=4, seed=0)]
    [2, 3, 2, 3]
    """
    spec = parse(scheme, "`scheme`")
    labels = np.asarray(labels)
    draw = bind(spec, find(spec, SCHEMES, "scheme"), "scheme", given=("fields",))
    if spec.name in ("sites", "annotators", "field"):
        draw.keywords["fields"] = fields or {}
    if min_samples < 1:
        raise InputError(f"{min_samples}: every client needs at least 1 sample", parameter="min_samples")
    if clients is None and spec.name not in FIXED:
        raise InputError(f"scheme {spec.name!r} needs `clients`")
    if clients is not None and clients < 1:
        raise InputError(f"{clients}: expected 1 or more", parameter="clients")
    if clients is not None and clients > len(labels) // min_samples:
        raise InputError(
            f"{clients:,} clients of at least {min_samples} samples each need {clients * min_samples:,}, "
            f"there are {len(labels):,}; lower `clients` or `min_samples`"
        )
    fixed = spec.name in FIXED
    best, draw_parts = -1, draw
    if groups is not None and not fixed:
        must_have_several(groups, clients or 1)
        draw_parts = _of_groups(draw, labels, groups)
    for attempt in range(1 if fixed else ATTEMPTS):
        parts = draw_parts(labels, classes, clients, stream(seed, "partition", attempt))
        if not isinstance(parts, (list, tuple)) or not parts or not all(map(_are_positions, parts)):
            shown = " ".join(str(parts).split())[:60]
            raise InputError(f"scheme {spec}: returned {shown}; expected a list of each client's positions (n_k,)")
        if not fixed and len(parts) != clients:
            raise InputError(
                f"scheme {spec}: returned {len(parts)} clients, expected {clients}; write `clients={len(parts)}`, or let the "
                "function return as many as its argument `clients`"
            )
        smallest = min((len(part) for part in parts), default=0)
        if smallest >= min_samples:
            parts = [np.sort(np.asarray(part, np.int64)) for part in parts]
            _check(parts, len(labels), spec)
            return parts
        best = max(best, smallest)
    if fixed:
        remedy = "lower or remove `min_samples`" if best else "number the clients from 0 without gaps"
        raise InputError(f"scheme {spec}: the smallest client has {best} samples; {remedy}")
    even = [name for name in ("alpha", "p", "q") if name in inspect.signature(draw.func).parameters]
    more = f", or raise {' or '.join(even)}" if even else ""
    raise InputError(
        f"scheme {spec}: in {ATTEMPTS:,} draws the smallest of {clients} clients had at most {best} samples, "
        f"fewer than `min_samples` {min_samples}; lower `clients` or `min_samples`{more}"
    )


def _are_positions(part):
    """Whether the samples of a client are whole numbers (n_k,); other values of a user's scheme are refused."""
    values = np.asarray(part)
    return values.ndim == 1 and (values.dtype.kind in "iu" or not len(values))


def _of_groups(draw, labels, groups):
    """Turn a scheme that draws samples into one that draws groups of samples."""
    _, group, classes_of = class_of_groups(labels, groups)
    members = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    nothing = np.zeros(0, np.int64)

    def draw_samples(labels: np.ndarray, classes: int, clients: int | None, rng: np.random.Generator) -> list[np.ndarray]:
        parts = draw(classes_of, classes, clients, rng)
        if not isinstance(parts, (list, tuple)):
            return parts
        return [np.concatenate([nothing, *(members[g] for g in part)]) for part in parts]

    return draw_samples


def _check(parts, size, spec):
    """Check the result of a scheme, because a user's scheme can be wrong."""
    together = np.concatenate(parts)
    if together.min() < 0 or together.max() >= size or np.bincount(together).max() > 1:
        raise InputError(f"scheme {spec}: a sample belongs to two clients or does not exist")


def federation(
    dataset: Dataset,
    scheme: str | Spec = "iid",
    *,
    clients: int | None = None,
    seed: int = 0,
    min_samples: int = 1,
    noisy: Federation | None = None,
    labels: str = "auto",
    holdout: float | None = None,
    gold: str | None = None,
    sample_column: str | None = None,
    public: float = 0.0,
    duplicates: str | None = None,
) -> Federation:
    """Make the federation of a data set, or of labels that were corrupted before.

    Parameters
    ----------
    dataset : fnlkit.datasets.Dataset
    scheme, seed, min_samples
        As for `partition`.
    clients : int, optional
        Default: 20 below 10,000 samples and 100 above, at most a tenth of the samples or groups.
    noisy : Federation, optional
        An unpartitioned federation over the same data set; the split uses its given labels.
    labels : "auto", "observed" or "true"
        As for `empty`.
    holdout : float in [0, 1), optional
        Share of each client's samples in its held-out set.  Default: 0.2 for a data set without test samples, else 0.
    gold, sample_column : str, optional
        A csv of verified samples, and its column that names them; see fnlkit.simulate.holdout.read_gold.
    public : float in [0, 1)
        Share of all samples, drawn at random, that belongs to no client: a public set.
    duplicates : "together", "drop" or "allow", optional
        Use of equal samples (fnlkit.datasets.copies.separate).  Default: together, and allow for data sets that fnlkit
        includes or downloads.

    Returns
    -------
    Federation
        If there are copies, ``meta["copies"]`` has their numbers (fnlkit.datasets.copies.Copies.facts).

    Raises
    ------
    InputError
    """
    size = len(dataset.y_train)
    if noisy is not None and len(noisy):
        raise InputError(f"the federation is already partitioned over {len(noisy)} clients; use an unpartitioned file")
    if noisy is not None:
        must_be(dataset, noisy.meta, len(noisy.given), what="the federation")
    spec = parse(scheme, "`scheme`")
    if spec.name == "annotators":
        dataset = by_vote(dataset)
        size = len(dataset.y_train)
    groups = dataset.groups if noisy is None else noisy.extra.get("group")
    duplicates = duplicates or ("allow" if is_published(dataset.name) else "together")
    must_be_duplicates(duplicates)
    copies = None if is_published(dataset.name) and duplicates == "allow" else find_copies(dataset)
    used = np.ones(size, bool)
    if copies is not None:
        used, groups = separate(dataset, copies, duplicates, groups)
    if clients is None and spec.name not in FIXED:
        clients = max(1, min(20 if size < 10_000 else 100, (size if groups is None else len(np.unique(groups))) // 10))
    current_labels, classes = dataset.y_train if noisy is None else noisy.given, dataset.classes
    parts = _parts_of(
        used, current_labels, classes, scheme, dataset.fields, groups, clients=clients, seed=seed, min_samples=min_samples
    )
    if public:
        units = next(numbers for numbers in (groups, dataset.sample_of, np.arange(size)) if numbers is not None)
        parts = _without_public(parts, units, public, seed)
    start = empty(dataset, labels) if noisy is None else noisy
    partitioned = start.with_clients(parts, meta={**start.meta, **_names(parts, spec, dataset)})
    if groups is not None:
        partitioned.extra = {**partitioned.extra, "group": np.asarray(groups, np.int64)}
    if copies is not None and any((facts := copies.facts(dataset.fields.get("site"), dataset.sample_of)).values()):
        partitioned.meta["copies"] = {**facts, "left_out": int((~used).sum()), "duplicates": duplicates}
    if sample_column is not None and gold is None:
        raise InputError("is the column of `gold` that names the samples; name a table with `gold`", parameter="sample_column")
    if gold is not None:
        partitioned = set_apart(partitioned, gold=read_gold(gold, dataset, sample_column))
    usual = 0.0 if len(dataset.y_test) else USUAL
    share = usual if holdout is None else holdout
    if share:
        partitioned = set_apart(partitioned, holdout=share, seed=seed)
    if partitioned.true is not None:
        level = np.asarray(partitioned.wrong_share())
        if noisy is not None or level.any():
            partitioned.noise_client_level, partitioned.noise_client_noisy = level, level > 0
    partitioned.check()
    return partitioned


def _parts_of(used, given, classes, scheme, fields, groups, **how):
    """Select the parts of the samples (n,) that are used; the schemes of `FIXED` follow all samples."""
    if used.all():
        return partition(given, classes, scheme, fields=fields, groups=groups, **how)
    if parse(scheme).name in FIXED:
        parts = [part[used[part]] for part in partition(given, classes, scheme, fields=fields, groups=groups, **how)]
        if empty := [number for number, part in enumerate(parts) if not len(part)]:
            raise InputError(f"all samples of client {empty[0]} are copies of others; write `duplicates='allow'` to keep them")
        return parts
    at = np.flatnonzero(used)
    fields = {name: np.asarray(values)[at] for name, values in fields.items()}
    parts = partition(given[at], classes, scheme, fields=fields, groups=None if groups is None else groups[at], **how)
    return [at[part] for part in parts]


def _without_public(parts, samples, share, seed):
    """Remove a share of the samples or groups, drawn at random, from the parts; `samples` (n,) are their numbers."""
    if not 0 < share < 1:
        raise InputError(f"is {share:g}; write a share of the samples, above 0 and below 1", parameter="public")
    names = np.unique(samples)
    if not (size := round(share * len(names))):
        raise InputError(
            f"{share:g} of {len(names):,} samples or groups is none; raise it, or leave it out", parameter="public"
        )
    held = names[stream(seed, "public").choice(len(names), size, replace=False)]
    parts = [part[~np.isin(samples[part], held)] for part in parts]
    if not all(map(len, parts)):
        raise InputError(f"{share:g} leaves a client without a sample; lower it, or `clients`", parameter="public")
    return parts


def _names(parts, spec, dataset):
    """Collect metadata of clients: names, and the number of unlabeled samples by site.

    It is empty unless each client is a value of a field.
    """
    if spec.name not in ("sites", "annotators", "field"):
        return {}
    name = {"sites": "site", "annotators": "annotator"}.get(spec.name) or str(spec.parameters["name"])
    metadata = {"client_names": [str(dataset.fields[name][part[0]]) for part in parts]}
    if name == "site" and dataset.unlabeled is not None and dataset.unlabeled.sites is not None:
        counts = Counter(dataset.unlabeled.sites)
        metadata["client_unlabeled"] = [counts[name] for name in metadata["client_names"]]
    return metadata


def empty(dataset: Dataset, labels: str = "auto") -> Federation:
    """Make the unpartitioned federation of a data set, without clients.

    Given labels are the labels of the data set.

    Parameters
    ----------
    dataset : fnlkit.datasets.Dataset
    labels : "auto", "observed" or "true"
        Status of the labels: ``auto`` as declared by the data set, ``observed`` possibly wrong, ``true`` right.

    Raises
    ------
    InputError
        If `labels` is another word.
    """
    if labels not in LABELS:
        raise InputError(f"is {labels!r}; write {', '.join(LABELS[:-1])} or {LABELS[-1]}", parameter="labels")
    truth = {"auto": dataset.truth, "observed": None, "true": dataset.y_train}[labels]
    named = {"sample_id": dataset.ids, "sample_path": None if dataset.paths is dataset.ids else dataset.paths}
    extra = {name: np.asarray(texts, np.str_) for name, texts in named.items() if texts is not None}
    extra |= {name: values for name in ("votes", "sample_of") if (values := getattr(dataset, name)) is not None}
    if dataset.groups is not None:
        extra["group"] = np.asarray(dataset.groups, np.int64)
    if dataset.sample_of is not None:
        extra["annotator"] = np.asarray(dataset.fields["annotator"], np.str_)
    meta = {"dataset_checksum": dataset.checksum, "class_names": list(dataset.class_names), "provenance": []}
    return Federation(
        dataset=dataset.name,
        classes=dataset.classes,
        client_offsets=np.zeros(1, np.int64),
        client_indices=np.zeros(0, np.int64),
        given=dataset.y_train.copy(),
        true=None if truth is None else truth.copy(),
        extra=extra,
        meta=meta | ({"annotators": list(dataset.annotators)} if dataset.annotators else {}),
    )
