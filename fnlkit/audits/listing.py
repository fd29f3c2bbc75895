"""Tables of a federation's samples for people: all suspects, and the labels after cleaning."""

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.names import class_names
from fnlkit.artifacts.sheets import Sheet
from fnlkit.audits.reviews import read_applied_lists, read_reviews
from fnlkit.audits.suspects import find_reviewed
from fnlkit.core.errors import InputError
from fnlkit.datasets.targets import words
from fnlkit.estimators.judgment import PREFIX


def suspects(federation: Federation, *, every: bool = False) -> Sheet:
    """List all flagged samples of all sites, highest issue score first.

    Columns: sample (id), path if it is known, site, given, suggested, score, confidence (probability that the suggestion is
    right, if the estimate has one), held_out, reviewed; with `every` also flagged; after an audit also detectors (names of
    the detectors that flag the sample).

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    every : bool
        List all samples, not the flagged ones only.

    Raises
    ------
    InputError
        If the federation has no estimate.
    """
    arrays = [federation.extra.get(PREFIX + name) for name in ("issue_score", "flagged", "suggested_label")]
    if any(values is None for values in arrays):
        raise InputError("the federation has no noise estimate; pipe it through `fnlkit audit` or `estimate-noise`")
    score, flagged, suggested = map(np.asarray, arrays)
    owner = _owners(federation)
    flagged = flagged.astype(bool)
    positions = np.flatnonzero((owner >= 0) & (flagged | every))
    positions = positions[np.argsort(-score[positions], kind="stable")]
    head, cells = _identify_samples(federation, positions, owner)
    held_out, seen = _find_held_out(federation), find_reviewed(federation)
    sure = federation.extra.get(f"{PREFIX}confidence")
    given, better = (_words(federation, labels[positions]) for labels in (federation.given, suggested))
    rows = []
    for cell, i, label, suggestion in zip(cells, positions.tolist(), given, better, strict=True):
        stated = [] if sure is None else [float(sure[i])]
        rows.append([*cell, label, suggestion, float(score[i]), *stated, bool(held_out[i]), bool(seen[i])])
    last = _more(federation, positions, flagged, every)
    rows = [[*row, *(values[k] for values in last.values())] for k, row in enumerate(rows)]
    stated = [] if sure is None else ["confidence"]
    return Sheet([*head, "given", "suggested", "score", *stated, "held_out", "reviewed", *last], rows)


def _more(federation, positions, flagged, every):
    """Last columns of `suspects`: {name: values of the samples at `positions`}."""
    extra, columns = federation.extra, {}
    if every:
        columns["flagged"] = flagged[positions].astype(bool).tolist()
    start = f"{PREFIX}by_"
    by = {name.removeprefix(start): flags[positions] for name, flags in extra.items() if name.startswith(start)}
    if by:
        columns["detectors"] = [" ".join(name for name, flags in by.items() if flags[k]) for k in range(len(positions))]
    return columns


def list_labels(federation: Federation) -> Sheet:
    """List all samples of all sites with their received and current labels.

    Columns: sample (id), path if it is known, site, received, label, action (kept, changed, left out), reason, held_out,
    reviewed. The label of a sample that a review or a correction left out is empty. The reason of a change is a review,
    a list with guarantee and review, the votes of annotators, or the issue score of a correction.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation

    Raises
    ------
    InputError
        If a record of the file names samples or clients that are not in the federation.
    """
    owner, left = _owners(federation), np.zeros(len(federation.given), bool)
    for position, client in _find_left_out(federation):
        if owner[position] < 0:
            owner[position], left[position] = client, True
    held = np.flatnonzero(owner >= 0)
    held = held[np.argsort(owner[held], kind="stable")]
    head, cells = _identify_samples(federation, held, owner)
    held_out, seen = _find_held_out(federation), find_reviewed(federation)
    received = np.asarray(federation.extra.get("received", federation.given))
    decided = _find_listed(federation) | _find_decisions(federation)
    before, now, rows = _words(federation, received[held]), _words(federation, federation.given[held]), []
    for cell, i, was, word in zip(cells, held.tolist(), before, now, strict=True):
        action = "left out" if left[i] else "changed" if was != word else "kept"
        reason = _reason(federation, i, decided, left[i]) if action != "kept" else None
        rows.append([*cell, was, None if left[i] else word, action, reason, bool(held_out[i]), bool(seen[i])])
    return Sheet([*head, "received", "label", "action", "reason", "held_out", "reviewed"], rows)


def _find_decisions(federation):
    """Find {position: reviewer and date} of the samples whose label a review changed or that it left out."""
    decided = {}
    for review in read_reviews(federation):
        words = " ".join(str(part) for part in (review.who, review.when) if part)
        positions = [*(row[0] for row in review.changed if row), *review.dropped]
        decided |= dict.fromkeys(positions, f"review ({words})" if words else "review")
    return decided


def _find_listed(federation):
    """Find {position: list, guarantee and review} of the samples that `correct --list` changed or left out."""
    listed = {}
    for number, applied in enumerate(read_applied_lists(federation), 1):
        sure = "on average" if applied.confidence is None else f"with probability {applied.confidence:g}"
        text = f"list {number} of {len(applied.listed)} labels, at most {applied.q:g} right {sure}"
        text += f" (review of {applied.when}, {applied.reviews} decisions, {applied.sha256[:12]})"
        listed |= dict.fromkeys(applied.listed, text)
    return listed


def _reason(federation, position, decided, left):
    """Reason why a label was changed or a sample left out; None if it is not recorded."""
    if position in decided:
        return decided[position]
    score, suggested = (federation.extra.get(PREFIX + name) for name in ("issue_score", "suggested_label"))
    corrected = federation.meta.get("corrections") and score is not None and suggested is not None
    if corrected and (left or np.array_equal(suggested[position], federation.given[position])):
        return f"issue score {float(score[position]):.3f}"
    return "votes" if federation.meta.get("consensus") else None


def _owners(federation):
    """Client of each sample of the training set (n,), held-out samples included; -1 if it has none."""
    whole, owner = federation.whole(), np.full(len(federation.given), -1)
    owner[whole.client_indices] = np.repeat(np.arange(len(whole)), np.diff(whole.client_offsets))
    return owner


def _find_held_out(federation):
    return np.asarray(federation.extra.get("holdout_client", np.full(len(federation.given), -1))) >= 0


def _identify_samples(federation, positions, owner):
    """Collect (columns, cells of each position) that identify a sample and its site."""
    places, names = federation.extra.get("sample_path"), federation.names
    cells = [
        [sample, *([] if places is None else [str(places[i])]), names[owner[i]]]
        for sample, i in zip(federation.ids_of(positions), positions.tolist(), strict=True)
    ]
    return ["sample", *([] if places is None else ["path"]), "site"], cells


def _words(federation, labels):
    return words(class_names(federation.meta, federation.classes), labels)


def _find_left_out(federation):
    """Yield (position, client) of samples that reviews and corrections left out."""
    for review in read_reviews(federation):
        yield from ((position, review.client) for position in review.dropped)
    for record in federation.meta.get("corrections", []):
        parts = record.get("left_out", [])
        for client, positions in enumerate(parts if isinstance(parts, list) else [parts]):
            yield from _check(federation, positions, client)


def _check(federation, positions, client):
    right = isinstance(positions, list) and all(type(i) is int and 0 <= i < len(federation.given) for i in positions)
    if not right or (positions and not (type(client) is int and 0 <= client < len(federation))):
        raise InputError("`corrections` name samples or clients that are not in the federation; make the file again")
    return [(position, client) for position in positions]
