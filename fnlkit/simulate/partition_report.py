"""Report of a partition: samples, clients, sites, groups, classes, columns, and what is missing by site."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import list_names
from fnlkit.datasets.copies import note_copies
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.groups import doubt_groups, shared_groups

MOST_LINES = 14


def report_partition(data: Dataset, federation: Federation) -> dict[str, Any]:
    """Describe a federation and its data set by plain values.

    Parameters
    ----------
    data : fnlkit.datasets.Dataset
    federation : Federation
        Partitioned.

    Returns
    -------
    dict
        ``dataset``; ``samples``: numbers of samples by use (``training``, ``held_out``, ``verified``, ``left_out``, ``test``,
        ``unlabeled``); ``clients``: ``count``, ``smallest``, ``largest``; ``sites``: samples by site; ``groups``: number of
        groups or None; ``copies``: numbers of equal samples, or None (fnlkit.datasets.copies.Copies.facts); ``classes``:
        labels by class, or None for a task without classes; ``columns``: names by role and encoding; ``left_out``: kind of
        each column that is no feature; ``missing``: for each column with missing cells, rows by site, where ``label`` stands
        for samples without a label and ``""`` for no site; ``true_labels``: whether the true labels are known.
    """
    sizes = [len(part) for part in federation.clients]
    held_out = sum(map(len, federation.held_out))
    verified = int((federation.extra.get("gold_label", np.zeros(0)) >= 0).sum())
    sites = data.fields.get("site")
    columns = {role: [name] for role, name in data.roles.items()}
    for column in data.table or ():
        columns.setdefault(column["kind"], []).append(column["name"])
    groups = federation.extra.get("group")
    return {
        "dataset": federation.dataset,
        "samples": {
            "training": sum(sizes),
            "held_out": held_out - verified,
            "verified": verified,
            "left_out": len(federation.given) - sum(sizes) - held_out,
            "test": len(data.y_test),
            "unlabeled": 0 if data.unlabeled is None else len(data.unlabeled),
        },
        "clients": {"count": len(sizes), "smallest": min(sizes), "largest": max(sizes)},
        "sites": None if sites is None else _count(sites),
        "groups": None if groups is None else len(np.unique(groups)),
        "copies": federation.meta.get("copies"),
        "classes": _count_classes(federation),
        "columns": columns,
        "left_out": dict(data.left_out),
        "missing": _missing(data, sites),
        "true_labels": federation.true is not None,
    }


def note_partition(data: Dataset, federation: Federation, scheme: str) -> list[str]:
    """Note samples without labels, sites that the scheme mixes, groups that it divides, and equal samples."""
    return [
        *_note_unlabeled(data, federation),
        *_note_sites(data, scheme),
        *_note_groups(data, federation),
        *_note_copies(data, federation),
    ]


def _note_groups(data, federation):
    """Yield a note if a column or field repeats like identifiers of groups, or if several clients have the same group."""
    if shared := shared_groups(federation):
        yield f"{shared:,} groups have samples at several clients, because the split follows the data"
    if data.groups is None and data.sample_of is None:
        fields = {name: np.asarray(values) for name, values in data.fields.items() if name not in ("site", "annotator", "id")}
        yield from doubt_groups(fields, lambda name: fields[name].astype(str).tolist())


def _note_copies(data, federation):
    """Note samples that are equal to others."""
    if not (facts := federation.meta.get("copies")):
        return []
    samples = len(data.y_train) if data.sample_of is None else len(np.unique(data.sample_of))
    return note_copies(facts, facts["duplicates"], (samples, len(data.y_test)))


def _note_unlabeled(data, federation):
    """Yield a note if samples have no label."""
    if data.unlabeled is None:
        return
    where = ""
    if data.unlabeled.sites is not None:
        where = f" ({list_names(f'{site} {n:,}' for site, n in sorted(Counter(data.unlabeled.sites).items()))})"
    yield f"{len(data.unlabeled):,} samples without a label{where} belong to no client; `fnlkit predict` reads them"
    names = federation.meta.get("client_names", [])
    bare = sorted(set(data.unlabeled.sites or []) - set(names)) if "client_unlabeled" in federation.meta else []
    if bare:
        yield f"these sites have no labels and become no clients: {list_names(bare)}"


def _note_sites(data, scheme):
    """Yield a note if the data names sites but is split by a different scheme."""
    count = len(set(data.fields["site"])) if "site" in data.fields else 0
    if count > 1 and scheme == "iid":
        yield f"the data comes from {count:,} sites and is mixed over clients; `scheme='sites'` makes each site a client"


def _count(names):
    return {str(name): int(count) for name, count in sorted(Counter(np.asarray(names).tolist()).items())}


def _count_classes(federation):
    counts = np.bincount(federation.given[federation.given >= 0], minlength=federation.classes)
    return {str(name): int(count) for name, count in zip(federation.meta["class_names"], counts, strict=True)}


def _missing(data, sites):
    """Count missing cells {column: {site: rows}} of the training samples, and the samples without a label."""
    missing: dict[str, dict[str, int]] = {}
    place = np.full(len(data.y_train), "") if sites is None else np.asarray(sites)
    for i, name in enumerate(data.columns or ()):
        column = name.removesuffix(" (missing)").removesuffix(":")
        if column != name and data.table is not None and (rows := np.flatnonzero(np.asarray(data.x_train[:, i]) > 0.5)).size:
            missing[column] = _count(place[rows])
    if data.unlabeled is not None:
        missing["label"] = _count(data.unlabeled.sites or [""] * len(data.unlabeled))
    return missing


def report_lines(report: Mapping[str, Any], notes: Sequence[str]) -> list[str]:
    """Format the report as at most `MOST_LINES` lines; the first one counts samples and clients.

    Parameters
    ----------
    report : dict
        As returned by `report_partition`.
    notes : sequence of str
        Notes on the data, which follow.  If they do not fit, a line counts the others.
    """
    samples, clients = report["samples"], report["clients"]
    lines = []
    for name in ("sites", "classes"):
        if counts := report[name]:
            lines.append(f"{name}: {_list_counts(counts)}")
    missing = [f"{name} ({_list_counts(counts)})" for name, counts in report["missing"].items() if name != "label"]
    if missing:
        lines.append(f"missing cells{' by site' if report['sites'] else ''}: {list_names(missing)}")
    words = {"held_out": "more held out for measuring", "verified": "verified", "left_out": "left out"}
    more = [f"{samples[use]:,} {text}" for use, text in words.items() if samples[use]]
    sizes = f"{clients['smallest']:,} to {clients['largest']:,} each"
    first = (
        f"{report['dataset']}: {samples['training']:,} samples over {clients['count']:,} clients, "
        f"{', '.join([sizes, *more])}"
        f"{'' if report['true_labels'] else '; labels are observed, true labels are unknown'}"
    )
    room = MOST_LINES - len(lines) - 1
    if len(notes) > room:
        notes = [*notes[: room - 1], f"{len(notes) - room + 1:,} more notes are in the report as JSON"]
    return [first, *notes, *lines]


def _list_counts(counts):
    return list_names(f"{name} {count:,}".lstrip() for name, count in counts.items())
