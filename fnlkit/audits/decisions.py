"""Reviewers' decisions: read a table, check it against the federation, change labels and record every change."""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.names import class_names
from fnlkit.artifacts.provenance import with_record
from fnlkit.artifacts.records import to_json
from fnlkit.artifacts.sheets import Sheet, unguard
from fnlkit.audits.designs import Design, candidates_of, make_guarantee
from fnlkit.audits.levels import Decisions, by_class, level, level_after_review
from fnlkit.audits.reviews import Review, read_reviews
from fnlkit.audits.suspects import PARTS, Selection, find_reviewed
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.labels import class_finder
from fnlkit.datasets.spelling import spell
from fnlkit.datasets.table import parse_table
from fnlkit.datasets.targets import words
from fnlkit.estimators.judgment import PREFIX

COLUMNS = ("position", "client", "part", "sample", "given", "suggested", "score", "confidence", "neighbors", "decision",
           "label", "reviewer", "comment")  # fmt: skip
# Column of a review with a guarantee.
DESIGN = "design"
DECISIONS = ("keep", "drop", "relabel", "unsure")


def decision_template(
    federation: Federation, dataset: Dataset, client: int, selection: Selection, near: list[np.ndarray] | None = None
) -> str:
    """Write the CSV template for decisions: one row per sample, ``decision`` and ``label`` empty.

    Parameters
    ----------
    federation, dataset
    client : int
    selection : fnlkit.audits.suspects.Selection
    near : list of int arrays, optional
        Neighbors of each sample; their labels are listed.
    """
    rows = []
    score, suggested = (np.asarray(federation.extra[PREFIX + name]) for name in ("issue_score", "suggested_label"))
    sure = federation.extra.get(f"{PREFIX}confidence")
    for i, position in enumerate(selection.positions.tolist()):
        beside = [] if near is None else words(dataset.class_names, federation.given[near[i]])
        part = selection.part(i)
        labels = words(dataset.class_names, np.stack([federation.given[position], suggested[position]]))
        sample = federation.ids_of([position])[0]
        scores = f"{score[position]:.4f}", None if sure is None else f"{sure[position]:.4f}"
        rows.append([position, client, part, sample, *labels, *scores, " ".join(beside), None, None, None, None])
    if selection.design is None:
        return Sheet(list(COLUMNS), rows).csv()
    return Sheet([*COLUMNS, DESIGN], [[*row, selection.design.text()] for row in rows]).csv()


def read_decisions(text: str, federation: Federation, dataset: Dataset, source: str = "decisions") -> Decisions:
    """Read the Decisions in the text of a CSV; rows without a decision are undecided.

    The column ``decision`` holds ``keep``, ``drop``, ``relabel`` or ``unsure``, and the column ``label`` the new class of
    ``relabel``.  The name of a class in ``decision`` is read as ``relabel`` to it.  In a table without the column ``label``,
    which earlier versions wrote, a word that is both a decision and a class is refused.  Rows that an earlier import decided
    in the same way are left out, so that the rest of a table can be imported later.

    Parameters
    ----------
    text : str
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    source : str
        Name of the table in messages.

    Raises
    ------
    InputError
        One line that names the row, if the table does not fit the federation.
    """
    table = parse_table(text, source, short=True)
    columns = {name: table.find_columns(name) for name in (*COLUMNS, DESIGN)}
    for name in ("position", "client", "part", "given", "decision"):
        if not columns[name]:
            table.must_have(name, "decisions")
    if not len(table):
        raise InputError(f"{source}: no rows below the column names; export the review again")
    cells = {name: list(map(unguard, table.texts(called[0]))) for name, called in columns.items() if called}
    names = list(map(str, dataset.class_names))
    label_of = class_finder(names)
    positions, labels, suspect = [], [], []
    unsure, left_out = [], []
    clients = set()
    imported = _Imported(federation, names)
    design = _design(cells, source)
    wanted = PARTS[design is not None]
    listed = [part == wanted[0] for part in cells["part"]]
    for i in range(len(table)):
        position, client = _whole(table, cells, i, "position"), _whole(table, cells, i, "client")
        if not 0 <= position < len(federation.given):
            table.fail([i], f"position is {position}; expected a position from 0 to {len(federation.given) - 1:,}")
        if "sample" in cells and cells["sample"][i] != spell(sample := federation.ids_of([position])[0]):
            table.fail([i], f"sample is {cells['sample'][i][:80]!r}, but {sample[:80]!r} at position {position}; export the "
                            "review again")  # fmt: skip
        now = words(names, federation.given[[position]])[0]
        if imported.has(position) and cells["given"][i] == spell(imported.before(position)):
            decision, label = _decide(table, cells, i, label_of, names)
            if design is not None or not imported.agrees(position, decision, label):
                how = " otherwise" if design is None else ""
                table.fail([i], f"an earlier import decided this sample{how}; import the whole table into the federation from "
                                "which it was exported")  # fmt: skip
            clients.add(client)
            left_out.append(i)
            continue
        if cells["given"][i] != spell(now):
            table.fail([i], f"given label is {cells['given'][i]!r} but {now!r} in the federation; export the review again")
        if cells["part"][i] not in wanted:
            table.fail([i], f"part is {cells['part'][i]!r}; expected {wanted[0]} or {wanted[1]}, as exported")
        clients.add(client)
        decision, label = _decide(table, cells, i, label_of, names)
        if decision == "unsure":
            unsure.append(position)
        elif decision:
            positions.append(position)
            labels.append({"keep": federation.given[position], "drop": -1}.get(decision, label))
            suspect.append(listed[i])
    client = clients.pop() if len(clients) == 1 else -1
    if not 0 <= client < len(federation):
        raise InputError(f"{source}: expected the review of one client of this federation, 0 to {len(federation) - 1}")
    held, seen = np.asarray(federation.whole().clients[client]), np.array(list(map(int, cells["position"])), np.int64)
    new = ~np.isin(np.arange(len(seen)), left_out)
    rows, listed = seen[new], np.array(listed, bool)[new]
    if len(set(seen.tolist())) < len(seen) or not np.isin(rows, held).all():
        raise InputError(f"{source}: a sample is listed twice or does not belong to client {client}; export the review again")
    strata = _strata(federation, held[~find_reviewed(federation)[held]], client, rows, listed, design, source)
    return Decisions(
        client=client,
        positions=np.array(positions, np.int64),
        label=np.array(labels, np.int64),
        suspect=np.array(suspect, bool),
        who=sorted(set(cells.get("reviewer", [])) - {""}),
        digest=hashlib.sha256(text.encode()).hexdigest(),
        unsure=np.array(unsure, np.int64),
        rows=rows,
        rows_suspect=listed,
        strata=strata,
        design=design,
    )


class _Imported:
    """Decisions of earlier imports into a federation."""

    def __init__(self, federation, names):
        self.mask, self.given, self.names = find_reviewed(federation), federation.given, names
        self.dropped, self.changed = set(), {}
        for review in read_reviews(federation):
            self.dropped |= set(review.dropped)
            for position, before, _ in review.changed:
                self.changed[position] = before

    def has(self, position: int) -> bool:
        """Whether an earlier import decided a sample."""
        return bool(self.mask[position])

    def before(self, position: int) -> str:
        """Text of the label before the last decision."""
        label = np.asarray(self.changed.get(position, self.given[position]), self.given.dtype)
        return words(self.names, label[None])[0].strip()

    def agrees(self, position: int, decision: str, label: Any) -> bool:
        """Whether a decision is the earlier one, or none."""
        if decision in ("", "unsure"):
            return True
        if decision == "drop" or position in self.dropped:
            return decision == "drop" and position in self.dropped
        wanted = self.changed.get(position, self.given[position]) if decision == "keep" else label
        return bool(np.array_equal(np.asarray(wanted, self.given.dtype), self.given[position]))


def _design(cells, source):
    """Read the Design of a table; None if it has none."""
    texts = set(cells.get(DESIGN, [])) - {""}
    if not texts:
        return None
    if len(texts) > 1:
        raise InputError(f"{source}: rows of two reviews in one table; import each table on its own")
    return Design.read(texts.pop(), source)


def _strata(federation, open_ones, client, rows, listed, design, source):
    """Make the pair of strata of a review; see `Decisions`.

    Raises
    ------
    InputError
        If a review with a guarantee lacks rows, or has other rows than the export.
    """
    first = rows[listed]
    if design is not None:
        first = candidates_of(federation, client, design, source)
        right = np.isin(rows[listed], first).all() and not np.isin(rows[~listed], first).any()
        if not right or (len(rows) - (~listed).sum(), (~listed).sum()) != (design.reviews, design.random):
            raise InputError(f"{source}: the rows are not those of the export; a guarantee needs every row, decided or not")
    return first, open_ones[~np.isin(open_ones, first)]


def _whole(table, cells, i, name):
    try:
        return int(cells[name][i])
    except ValueError:
        table.fail([i], f"{name} is {cells[name][i][:40]!r}; expected a whole number, as exported")


def _decide(table, cells, i, label_of, names):
    """Read (decision, class or None) of a row; ("", None) if it is undecided."""
    text, apart = cells["decision"][i], "label" in cells
    word, label = text.lower(), cells["label"][i] if apart else ""
    chosen = label_of(label)
    if chosen is None and label in names:
        table.fail([i], f"label {label!r} names two classes; rename one")
    if label and chosen is None:
        table.fail([i], f"label {label!r} is no label of this task; it is about {list_names(names)}")
    if label and word in ("keep", "drop", "unsure"):
        table.fail([i], f"decision {text!r} with the label {label!r}; write relabel, or leave the label empty")
    if not text:
        return ("relabel", chosen) if label else ("", None)
    named = label_of(text)
    if word not in DECISIONS:
        if named is None:
            table.fail([i], f"decision {text!r}; write {', '.join(DECISIONS)}")
        if label and chosen != named:
            table.fail([i], f"decision {text!r} with the label {label!r}; leave one of them empty")
        return "relabel", named
    if not apart and named is not None:
        table.fail([i], f"decision {text!r} is also a class; add a column label for the new class")
    if word == "relabel" and not label:
        table.fail([i], "decision relabel without a class; write it into the column label")
    return word, chosen


def decide(federation: Federation, decisions: Decisions, *, when: str, provenance: dict[str, Any] | None = None) -> Federation:
    """Apply decisions: decided labels, the original labels and a record of the review.

    ``received`` contains the original labels. ``reviewed`` (n,) marks the labels that a person decided; no method and no
    `correct` changes them afterwards.  Dropped samples leave their client.  ``meta["reviews"]`` gets a record with
    reviewers, date, decisions and previous labels.  The client's estimated level becomes the level that remains after the
    review, and its transition is scaled to this level.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    decisions : Decisions
    when : str
        A date.
    provenance : dict, optional
    """
    before, given = np.asarray(federation.given), np.array(federation.given)
    not_dropped = decisions.label >= 0  # -1 is a sample to drop
    given[decisions.positions[not_dropped]] = decisions.label[not_dropped]
    mask = find_reviewed(federation).copy()
    mask[decisions.positions] = True
    changed = decisions.positions[not_dropped]
    changed = changed[given[changed] != before[changed]]
    guarantee = None
    if decisions.design is not None:
        drawn = decisions.rows[decisions.rows_suspect]
        wrong = decisions.positions[decisions.label != before[decisions.positions]]
        guarantee = make_guarantee(federation, decisions.client, decisions.design, decisions.strata[0], drawn, wrong)
    names = class_names(federation.meta, federation.classes)
    classes, pairs = by_class(federation, decisions, names)
    review = Review(
        client=decisions.client,
        when=when,
        who=decisions.who,
        sha256=decisions.digest,
        decided=len(decisions.positions),
        changed=[[int(i), before[i].tolist(), given[i].tolist()] for i in changed],
        dropped=decisions.positions[~not_dropped].tolist(),
        unsure=decisions.unsure.tolist(),
        level=level(federation, decisions),
        after=level_after_review(federation, decisions),
        basis="random reviews",
        guarantee=guarantee,
        classes=classes,
        pairs=pairs,
    )
    meta = with_record(with_record(federation.meta, to_json(review), "reviews"), provenance)
    extra = {"received": np.array(before), **federation.extra, "reviewed": mask}
    extra["review_part"] = _parts(federation, decisions)
    extra |= _estimates_after(extra, decisions.client, review.after)
    decided = replace(federation, given=given, extra=extra, meta=meta)
    return without_samples(decided, decisions.positions[~not_dropped])


def _parts(federation, decisions):
    """Find the part of each sample in the last review of its site (n,): see docs/files.md.

    Ranges over held-out samples need it: samples of part 2 and 3 are a random draw from those outside parts 1 and 4.
    """
    part = np.array(federation.extra.get("review_part", np.zeros(len(federation.given), np.int64)))
    held = np.asarray(federation.whole().clients[decisions.client])
    part[held] = find_reviewed(federation)[held]
    undrawn = np.concatenate([decisions.positions, decisions.unsure])
    drawn = ~decisions.rows_suspect & ((decisions.design is not None) | np.isin(decisions.rows, undrawn))
    decided = np.isin(decisions.rows, decisions.positions)
    part[decisions.rows] = np.select(
        [decisions.rows_suspect & decided, drawn & decided, drawn, decisions.rows_suspect], [1, 2, 3, 4], 0
    )
    return part


def _estimates_after(extra, client, after):
    """Update the arrays of an earlier estimate with one client's new level; {} if it is unknown."""
    names = [f"{PREFIX}client_level{end}" for end in ("", "_low", "_high")]
    if after.level is None or not all(name in extra for name in names):
        return {}
    estimates = {name: np.array(extra[name], np.float64) for name in names}
    was = estimates[names[0]][client]
    for name, value in zip(names, (after.level, after.low, after.high), strict=True):
        estimates[name][client] = value
    if f"{PREFIX}judged" in extra:
        estimates[f"{PREFIX}judged"] = np.array(extra[f"{PREFIX}judged"])
        estimates[f"{PREFIX}judged"][client] = True
    if f"{PREFIX}client_transition" in extra and was > 0:
        T = np.array(extra[f"{PREFIX}client_transition"], np.float64)
        eye = np.eye(T.shape[-1])
        T[client] = eye + min(1.0, after.level / was) * (T[client] - eye)
        estimates[f"{PREFIX}client_transition"] = T
    return estimates


def without_samples(federation: Federation, positions: np.ndarray) -> Federation:
    """Remove some samples of a federation's clients.

    Raises
    ------
    InputError
        If a client would have no sample left.
    """
    extra = dict(federation.extra)
    if "holdout_client" in extra:
        extra["holdout_client"] = np.array(extra["holdout_client"])
        extra["holdout_client"][positions] = -1
    remaining = federation.with_clients([part[~np.isin(part, positions)] for part in federation.clients], extra=extra)
    remaining.check()
    return remaining
