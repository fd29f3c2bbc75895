"""Audit of the sites of a federation from sums: noise levels, confusions, suspicious samples, copies and outliers.

The steps of fnlkit.audits.site run for one site after another, and those of fnlkit.audits.server between them.  Two messages
leave a site (fnlkit.audits.messages): sums of its samples, and counts by a classifier from the sums of the other sites.
Results by sample stay at the site.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fnlkit.artifacts.exchange import Traffic
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.records import to_json
from fnlkit.artifacts.stored import Rows
from fnlkit.audits import crowd, private, rounding
from fnlkit.audits.changes import possible
from fnlkit.audits.designs import describe_last
from fnlkit.audits.messages import scale_of
from fnlkit.audits.records import SiteAudit
from fnlkit.audits.reviews import read_guaranteed_reviews
from fnlkit.audits.server import conclusion, heads
from fnlkit.audits.server import private as noisy_sums
from fnlkit.audits.server.results import Names
from fnlkit.audits.server.verdict import AGREES, UNKNOWN, WRONG
from fnlkit.audits.site import judging, summaries
from fnlkit.audits.site import private as noisy_site
from fnlkit.audits.site.copies import Found
from fnlkit.audits.site.samples import Samples
from fnlkit.audits.suspects import find_reviewed
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.datasets.dataset import Dataset, must_be
from fnlkit.datasets.groups import of_federation
from fnlkit.estimators import DETECTORS
from fnlkit.estimators.judgment import PREFIX, Judgment
from fnlkit.federated.client.scaling import moments_of_known, pool_moments
from fnlkit.kernels.scores import transition
from fnlkit.kernels.streams import stream

ASSUMPTIONS = (
    "most sites are nearly clean, and their errors are not shared: labels that are wrong in the same way at most "
    "sites count as right",
    "whether a label is wrong depends on the class and not on the sample",
    "the samples of a class look alike at all sites whose inputs do not differ",
    "at least one site is nearly clean: the classifier makes no more confident mistakes than this site's interval permits",
)
# Detectors without a training, which flag samples by default.
USUAL = ("confident", "knn")


@dataclass
class Audit:
    """Results of an audit.

    Attributes
    ----------
    sites : list of fnlkit.audits.records.SiteAudit
        One per site, those with wrong labels first.
    transition : (C, C)
        T[true, given] over the sites with an estimated level, or over all if there is none; rows sum to 1.
    judgment : Judgment
        Of every sample, in the order of the clients of `Federation.whole`; it stays on the sites in a deployment.
    copy_of : int64 (m,)
        In the same order: if the sample is an exact or near copy, the training-set position of the original at the same site;
        otherwise -1.
    far : bool (m,)
        In the same order: whether the sample is far from all others of the site.
    detected : dict of str to bool (m,)
        In the same order, by detector: whether it flags the sample.
    traffic : fnlkit.artifacts.exchange.Traffic
    notes : list of str
    """

    sites: list[SiteAudit]
    transition: np.ndarray
    judgment: Judgment
    copy_of: np.ndarray
    far: np.ndarray
    detected: dict[str, np.ndarray]
    traffic: Traffic
    notes: list[str] = field(default_factory=list)

    def arrays(self, federation: Federation) -> dict[str, Any]:
        """Collect the results per sample, by name, over the whole training set (n,), and the estimates of clients.

        Parameters
        ----------
        federation : fnlkit.artifacts.federation.Federation
            The audited federation.
        """
        whole = federation.whole()
        copy_of, far = np.full(len(whole.given), -1), np.zeros(len(whole.given), bool)
        copy_of[whole.client_indices], far[whole.client_indices] = self.copy_of, self.far
        by = {f"{PREFIX}by_{name}": np.zeros(len(whole.given), bool) for name in self.detected}
        for name, flagged in self.detected.items():
            by[f"{PREFIX}by_{name}"][whole.client_indices] = flagged
        judged = np.zeros(len(whole), bool)
        judged[[row.client for row in self.sites if row.level is not None]] = True
        more = {f"{PREFIX}copy_of": copy_of, f"{PREFIX}far": far, f"{PREFIX}judged": judged}
        return self.judgment.arrays(whole) | more | by


def digest(rows: list[SiteAudit]) -> str:
    """Identify an audit by the SHA-256 of its rows."""
    return hashlib.sha256(json.dumps(to_json(rows), sort_keys=True).encode()).hexdigest()


def traffic_of(*messages) -> Traffic:
    """Count the Traffic of sites that send these arrays.

    Parameters
    ----------
    *messages : list of dict of arrays
        One dict per site.
    """
    traffic = Traffic()
    for arrays in (arrays for sites in messages for arrays in sites):
        for name, values in arrays.items():
            traffic.received(name, np.asarray(values).nbytes)
    return traffic


def audit(
    federation: Federation,
    dataset: Dataset,
    *,
    embeddings: np.ndarray | Rows | None = None,
    probabilities: np.ndarray | Rows | None = None,
    detectors: Sequence[str] = USUAL,
    scale: tuple[np.ndarray, np.ndarray] | None = None,
    epsilon: float | None = None,
    delta: float = private.DELTA,
    seed: int = 0,
    progress: Callable[..., Any] | None = None,
) -> Audit:
    """Audit a federation's given labels; true labels are not needed.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    embeddings : float (n, D), optional
        The classifiers judge labels by these features instead of the samples; also for copies and distances. Samples are
        still compared between sites, to name differences of the inputs.
    probabilities : float (n, C), optional
        Class probabilities by a model that did not train on the sample. They replace the classifiers of the other sites.
    detectors : sequence of str
        Names in fnlkit.estimators.DETECTORS that flag samples next to `em`.
    scale : (mean (d,), std (d,)), optional
        Of the columns of a table. Default: from sums of the sites.
    epsilon, delta : float, optional
        Simulate sums with noise (fnlkit.audits.private). The scale is not part of this cost. Default: no noise.
    seed : int
    progress : callable(done, total, what), optional

    Raises
    ------
    InputError
        If there are fewer than two sites or classes, or a detector is unknown.
    """
    if len(federation) < 2:
        raise InputError(f"an audit compares at least 2 sites, found {len(federation)}; estimate-noise judges a single site")
    if federation.classes < 2:
        raise InputError(f"an audit compares at least 2 classes, found {federation.classes}")
    for name in detectors:
        if name not in DETECTORS:
            known = ", ".join(DETECTORS)
            raise InputError(f"{name}: unknown{nearest(name, DETECTORS)}; the detectors are {known}", parameter="detectors")
    must_be(dataset, federation.meta, len(federation.given), what="the federation")
    whole, step = federation.whole(), progress or (lambda done, total, what: None)
    shared = probabilities is None and epsilon is None and crowd.count_shared(whole)[0] > 0
    sites = samples_of(whole, dataset, embedding=embeddings, probabilities=probabilities, groups=of_federation(whole))
    moments: list[dict[str, np.ndarray]] = []
    if embeddings is None and dataset.kind == "vector" and dataset.features is None and scale is None:
        scales = [moments_of_known(site.x) for site in sites]
        moments = [dict(zip(("known", "total", "squares"), scale_of_site, strict=True)) for scale_of_site in scales]
        scale = pool_moments(scales)
    scale = scale and scale_of(*scale)
    changes = possible(dataset.kind, dataset.x_train.shape[1:])
    named = Names(whole.names, list(map(str, dataset.class_names)), dataset.columns)
    if epsilon is not None:
        return _audit_protected(sites, whole, named, scale, seed, epsilon=epsilon, delta=delta)
    if shared:
        for site, p in zip(sites, crowd.judge_together(sites), strict=True):
            site.probabilities = p
    firsts = [summaries.summarize(site, scale) for site in sites]
    message = heads.make_heads(firsts, scale)
    seconds = []
    for k, site in enumerate(sites):
        step(k, len(sites), "sites")
        seconds.append(judging.judge(site, message, k, changes=changes, seed=seed, detectors=detectors))
    step(len(sites), len(sites), "sites")
    rows, T = conclusion.conclude(
        firsts, message, seconds, changes=changes, named=named, embedded=embeddings is not None, shared=shared,
        searched=_describe_samples(sites, whole),
    )  # fmt: skip
    held = zip(seconds, firsts, strict=True)
    counts = np.stack([rounding.restore_table(s["expected"], s["expected_wrong"], first["counts"]) for s, first in held])
    estimates = conclusion.range_of(seconds, counts)
    rows_of = sorted(rows, key=lambda row: row.client)
    low, high = np.array([row.low for row in rows_of]), np.array([row.high for row in rows_of])
    judged = [row.client for row in rows_of if row.level is not None]
    T = transition(counts[judged].sum(0)) if judged else T
    ends = np.clip(estimates["level"], low, high), low, high
    traffic = traffic_of(moments, firsts, seconds)
    traffic.broadcast(sum(np.asarray(values).nbytes for values in message.values()) * len(sites))
    _limit_suggestions(sites, rows_of)
    rows = [replace(row, **_count_flags(sites[row.client], ("em", *detectors))) for row in rows]
    notes = _note_groups(whole.names, firsts)
    return _audit(sites, whole, rows, T, ends, counts, traffic, ("em", *detectors), notes)


def samples_of(
    whole: Federation,
    dataset: Dataset,
    *,
    embedding: np.ndarray | Rows | None = None,
    probabilities: np.ndarray | Rows | None = None,
    groups: np.ndarray | None = None,
) -> list[Samples]:
    """Collect the Samples of each client of a federation; sounds are log-mel spectrograms.

    Parameters
    ----------
    whole : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    embedding, probabilities, groups : (n, ...), optional
        Rows of the training set.
    """
    x: Any = dataset.x_train
    if dataset.kind == "wave":
        from fnlkit.federated.client.inputs import intake

        x = intake(dataset)[0]
    reviewed, samples = find_reviewed(whole), []
    for k, held in enumerate(whole.clients):
        emb, p, of = (None if part is None else np.asarray(part[held]) for part in (embedding, probabilities, groups))
        labels = np.asarray(whole.given, np.int64)[held]
        known = reviewed[held] if reviewed[held].any() else None
        samples.append(Samples(np.asarray(x[held]), labels, whole.classes, dataset.kind == "image", k, emb, p, of, known))
    return samples


def _limit_suggestions(sites, rows):
    """Keep at most as many suggestions at each site as its estimated level supports; scores remain as an order for a review."""
    mistakes = min((row.high for row in rows if row.judge == "others"), default=1.0)
    for site, row in zip(sites, rows, strict=True):
        most = int(len(site) * supported_share(row, mistakes))
        flagged = site.kept["flagged"]
        dropped = np.flatnonzero(flagged)[np.argsort(-site.kept["issue"][flagged], kind="stable")][most:]
        for name, values in (("flagged", False), ("by_em", False), ("guess", site.y[dropped])):
            site.kept[name][dropped] = values
        site.kept["confidence"][dropped] = 1 - site.kept["issue"][dropped]


def supported_share(row: SiteAudit, mistakes: float) -> float:
    """Largest share of a site's labels for which the audit supports suggestions.

    At a site with wrong labels, and where only mistakes that all sites share prevent a finding, it is the upper end of the
    range.  A site that agrees with the others has as many suggestions as its level exceeds the mistakes of the models.

    Parameters
    ----------
    row : SiteAudit
    mistakes : float
        Share of mistakes of the models of the others: the smallest upper end of all sites that they judge.
    """
    if row.finding == WRONG or (row.finding == UNKNOWN and row.judge == "others" and not row.contradicted):
        return row.high
    return max(0.0, row.level - mistakes) if row.finding == AGREES and row.level is not None else 0.0


def _describe_samples(sites, whole):
    """List the entries of SiteAudit about the samples of each site, as dicts."""
    reviews = {review.client: [describe_last(review.guarantee)] for review in read_guaranteed_reviews(whole)}
    entries = []
    for k, (site, unlabeled) in enumerate(zip(sites, whole.meta.get("client_unlabeled", [0] * len(whole)), strict=True)):
        found = Found(site.kept["copy_of"], site.kept["near"], site.kept["far"])
        entries.append({**found.counts, "unlabeled": int(unlabeled), "words": reviews.get(k, [])})
    return entries


def _count_flags(site, detectors):
    """Count the samples of a site that each detector flags, and that so many detectors flag."""
    flags = np.stack([site.kept[f"by_{name}"] for name in detectors])
    agreed = np.bincount(flags.sum(0), minlength=len(flags) + 1).tolist()
    return {"detectors": dict(zip(detectors, flags.sum(1).tolist(), strict=True)), "agreed": agreed}


def _note_groups(names, firsts):
    """Note the sites with groups, whose ranges and tests count fewer observations than samples."""
    sizes = [(int(first["counts"].sum()), int(first["observations"])) for first in firsts]
    fewer = [f"{name} {number:,} of {n:,} samples" for name, (n, number) in zip(names, sizes, strict=True) if number < n]
    return (
        [f"ranges and tests count a group of samples, such as a patient, as one observation: {list_names(fewer)}"]
        if fewer
        else []
    )


def _audit_protected(sites, whole, named, scale, seed, *, epsilon, delta):
    """Audit sums with noise, which is drawn from the seed."""
    terms = {"epsilon": epsilon, "delta": delta}
    draws = [[stream(seed, f"protected {part}", client=k) for k in range(len(sites))] for part in ("sums", "counts")]
    firsts = [noisy_site.summarize_with_noise(one, scale, **terms, draws=rng) for one, rng in zip(sites, draws[0], strict=True)]
    head, seconds = noisy_sums.make_head(firsts, **terms, scale=scale), []
    for k, site in enumerate(sites):
        reply, p = noisy_site.judge_with_noise(site, head, scale, **terms, draws=draws[1][k])
        seconds.append(reply)
        judging.keep_suspects(site, p, seed=seed)
    rows, T, counts = noisy_sums.conclude(firsts, seconds, **terms, named=named)
    by_client = sorted(rows, key=lambda row: row.client)
    ends = [np.array([getattr(row, name) or 0.0 for row in by_client]) for name in ("level", "low", "high")]
    return _audit(sites, whole, rows, T, ends, counts, traffic_of(firsts, seconds), ("em",), [])


def _audit(sites, whole, rows, T, ends, counts, traffic, detectors, notes):
    """Make the Audit with the results by sample, which a simulation has."""
    kept = {name: np.concatenate([site.kept[name] for site in sites]) for name in
            ("issue", "flagged", "guess", "confidence", "far", *(f"by_{name}" for name in detectors))}  # fmt: skip
    pairs = zip((site.kept["copy_of"] for site in sites), whole.clients, strict=True)
    copy_of = np.concatenate([np.where(of < 0, -1, held[of]) for of, held in pairs])
    level, low, high = ends
    judgment = Judgment(
        level, low, high, level, kept["issue"], kept["flagged"], kept["guess"], T, transition(counts.astype(float)),
        confidence=kept["confidence"],
    )  # fmt: skip
    detected = {name: kept[f"by_{name}"] for name in detectors}
    return Audit(rows, T, judgment, copy_of, kept["far"], detected, traffic, notes)
