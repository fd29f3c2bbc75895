"""Audits, reviews and corrections from Python, and the functions behind the commands."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Literal, TypeGuard

import numpy as np

from fnlkit.artifacts import saving, shown
from fnlkit.artifacts.federation import PLAIN, TASKS, Federation
from fnlkit.artifacts.provenance import provenance
from fnlkit.artifacts.sheets import Sheet
from fnlkit.errors import InputError
from fnlkit.estimators import DETECTORS
from fnlkit.pipeline.labels import data_of, known_settings, named, read, tell
from fnlkit.pipeline.types import ArrayLike, FilePath, Labels, Progress, Samples, Say
from fnlkit.review.suspects import Selection

# Suggested labels with at least this confidence are counted.
CONFIDENT = 0.8
_AUDIT = ("samples", "finding", "level", "low", "high", "p", "noisier", "copies", "near_copies", "far", "unlabeled")


@dataclass
class Audited:
    """Result of an audit.

    Attributes
    ----------
    federation : fnlkit.artifacts.federation.Federation
        Federation with the issue score of every sample, for `suspects`, `correct` and `export_review`.
    facts : dict
        Object printed by `fnlkit audit --json`.
    dataset : fnlkit.datasets.Dataset or None
        None if the samples are at real sites.
    """

    federation: Federation
    facts: dict[str, object]
    dataset: object = None

    def to_pandas(self):
        """Return a row per site, noisiest first.

        The columns contain the samples, the estimated share of wrong labels with its range, and the copies.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        return shown.frame([{"site": row["site"], **{name: row.get(name) for name in _AUDIT}} for row in self.facts["sites"]])

    def write_html(self, path, judged="judged.npz", *, pictures=6):
        """Write the page of `fnlkit audit --html`.

        Parameters
        ----------
        path : path
        judged : path
            File that the command shown as the next step reads.
        pictures : int
            Number of suspicious images or sounds of each noisy site on the page. Samples at real sites are not shown.
        """
        if "labels_are" in self.facts:
            from fnlkit.review.tasks import report

            page = report.page(self.facts, os.fspath(judged))
        else:
            from fnlkit.review import report

            suspects = {}
            if self.dataset is not None:
                suspects = report.first_suspects(self.federation, self.dataset, self.facts["sites"], pictures)
            page = report.page(self.facts, os.fspath(judged), suspects)
        saving.write_bytes([page.encode()], os.fspath(path))

    def __repr__(self):
        return f"Audit: {self.facts['words']}"


@dataclass
class Agreed:
    """Result of `consensus`.

    Attributes
    ----------
    federation : fnlkit.artifacts.federation.Federation
        Federation with the consensus labels as given labels.
    method : str
    annotators : list of str
    sites : list of dict
        An entry per site: site, samples, voted, alpha, kappa, changed, votes, accuracies; see
        `fnlkit.review.consensus.consensus`.
    """

    federation: Federation
    method: str
    annotators: list[str]
    sites: list[dict[str, object]]

    def to_pandas(self):
        """Return a row per site.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        return shown.frame([{k: v for k, v in row.items() if k not in ("votes", "accuracies")} for row in self.sites])

    def quality(self):
        """Return a dict per site and annotator: site, annotator, votes, and accuracy (None without an estimate)."""
        return [
            {"site": row["site"], "annotator": name, "votes": number, "accuracy": row.get("accuracies", {}).get(name)}
            for row in self.sites
            for name, number in row.get("votes", {}).items()
        ]


def audit(
    federation: Labels,
    *,
    embeddings: FilePath | ArrayLike | None = None,
    backbone: str = "auto",
    probabilities: FilePath | ArrayLike | None = None,
    detectors: Sequence[str] = DETECTORS,
    folds: int = 5,
    seed: int = 0,
    dataset: Samples | None = None,
    device: str = "auto",
    rounds: int = 25,
    fraction: float = 1.0,
    model: str = "auto",
    quick: bool = False,
    checkpoints: FilePath | None = None,
    say: Say = tell,
    progress: Progress = None,
    **warm_up: object,
) -> Audited:
    """Estimate the wrong labels and the confused classes of each site, without true labels.

    Parameters
    ----------
    federation : Federation, or path
    embeddings : path or array (n, d), optional
        A vector per training sample: the features by which models judge labels, also to find outliers and near duplicates.
    backbone : str
        Network that computes the embeddings if there are none, as for `fnlkit embed`. "auto": a pretrained network for images
        of 64 pixels and more, if its weights are on this machine. "none": the samples themselves.
    probabilities : path, array (n, C) or DataFrame, optional
        Class probabilities by your own model, which did not train on the sample; they replace the models of the other
        sites. The columns of a table are named after the classes.
    detectors : sequence of str
        Further detectors that flag samples, to compare them: confident, knn, aum.
    folds : int >= 2
        Number of models. Each model is trained without the sites for which it computes scores.
    seed : int
    dataset : str, path or Dataset, optional
        Location of the samples. Default: the location recorded in the federation.
    device : str
        As for `train`.
    rounds : int
        Rounds of training of each model.
    fraction : float in (0, 1]
        Share of the sites that train in each round.
    model : str
        Name of the network, as for `train`.
    quick : bool
        Audit from sums instead of trained models: the sites compute class sums once and counts once, as in `fnlkit site
        summarize` and `fnlkit site judge`, with equal results. Copies and outliers are not searched, and `detectors`, `folds`,
        `rounds`, `fraction` and `model` are not used.
    checkpoints : path, optional
        Folder in which trained models are saved during the audit. After an interruption, an audit with equal arguments
        continues them and returns the same result. Remove the folder afterwards.
    say : callable(str) or None
        Receives notes, the choice of features, the estimated time and the name of each model.
    progress : callable(done, total, what) or None
    **warm_up
        Other fields of fnlkit.experiment.Settings for the training, such as ``lr``.

    Returns
    -------
    Audited

    Raises
    ------
    InputError

    Examples
    --------
    >>> import fnlkit
    >>> fed = fnlkit.partition("digits", clients=3, labels="observed")
    >>> found = fnlkit.audit(fed, folds=2, rounds=1, say=None)
    >>> len(found.facts["sites"])
    3
    """
    from fnlkit.estimators.apply import judged
    from fnlkit.review import report
    from fnlkit.review.audit import audit

    warm_up = {"rounds": rounds, "fraction": fraction, "model": model, **warm_up}
    known_settings(warm_up, "audit")
    federation = read(federation, TASKS)
    if embeddings is not None and backbone not in ("auto", "none"):
        raise InputError(f"--backbone {backbone}: --embeddings are given; omit one of both")
    vectors, source = _rows(embeddings, "embeddings", federation)
    given, of = _rows(probabilities, "probabilities", federation)
    data = data_of(federation, dataset, say)
    if federation.task not in PLAIN and given is not None:
        raise InputError(f"--probs is for labels that are classes, not for {federation.task}; omit it")
    if vectors is None:
        vectors, source = embedded(data, backbone, device=device, say=say, progress=progress)
    if federation.task not in PLAIN:
        if quick:
            raise InputError(f"--quick is for labels that are classes, not for {federation.task}; omit it")
        return _audit_task(federation, data, vectors, folds=folds, seed=seed, say=say, dataset=dataset, source=source)
    if quick:
        if given is not None:
            raise InputError("--quick computes its own probabilities from sums; omit --probs")
        return _audit_quickly(federation, data, vectors, seed=seed, dataset=dataset, source=source)
    how = {"folds": folds, "seed": seed, "warm_up": warm_up, "device": device, "say": say, "progress": progress}
    how["checkpoints"] = checkpoints
    found = audit(federation, data, embeddings=vectors, probabilities=given, detectors=tuple(detectors), **how)
    facts = report.facts(found, federation, data) | {"features": source, "probabilities": of}
    flagged, sure = found.judgment.flagged, found.judgment.confidence
    facts["suggestions"] = {"all": int(flagged.sum()), "confident": int((flagged & (sure >= CONFIDENT)).sum())}
    record = {"dataset": named(dataset), "embeddings": source, "probs": of, "detectors": ",".join(detectors), "folds": folds}
    record = provenance("audit", seed, **record, **warm_up)
    how = {"estimator": "audit", "form": "federated", "sent": facts["sent"], "bytes_down": found.traffic.bytes_down}
    return Audited(judged(federation, found.arrays(federation), provenance=record, facts=how), facts, data)


def _audit_quickly(federation, data, vectors, *, seed, dataset, source):
    """Return the Audited of an audit from sums."""
    from fnlkit.estimators.apply import judged
    from fnlkit.review import quick, report

    found = quick.quick_audit(federation, data, embeddings=vectors, seed=seed)
    facts = report.facts(found, federation, data, sends=quick.SENDS) | {"features": source, "probabilities": None}
    facts |= {"mode": quick.MODE, "digest": quick.digest(found.sites)}
    record = provenance("audit", seed, dataset=named(dataset), embeddings=source, quick=True)
    how = {"estimator": "audit", "form": "federated", "sent": facts["sent"], "bytes_down": found.traffic.bytes_down}
    return Audited(judged(federation, found.arrays(federation), provenance=record, facts=how), facts, data)


def embedded(data, backbone="auto", *, device="auto", say=tell, progress=None):
    """Return (embeddings (n, d) or None, spec of the backbone or None) for an audit.

    Finished batches stay in the cache folder, so that a repeated audit reads them.

    Parameters
    ----------
    data : fnlkit.datasets.Dataset
    backbone : str
        As for `audit`.
    device : str
    say : callable(str) or None
    progress : callable(done, total, what) or None
    """
    from fnlkit.datasets.embed import LEAST_SIDE, embed_parts, place_of, pretrained, seconds_for
    from fnlkit.review.audit import duration

    say = say or (lambda text: None)
    if backbone == "auto":
        if data.kind != "image" or min(data.x_train.shape[1:3]) < LEAST_SIDE:
            return None, None
        backbone = pretrained()
        if backbone is None:
            say(
                f"labels of {data.name} are judged by networks trained on the images alone; pip install 'fnlkit[embed]' adds "
                "a pretrained network, which finds far more wrong labels on photographs"
            )
            return None, None
        say(f"labels are judged by features of {backbone}, a pretrained network; --backbone none uses the images alone")
    if backbone == "none":
        return None, None
    place = place_of(data, backbone, device=device)
    if data.kind == "image" and not (place / "embeddings" / "done").exists():
        name = backbone.partition("(")[0]
        if name not in ("pixels", "pca") and len(data.x_train) > 32:
            seconds = seconds_for(data, backbone, device=device)
            say(f"features of {len(data.x_train):,} images take about {duration(seconds)}")
    place.mkdir(parents=True, exist_ok=True)
    count = progress and (lambda done, total: progress(done, total, "features"))
    parts = {"embeddings": data.x_train}
    return embed_parts(data, parts, backbone, device=device, progress=count, place=place)["embeddings"], backbone


def _audit_task(federation, data, vectors, *, folds, seed, say, dataset, source):
    """Return the Audited of labels that are no classes."""
    from fnlkit.estimators.apply import judged
    from fnlkit.review.tasks import audit, report

    sites, arrays, sent, traffic = audit.audit(federation, data, embeddings=vectors, folds=folds, seed=seed, say=say)
    record = provenance("audit", seed, dataset=named(dataset), embeddings=source, folds=folds)
    how = {"estimator": "audit", "form": "federated", "sent": sent, "bytes_down": traffic.bytes_down}
    return Audited(judged(federation, arrays, provenance=record, facts=how), report.facts(sites, federation, sent))


def suspects(federation: Labels, *, every: bool = False) -> Sheet:
    """Return all samples flagged by an audit or by estimate-noise, most suspicious first.

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
    from fnlkit.review.listing import suspects

    return suspects(read(federation, TASKS), every=every)


def cleaned(federation: Labels) -> Sheet:
    """Return the current labels of all samples next to the labels as received.

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
    from fnlkit.review.listing import cleaned

    return cleaned(read(federation, TASKS))


def correct(federation: Labels, *, above: float = 0.9, drop: bool = False, listed: bool = False) -> Federation:
    """Replace flagged labels with a high issue score by the suggested labels, or drop them.

    With `listed`, correct exactly the labels of the lists with a guarantee.  Reviewed labels do not change.
    ``meta["corrections"][-1]`` counts the flagged, changed and dropped samples.

    Parameters
    ----------
    federation : Federation, or path
        Federation with the result of `audit` or `estimate_noise`.
    above : float in [0, 1]
        Smallest issue score at which a label is changed.
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
    from fnlkit.review.correct import correct, correct_listed

    if listed:
        record = provenance("correct", None, list=True, drop=drop)
        return correct_listed(read(federation, TASKS), drop=drop, provenance=record)[0]
    record = provenance("correct", None, above=above, drop=drop)
    return correct(read(federation, TASKS), above=above, drop=drop, provenance=record)[0]


def consensus(
    federation: Labels,
    votes: FilePath | ArrayLike | None = None,
    method: Literal["majority", "dawid-skene", "crowdlab"] = "dawid-skene",
    *,
    annotators: Sequence[str] | None = None,
    probabilities: FilePath | ArrayLike | None = None,
) -> Agreed:
    """Return the federation with the consensus of several annotators as given labels.

    The consensus is computed separately for each site.

    Parameters
    ----------
    federation : Federation, or path
    votes : path or int array (n, A), optional
        A table or npz as for `fnlkit consensus`. In an array, -1 means that the annotator did not vote. Default: the votes that
        `partition` saved in the federation, or the rows of a federation with a row per vote.
    method : "majority", "dawid-skene" or "crowdlab"
    annotators : list of A str, optional
        Names of the columns of an array.
    probabilities : path or array (n, C), optional
        Class probabilities of a model that was not trained on the samples, for crowdlab.

    Returns
    -------
    Agreed

    Raises
    ------
    InputError
    """
    from fnlkit.review.consensus import consensus, consensus_of_rows, own_votes, read_votes

    federation = read(federation)
    if votes is None:
        record = provenance("consensus", None, votes="of the federation", method=method)
        if "sample_of" in federation.extra:
            out, sites = consensus_of_rows(federation, method, provenance=record)
            return Agreed(out, method, list(out.meta["consensus"][-1]["annotators"]), sites)
        votes, annotators = own_votes(federation)
    source = os.fspath(votes) if _is_path(votes) else "array in memory"
    if _is_path(votes):
        votes, annotators = read_votes(source, federation)
    rows, of = _rows(probabilities, "probabilities", federation)
    record = provenance("consensus", None, votes=source, method=method, probs=of)
    out, sites = consensus(federation, votes, method, annotators=annotators, probabilities=rows, provenance=record)
    return Agreed(out, method, list(out.meta["consensus"][-1]["annotators"]), sites)


def export_review(
    federation: Labels,
    client: str | int,
    folder: FilePath,
    *,
    budget: int = 200,
    at_random: float = 0.2,
    guarantee: float | None = None,
    confidence: float | None = None,
    reviewer_errors: float = 0.0,
    candidates: int | None = None,
    of_class: str | None = None,
    embeddings: FilePath | ArrayLike | None = None,
    seed: int = 0,
    dataset: Samples | None = None,
    say: Say = tell,
) -> Selection:
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
    budget : int >= 1
        Number of samples.
    at_random : float in [0, 1]
        Share of these samples that is drawn from the samples that are not suspicious.
    guarantee : float in (0, 1), optional
        Largest share of right labels in the list.
    confidence : float in (0, 1), optional
        Probability with which the guarantee holds. Default: it holds on average over the random draw of the review.
    reviewer_errors : float in [0, 1)
        Largest probability with which the reviewer calls a right label wrong, independently of other labels.
    candidates : int, optional
        Number of samples with the highest scores from which the list is made. Default: 10 times the reviews, or the estimated
        number of wrong labels if it is larger; at most half of the samples.
    of_class : str, optional
        Given class of all candidates: the guarantee is then about this class of the site. Default: all classes.
    embeddings : path or array (n, d), optional
        A vector per training sample, for the search of neighbors. Default: the samples themselves.
    seed : int
    dataset : str, path or Dataset, optional
        Location of the samples. Default: the location recorded in the federation.
    say : callable(str) or None

    Returns
    -------
    fnlkit.review.suspects.Selection

    Raises
    ------
    InputError
    """
    from fnlkit.review import decisions, page
    from fnlkit.review.suspects import choose, choose_guaranteed, class_of, client_of, neighbors_of, points_of

    federation = read(federation, TASKS)
    client = client_of(federation, str(client))
    sizes = {"budget": budget, "at_random": at_random, "seed": seed}
    if guarantee is None:
        if confidence is not None or reviewer_errors or candidates is not None or of_class is not None:
            needs = "--confidence, --reviewer-errors, --candidates and --class need --guarantee Q"
            raise InputError(f"{needs}, such as --guarantee 0.2")
        chosen = choose(federation, client, **sizes)
    else:
        given = None if of_class is None else class_of(federation, of_class)
        options = {"confidence": confidence, "errors": reviewer_errors, "candidates": candidates, "given": given}
        chosen = choose_guaranteed(federation, client, guarantee=guarantee, **options, **sizes)
    vectors, _ = _rows(embeddings, "embeddings", federation)
    data = data_of(federation, dataset, say)
    held = np.sort(federation.whole().clients[client])
    points = points_of(data, held) if vectors is None else np.asarray(vectors[held])
    places = neighbors_of(points, np.searchsorted(held, chosen.positions), np.arange(len(held)))
    near = [held[found] for found in places]
    folder, table = Path(folder), Path(folder) / "decisions.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"-o {shown.plain(folder)}: {error.strerror}; name a folder") from error
    if table.exists():
        raise InputError(f"{table} is there already and may hold decisions; choose another folder, or take it away first")
    text = page.page(federation, data, client, chosen, near, federation.names[client])
    saving.write_bytes([text.encode()], folder / "review.html")
    saving.write_bytes([decisions.table(federation, data, client, chosen, near).encode()], table)
    return chosen


def plan_reviews(
    federation: Labels,
    budget: int = 500,
    *,
    guarantee: float = 0.2,
    for_ranges: float = 0.0,
    dataset: Samples | None = None,
    seed: int = 0,
    say: Say = tell,
) -> Sheet:
    """Return a Sheet that divides a number of decisions among sites, classes and purposes.

    Columns: site, class, purpose (find, certify, range), reviews, expected_found, expected_listed, and on the first row of a
    site expected_wrong (now) and expected_wrong_after (shares of the site's labels). The last row, `all`, has the expected gain
    of accuracy of a simple model.

    Parameters
    ----------
    federation : Federation, or path
        Federation with the result of `audit` or `estimate_noise`; labels are classes.
    budget : int >= 1
    guarantee : float in (0, 1)
        Largest share of right labels in the lists of the purpose certify.
    for_ranges : float in [0, 1]
        Share of the budget to narrow the ranges of all sites.
    dataset : str, path or Dataset, optional
        Location of the samples. Default: the location recorded in the federation.
    seed : int
    say : callable(str) or None

    Returns
    -------
    fnlkit.artifacts.sheets.Sheet
        With `write`, `csv` and `to_pandas`.

    Raises
    ------
    InputError
    """
    from fnlkit.review.plans import plan

    federation = read(federation)
    return plan(federation, data_of(federation, dataset, say), budget, q=guarantee, ranges=for_ranges, seed=seed)


def import_review(
    federation: Labels,
    table: FilePath,
    *,
    dataset: Samples | None = None,
    when: str | None = None,
    say: Say = tell,
) -> Federation:
    """Return the federation with the decisions of a review applied.

    ``meta["reviews"][-1]`` records the decisions.

    Parameters
    ----------
    federation : Federation, or path
        Federation from which the review was exported.
    table : path
        Completed decisions.csv, or an export of Label Studio (.json, a choice per task) or CVAT (.xml, a tag per image), whose
        samples are found by id or path. Such an export can contain samples of several sites.
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
    from fnlkit.datasets.table import read_text
    from fnlkit.review import decisions, exchange

    federation, table = read(federation, TASKS), os.fspath(table)
    data = data_of(federation, dataset, say)
    if exchange.is_export(table):
        found = exchange.read(read_text(table), federation, data, table)
    else:
        found = [decisions.read(read_text(table), federation, data, table)]
    if not sum(len(one.positions) for one in found):
        raise InputError(
            f"{table}: no row is decided yet; decide in review.html and put the decisions.csv that it saves in its place, or "
            "write keep, drop or relabel into the column decision, and the class of relabel into the column label"
        )
    record = provenance("review import", None, table=table, dataset=named(dataset))
    for i, one in enumerate(found):
        last = record if i == len(found) - 1 else None
        federation = decisions.decide(federation, one, when=when or date.today().isoformat(), provenance=last)
    return federation


def _is_path(value: object) -> TypeGuard[FilePath]:
    return isinstance(value, (str, os.PathLike))


def _rows(value, name, federation):
    """Return (rows or None, name of the source in the provenance)."""
    from fnlkit.estimators.rows import read_rows

    if name == "probabilities" and hasattr(value, "columns"):
        from fnlkit.estimators.rows import of_table

        columns = {str(column): value[column].tolist() for column in value.columns}
        return of_table(columns, federation, "`probabilities`"), "DataFrame in memory"
    if value is None or not _is_path(value):
        return value, None if value is None else f"{type(value).__name__} in memory"
    return read_rows(os.fspath(value), name, federation), os.fspath(value)
