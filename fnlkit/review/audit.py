"""Audit of sites: estimate noise levels and confusions, and find copies and outliers.

The audit runs as federated steps (fnlkit.review.site). Models are trained on the other sites and sent to a site, where they
judge the labels.  Replies of a site are declared in SENDS and metered. The list of suspicious samples stays on the site.
"""

import time
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from fnlkit.client.network import Model
from fnlkit.datasets.features import with_vectors
from fnlkit.errors import InputError, nearest
from fnlkit.estimators import DETECTORS, em
from fnlkit.estimators.checkpoints import Checkpoints
from fnlkit.estimators.federated import ClientSession, nothing, scale_of
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.judgment import PREFIX, Judgment
from fnlkit.estimators.warmup import settings_of, train_warmup, without
from fnlkit.experiment import Experiment
from fnlkit.kernels.scores import transition
from fnlkit.kernels.streams import stream
from fnlkit.review import cells, copies, crowd, differing, findings, shifts, site
from fnlkit.review.designs import last_counts, read_guaranteed_reviews, statement, summary
from fnlkit.review.plausible import impossible_descriptions

AGREEING = (findings.AGREES, findings.WITHIN)
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
    sites : list of dict
        One per site, those with wrong labels first: client, site (name), samples; finding, words and next (texts of
        fnlkit.review.findings); level (share of wrong labels, None if mistakes of the model cannot be separated), low, high;
        matrix (C, C) (expected numbers by true and given class, or None), detectors ({name: flagged samples}), agreed (numbers
        of samples by the number of detectors that flag them);
        p (of the test that the site is noisier than the others, or has more of a confusion if only this is reported; Holm's
        correction; None without a model), noisier (True if
        wrong labels are reported), judge ("others", "own" or None: the models that judged the labels), contradicted,
        separable, unseen (share of labels that no model judges), skill of both models, skill_by_class, inputs, shares_differ,
        only_here, confused, classes, missing, balance (share of the largest class), largest, copies, near_copies, far,
        unlabeled, shared and near_shared (copies at other sites, by name); review (counts of the last review with a
        guarantee, see fnlkit.review.designs.summary, or None).
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

    sites: list
    transition: np.ndarray
    judgment: Judgment
    copy_of: np.ndarray
    far: np.ndarray
    detected: dict
    traffic: object
    notes: list

    def arrays(self, federation):
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


def audit(federation, dataset, *, embeddings=None, probabilities=None, detectors=DETECTORS, folds=5, prior=1.0, neighbors=5,
          seed=0, warm_up=None, engine="auto", device="auto", across=True, sites=None, checkpoints=None, say=None,
          progress=None):  # fmt: skip
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
    sites : fnlkit.deploy.remote.Remote, optional
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
            raise InputError(f"--detectors {name}: unknown{nearest(name, DETECTORS)}; the detectors are {known}")
    timed, say = say is not None and sites is None, say or (lambda text: None)
    whole = federation.whole()  # held-out samples are judged as well
    given = {"embeddings": embeddings, "probabilities": probabilities}
    given = EstimatorInputs(whole, dataset, **given, seed=seed)
    points = None if embeddings is None else np.asarray(given.embed(), np.float32)
    predicted = None if probabilities is None else given.predicted()
    dataset = given.dataset
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
    for name, rows in (("embedding", points), ("probabilities", predicted)):
        parts = [] if rows is None else np.split(rows, whole.client_offsets[1:-1])
        for client, part in zip(session.clients.members, parts, strict=False):
            client.rows[f"input/{name}"] = torch.from_numpy(np.ascontiguousarray(part))
    for k in sorted({record["client"] for record in read_guaranteed_reviews(whole)} if sites is None else ()):
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
    own = session.ask(partial(site.judge_within, seed=seed))
    judged, assessed, found = _estimate(
        session, described, inputs, tables, own, prior=prior, seed=seed, shared=apart, joined=joined
    )
    detected = _detect(session, assessed, tuple(detectors), seed)
    counts, terms = described["review_counts"], described["review_terms"]
    rows = site_rows(
        names=whole.names, classes=list(map(str, dataset.class_names)), columns=dataset.columns, inputs=inputs, tables=tables,
        counts=described["class_counts"].numpy(), within=own["within"].numpy(), doubted=own["doubted"].numpy(),
        expected=judged["counts"], assessed=assessed, copied={name: copied[name] for name in ("copies", "near_copies", "far")},
        shared=shared, detected=detected, unlabeled=list(whole.meta.get("client_unlabeled", [0] * len(whole))),
        reviews=[summary(a.numpy(), b.numpy()) for a, b in zip(counts, terms, strict=True)],
    )  # fmt: skip
    kept = _keep_results(session.clients.members, evidence, whole, ("em", *detectors))
    return Audit(rows, found.transition, found, *kept, evidence.traffic, list(experiment.clients.notes))


def _keep_results(members, evidence, whole, detectors):
    """Return the results by sample: positions of the originals of copies (m,), far (m,), {detector: flagged (m,)}.

    Results of real sites stay at the sites, and are empty here.
    """
    if evidence.sites is not None:
        none = np.zeros(len(evidence.labels), bool)
        return np.full(len(none), -1), none, {name: none for name in detectors}
    places = [member.rows["audit/copy_of"].numpy() for member in members]
    copy_of = [np.where(of < 0, -1, held[of]) for of, held in zip(places, whole.clients, strict=True)]
    far = np.concatenate([member.rows["audit/far"].numpy() for member in members])
    return np.concatenate(copy_of), far, {name: np.concatenate([_flags(m, name) for m in members]) for name in detectors}


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


def duration(seconds):
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
    """Let each site use probabilities that it holds after `steps`, and return the results as `_judge_by_others` does."""
    counts = described["class_counts"].numpy()
    sites, classes = counts.shape
    known, differ = np.ones(counts.shape, bool), findings.shares_differ(counts)
    message = {"trained_shares": torch.full((classes,), 1 / classes, dtype=torch.float64)}
    each = {"chosen": torch.zeros(sites, dtype=torch.int64), "known": torch.from_numpy(known),
            "adapt": torch.zeros(sites, dtype=torch.bool)}  # fmt: skip
    session.model = nothing()
    replies = session.ask(*steps, site.choose_change, broadcast=message, scatter=each)
    predicted = replies["predicted"].numpy()
    return {"chosen": np.zeros(sites, int), "predicted": predicted, "known": known, "shares_differ": differ}


def _judge_by_others(session, evidence, federation, group, described, inputs, say):
    """Train the models, let each site try and choose a change of its inputs, and return the results per site.

    Sites with different inputs train no model, unless these are most sites.

    Returns
    -------
    dict
        chosen (N,) numbers of changes; predicted (N, C, C); known (N, C); shares_differ (N,).
    """
    counts, sites = described["class_counts"].numpy(), len(federation)
    owner = np.repeat(np.arange(sites), np.diff(federation.client_offsets))
    apart = inputs.apart
    differ, known = findings.shares_differ(counts), findings.seen_elsewhere(counts)
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
    return {"chosen": chosen, "predicted": predicted, "known": known, "shares_differ": differ}


def _estimate(session, described, inputs, tables, own, *, prior, seed, shared, joined):
    """Return (estimates {name: (N, ...)}, findings.assess, Judgment); sites in the mask `joined` (N,) judge themselves."""
    sites, predicted, within = len(tables["chosen"]), tables["predicted"], own["within"].numpy()
    judge = findings.judges(np.where(joined, 1.0, inputs.after(tables["chosen"])), predicted, within, tables["known"])
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
    counts = described["class_counts"].numpy()
    unseen = (counts * ~tables["known"]).sum(1) / counts.sum(1)
    more = own["doubted"].numpy(), own["supported"].numpy(), own["certain"].numpy()
    assessed = findings.assess(judge, estimates, predicted, within, *more, unseen, shared=shared)
    for row, name, share in zip(assessed, judge, unseen.tolist(), strict=True):
        row["judge"], row["unseen"] = name, share if name == "others" else 0.0
    level = np.clip(estimates["level"], [row["low"] for row in assessed], [row["high"] for row in assessed])
    found = Judgment(
        level,
        np.array([row["low"] for row in assessed]),
        np.array([row["high"] for row in assessed]),
        level,
        *(session.kept(name) for name in ("issue", "flagged", "guess")),
        transition=transition(estimates["counts"].sum(0)),
        client_transition=transition(estimates["counts"]),
        confidence=session.kept("confidence"),
    )
    return estimates, assessed, found


def _detect(session, assessed, detectors, seed):
    """Return for each site ({detector: number of samples}, numbers of samples by the number of detectors), or None."""
    ids, out = [k for k, row in enumerate(assessed) if row["judge"] is not None], [None] * len(assessed)
    if ids:
        sides = {"detectors": 1 + len(detectors), "numbers": 2 + len(detectors)}
        replies = session.ask(partial(site.detect, detectors=detectors, seed=seed), ids=ids, sides=sides)
        for k, numbers, agreed in zip(ids, replies["detected"].tolist(), replies["agreed"].tolist(), strict=True):
            out[k] = dict(zip(("em", *detectors), numbers, strict=True)), agreed
    return out


def site_rows(*, names, classes, columns, counts, inputs, tables, within, doubted, expected, assessed, copied=None, shared=None,
              detected=None, unlabeled=None, reviews=None):  # fmt: skip
    """Return the rows of `Audit.sites`.

    Parameters
    ----------
    names, classes, columns : list of str
        Names of sites and classes, and of the columns of a table or None.
    counts : int (N, C)
    inputs : fnlkit.review.shifts.Compared
    tables : dict
        chosen (N,), predicted (N, C, C), known (N, C), shares_differ (N,).
    within, doubted : int (N, C, C)
    expected : (N, C, C)
        Expected numbers of samples by true and given class.
    assessed : list of dict
        From fnlkit.review.findings.assess, with the entries judge and unseen.
    copied, shared, detected, unlabeled, reviews : optional
        Numbers of copies and outliers, copies at other sites, flags of detectors, numbers of samples without a label, and
        fnlkit.review.designs.summary of each site. None: not searched.
    """
    exact, near = shared or ([{} for _ in names],) * 2
    by_class, out = findings.shares_differ(tables["predicted"].sum(2)), []
    mistakes = findings.confusions_of_mistakes(np.asarray(expected)[[one["judge"] == "others" for one in assessed]])
    for k, held in enumerate(counts):
        one = assessed[k]
        trusted, seen = one["judge"] == "others", tables["predicted"][k] * tables["known"][k]
        flags = detected[k] if detected and detected[k] else ({}, [])
        row = {
            "client": k,
            "site": names[k],
            "samples": int(held.sum()),
            "level": one["level"],
            **{name: one[name] for name in ("low", "high", "p", "judge", "contradicted", "separable", "unseen")},
            "noisier": one["accused"],
            "skill": {name: findings.skill_of(table) for name, table in (("others", seen), ("own", within[k]))},
            "skill_by_class": findings.skill_by_class(tables["predicted"][k], doubted[k], classes),
            "inputs": inputs.at(k, tables["chosen"], columns),
            "shares_differ": bool(tables["shares_differ"][k] and (by_class[k] or not trusted)),
            "only_here": [classes[c] for c in np.flatnonzero(~tables["known"][k] & (held >= 5))],
            "confused": findings.mark_supported(findings.confusions(expected[k], classes), classes, one, mistakes)
            if trusted
            else [],
            "classes": findings.by_class(expected[k], one["cells"], classes) if trusted else [],
            "matrix": expected[k].tolist() if trusted else None,
            "detectors": flags[0],
            "agreed": flags[1],
            "missing": [classes[c] for c in np.flatnonzero(held == 0)],
            "balance": float(held.max() / held.sum()),
            "largest": classes[int(held.argmax())],
            **{name: copied and int(copied[name][k]) for name in ("copies", "near_copies", "far")},
            "unlabeled": unlabeled and int(unlabeled[k]),
            "review": reviews and reviews[k],
            "shared": {names[other]: number for other, number in exact[k].items()},
            "near_shared": {names[other]: number for other, number in near[k].items()},
        }  # fmt: skip
        row["finding"] = findings.finding(row)
        row["words"], row["next"] = findings.describe_site(row)
        if row["review"]:
            row["words"].append(f"The last review lists {statement(row['review'])} ({row['review']['reviews']} decisions).")
        out.append(row)
    return sorted(out, key=lambda row: (-row["noisier"], row["finding"] in AGREEING, -row["low"], row["client"]))
