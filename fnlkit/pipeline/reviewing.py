"""Reviews and corrections of a judged federation."""

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from fnlkit.artifacts import display, saving
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.provenance import provenance
from fnlkit.artifacts.sheets import Sheet
from fnlkit.audits import annotation_exports, decisions, listing, page
from fnlkit.audits.designs import describe_achievable
from fnlkit.audits.suspects import Selection, choose, choose_guaranteed, class_of, client_of, neighbors_of, points_of
from fnlkit.core.errors import InputError
from fnlkit.core.options import option, show_keywords
from fnlkit.core.parameters import Count
from fnlkit.datasets.groups import count_groups
from fnlkit.datasets.table import read_text
from fnlkit.pipeline.inputs import ArrayLike, FilePath, Labels, Samples, Say, name_source, print_note, read_inputs


def suspects(federation: Labels, *, every: bool = False) -> Sheet:
    """List all samples flagged by an audit or by estimate-noise, most suspicious first.

    Parameters
    ----------
    federation : Federation, or path
    every : bool
        Return all samples with their scores, not the flagged ones only.

    Returns
    -------
    fnlkit.artifacts.sheets.Sheet
        With `write`, `csv` and `to_pandas`.

    Raises
    ------
    InputError
        If the federation has no result of an audit or of estimate-noise.
    """
    return listing.suspects(read_inputs(federation).federation, every=every)


def cleaned(federation: Labels) -> Sheet:
    """List the current labels of all samples next to the labels as received.

    The current labels include all reviews and corrections.

    Parameters
    ----------
    federation : Federation, or path

    Returns
    -------
    fnlkit.artifacts.sheets.Sheet
        With `write`, `csv` and `to_pandas`.

    Raises
    ------
    InputError
    """
    return listing.list_labels(read_inputs(federation).federation)


def correct(federation: Labels, *, above: float = 0.9, drop: bool = False, listed: bool = False) -> Federation:
    """Replace flagged labels by the suggested labels where these are likely to be right, or drop the samples.

    With `listed`, correct exactly the labels of the lists with a guarantee.  Reviewed labels do not change.
    ``meta["corrections"][-1]`` counts the flagged, changed and dropped samples.

    Parameters
    ----------
    federation : Federation, or path
        Federation with the result of `audit` or `estimate_noise`.
    above : float in [0, 1]
        Smallest confidence of a suggestion (the issue score, if the estimator has no confidence).
    drop : bool
        Drop the samples instead of relabeling them.
    listed : bool
        Correct the labels of the lists that `import_review` made, and no others. Samples without a suggested class are dropped.

    Returns
    -------
    Federation

    Raises
    ------
    InputError
    """
    from fnlkit.audits.correct import correct, correct_listed

    if listed:
        record = provenance("correct", None, list=True, drop=drop)
        return correct_listed(read_inputs(federation).federation, drop=drop, provenance=record)[0]
    record = provenance("correct", None, above=above, drop=drop)
    return correct(read_inputs(federation).federation, above=above, drop=drop, provenance=record)[0]


@dataclass(frozen=True, kw_only=True)
class Reviewing:
    """Keywords of `export_review`; `fnlkit review export --help` describes those with a help text.

    Attributes
    ----------
    seed : int
    dataset : str, path or Dataset, optional
        Location of the samples. Default: the location recorded in the federation.
    say : callable(str) or None
    """

    budget: Count = option(200, "Number of samples to review.")
    at_random: float = option(0.2, "Share of randomly drawn samples that are not suspicious, to measure missed labels.")
    guarantee: float | None = option(
        None,
        "Draw the suspicious samples at random; `review import` then lists labels of which at most this share is right.",
        metavar="SHARE",
    )
    confidence: float | None = option(
        None, "Probability of the guarantee, such as 0.95. Default: it holds on average.", metavar="P"
    )
    reviewer_errors: float = option(
        0.0,
        "Largest probability with which the reviewer calls a right label wrong, independently of others; for `guarantee`.",
    )
    candidates: Count | None = option(
        None,
        "Number of samples with the highest scores from which the list is made. Default: 10 times the reviews, or the "
        "estimated number of wrong labels if it is larger; at most half of the samples.",
    )
    of_class: str | None = option(
        None, "Given class of all candidates, for a guarantee about one class of the site.", metavar="CLASS", flag="--class"
    )
    embeddings: FilePath | ArrayLike | None = option(
        None, "A file of vectors to find neighbors. Default: as `backbone`.", metavar="FILE"
    )
    backbone: str = option("auto", "Pretrained network to find neighbors, as for `fnlkit audit`.", metavar="SPEC")
    seed: int = 0
    dataset: Samples | None = None
    say: Say = print_note

    def choose(self, federation: Federation, client: int) -> Selection:
        """Choose the samples of a client's review."""
        sizes = {"budget": self.budget, "at_random": self.at_random, "seed": self.seed}
        if self.guarantee is None:
            if self.confidence is not None or self.reviewer_errors or self.candidates is not None or self.of_class is not None:
                needs = "`confidence`, `reviewer_errors`, `candidates` and `of_class` need `guarantee=Q`"
                raise InputError(f"{needs}, such as `guarantee=0.2`")
            return choose(federation, client, **sizes)
        label = None if self.of_class is None else class_of(federation, self.of_class)
        options = {"confidence": self.confidence, "errors": self.reviewer_errors, "candidates": self.candidates, "given": label}
        chosen = choose_guaranteed(federation, client, guarantee=self.guarantee, **options, **sizes)
        if self.say and chosen.design is not None and chosen.candidates is not None:
            self.say(describe_achievable(federation, client, chosen.design, chosen.candidates))
        if self.say and "group" in federation.extra and chosen.candidates is not None:
            count = count_groups(federation, chosen.candidates)
            self.say(
                f"the {len(chosen.candidates):,} candidates belong to {count:,} groups; the guarantee is about labels, "
                "and holds whatever the labels of a group have in common"
            )
        return chosen


def export_review(federation: Labels, client: str | int, folder: FilePath, **options: Any) -> Selection:
    """Write review.html and decisions.csv for a site and return the Selection.

    Both files contain suspicious samples and random samples of the site.  With `guarantee`, the suspicious samples are drawn at
    random from the candidates, and `import_review` makes a list of wrong labels with a bounded share of right labels.

    Parameters
    ----------
    federation : Federation, or path
        Federation with the result of `audit` or `estimate_noise`.
    client : str or int
        Name or number of the site.
    folder : path
        Created if it does not exist. An existing decisions.csv is never overwritten.
    **options
        Fields of `Reviewing`.

    Returns
    -------
    fnlkit.audits.suspects.Selection

    Raises
    ------
    InputError
    """
    review = Reviewing(**options)
    inputs = read_inputs(federation, review)
    federation = inputs.federation
    client = client_of(federation, str(client))
    folder, table = Path(folder), Path(folder) / "decisions.csv"
    if table.exists():
        raise InputError(f"{table} is there already and may hold decisions; choose another folder, or take it away first")
    chosen = review.choose(federation, client)
    data, vectors = inputs.checked, inputs.embeddings
    if vectors is None and inputs.encoded.features is not None:
        vectors = inputs.encoded.x_train
    held = np.sort(federation.whole().clients[client])
    points = points_of(data, held) if vectors is None else np.asarray(vectors[held])
    places = neighbors_of(points, np.searchsorted(held, chosen.positions), np.arange(len(held)))
    near = [held[neighbors] for neighbors in places]
    new, kept = not folder.exists(), (folder / "review.html").exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{display.plain(folder)}: {error.strerror}; name a folder", parameter="output") from error
    text = page.page(federation, data, client, chosen, near, federation.names[client])
    try:
        saving.write_bytes([text.encode()], folder / "review.html")
        saving.write_bytes([decisions.decision_template(federation, data, client, chosen, near).encode()], table)
    except (InputError, OSError):
        with suppress(OSError):  # files and folders of the user stay
            if not kept:
                (folder / "review.html").unlink(missing_ok=True)
            if new:
                folder.rmdir()
        raise
    return chosen


show_keywords(export_review, Reviewing)


def import_review(
    federation: Labels,
    table: FilePath,
    *,
    control: str | None = None,
    sample_column: str | None = None,
    dataset: Samples | None = None,
    when: str | None = None,
    say: Say = print_note,
) -> Federation:
    """Apply the decisions of a review to a federation.

    ``meta["reviews"][-1]`` records the decisions.

    Parameters
    ----------
    federation : Federation, or path
        Federation from which the review was exported.
    table : path
        Completed decisions.csv, or an export of Label Studio (.json, a choice per task) or CVAT (.xml, a tag per image), whose
        samples are found by id or path. Such an export can contain samples of several sites.
    control : str, optional
        Control of an export with the labels. Default: the one whose values are the classes.
    sample_column : str, optional
        Entry of an export that names the samples. Default: the only one that names a sample in every task.
    dataset : str, path or Dataset, optional
        Location of the samples. Default: the location recorded in the federation.
    when : str, optional
        Date of the record. Default: today.
    say : callable(str) or None

    Returns
    -------
    Federation

    Raises
    ------
    InputError
        If the table does not match the federation, or if no row contains a decision.
    """
    inputs, table = read_inputs(federation, dataset=dataset, say=say), os.fspath(table)
    federation, data = inputs.federation, inputs.checked
    if annotation_exports.is_export(table):
        reviews = annotation_exports.read_annotations(
            read_text(table), federation, table, control=control, sample_column=sample_column, say=say
        )
    elif control is not None or sample_column is not None:
        raise InputError(f"{table}: `control` and `sample_column` are for exports of annotation tools (.json, .xml)")
    else:
        reviews = [decisions.read_decisions(read_text(table), federation, data, table)]
    if reviews and not any(len(review.rows) for review in reviews):
        raise InputError(f"{table}: an earlier import has all of its decisions; name another table, or export the next review")
    if not sum(len(review.positions) for review in reviews):
        raise InputError(
            f"{table}: no row is decided yet; decide in review.html and put the decisions.csv that it saves in its place, or "
            "write keep, drop or relabel into the column decision, and the class of relabel into the column label"
        )
    record = provenance("review import", None, table=table, dataset=name_source(dataset))
    for i, review in enumerate(reviews):
        last = record if i == len(reviews) - 1 else None
        federation = decisions.decide(federation, review, when=when or date.today().isoformat(), provenance=last)
    return federation
