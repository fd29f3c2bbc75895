"""Labels of a site: the results of an audit for each sample, and the decisions of the site's reviewers.

Both stay in the site's folder `memory`. An audit writes judged.npz, a review reviewed.npz. The next run uses the
reviewed labels and omits dropped samples. Reviews accumulate, and a copy of each imported table is kept.
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts import saving
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.paths import display_path
from fnlkit.audits.suspects import find_reviewed
from fnlkit.core.errors import InputError
from fnlkit.datasets.dataset import Dataset, must_be
from fnlkit.estimators.judgment import PREFIX, add_judgment

if TYPE_CHECKING:
    from fnlkit.federated.client.client import Client


JUDGED, REVIEWED = "judged.npz", "reviewed.npz"
# Labels and scores from which the last review was exported.
EXPORTED = "exported.npz"


def labels_of(folder: str, data: Dataset, name: str) -> Federation:
    """Read the labels of a site: one client with the reviewed labels, or with the labels as received.

    Parameters
    ----------
    folder : str
        The site's folder `memory`.
    data : fnlkit.datasets.Dataset
        Samples in the order of the task's classes (`fnlkit.sites.samples.load_for_task`).
    name : str
        Name of the site.

    Raises
    ------
    InputError
        If the data changed since the review.
    """
    path = os.path.join(folder, REVIEWED)
    if not os.path.exists(path):
        return fresh(data, name)
    federation = Federation.read(path)
    try:
        must_be(data, federation.meta, len(federation.given), what="the review", of_site=True)
    except InputError as error:
        raise InputError(
            f"{display_path(path)}: {error}; the data changed since the review: move the file away to use the labels as "
            "received"
        ) from None
    return federation


def fresh(data: Dataset, name: str) -> Federation:
    """Make the Federation of a site's samples with the labels as received."""
    size = len(data.y_train)
    meta = {"dataset_checksum": data.checksum, "client_names": [name], "class_names": list(map(str, data.class_names))}
    extra = {} if data.ids is None else {"sample_id": np.asarray(data.ids).astype(str)}
    extra |= {} if data.groups is None else {"group": np.asarray(data.groups, np.int64)}
    every = np.arange(size)
    return Federation(data.name, len(data.class_names), np.array([0, size]), every, np.array(data.y_train, np.int64),
                      extra=extra, meta=meta)  # fmt: skip


def keep_judgment(folder: str, federation: Federation, client: "Client") -> None:
    """Write the judgment of each sample that a client holds to judged.npz; do nothing if there is none.

    Parameters
    ----------
    folder : str
        The site's folder `memory`.
    federation : Federation
        The site's samples, see `labels_of`.
    client : fnlkit.federated.client.client.Client
        After a visit.
    """
    rows = client.rows
    if "estimate/issue" not in rows:
        return
    held, size = np.asarray(federation.client_indices), len(federation.given)
    issue, flagged, suggested = np.zeros(size), np.zeros(size, bool), np.array(federation.given, np.int64)
    issue[held] = np.clip(rows["estimate/issue"].numpy(), 0, 1)
    flagged[held] = rows["estimate/flagged"].numpy()
    suggested[held] = np.where(flagged[held], rows["estimate/guess"].numpy(), suggested[held])
    arrays = {"issue_score": issue, "flagged": flagged, "suggested_label": suggested}
    if "estimate/confidence" in rows:
        arrays["confidence"] = np.zeros(size)
        arrays["confidence"][held] = rows["estimate/confidence"].numpy()
    of, arrays["copy_of"], arrays["far"] = rows["audit/copy_of"].numpy(), np.full(size, -1), np.zeros(size, bool)
    arrays["copy_of"][held] = np.where(of < 0, -1, held[of])
    arrays["far"][held] = rows["audit/far"].numpy()
    judged = add_judgment(federation, {PREFIX + name: values for name, values in arrays.items()})
    judged.write(os.path.join(folder, JUDGED))


def to_review(folder: str, data: Dataset, name: str) -> "Federation":
    """Make the Federation to review: the labels of `labels_of` with the scores of the last audit.

    Parameters
    ----------
    folder, data, name
        As in `labels_of`.

    Raises
    ------
    InputError
        If there was no audit, or if the data changed since the audit or the review.
    """
    path = os.path.join(folder, JUDGED)
    if not os.path.exists(path):
        raise InputError(f"{path}: there is no result of an audit yet; the coordinator starts audits")
    scored = Federation.read(path)
    must_be(data, scored.meta, len(scored.given), what="the audit", of_site=True)
    arrays = {each: values for each, values in scored.extra.items() if each.startswith(PREFIX)}
    return add_judgment(labels_of(folder, data, name), arrays, facts=scored.meta.get("estimate"))


def store_export(folder: str, federation: Federation) -> None:
    """Keep the Federation from which a review is exported."""
    federation.write(os.path.join(folder, EXPORTED))


def review_imported(folder: str, current: Federation, change: Callable[..., Any]) -> Federation:
    """Import decisions; no earlier decision is omitted.

    A table is imported into the labels and scores of its export, so that it can be imported again after a change, and after
    another audit.  If this would omit a decision or a correction since, it is imported into the current labels.

    Parameters
    ----------
    folder : str
        The site's folder `memory`.
    current : Federation
        From `to_review`.
    change : callable
        Returns the Federation with the decisions from the Federation before.
    """
    path = os.path.join(folder, EXPORTED)
    if os.path.exists(path):
        before = Federation.read(path)
        if _precedes(before, current):
            reviewed = change(before)
            if _keeps(current, reviewed):
                return reviewed
    reviewed = change(current)
    store_export(folder, current)
    return reviewed


def _precedes(before, current):
    """Whether a Federation is an earlier state of the current one."""
    same = before.meta.get("dataset_checksum") == current.meta.get("dataset_checksum")
    records = [(federation.meta.get(name, []) for federation in (before, current)) for name in ("reviews", "corrections")]
    return same and all(now[: len(old)] == old for old, now in records)


def _keeps(current, reviewed):
    """Whether each decided sample of a Federation is decided in another one, which has as many corrections."""
    fewer = len(reviewed.meta.get("corrections", [])) < len(current.meta.get("corrections", []))
    return not fewer and bool(find_reviewed(reviewed)[find_reviewed(current)].all())


def store_review(folder: str, federation: Federation, text: str | None = None, ending: str = ".csv") -> None:
    """Write the federation of a review to reviewed.npz, without the judgment of the labels before the review.

    Parameters
    ----------
    folder : str
        The site's folder `memory`.
    federation : Federation
    text : str, optional
        The imported table; a copy is stored as decisions-SHA256.csv.
    ending : str
        Ending of the copy's name; an export of an annotation tool has another one.
    """
    if text is not None:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        saving.write_bytes([text.encode()], os.path.join(folder, f"decisions-{digest}{ending}"))
    extra = {name: values for name, values in federation.extra.items() if not name.startswith(PREFIX)}
    replace(federation, extra=extra).write(os.path.join(folder, REVIEWED))
