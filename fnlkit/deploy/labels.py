"""Labels of a site: what an audit found about each sample, and the decisions of the site's reviewers.

Both stay in the site's folder `memory`. An audit or estimate writes judged.npz, a review reviewed.npz. The next run uses the
reviewed labels and omits dropped samples.
"""

import os
from dataclasses import replace

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.paths import shown
from fnlkit.datasets.dataset import must_be
from fnlkit.errors import InputError
from fnlkit.estimators.apply import judged
from fnlkit.estimators.judgment import PREFIX

JUDGED, REVIEWED = "judged.npz", "reviewed.npz"


def labels_of(folder, data, name):
    """Return the Federation of a site's samples: one client with the reviewed labels, or with the labels as received.

    Parameters
    ----------
    folder : str
        The site's folder `memory`.
    data : fnlkit.datasets.Dataset
        Samples in the order of the task's classes (`fnlkit.deploy.agreement.conformed`).
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
            f"{shown(path)}: {error}; the data changed since the review: move the file away to use the labels as received"
        ) from None
    return federation


def fresh(data, name):
    """Return the Federation of a site's samples with the labels as received."""
    size = len(data.y_train)
    meta = {"dataset_checksum": data.checksum, "client_names": [name], "class_names": list(map(str, data.class_names))}
    extra = {} if data.ids is None else {"sample_id": np.asarray(data.ids).astype(str)}
    every = np.arange(size)
    return Federation(data.name, len(data.class_names), np.array([0, size]), every, np.array(data.y_train, np.int64),
                      extra=extra, meta=meta)  # fmt: skip


def keep_judgment(folder, federation, client):
    """Write the judgment of each sample that a client holds to judged.npz; do nothing if there is none.

    An estimate finds no copies or outliers, and keeps those of an earlier audit of the same data.

    Parameters
    ----------
    folder : str
        The site's folder `memory`.
    federation : Federation
        The site's samples, see `labels_of`.
    client : fnlkit.client.client.Client
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
    if "audit/copy_of" in rows:
        of, arrays["copy_of"], arrays["far"] = rows["audit/copy_of"].numpy(), np.full(size, -1), np.zeros(size, bool)
        arrays["copy_of"][held] = np.where(of < 0, -1, held[of])
        arrays["far"][held] = rows["audit/far"].numpy()
    else:
        arrays |= _found_before(folder, federation)
    found = judged(federation, {PREFIX + name: values for name, values in arrays.items()})
    found.write(os.path.join(folder, JUDGED))


def _found_before(folder, federation):
    """Return copies and outliers (n,) of an earlier judged.npz of the same data; {} without one."""
    path = os.path.join(folder, JUDGED)
    if not os.path.exists(path):
        return {}
    before = Federation.read(path)
    if before.meta.get("dataset_checksum") != federation.meta["dataset_checksum"]:
        return {}
    names = ("copy_of", "far")
    return {name: before.extra[PREFIX + name] for name in names if PREFIX + name in before.extra}


def decided(folder, federation):
    """Write the federation of a review to reviewed.npz, without the judgment of the labels before the review."""
    extra = {name: values for name, values in federation.extra.items() if not name.startswith(PREFIX)}
    replace(federation, extra=extra).write(os.path.join(folder, REVIEWED))
