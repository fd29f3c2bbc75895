"""Audit of sites: estimate noise levels and confusions, and find copies and outliers.

The audit runs as federated steps (fnlkit.audits.site). Models are trained on the other sites and sent to a site, where they
judge the labels.  Replies of a site are declared in SENDS and metered. The list of suspicious samples stays on the site.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.artifacts.exchange import Traffic
from fnlkit.artifacts.stored import Rows
from fnlkit.audits import cells, copies, crowd, differing, shifts, site, statistics
from fnlkit.audits.designs import last_counts, summary
from fnlkit.audits.plausible import impossible_descriptions
from fnlkit.audits.records import SiteAudit
from fnlkit.audits.results import Names, Searched, describe_sites
from fnlkit.audits.reviews import read_guaranteed_reviews
from fnlkit.audits.verdict import OwnPredictions, Predictions, assess, judges
from fnlkit.client.network import Model
from fnlkit.datasets.features import with_vectors
from fnlkit.errors import InputError, list_names, nearest
from fnlkit.estimators import DETECTORS, em
from fnlkit.estimators.checkpoints import Checkpoints
from fnlkit.estimators.federated import ClientSession, nothing, scale_of
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.judgment import PREFIX, Judgment
from fnlkit.estimators.warmup import settings_of, train_warmup, without
from fnlkit.experiment import Experiment
from fnlkit.kernels.scores import transition
from fnlkit.kernels.streams import stream

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation
    from fnlkit.datasets.dataset import Dataset


ASSUMPTIONS = (
    "most sites are nearly clean, and their errors are not shared: labels that are wrong in the same way at most "
    "sites count as right",
    "whether a label is wrong depends on the class and not on the sample",
    "the samples of a class look alike at all sites whose inputs do not differ",
    "at least one site is nearly clean: the model makes no more confident mistakes than this site's interval permits",
)


# The time is estimated before at least this number of training rounds.
LEAST_TIMED = 20


@dataclass
class Audit:
    """Results of an audit.

    Attributes
    ----------
    sites : list of fnlkit.audits.records.SiteAudit
        One per site, those with wrong labels first.
    transition : (C, C)
        T[true, given] over all sites; rows sum to 1.
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
    notes: list[str]

    def arrays(self, federation: "Federation") -> dict[str, Any]:
        """Return the results per sample, by name, over the whole training set (n,), and the estimates of clients.

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
        return self.judgment.arrays(whole) | {f"{PREFIX}copy_of": copy_of, f"{PREFIX}far": far} | by


def audit(
    federation: "Federation",
    dataset: "Dataset | Callable[[], Dataset]",
    *,
    embeddings: np.ndarray | Rows | None = None,
    probabilities: np.ndarray | Rows | None = None,
    detectors: Sequence[str] = DETECTORS,
    folds: int = 5,
    prior: float = 1.0,
    neighbors: int = 5,
    seed: int = 0,
    warm_up: dict[str, Any] | None = None,
    engine: str = "auto",
    device: str = "auto",
    across: bool = True,
    sites=None,
    checkpoints: str | os.PathLike[str] | None = None,
    say: Callable[..., Any] | None = None,
    progress: Callable[..., Any] | None = None,
) -> Audit:
    """Return the Audit of a federation's given labels; true labels are not needed.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset or callable returning it
    embeddings : float (n, D), optional
        The models judge labels by these features instead of the samples; also for copies and distances. Samples are
        still compared between sites, to name differences of the inputs.
    probabilities : float (n, C), optional
        Class probabilities by a model that did not train on the sample. They replace the models of the other sites.
    detectors : sequence of str
        Names in fnlkit.estimators.DETECTORS that flag samples next to `em`.
    folds : int >= 2
        Groups of sites; each group is judged by a model trained on the others.
    prior : float >= 0
        As in fnlkit.estimators.em.
    neighbors : int >= 1
        Rank of the neighbor whose distance determines whether a sample is far.
    seed : int
    warm_up : dict, optional
        Settings of the training, as in `fnlkit.estimators.estimate`.
    engine, device : str
    across : bool
        Find copies between sites, for which each site sends a hash of each sample.
    sites : fnlkit.sites.remote.Remote, optional
        Real sites that hold the samples.  The results by sample then stay at the sites, and are 0 in the Audit.
    checkpoints : path, optional
        Folder in which the trained models are saved. A repeated audit with equal arguments continues these models.
    say : callable, optional
        Called with a progress message for each model.
    progress : callable, optional
        As in `fnlkit.estimators.estimate`.

    Raises
    ------
    InputError
        If there are fewer than two sites.
    """
    if len(federation) < 2:
        raise InputError(f"an audit compares at least 2 sites, found {len(federation)}; estimate-noise judges a single site")
    for name in detectors:
        if name not in DETECTORS:
            known = ", ".join(DETECTORS)
            raise InputError(f"`detectors` {name}: unknown{nearest(name, DETECTORS)}; the detectors are {known}")
    timed, say = say is not None and sites is None, say or (lambda text: None)
    whole = federation.whole()  # held-out samples are judged as well
    known = EstimatorInputs(whole, dataset, embeddings=embeddings, probabilities=probabilities, seed=seed)
    points = None if embeddings is None else np.asarray(known.embed(), np.float32)
    predicted = None if probabilities is None else known.predicted()
    dataset = known.dataset
    samples = dataset if embeddings is None else with_vectors(dataset, embeddings)
    training = {"seed": seed, "warm_up": warm_up, "engine": engine, "device": device}
    evidence = EstimatorInputs(federation, samples, progress=progress, sites=sites, **training)
    apart = sites is None and predicted is None and crowd.count_shared(whole)[0] > 0
    evidence.sends = site.SENDS | (crowd.SENDS if apart else {})
    evidence.checkpoints = None if checkpoints is None else Checkpoints(checkpoints, embeddings, say)
    settings = settings_of(evidence) if embeddings is None else replace(settings_of(evidence), model="auto")
    where = {"engine": "sequential", "device": device, "scale": evidence.image_scale()}
    experiment = Experiment(whole, dataset, settings, **where)
    evidence.add_traffic(experiment.clients.traffic)
    session = ClientSession(evidence, experiment.clients.members, experiment.model)
    groups = known.groups if "group" in whole.extra else None  # votes on a sample are at separate clients
    for name, rows in (("embedding", points), ("probabilities", predicted), ("group", groups)):
        parts = [] if rows is None else np.split(rows, whole.client_offsets[1:-1])
        for client, part in zip(session.clients.members, parts, strict=False):
            client.rows[f"input/{name}"] = torch.from_numpy(np.ascontiguousarray(part))
    for k in sorted({one.client for one in read_guaranteed_reviews(whole)} if sites is None else ()):
        session.clients.members[k].last_review = tuple(map(torch.from_numpy, last_counts(whole, k)))
    described, inputs = _describe_sites(session, dataset, seed, embedded=points is not None)
    message = {
        "salt": torch.from_numpy(stream(seed, "salt").integers(0, 2**62, 2)),
        "samples": torch.tensor(len(whole.client_indices)),
    }
    copied = session.ask(partial(copies.find_copies, neighbors=neighbors, across=across), broadcast=message)
    shared = _count_shared(session, copied, message, embeddings is not None) if across else ([{} for _ in whole.names],) * 2
    joined = np.zeros(len(whole), bool)
    if predicted is not None:
        tables = _judge_by_given(session, described, site.use_given_probabilities)
    elif apart:
        say("annotators share samples: each label is judged by the labels of other samples")
        crowd.judge_at_clients(session, whole.classes)
        # Annotators of the same samples have inputs of one origin; few samples look different by chance.
        inputs = shifts.Compared(inputs.changes, np.zeros_like(inputs.auc), [[] for _ in whole.names], inputs.fits, inputs.tone)
        tables = _judge_by_given(session, described)
    else:
        group = stream(seed, "folds").permutation(len(federation)) % min(folds, len(federation))
        group, joined = copies.separate(group, shared[0], np.diff(whole.client_offsets))
        if timed:
            _say_duration(evidence, federation, int(group.max()) + 1, say)
        tables = _judge_by_others(session, evidence, federation, group, described, inputs, say)
    session.model = nothing()
    replies = session.ask(partial(site.judge_within, seed=seed))
    own = OwnPredictions(*(replies[name].numpy() for name in ("within", "doubted", "supported", "certain")))
    counts = described["class_counts"].numpy()
    independence = np.minimum(1, described["observations"].numpy() / np.maximum(1, counts.sum(1)))
    expected, assessed, judgment = _estimate(
        session, counts, inputs, tables, own, _Terms(prior, seed, apart, joined, independence)
    )
    reviews = zip(described["review_counts"], described["review_terms"], strict=True)
    searched = Searched(
        **{name: copied[name].tolist() for name in ("copies", "near_copies", "far")},
        shared=shared[0],
        near_shared=shared[1],
        detected=_detect(session, assessed, tuple(detectors), seed),
        unlabeled=list(whole.meta.get("client_unlabeled", [0] * len(whole))),
        reviews=[summary(a.numpy(), b.numpy()) for a, b in reviews],
    )
    named = Names(whole.names, list(map(str, dataset.class_names)), dataset.columns)
    rows = describe_sites(named, counts, inputs, tables, own, expected, assessed, searched)
    kept = _keep_results(session.clients.members, evidence, whole, ("em", *detectors))
    return Audit(
        sites=rows,
        transition=judgment.transition,
        judgment=judgment,
        **kept,
        traffic=evidence.traffic,
        notes=[*experiment.clients.notes, *_note_groups(whole.names, counts.sum(1), described["observations"].numpy())],
    )


def _note_groups(names, sizes, observations):
    """Return a note on the sites with groups, whose ranges and tests count fewer observations than samples."""
    ids = np.flatnonzero(observations < sizes)
    if not len(ids):
        return []
    some = list_names(f"{names[k]} {observations[k]:,} of {sizes[k]:,} samples" for k in ids)
    return [f"ranges and tests count a group of samples, such as a patient, as one observation: {some}"]


def _keep_results(members, evidence, whole, detectors):
    """Return the results by sample by their names in Audit: copy_of, far and detected.

    Results of real sites stay at the sites, and are empty here.
    """
    if evidence.sites is not None:
        none = np.zeros(len(evidence.labels), bool)
        return {"copy_of": np.full(len(none), -1), "far": none, "detected": {name: none for name in detectors}}
    places = [member.rows["audit/copy_of"].numpy() for member in members]
    copy_of = [np.where(of < 0, -1, held[of]) for of, held in zip(places, whole.clients, strict=True)]
    far = np.concatenate([member.rows["audit/far"].numpy() for member in members])
    detected = {name: np.concatenate([_flags(m, name) for m in members]) for name in detectors}
    return {"copy_of": np.concatenate(copy_of), "far": far, "detected": detected}


def _flags(client, name):
    """Return whether a detector flags each sample (n,); no sample of a site that cannot be judged."""
    return client.rows.get(f"audit/by_{name}", torch.zeros(len(client), dtype=torch.bool)).numpy()


def _say_duration(evidence, federation, models, say):
    """Measure three rounds of training and print the time that the models will take."""
    settings = settings_of(evidence)
    if models * settings.rounds < LEAST_TIMED:
        return
    where = {"engine": evidence.engine, "device": evidence.device, "scale": evidence.image_scale()}
    experiment = Experiment(federation, evidence.dataset, replace(settings, rounds=3), **where)
    ends = []
    experiment.run(on_round=lambda row: ends.append(time.perf_counter()))
    seconds = models * settings.rounds * (ends[-1] - ends[0]) / (len(ends) - 1)
    say(f"{models} models of {settings.rounds} rounds take about {duration(seconds)}; comparing samples comes on top")


def duration(seconds: float) -> str:
    """Return a time as text: seconds below 2 minutes, otherwise minutes or hours."""
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def _count_shared(session, copied, message, embedded):
    """Return for each client {other: copies} and {other: near copies}."""
    prints, spaces = [np.asarray(part) for part in copied["fingerprints"]], slice(None if embedded else 1)
    near, typical = (copied[name].numpy()[:, spaces] for name in ("near_distance", "typical_distance"))
    widths, projections = cells.cells_of(near, typical, sum(map(len, prints)))
    if not widths.all():
        return copies.count_copies(prints), [{} for _ in prints]
    message = {"salt": message["salt"], "width": torch.from_numpy(widths), "projections": torch.from_numpy(projections)}
    hashes = [np.asarray(part) for part in session.ask(cells.reply_cells, broadcast=message)["cells"]]
    return copies.count_copies(prints), cells.count_near_copies(hashes, prints)


def _describe_sites(session, dataset, seed, *, embedded):
    """Return (the replies that describe the sites, the Compared inputs)."""
    session.model = nothing()
    described = session.ask(site.describe, shifts.describe_columns, compare=impossible_descriptions)
    counts = described["class_counts"].numpy()
    columns = shifts.fill_missing(described["columns"].numpy(), counts, shifts.LEAST_COLUMNS)
    changes = shifts.possible(dataset.kind, dataset.x_train.shape[1:])
    found, fits = differing.differing_columns(columns, described["class_columns"].numpy(), counts)
    told = {"center": torch.from_numpy(differing.reference(columns)), "suspects": torch.from_numpy(differing.suspects(found)),
            "tone": torch.from_numpy(np.median(columns[:, :2, 0], 0))}  # fmt: skip
    width = max(4, int(np.median(counts.sum(1))) // 5)
    step = partial(shifts.describe_inputs, changes=[change.packed for change in changes], width=width, seed=seed)
    replies = session.ask(step, broadcast=told, scatter={"fits": torch.from_numpy(fits)}, compare=impossible_descriptions)
    auc = shifts.compare_inputs(replies, counts, len(changes))
    found, fits = differing.seen(found, fits, auc[:, 0])
    found = changes, auc, found, fits, told["tone"].numpy()
    if not embedded:
        return described, shifts.Compared(*found)
    moments = session.ask(shifts.describe_embeddings, compare=impossible_descriptions)["embedding_moments"].numpy()
    moments = shifts.fill_missing(moments, counts)
    center, spread = np.median(moments, 0)
    told = {"embedding_center": torch.from_numpy(np.stack([center, np.where(spread > 1e-9, spread, 1.0)]))}
    replies = session.ask(partial(shifts.project_embeddings, width=width), broadcast=told, compare=impossible_descriptions)
    parts = {"class_means": replies["embedding_means"], "covariances": replies["embedding_covariances"]}
    return described, shifts.Encoded(*found, shifts.compare_inputs(parts, counts, 1)[:, 0])


def _judge_by_given(session, described, *steps):
    """Let each site use probabilities that it holds after `steps`, and return the Predictions."""
    counts = described["class_counts"].numpy()
    sites, classes = counts.shape
    known, differ = np.ones(counts.shape, bool), statistics.shares_differ(counts)
    message = {"trained_shares": torch.full((classes,), 1 / classes, dtype=torch.float64)}
    each = {"chosen": torch.zeros(sites, dtype=torch.int64), "known": torch.from_numpy(known),
            "adapt": torch.zeros(sites, dtype=torch.bool)}  # fmt: skip
    session.model = nothing()
    replies = session.ask(*steps, site.choose_change, broadcast=message, scatter=each)
    predicted = replies["predicted"].numpy()
    return Predictions(np.zeros(sites, int), predicted, known, differ)


def _judge_by_others(session, evidence, federation, group, described, inputs, say):
    """Train the models, let each site try and choose a change of its inputs, and return the Predictions.

    Sites with different inputs train no model, unless these are most sites.
    """
    counts, sites = described["class_counts"].numpy(), len(federation)
    owner = np.repeat(np.arange(sites), np.diff(federation.client_offsets))
    apart = inputs.apart
    differ, known = statistics.shares_differ(counts), statistics.seen_elsewhere(counts)
    tried = np.full((sites, shifts.TRIED), -1)
    for k in range(sites):
        numbers = inputs.candidates(k)
        tried[k, : len(numbers)] = numbers
    chosen, agreeing = np.zeros(sites, int), np.zeros(tried.shape, int)
    predicted = np.zeros((sites, counts.shape[1], counts.shape[1]), int)
    for fold in range(group.max() + 1):
        ids = np.flatnonzero(group == fold)
        left_out = (group == fold) | apart if (~apart & (group != fold)).sum() >= 2 else group == fold
        title = f"model {fold + 1} of {group.max() + 1}"
        say(f"{title} trains on {int((~left_out).sum())} sites and judges {len(ids)} sites")
        other = train_warmup(evidence, federation=without(federation, left_out[owner]), title=title).experiment
        session.model = Model(other.network, other.model.weights)
        told = {**scale_of(other.inputs), "tone": torch.from_numpy(inputs.tone)}
        each = {"tried": torch.from_numpy(tried[ids]), "fits": torch.from_numpy(inputs.fits[ids])}
        step = partial(site.try_changes, changes=[change.packed for change in inputs.changes])
        sides = {"tried": shifts.TRIED}
        agreeing[ids] = session.ask(step, ids=ids, broadcast=told, scatter=each, sides=sides)["agreeing"].numpy()
        places = [inputs.choose(k, agreeing[k], counts[k].sum()) for k in ids]
        chosen[ids] = [tried[k, place] for k, place in zip(ids, places, strict=True)]
        session.model = nothing()
        shares = counts[~left_out].sum(0) / counts[~left_out].sum()
        each = {"chosen": torch.tensor(places), "known": torch.from_numpy(known[ids]), "adapt": torch.from_numpy(differ[ids])}
        replies = session.ask(site.choose_change, ids=ids, broadcast={"trained_shares": torch.from_numpy(shares)}, scatter=each)
        predicted[ids] = replies["predicted"].numpy()
    return Predictions(chosen, predicted, known, differ)


@dataclass(frozen=True, slots=True)
class _Terms:
    """Terms of the estimates.

    Attributes
    ----------
    prior : float
    seed : int
    shared : bool
        Sites share samples.
    joined : bool (N,)
        Sites that judge themselves, because a copy of each of their samples is in the training data of every model.
    independence : (N,)
        Independent observations per sample, above 0 to 1.
    """

    prior: float
    seed: int
    shared: bool
    joined: np.ndarray
    independence: np.ndarray


def _estimate(session, counts, inputs, others, own, terms):
    """Return (expected counts (N, C, C), list of Assessment, Judgment)."""
    sites, prior, seed = len(others.chosen), terms.prior, terms.seed
    fewer = others.scaled(terms.independence), own.scaled(terms.independence)  # for tests, which need independent samples
    judge = judges(np.where(terms.joined, 1.0, inputs.after(others.chosen)), fewer[0].predicted, fewer[1].within, others.known)
    groups = {name: np.array([k for k in range(sites) if judge[k] == name], int) for name in ("others", "own", None)}
    if len(groups["own"]):
        session.ask(site.use_own_model, ids=groups["own"])
    judged = {}
    for ids in groups.values():
        if len(ids):
            replies = session.ask(partial(site.judge_labels, prior=prior, seed=seed), ids=ids)
            for name in em.JUDGED:
                values = replies[name].numpy()
                judged.setdefault(name, np.zeros((sites, *values.shape[1:]), np.int64))[ids] = values
    estimates = em.estimates_of(**judged)
    if len(groups[None]):
        session.ask(site.withhold, ids=groups[None])
    tested = estimates | {"counts": estimates["counts"] * terms.independence[:, None, None]}
    assessed = assess(judge, tested, counts, *fewer, shared=terms.shared)
    low, high = np.array([one.low for one in assessed]), np.array([one.high for one in assessed])
    level = np.clip(estimates["level"], low, high)
    judgment = Judgment(
        level=level,
        low=low,
        high=high,
        score=level,
        issue=session.kept("issue"),
        flagged=session.kept("flagged"),
        guess=session.kept("guess"),
        transition=transition(estimates["counts"].sum(0)),
        client_transition=transition(estimates["counts"]),
        confidence=session.kept("confidence"),
    )
    return estimates["counts"], assessed, judgment


def _detect(session, assessed, detectors, seed):
    """Return for each site ({detector: number of samples}, numbers of samples by the number of detectors), or None."""
    ids, out = [k for k, one in enumerate(assessed) if one.judge is not None], [None] * len(assessed)
    if ids:
        sides = {"detectors": 1 + len(detectors), "numbers": 2 + len(detectors)}
        replies = session.ask(partial(site.detect, detectors=detectors, seed=seed), ids=ids, sides=sides)
        for k, numbers, agreed in zip(ids, replies["detected"].tolist(), replies["agreed"].tolist(), strict=True):
            out[k] = dict(zip(("em", *detectors), numbers, strict=True)), agreed
    return out
