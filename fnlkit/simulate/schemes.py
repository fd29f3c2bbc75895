"""Schemes: rules that assign the samples of a training set to clients.

A scheme is a function of (labels, classes, clients, rng) and its parameters. It returns a list of the positions of each
client's samples. `fnlkit.simulate.partitioning` repeats a random draw, then sorts and checks the result.
"""

from collections.abc import Mapping
from numbers import Real
from typing import Annotated, Any, Literal

import numpy as np

from fnlkit.artifacts import files
from fnlkit.artifacts.paths import display_path
from fnlkit.core.declarations import declare
from fnlkit.core.errors import InputError, list_names
from fnlkit.core.parameters import Count, Positive, Range, Text, check_arguments
from fnlkit.datasets.groups import as_texts

_LEAST_P = 1e-4
ATTEMPTS = 1000  # draws before a scheme is given up


@check_arguments
def iid(
    labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator, *, balanced: bool = False
) -> list[np.ndarray]:
    """Split a shuffled training set into parts whose sizes differ by at most 1.

    All samples are used.

    Parameters
    ----------
    balanced : bool
        Clients also have equal numbers of every class, up to 1 (FLR's i.i.d. setting, Kim 2024, Section 2).
    """
    shuffled = rng.permutation(len(labels))
    if not balanced:
        parts = np.array_split(shuffled, clients)  # the first parts are larger if the division leaves a remainder
        return [parts[k] for k in rng.permutation(clients)] if len(labels) % clients else parts
    # Sort the samples by class and deal them to clients in turn.
    dealt = shuffled[np.argsort(np.asarray(labels)[shuffled], kind="stable")]
    return [dealt[k::clients] for k in rng.permutation(clients)]


@declare(cite="McMahan 2017")
@check_arguments
def shards(
    labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator, *, per_client: Count = 2
) -> list[np.ndarray]:
    """Sort samples by label and deal shards at random (McMahan 2017).

    All clients x per_client shards have equal size.

    Parameters
    ----------
    per_client : int >= 1
        Shards of each client; with 2, a client has about two classes.
    """
    if per_client * clients > len(labels):
        raise InputError(f"shards: {per_client} shards for each of {clients} clients out of {len(labels):,} samples")
    shuffled = rng.permutation(len(labels))
    pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], clients * per_client)
    dealt = rng.permutation(len(pieces)).reshape(clients, per_client)
    return [np.concatenate([pieces[i] for i in row]) for row in dealt]


@declare(cite="Yurochkin 2019")
@check_arguments
def dirichlet(
    labels: np.ndarray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    alpha: Positive = 0.5,
    by: Literal["class", "client"] = "class",
    balanced: bool = False,
) -> list[np.ndarray]:
    """Split each class in Dirichlet(alpha) shares (Yurochkin 2019, Hsu 2019).

    A client has its share of a class rounded up or down at random, so that the expected number is the share.  The authors' code
    cuts each class at rounded cumulative shares instead, so that clients at some positions get most samples of small classes.

    Parameters
    ----------
    alpha : float > 0
        Evenness of the shares: far below 1 a class belongs to few clients, far above 1 all clients have similar shares.
    by : "class" or "client"
        What the shares divide.  ``client`` draws the class shares of each client, times the shares of the whole, and sizes are
        equal up to 1, as in pfl-research.  There all classes have equal weight, so that the first clients get all samples of
        small classes.  Clients draw one after another in random order, without the classes that have run out.
    balanced : bool
        With ``by=class``: a client with its full share n / N of the samples gets nothing of the following classes (Flower's
        ``self_balancing``, FedLab's ``hetero_dir``).  The order of the classes is random; in both codes it is the label's.
    """
    if by == "client":
        if balanced:
            raise InputError("dirichlet: by=client has equal sizes already; leave out `balanced`")
        return _class_shares_by_client(labels, classes, clients, rng, alpha)
    owner, order = np.empty(len(labels), np.int64), rng.permutation(clients)
    sizes = np.zeros(clients, np.int64)
    names = rng.permutation(classes) if balanced else range(classes)
    for label, start in zip(names, _starts(rng, classes), strict=True):
        members = rng.permutation(np.flatnonzero(labels == label))
        among = order[sizes[order] * clients < len(labels)] if balanced else order
        if not len(among):  # all clients are full, and the class has no samples
            continue
        owner[members] = among[_cut(len(members), _shares(rng, alpha, len(among)), start)]
        sizes += np.bincount(owner[members], minlength=clients)
    return _group(owner, clients)


def _class_shares_by_client(labels, classes, clients, rng, alpha):
    """Draw parts of equal size; the classes of a client have Dirichlet(alpha) shares."""
    whole = np.bincount(labels, minlength=classes)
    left, counts = whole.copy(), np.zeros((clients, classes), np.int64)
    sizes = [len(labels) // clients + (k < len(labels) % clients) for k in range(clients)]
    for client, size in zip(rng.permutation(clients), sizes, strict=True):
        shares = np.zeros(classes)
        while (missing := size - counts[client].sum()) > 0:
            some = left > 0
            shares[~some] = 0
            if not shares.any():  # no draw yet, or no shares left: the rest of a Dirichlet draw is again Dirichlet
                shares[some] = whole[some] * _shares(rng, alpha, some.sum())
            drawn = np.minimum(rng.multinomial(missing, shares / shares.sum()), left)
            left, counts[client] = left - drawn, counts[client] + drawn
    owner = np.empty(len(labels), np.int64)
    for label in range(classes):
        owner[rng.permutation(np.flatnonzero(labels == label))] = np.repeat(np.arange(clients), counts[:, label])
    return _group(owner, clients)


@declare(cite="Xu 2022")
@check_arguments
def bernoulli_dirichlet(
    labels: np.ndarray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    p: Annotated[float, Range(0, 1, open_low=True)] = 0.7,
    alpha: Positive = 10.0,
    at_least_one: bool = False,
) -> list[np.ndarray]:
    """Split each class over a random subset of clients (FedCorr, Xu 2022, Sec. 4.1).

    Phi[k, j] ~ Bernoulli(p) determines whether client k can have class j.  A sample of class j goes to one of these clients,
    independently, with probabilities drawn from Dirichlet(alpha).  A client without a class is drawn again, as in the authors'
    code.  A class without a client is also drawn again; in the authors' code it ends the program.

    Parameters
    ----------
    p : float in (0, 1]
        Probability that a client has a class.
    alpha : float > 0
        Evenness of the shares of a class among the clients; a large value is even.
    at_least_one : bool
        Every client with Phi = 1 first gets one sample of the class (FLR, Kim 2024).
    """
    if p * min(clients, classes) < _LEAST_P:  # the loops below would hardly end
        raise InputError(f"bernoulli-dirichlet: p={p:g} gives hardly any client a class; raise p")
    allowed = rng.random((clients, classes)) < p
    while not (filled := allowed.any(1)).all():
        allowed[~filled] = rng.random(((~filled).sum(), classes)) < p
    while not (filled := allowed.any(0)).all():  # only adds entries: no client loses a class
        allowed[:, ~filled] = rng.random((clients, (~filled).sum())) < p
    owner = np.empty(len(labels), np.int64)
    for label in range(classes):
        members, among = rng.permutation(np.flatnonzero(labels == label)), np.flatnonzero(allowed[:, label])
        owner[members] = among[rng.choice(len(among), len(members), p=_shares(rng, alpha, len(among)))]
        if at_least_one:
            first = rng.permutation(among)[: len(members)]
            owner[members[: len(first)]] = first
    return _group(owner, clients)


@declare(cite="Di 2024")
@check_arguments
def openset(
    labels: np.ndarray,
    classes: int,
    clients: int,
    rng: np.random.Generator,
    *,
    q: Annotated[float, Range(0, 1, open_low=True, open_high=True)] = 0.5,
    uniform: bool = True,
) -> list[np.ndarray]:
    """Give every client a proper subset of the observed classes (FedDPCont, Di 2024).

    Client c can have class k with probability q.  Clients with no class or with all classes are drawn again, and so are classes
    without a client.  A class is split equally over the clients that have it (uniform, as with symmetric noise) or in
    Dirichlet(1) shares.

    Parameters
    ----------
    q : float in (0, 1)
        Probability that a client has a class.
    uniform : bool
        Split a class equally over the clients that have it.
    """
    for _ in range(ATTEMPTS):
        allowed = rng.random((clients, classes)) < q
        for _ in range(ATTEMPTS):
            again = allowed.all(1) | ~allowed.any(1)
            if not again.any():
                break
            allowed[again] = rng.random((again.sum(), classes)) < q
        if not again.any() and allowed.any(0).all():
            break
    else:
        raise InputError(f"openset: {clients} clients never covered {classes} classes with q={q}; raise `clients` or q")
    owner = np.empty(len(labels), np.int64)
    for label in range(classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        among = rng.permutation(np.flatnonzero(allowed[:, label]))
        shares = np.full(len(among), 1 / len(among)) if uniform else _shares(rng, 1.0, len(among))
        owner[members] = among[_cut(len(members), shares, rng.random())]
    return _group(owner, clients)


@check_arguments
def sizes(
    labels: np.ndarray, classes: int, clients: int, rng: np.random.Generator, *, sigma: Annotated[float, Range(0, 10)] = 0.25
) -> list[np.ndarray]:
    """Split at random into parts of unequal size (FedLN uses sigma 0.25).

    Sizes are Normal(mean, sigma x mean) above 0, scaled to use every sample.

    Parameters
    ----------
    sigma : float in [0, 10]
        Standard deviation of the sizes, as a share of their mean.
    """
    shares = rng.normal(1, sigma, clients)
    while (low := shares <= 0).any():
        shares[low] = rng.normal(1, sigma, low.sum())
    owner = np.empty(len(labels), np.int64)
    owner[rng.permutation(len(labels))] = _cut(len(labels), shares / shares.sum(), rng.random())
    return _group(owner, clients)


def by_site(
    labels: np.ndarray, classes: int, clients: int | None, rng: np.random.Generator, *, fields: Mapping[str, Any]
) -> list[np.ndarray]:
    """Create one client per site of the data set.

    A site is a folder, an npz or a value in the site column of a manifest.

    With --clients, that many sites are drawn at random.
    """
    if "site" not in fields:
        raise InputError(
            "`scheme='sites'`: the data set names no sites; give a table with a column `site` (or its name, site=NAME in the "
            "spec), a folder of PATH/SITE/CLASS with label=2, or a folder with an npz per site"
        )
    return by_field(labels, classes, clients, rng, name="site", fields=fields)


def by_annotator(
    labels: np.ndarray,
    classes: int,
    clients: int | None,
    rng: np.random.Generator,
    *,
    fields: Mapping[str, Any],
    least: Count = 1,
) -> list[np.ndarray]:
    """Create one client per annotator; a sample belongs to each client that labeled it.

    The data set contains votes: an npz with `votes_train`, a table with a row per vote, or `mriqc`. A row is a vote.

    Parameters
    ----------
    least : int >= 1
        Annotators with fewer labels become no clients.
    """
    parts = by_field(labels, classes, None, rng, name="annotator", fields=fields)
    parts = [part for part in parts if len(part) >= least]
    if not parts:
        raise InputError(f"annotators: no annotator has {least} labels; lower `least`", parameter="scheme")
    if clients is None:
        return parts
    if clients > len(parts):
        raise InputError(f"{len(parts)} annotators have at least {least} labels, fewer than `clients` {clients}; lower it")
    return [parts[i] for i in np.sort(rng.choice(len(parts), clients, replace=False))]


def by_field(
    labels: np.ndarray, classes: int, clients: int | None, rng: np.random.Generator, *, name: Text, fields: Mapping[str, Any]
) -> list[np.ndarray]:
    """Create one client per value of a field of the data set, for example per speaker.

    With --clients, that many values are drawn at random.

    Parameters
    ----------
    name : str
        The field, for example ``speaker``; the error for a wrong name lists the fields of the data set.
    """
    if name not in fields:
        raise InputError(f"the data set has no field {name!r}; it has: {list_names(fields) or 'none'}")
    cells = np.asarray(fields[name])
    if cells.dtype.kind in "fO":  # NaN, and in objects of Python None and NA beside texts
        texts = np.array(as_texts(cells))
        if absent := np.flatnonzero(texts == "").tolist():
            raise InputError(f"field {name!r} is missing for sample {absent[0]} ({len(absent):,} in all); leave them out")
        cells = cells if all(isinstance(cell, Real) for cell in cells) else texts
    values, owner = np.unique(cells, return_inverse=True)
    parts = _group(owner, len(values))
    if clients is None:
        return parts
    if clients > len(values):
        raise InputError(f"field {name!r} has {len(values)} values, fewer than `clients` {clients}; lower `clients`")
    return [parts[i] for i in np.sort(rng.choice(len(values), clients, replace=False))]


def from_file(
    labels: np.ndarray, classes: int, clients: int | None, rng: np.random.Generator, *, path: Text, key: str = ""
) -> list[np.ndarray]:
    """Read a split from a file.

    It contains a client number per training sample (-1: no client), or the clients of another federation.

    Parameters
    ----------
    path : str
        npz, npy, csv or .pt; ``client_offsets`` and ``client_indices`` are used if the file has them.
    key : str
        Name of the array, if the file has several.
    """
    arrays = files.read_arrays(path, max_bytes=2**28)
    if not key and {"client_offsets", "client_indices"} <= set(arrays):
        offsets, indices = arrays["client_offsets"], arrays["client_indices"]
        if offsets.ndim != 1 or indices.ndim != 1 or offsets.dtype.kind != "i" or indices.dtype.kind != "i":
            raise InputError(f"{display_path(path)}: `client_offsets` and `client_indices` must be lists of whole numbers")
        good = len(offsets) > 1 and offsets[0] == 0 and offsets[-1] == len(indices) and (np.diff(offsets) >= 0).all()
        if not good or (len(indices) and (indices.min() < 0 or indices.max() >= len(labels))):
            raise InputError(f"{display_path(path)}: its clients do not fit {len(labels):,} samples")
        parts = np.split(indices, offsets[1:-1])
    else:
        owner = files.pick(arrays, key, path)
        if owner.ndim != 1 or owner.dtype.kind not in "iu" or len(owner) != len(labels):
            raise InputError(
                f"{display_path(path)}: found {owner.dtype} of shape {owner.shape}; expected a client number for each "
                f"of {len(labels):,} training samples"
            )
        if owner.min() < -1 or owner.max() < 0 or owner.max() >= len(labels):
            raise InputError(f"{display_path(path)}: client numbers run from {owner.min()} to {owner.max()}; count from 0")
        parts = _group(owner.astype(np.int64), int(owner.max()) + 1)
    if clients is not None and clients != len(parts):
        raise InputError(f"{display_path(path)}: has {len(parts)} clients, not `clients` {clients}; remove `clients`")
    return parts


def _group(owner, clients):
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(clients + 1)))[1:-1]


def _starts(rng, count):
    """Draw the `start` of `_cut` for each class (count,): uniform in [0, 1), and spread evenly over the classes.

    With equal shares, steps of the golden ratio round up for other clients in each class, so that sizes are nearly equal.
    """
    return (rng.random() + np.arange(count) * (np.sqrt(5) - 1) / 2) % 1


def _cut(size, shares, start):
    """Assign each of `size` shuffled samples to a part, 0 to len(shares) - 1, by systematic sampling (Madow 1949).

    Each part has size x share samples, rounded up or down.  If `start` is uniform in [0, 1), the expected number is exactly
    size x share.  The order of the parts has an influence on which of them are rounded up together: shuffle it.
    """
    borders = np.floor(np.cumsum(shares)[:-1] * size + start).astype(np.int64)
    return np.searchsorted(borders, np.arange(size), side="right")


def _shares(rng, alpha, count):
    for _ in range(ATTEMPTS):
        shares = rng.dirichlet(np.full(count, alpha))
        if np.isfinite(shares).all() and shares.sum() > 0:  # a tiny alpha can underflow to 0/0
            return shares / shares.sum()
    raise InputError(f"alpha={alpha} is too small to draw shares from; raise it")
