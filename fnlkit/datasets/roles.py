"""Roles of columns by their names, and tables whose rows are votes of annotators."""

import itertools
from collections import Counter
from typing import Any

import numpy as np

from fnlkit.datasets import groups
from fnlkit.datasets.identifying import has_id_name
from fnlkit.datasets.spelling import order_texts
from fnlkit.datasets.table import Table

# Role of a column -> column names that imply this role.
ROLES = {
    "label": ("label", "labels", "class", "target", "y"),
    "path": ("path", "file", "filename", "file_name", "file_path", "filepath", "image", "image_path", "img"),
    "site": ("site", "hospital", "center", "centre", "clinic", "institution"),
    "split": ("split", "subset"),
    "id": ("id", "sample_id", "sample", "uid", "uuid"),
    "true": ("true_label", "y_true", "label_true"),
    "group": (*groups.NAMES, *groups.DOUBTFUL),
    "annotator": ("annotator", "annotator_id", "annotator_name", "rater", "rater_id", "labeler", "labeller", "worker_id"),
}
# In a table of votes, further names imply a role: those of crowd-kit and of crowdsourcing platforms.  In a table of samples, a
# task or a question can be a feature.
VOTE_ROLES = ROLES | {
    "label": (*ROLES["label"], "answer", "response", "vote", "annotation", "judgment", "judgement"),
    "id": (*ROLES["id"], "task", "task_id", "item", "item_id", "question", "question_id", "instance", "instance_id", "example",
           "example_id", "unit_id", "_unit_id", "hitid"),
    "annotator": (*ROLES["annotator"], "worker", "workerid", "_worker_id", "coder", "coder_id", "reader_id", "judge_id",
                  "reviewer", "reviewer_id"),
}  # fmt: skip
# Columns with these names are groups of samples, also if a sample has several votes.
_NO_SAMPLES = ("patient", "subject", "participant", "speaker", "site", "group", "worker", "annotator", "user")
# Share of the rows of a table of votes that are different pairs of a sample and an annotator, at least.
_DIFFERENT_PAIRS = 0.9


def find_votes(manifest: Any) -> None:
    """Set the roles of a `fnlkit.datasets.manifest.Manifest` whose rows are votes, of columns named as in `VOTE_ROLES`."""
    taken = {*manifest.lists.get("drop", ()), *(name for name in manifest.given.values() if isinstance(name, str))}
    candidates: dict[str, list[str]] = {}
    for role in ("label", "id", "annotator"):
        names = [name for name in manifest.table.find_columns(*VOTE_ROLES[role]) if name not in taken]
        if role == "id" and not names:
            names = [name for name in manifest.table.columns if has_id_name(name) and not _is_other(name, taken)]
        candidates[role] = names if role not in manifest.given else [manifest.roles[role]] if role in manifest.roles else []
    candidates["label"] = [manifest.roles["label"]] if "label" in manifest.roles else candidates["label"]
    candidates["id"] = [manifest.roles["path"]] if "path" in manifest.roles else candidates["id"]
    fit = [names for names in itertools.product(*candidates.values()) if _are_votes(manifest, *names)]
    if len(fit) != 1:
        return
    label, sample, annotator = fit[0]
    if manifest.roles.get("id", sample) != sample:
        manifest.unused.add(manifest.roles["id"])  # the number of a vote
    if manifest.roles.get("group") == sample:
        del manifest.roles["group"]  # the votes on a sample are no group of samples
    manifest.roles |= {"label": label, "annotator": annotator} | ({} if "path" in manifest.roles else {"id": sample})


def _is_other(name, taken):
    """Whether a column with the name of identifiers has another role than the sample, such as the patient."""
    plain = name.strip().lower().replace(" ", "_")
    return name in taken or plain in VOTE_ROLES["annotator"] or plain.startswith(_NO_SAMPLES)


def _are_votes(manifest, label, sample, annotator):
    """Whether rows are votes: samples repeat, pairs with annotators do not, and another column describes samples."""
    sites = manifest.texts("site") or [""] * len(manifest.table)
    samples = list(zip(manifest.table.texts(sample), sites, strict=True))
    pairs = len(set(zip(samples, manifest.table.texts(annotator), strict=True)))
    if len({label, sample, annotator}) < 3 or pairs < _DIFFERENT_PAIRS * len(samples) or len(set(samples)) == len(samples):
        return False
    taken = {*manifest.roles.values(), *manifest.lists.get("drop", ()), label, sample, annotator}
    others = [manifest.table.texts(name) for name in manifest.table.columns if name not in taken]
    if sample == manifest.roles.get("path") or not others:
        return True
    return any(len(set(texts)) > 1 and len(set(zip(samples, texts, strict=True))) == len(set(samples)) for texts in others)


def merge_votes(manifest: Any) -> tuple[tuple[str, ...], Table]:
    """Merge votes to (labels that occur, Table with one row per sample).

    If rows are votes of annotators, the votes on each sample are merged.  Otherwise, the table is returned unchanged.

    Raises
    ------
    InputError
        If rows of one sample differ in more than annotator and label, or if an annotator votes twice.
    """
    table, roles = manifest.table, manifest.roles
    key = [role for role in (("path",) if "path" in roles else ("id", "site")) if role in roles]
    if not {"annotator", "label"} <= roles.keys() or key in ([], ["site"]):
        return (), table
    samples: dict[tuple[str, ...], list[int]] = {}
    names = {role: manifest.texts(role) or [] for role in (*key, "annotator", "label")}
    for row, sample in enumerate(zip(*(names[role] for role in key), strict=True)):
        samples.setdefault(sample, []).append(row)
    if len(samples) == len(table):
        return (), table
    first = np.empty(len(table), np.int64)
    for rows in samples.values():
        first[rows] = rows[0]
        voters = [names["annotator"][row] for row in rows]
        if "" in voters:
            table.fail([rows[voters.index("")]], f"no {roles['annotator']}; each vote needs an annotator")
        if len(set(voters)) < len(rows):
            twice = [rows[i] for i, voter in enumerate(voters) if voter in voters[:i]]
            table.fail(twice, f"{roles['annotator']} {names['annotator'][twice[0]]!r} votes twice on this sample")
    must = {column for role, column in roles.items() if role not in ("annotator", "label")} | {*manifest.features}
    leave: list[str] = []
    for column in table.columns:
        texts = table.texts(column)
        other = [row for row in range(len(table)) if texts[row] != texts[first[row]]]
        if other and column in must:
            text = f"{column} is {texts[other[0]][:40]!r}, in row {table.rows[first[other[0]]]} {texts[first[other[0]]][:40]!r}"
            table.fail(other, f"{text}; rows of one sample can differ only in annotator and label")
        if other and column != roles["label"]:
            leave.append(column)
    manifest.cast = [
        {names["annotator"][row]: names["label"][row] for row in rows if names["label"][row]} for rows in samples.values()
    ]
    votes = [list(cast.values()) for cast in manifest.cast]
    order = {label: i for i, label in enumerate(order_texts({label for cast in votes for label in cast}))}
    counts = [Counter(cast).most_common() for cast in votes]
    tied = sum(len(count) > 1 and count[0][1] == count[1][1] for count in counts)
    merged = table.chosen([rows[0] for rows in samples.values()], leave)
    merged.columns[roles["label"]] = [min(c, key=lambda vote: (-vote[1], order[vote[0]]))[0] if c else "" for c in counts]
    merged.notes.append(
        f"{len(table):,} rows are votes of {len(set(names['annotator']))} annotators on {len(samples):,} samples; the label is "
        f"the majority vote ({tied:,} ties went to the first class); `fnlkit consensus` with this table weights the annotators"
    )
    roles.pop("annotator")
    return tuple(order), merged
