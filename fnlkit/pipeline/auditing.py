"""Audits of the sites of a federation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from fnlkit.artifacts import saving, shown
from fnlkit.artifacts.federation import PLAIN, TASKS, Federation
from fnlkit.artifacts.provenance import provenance
from fnlkit.errors import InputError
from fnlkit.estimators import DETECTORS
from fnlkit.estimators.apply import add_judgment
from fnlkit.pipeline.labels import check_settings, data_of, dataset_name, tell, to_federation
from fnlkit.pipeline.rows import rows_of
from fnlkit.pipeline.types import ArrayLike, FilePath, Labels, Progress, Samples, Say

if TYPE_CHECKING:
    import numpy as np
    import pandas

    from fnlkit.artifacts.stored import Stored
    from fnlkit.datasets.dataset import Dataset


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
    facts: dict[str, Any]
    dataset: Dataset | None = None

    def to_pandas(self) -> pandas.DataFrame:
        """Return a row per site, noisiest first.

        The columns contain the samples, the estimated share of wrong labels with its range, and the copies.

        Raises
        ------
        InputError
            If pandas is not installed.
        """
        return shown.frame([{"site": row["site"], **{name: row.get(name) for name in _AUDIT}} for row in self.facts["sites"]])

    def write_html(
        self, path: str | os.PathLike[str], judged: str | os.PathLike[str] = "judged.npz", *, pictures: int = 6
    ) -> None:
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
            from fnlkit.review.tasks.report import page as page_of_task

            page = page_of_task(self.facts, os.fspath(judged))
        else:
            from fnlkit.review import report

            suspects = {}
            if self.dataset is not None:
                suspects = report.first_suspects(self.federation, self.dataset, report.sites_of(self.facts), pictures)
            page = report.page(self.facts, os.fspath(judged), suspects)
        saving.write_bytes([page.encode()], os.fspath(path))

    def __repr__(self):
        return f"Audit: {self.facts['words']}"


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
        Class probabilities by your model, which was not trained on the sample. The probabilities replace the models of
        the other sites. The columns of a table are named after the classes.
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
        continues these models and returns the same result. Remove the folder afterwards.
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
    from fnlkit.review import report
    from fnlkit.review.audit import audit

    warm_up = {"rounds": rounds, "fraction": fraction, "model": model, **warm_up}
    check_settings(warm_up, "audit")
    federation = to_federation(federation, TASKS)
    if embeddings is not None and backbone not in ("auto", "none"):
        raise InputError(f"`backbone` {backbone}: `embeddings` are given; omit one of both")
    vectors, source = rows_of(embeddings, "embeddings", federation)
    given, of = rows_of(probabilities, "probabilities", federation)
    data = data_of(federation, dataset, say)
    if federation.task not in PLAIN and given is not None:
        raise InputError(f"`probabilities` is for labels that are classes, not for {federation.task}; omit it")
    if vectors is None:
        vectors, source = embed_for_audit(data, backbone, device=device, say=say, progress=progress)
    if federation.task not in PLAIN:
        if quick:
            raise InputError(f"`quick` is for labels that are classes, not for {federation.task}; omit it")
        return _audit_task(federation, data, vectors, folds=folds, seed=seed, say=say, dataset=dataset, source=source)
    if quick:
        if given is not None:
            raise InputError("`quick` computes its own probabilities from sums; omit `probabilities`")
        return _audit_quickly(federation, data, vectors, seed=seed, dataset=dataset, source=source)
    how: dict[str, Any] = {"folds": folds, "seed": seed, "warm_up": warm_up, "device": device, "say": say, "progress": progress}
    how["checkpoints"] = checkpoints
    found = audit(federation, data, embeddings=vectors, probabilities=given, detectors=tuple(detectors), **how)
    facts = report.facts(found, federation, data) | {"features": source, "probabilities": of}
    flagged, sure = found.judgment.flagged, found.judgment.confidence
    confident = 0 if sure is None else int((flagged & (sure >= CONFIDENT)).sum())
    facts["suggestions"] = {"all": int(flagged.sum()), "confident": confident}
    record = {
        "dataset": dataset_name(dataset),
        "embeddings": source,
        "probs": of,
        "detectors": ",".join(detectors),
        "folds": folds,
    }
    record = provenance("audit", seed, **record, **warm_up)
    how = {"estimator": "audit", "form": "federated", "sent": facts["sent"], "bytes_down": found.traffic.bytes_down}
    return Audited(add_judgment(federation, found.arrays(federation), provenance=record, facts=how), facts, data)


def _audit_quickly(federation, data, vectors, *, seed, dataset, source):
    """Return the Audited of an audit from sums."""
    from fnlkit.review import quick, report

    found = quick.quick_audit(federation, data, embeddings=vectors, seed=seed)
    facts = report.facts(found, federation, data, sends=quick.SENDS) | {"features": source, "probabilities": None}
    facts |= {"mode": quick.MODE, "digest": quick.digest(found.sites)}
    record = provenance("audit", seed, dataset=dataset_name(dataset), embeddings=source, quick=True)
    how = {"estimator": "audit", "form": "federated", "sent": facts["sent"], "bytes_down": found.traffic.bytes_down}
    return Audited(add_judgment(federation, found.arrays(federation), provenance=record, facts=how), facts, data)


def embed_for_audit(
    data: Dataset,
    backbone: str = "auto",
    *,
    device: str = "auto",
    say: Callable[[str], object] | None = tell,
    progress: Callable[[int, int, str], object] | None = None,
) -> tuple[np.ndarray | Stored | None, str | None]:
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
    from fnlkit.datasets.embed import LEAST_SIDE, embed_parts, find_pretrained, place_of, seconds_for
    from fnlkit.review.audit import duration

    say = say or (lambda text: None)
    if backbone == "auto":
        if data.kind != "image" or min(data.x_train.shape[1:3]) < LEAST_SIDE:
            return None, None
        backbone = find_pretrained()
        if backbone is None:
            say(
                f"labels of {data.name} are judged by networks trained on the images alone; pip install 'fnlkit[embed]' adds "
                "a pretrained network, which finds far more wrong labels on photographs"
            )
            return None, None
        say(f"labels are judged by features of {backbone}, a pretrained network; `backbone='none'` uses the images alone")
    if backbone == "none":
        return None, None
    place = place_of(data, backbone, device=device)
    if data.kind == "image" and not (place / "embeddings" / "done").exists():
        name = backbone.partition("(")[0]
        if name not in ("pixels", "pca") and len(data.x_train) > 32:
            seconds = seconds_for(data, backbone, device=device)
            say(f"features of {len(data.x_train):,} images take about {duration(seconds)}")
    place.mkdir(parents=True, exist_ok=True)
    count = None if progress is None else partial(_count_features, progress)
    parts = {"embeddings": data.x_train}
    return embed_parts(data, parts, backbone, device=device, progress=count, place=place)["embeddings"], backbone


def _audit_task(federation, data, vectors, *, folds, seed, say, dataset, source):
    """Return the Audited of labels that are no classes."""
    from fnlkit.review.tasks import audit, report

    sites, arrays, sent, traffic = audit.audit(federation, data, embeddings=vectors, folds=folds, seed=seed, say=say)
    record = provenance("audit", seed, dataset=dataset_name(dataset), embeddings=source, folds=folds)
    how = {"estimator": "audit", "form": "federated", "sent": sent, "bytes_down": traffic.bytes_down}
    return Audited(add_judgment(federation, arrays, provenance=record, facts=how), report.facts(sites, federation, sent))


def _count_features(progress, done, total):
    progress(done, total, "features")
