"""Budgets of a site: numbers of requests, steps that are answered once, epsilon of sums and of labels.

All records are in the site's folder `memory`, next to the ledger.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from filelock import FileLock

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.paths import display_path
from fnlkit.artifacts.records import OMIT_NONE, from_json, to_json
from fnlkit.audits.private import total_epsilon
from fnlkit.sites.site.errors import NotInTable, Released, Withheld
from fnlkit.sites.site.limits import Row, short

R = TypeVar("R")
_MAX_BYTES = 2**24


@dataclass
class Once:
    """SHA-256 of the only request of a step, and of its reply after it was sent."""

    request: str
    reply: str | None = field(default=None, metadata=OMIT_NONE)


@dataclass
class Answered:
    """Requests that a site answered under one agreement.

    Attributes
    ----------
    counts : dict of str to int
        Number of requests of each step, by "task step". For a row with `different`, "task step DIGEST" has the number of equal
        requests.
    once : dict of str to Once
        Of the steps that are answered once, by "task step".
    """

    counts: dict[str, int]
    once: dict[str, Once]


@dataclass
class Requests:
    """File of all answered requests, by the SHA-256 of the agreement."""

    kind: Literal["fnlkit.requests/2"]
    agreements: dict[str, Answered]


@dataclass
class SumsRelease:
    """A release of sums with noise under the agreement with the SHA-256 `project`."""

    project: str
    epsilon: float
    delta: float


@dataclass
class SumsReleases:
    """File of the releases of all agreements."""

    kind: Literal["fnlkit.sums-releases/1"]
    releases: list[SumsRelease]


@dataclass
class LabelRelease:
    """File of the only release of a site's labels.

    Attributes
    ----------
    labels : str
        SHA-256 of the labels.
    epsilon : float or None
        None if the labels were released without noise.
    counts : dict of str to list
        The released arrays by name of the reply.
    """

    kind: Literal["fnlkit.released/1"]
    labels: str
    epsilon: float | None
    counts: dict[str, Any]
    run: str = ""


class Budgets:
    """Requests that a site answered, for each agreement.

    Parameters
    ----------
    path : str
        File of the record.
    agreement : str
        SHA-256 of the agreement.
    """

    def __init__(self, path: str, agreement: str):
        self.path, self.agreement = path, agreement
        self.memory = os.path.dirname(os.path.abspath(path))

    def count(self, rows: Sequence[Row], digest: Callable[[], str]) -> str:
        """Count a request and charge its epsilon; return the digest of the request, "" if no step needs one.

        Parameters
        ----------
        rows : list of Row
            Of the steps of the request.
        digest : callable () -> str

        Raises
        ------
        NotInTable, Released
            If a number of requests or an epsilon is exceeded.
        """
        saving.private_folder(self.memory)
        with FileLock(f"{self.path}.lock"):
            record = self.read()
            answered = record.agreements.setdefault(self.agreement, Answered({}, {}))
            counts, once = answered.counts, answered.once
            key = digest() if any(row.different or row.once for row in rows) else ""
            times = Counter(row.step for row in rows)
            for row in {row.step: row for row in rows}.values():
                name = f"{row.task} {row.step}"
                number = counts.get(name, 0) + times[row.step]
                if row.once and name in once and once[name].request != key:
                    raise Released(
                        f"{short(row.step)}: this site has answered another request under this agreement, and it answers one; "
                        "agree on one more (`audits` in project.json)"
                    )
                if row.different:
                    self._count_different(counts, name, row, key)
                if number > row.requests:
                    raise NotInTable(
                        f"{row.task}: {short(row.step)} was requested {number:,} times, and this site "
                        f"agreed to {row.requests:,}; if you permit more, delete {display_path(self.path)}"
                    )
                counts[name] = number
                if row.epsilon and not once:  # the first reply, whichever it is, pays for all
                    self._charge(*row.epsilon)
                if row.once:
                    once.setdefault(name, Once(key))
            _write(record, self.path)
        return key

    def _count_different(self, counts, name, row, key):
        """Count a request by its digest, which is the end of the record's key."""
        request, earlier = f"{name} {key}", [entry for entry in counts if entry.startswith(f"{name} ")]
        if request not in earlier and len(earlier) >= row.different:
            raise NotInTable(
                f"{row.task}: {short(row.step)} was requested with {len(earlier)} different models or values, and this site "
                f"agreed to {row.different}; if you permit more, delete {display_path(self.path)}"
            )
        counts[request] = counts.get(request, 0) + 1

    def _charge(self, epsilon, delta, limit):
        """Enter the epsilon of an audit into the record of all sums that left this folder; refuse if the total is too large."""
        path = os.path.join(self.memory, "released-sums.json")
        record = _read(path, SumsReleases) or SumsReleases("fnlkit.sums-releases/1", [])
        before = [(release.epsilon, release.delta) for release in record.releases]
        total = total_epsilon([*before, (epsilon, delta)], delta)
        if total > limit * (1 + 1e-6):
            raise Released(
                f"epsilon {epsilon:g}: with earlier releases of epsilon {total_epsilon(before, delta):.3g}, the total is "
                f"{total:.3g} at delta {delta:g}, and this site agreed to {limit:g}"
            )
        record.releases.append(SumsRelease(self.agreement, epsilon, delta))
        _write(record, path)

    def stored(self, rows: Sequence[Row], key: str) -> bytes | None:
        """Find the reply that a request with noise has received before: new noise would be another release."""
        if not any(row.once and row.noise for row in rows):
            return None
        path = Path(self.memory, f"reply-{self.agreement[:16]}-{key}.message")
        return path.read_bytes() if path.exists() else None

    def release(self, rows: Sequence[Row], key: str, data: bytes) -> None:
        """Record the reply to a request whose steps are answered once.

        Raises
        ------
        Released
            If the same request had another reply before: the difference reveals the samples that changed.
        """
        if not any(row.once for row in rows):
            return
        digest = hashlib.sha256(data).hexdigest()
        with FileLock(f"{self.path}.lock"):
            record = self.read()
            once = record.agreements[self.agreement].once
            for row in rows:
                if not row.once:
                    continue
                entry = once[f"{row.task} {row.step}"]
                entry.reply = entry.reply or digest
                if entry.reply != digest:
                    raise Released(
                        f"{short(row.step)}: the data changed since the first reply, and the difference of both can reveal "
                        "samples; restore the data, or agree on one more audit (`audits` in project.json)"
                    )
            if any(row.noise for row in rows):
                path = os.path.join(self.memory, f"reply-{self.agreement[:16]}-{key}.message")
                saving.write_bytes([data], path)
            _write(record, self.path)

    def read(self) -> Requests:
        """Read the answered requests of all agreements."""
        return _read(self.path, Requests) or Requests("fnlkit.requests/2", {})


def _read(path: str, kind: type[R], error: type[Withheld] = NotInTable, advice: str = ", or delete it") -> R | None:
    """Read a file; None if there is no file, or one of fnlkit 0.2, which had other agreements."""
    if not os.path.exists(path):
        return None
    try:
        record = json.loads(files.read_text(path, max_bytes=_MAX_BYTES))
        return None if (record["kind"], kind) == ("fnlkit.requests/1", Requests) else from_json(kind, record, "")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise error(f"{display_path(path)}: is not a record of fnlkit; restore the original file{advice}") from None


def _write(record, path):
    saving.write_bytes([json.dumps(to_json(record)).encode()], path)


@dataclass(frozen=True)
class LabelReleases:
    """Labels of a site that can be released.

    Attributes
    ----------
    path : str
        File of the record.
    labels : str
        SHA-256 of the site's labels as received, see `digest`.
    names : dict of str to (str or None)
        Replies that reveal labels, each with the name of the reply that contains the epsilon. None means that the labels are
        released without noise.
    limit : float or None
        Largest epsilon that the site agreed to. None if the site agreed to release labels without noise.
    """

    path: str = ""
    labels: str = ""
    names: dict[str, Any] = field(default_factory=dict)
    limit: float | None = None

    def replace_released(self, arrays: dict[str, torch.Tensor], *, run: str) -> dict[str, Any]:
        """Select the arrays of a reply that can be sent.

        If labels were released before, the arrays of the first release are sent again.

        Parameters
        ----------
        arrays : dict of Tensor
        run : str
            Written to the record.

        Raises
        ------
        Released
            If labels would be released at a higher epsilon than agreed, or again at a different epsilon or for different data.
        """
        released = sorted(set(arrays) & set(self.names))
        if not released:
            return arrays
        price = self._price(arrays, released)
        saving.private_folder(os.path.dirname(os.path.abspath(self.path)))
        with FileLock(f"{self.path}.lock"):
            first = _read(self.path, LabelRelease, Released, "")
            if first is None:
                counts = {name: arrays[name].tolist() for name in released}
                first = LabelRelease("fnlkit.released/1", self.labels, price, counts, run)
                _write(first, self.path)
        if first.labels != self.labels:
            raise Released(
                f"{display_path(self.path)} records a release of other labels, and both would add up for every sample in both; "
                "name another `memory` folder only if no sample is in both data sets"
            )
        if first.epsilon != price or set(first.counts) != set(released):
            raise Released(
                f"labels were released before at epsilon {_words(first.epsilon)}; another release at {_words(price)} adds up"
            )
        counts = {name: torch.tensor(first.counts[name], dtype=arrays[name].dtype) for name in released}
        if any(counts[name].shape != arrays[name].shape for name in released):
            raise Released(f"{display_path(self.path)} records counts of other classes")
        return arrays | counts

    def _price(self, arrays, released):
        """Compute the epsilon of a reply's labels, None without epsilon, after checking the limit."""
        prices = set()
        for name in released:
            sent = self.names[name]
            if sent is not None and sent not in arrays:
                raise Released(f"{name} was sent without the epsilon")
            prices.add(None if sent is None else float(arrays[sent]))
        price = prices.pop()
        if prices or (self.limit is not None and (price is None or not 0 < price <= self.limit)):
            raise Released(
                f"labels would be released at epsilon {_words(price)}; this site agreed to at most {_words(self.limit)}"
            )
        return price


def digest(labels: np.ndarray | torch.Tensor) -> str:
    """Identify labels (n,) int64 in their order by their SHA-256."""
    return hashlib.sha256(np.ascontiguousarray(labels, np.int64).tobytes()).hexdigest()


def _words(epsilon):
    return "infinity (without randomized response)" if epsilon is None else f"{epsilon:g}"
