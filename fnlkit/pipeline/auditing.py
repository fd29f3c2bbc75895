"""Audits of the sites of a federation."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from fnlkit.artifacts import saving, shown
from fnlkit.artifacts.federation import PLAIN, TASKS, Federation
from fnlkit.artifacts.provenance import provenance
from fnlkit.components.options import keywords_of, pick
from fnlkit.errors import InputError
from fnlkit.estimators.apply import add_judgment
from fnlkit.experiment.settings import Settings
from fnlkit.pipeline.labels import check_settings, data_of, dataset_name, tell, to_federation
from fnlkit.pipeline.options import AuditOptions
from fnlkit.pipeline.rows import rows_of
from fnlkit.pipeline.types import Labels, Progress, Say

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
            from fnlkit.audits.tasks.report import page as page_of_task

            page = page_of_task(self.facts, os.fspath(judged))
        else:
            from fnlkit.audits import report

            suspects = {}
            if self.dataset is not None:
                suspects = report.first_suspects(self.federation, self.dataset, report.sites_of(self.facts), pictures)
            page = report.page(self.facts, os.fspath(judged), suspects)
        saving.write_bytes([page.encode()], os.fspath(path))

    def __repr__(self):
        return f"Audit: {self.facts['words']}"


@dataclass(frozen=True, kw_only=True)
class Auditing(AuditOptions):
    """Keywords of `audit` in addition to the settings of its training.

    Attributes
    ----------
    say : callable(str) or None
        Receives notes, the choice of features, the estimated time and the name of each model.
    progress : callable(done, total, what) or None
    """

    say: Say = tell
    progress: Progress = None


@dataclass(frozen=True, kw_only=True)
class _Keywords(Auditing, Settings):
    """All keywords of `audit`, for its signature."""

    method: str = "fedavg"


@keywords_of(_Keywords)
def audit(federation: Labels, **options: Any) -> Audited:
    """Estimate the wrong labels and the confused classes of each site, without true labels.

    Parameters
    ----------
    federation : Federation, or path
    **options
        Fields of `Auditing`: features, probabilities, detectors, the size of the models, ``say`` and ``progress``.
        `detectors` is a sequence of str. `embeddings` (n, d) and `probabilities` (n, C) can be paths or arrays; the columns of
        a DataFrame of probabilities are named after the classes. With `quick`, `detectors`, `folds`, `rounds`, `fraction` and
        `model` are not used. All other keywords are fields of fnlkit.experiment.Settings for the training, such as ``lr``.

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
    from fnlkit.audits import report
    from fnlkit.audits.audit import audit

    chosen = Auditing(**pick(Auditing, options))
    check_settings(options, "audit", [one.name for one in fields(Auditing)])
    warm_up = {"rounds": chosen.rounds, "fraction": chosen.fraction, "model": chosen.model, **options}
    seed, say = chosen.seed, chosen.say
    federation = to_federation(federation, TASKS)
    if chosen.embeddings is not None and chosen.backbone not in ("auto", "none"):
        raise InputError(f"`backbone` {chosen.backbone}: `embeddings` are given; omit one of both")
    vectors, source = rows_of(chosen.embeddings, "embeddings", federation)
    given, of = rows_of(chosen.probabilities, "probabilities", federation, say)
    data = data_of(federation, chosen.dataset, say)
    if federation.task not in PLAIN and given is not None:
        raise InputError(f"`probabilities` is for labels that are classes, not for {federation.task}; omit it")
    if vectors is None:
        vectors, source = embed_for_audit(data, chosen.backbone, device=chosen.device, say=say, progress=chosen.progress)
    if federation.task not in PLAIN:
        if chosen.quick:
            raise InputError(f"`quick` is for labels that are classes, not for {federation.task}; omit it")
        return _audit_task(
            federation, data, vectors, folds=chosen.folds, seed=seed, say=say, dataset=chosen.dataset, source=source
        )
    if chosen.quick:
        if given is not None:
            raise InputError("`quick` computes its own probabilities from sums; omit `probabilities`")
        return _audit_quickly(federation, data, vectors, seed=seed, dataset=chosen.dataset, source=source)
    names = ("folds", "seed", "device", "checkpoints", "say", "progress")
    how: dict[str, Any] = {name: getattr(chosen, name) for name in names} | {"warm_up": warm_up}
    found = audit(federation, data, embeddings=vectors, probabilities=given, detectors=tuple(chosen.detectors), **how)
    facts = report.facts(found, federation, data) | {"features": source, "probabilities": of}
    flagged, sure = found.judgment.flagged, found.judgment.confidence
    confident = 0 if sure is None else int((flagged & (sure >= CONFIDENT)).sum())
    facts["suggestions"] = {"all": int(flagged.sum()), "confident": confident}
    record = {
        "dataset": dataset_name(chosen.dataset),
        "embeddings": source,
        "probs": of,
        "detectors": ",".join(chosen.detectors),
        "folds": chosen.folds,
    }
    record = provenance("audit", seed, **record, **warm_up)
    how = {"estimator": "audit", "form": "federated", "sent": facts["sent"], "bytes_down": found.traffic.bytes_down}
    return Audited(add_judgment(federation, found.arrays(federation), provenance=record, facts=how), facts, data)


def _audit_quickly(federation, data, vectors, *, seed, dataset, source):
    """Return the Audited of an audit from sums."""
    from fnlkit.audits import quick, report

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
    from fnlkit.audits.audit import duration
    from fnlkit.datasets.embed import LEAST_SIDE, embed_parts, find_pretrained, place_of, seconds_for

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
    from fnlkit.audits.tasks import audit, report

    sites, arrays, sent, traffic = audit.audit(federation, data, embeddings=vectors, folds=folds, seed=seed, say=say)
    record = provenance("audit", seed, dataset=dataset_name(dataset), embeddings=source, folds=folds)
    how = {"estimator": "audit", "form": "federated", "sent": sent, "bytes_down": traffic.bytes_down}
    return Audited(add_judgment(federation, arrays, provenance=record, facts=how), report.facts(sites, federation, sent))


def _count_features(progress, done, total):
    progress(done, total, "features")
