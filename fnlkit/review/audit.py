"""Audit of sites: estimate noise levels and confusions, and find copies and outliers.

The audit runs as federated steps (fnlkit.review.site). Models are trained on the other sites and sent to a site, where they
judge the labels.  Replies of a site are declared in SENDS and metered. The list of suspicious samples stays on the site.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from fnlkit.client.network import Model
from fnlkit.errors import InputError
from fnlkit.estimators import em
from fnlkit.estimators.federated import ClientSession, keep_predictions, nothing, scale_of
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.intervals import wilson
from fnlkit.estimators.judgment import PREFIX, Judgment
from fnlkit.estimators.warmup import settings_of, trained, without
from fnlkit.experiment import Experiment
from fnlkit.kernels.streams import stream
from fnlkit.review import copies, site

ASSUMPTIONS = (
    "whether a label is wrong depends on the class and not on the sample",
    "the sites' samples of a class look alike",
    "at least one site is nearly clean: the model makes no more confident mistakes than this site's interval permits",
)
# A confusion is reported if it has at least this many expected samples and at least this share of the true class.
LEAST_SAMPLES, LEAST_SHARE = 3, 0.02
SIGNIFICANT = 0.05


@dataclass
class Audit:
    """Results of an audit.

    Attributes
    ----------
    sites : list of dict
        One per site, noisiest first: client, site (name), samples, level, low, high, p (of the test that the site is noisier
        than the others, Holm's correction), noisier, confused, missing, balance (share of the largest class),
        largest, copies, near_copies, far, unlabeled, shared and near_shared (copies at other sites, by name).
    transition : (C, C)
        T[true, given] over all sites; rows sum to 1.
    judgment : Judgment
        Of every sample, in the order of the clients of `Federation.whole`; it stays on the sites in a deployment.
    copy_of : int64 (m,)
        In the same order: if the sample is an exact or near copy, the training-set position of the original at the same site;
        otherwise -1.
    far : bool (m,)
        In the same order: whether the sample is far from all others of the site.
    traffic : fnlkit.artifacts.exchange.Traffic
    notes : list of str
    """

    sites: list
    transition: np.ndarray
    judgment: Judgment
    copy_of: np.ndarray
    far: np.ndarray
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
        return self.judgment.arrays(whole) | {f"{PREFIX}copy_of": copy_of, f"{PREFIX}far": far}


def audit(federation, dataset, *, embeddings=None, folds=5, prior=1.0, neighbors=5, seed=0, warm_up=None, engine="auto",
          device="auto", say=None, progress=None):  # fmt: skip
    """Return the Audit of a federation's given labels; true labels are not needed.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset or callable returning it
    embeddings : float (n, D), optional
        For copies and distances. Default: the values of the samples.
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
    say = say or (lambda text: None)
    training = {"seed": seed, "warm_up": warm_up, "engine": engine, "device": device}
    evidence = EstimatorInputs(federation, dataset, embeddings=embeddings, progress=progress, **training)
    evidence.sends = site.SENDS
    whole = federation.whole()  # held-out samples are judged as well
    where = {"engine": "sequential", "device": device, "scale": evidence.image_scale()}
    experiment = Experiment(whole, evidence.dataset, settings_of(evidence), **where)
    evidence.crossed(experiment.clients.traffic)
    session = ClientSession(evidence, experiment.clients.members, experiment.model)
    if embeddings is not None:
        for client, positions in zip(session.clients.members, whole.clients, strict=True):
            client.rows["input/embedding"] = torch.from_numpy(np.asarray(embeddings[positions], np.float32))
    described = session.ask(site.describe)
    group = stream(seed, "folds").permutation(len(federation)) % min(folds, len(federation))
    for fold in range(group.max() + 1):
        ids = np.flatnonzero(group == fold)
        title = f"model {fold + 1} of {group.max() + 1}"
        say(f"{title} trains on {len(group) - len(ids)} sites and judges {len(ids)} sites")
        left_out = np.repeat(group == fold, np.diff(federation.client_offsets))
        other = trained(evidence, federation=without(federation, left_out), title=title).experiment
        session.model = Model(other.network, other.model.weights)
        session.ask(keep_predictions, ids=ids, broadcast=scale_of(other.inputs))
    session.model = nothing()
    found, judged = em.by_clients(session, prior=prior, seed=seed)
    salt = torch.from_numpy(stream(seed, "salt").integers(0, 2**62, 2))
    copied = session.ask(partial(copies.find_copies, neighbors=neighbors), broadcast={"salt": salt})
    widths, cells = copies.cell_widths(copied["near_distance"].numpy()), None
    widths = widths if embeddings is not None else widths[:1]
    if widths.all():
        message = {"salt": salt, "width": torch.from_numpy(widths)}
        cells = session.ask(copies.reply_cells, broadcast=message)["cells"]
    shared = _shared(copied["fingerprints"], cells)
    sites = _sites(whole, evidence.dataset, described, judged, copied, shared, found)
    members = session.clients.members
    places = [member.rows["audit/copy_of"].numpy() for member in members]
    copy_of = [np.where(of < 0, -1, held[of]) for of, held in zip(places, whole.clients, strict=True)]
    far = [member.rows["audit/far"].numpy() for member in members]
    kept = np.concatenate(copy_of), np.concatenate(far)
    return Audit(sites, found.transition, found, *kept, evidence.traffic, list(experiment.clients.notes))


def _shared(fingerprints, cells):
    """Return for each client {other: copies} and {other: near copies}."""
    prints = [np.asarray(part) for part in fingerprints]
    near = [{} for _ in prints] if cells is None else copies.shared_near_copies([np.asarray(part) for part in cells], prints)
    return copies.shared_copies(prints), near


def _sites(federation, dataset, described, judged, copied, shared, found):
    names, classes = federation.names, list(dataset.class_names)
    bare = federation.meta.get("client_unlabeled", [0] * len(federation))
    p = noisier_than_others(found.level, judged["deviation"].numpy())
    exact, near = shared
    out = []
    for k, counts in enumerate(described["class_counts"].numpy()):
        out.append({
            "client": k,
            "site": names[k],
            "samples": int(counts.sum()),
            "level": float(found.level[k]),
            "low": float(found.low[k]),
            "high": float(found.high[k]),
            "p": float(p[k]),
            "noisier": bool(p[k] < SIGNIFICANT),
            "confused": confusions(judged["counts"].numpy()[k], classes),
            "missing": [classes[c] for c in np.flatnonzero(counts == 0)],
            "balance": float(counts.max() / counts.sum()),
            "largest": classes[int(counts.argmax())],
            **{name: int(copied[name][k]) for name in ("copies", "near_copies", "far")},
            "unlabeled": int(bare[k]),
            "shared": {names[other]: number for other, number in exact[k].items()},
            "near_shared": {names[other]: number for other, number in near[k].items()},
        })  # fmt: skip
    return sorted(out, key=lambda row: (-row["noisier"], -row["low"], -row["level"], row["client"]))


def noisier_than_others(level, deviation):
    """Return one-sided p-values (N,) that a site is noisier than the median of the others.

    Holm's correction is applied. The reference is the median, so that a site with mostly wrong labels does not hide another
    noisy site.

    Parameters
    ----------
    level, deviation : (N,)
        Estimated levels and their standard deviations.

    Notes
    -----
    Source: Holm 1979. Each test assumes a normal difference; the variance of the median is pi / 2 times the variance of the
    mean.
    """
    from scipy.special import ndtr

    level, variance, count = np.asarray(level), np.maximum(np.asarray(deviation), 1e-3) ** 2, len(level)
    others = np.array([np.median(np.delete(level, k)) for k in range(count)])
    of_median = np.pi / 2 * np.array([np.median(np.delete(variance, k)) for k in range(count)]) / (count - 1)
    spread = np.sqrt(variance + of_median)
    p = 1 - ndtr((level - others) / spread)
    order = np.argsort(p, kind="stable")
    corrected = np.maximum.accumulate(p[order] * (count - np.arange(count)))
    out = np.empty(count)
    out[order] = np.minimum(1, corrected)
    return out


def confusions(counts, classes):
    """Return at most five confusions of classes, most samples first.

    Parameters
    ----------
    counts : (C, C)
        Expected numbers of samples by true and given class.
    classes : list of str

    Returns
    -------
    list of dict
        true, given (names), samples, share (of the true class), low, high (Wilson's interval of the share).
    """
    totals, out = counts.sum(1), []
    for flat in np.argsort(-counts, axis=None, kind="stable"):
        true, given = divmod(int(flat), len(counts))
        number = counts[true, given]
        if true != given and number >= LEAST_SAMPLES and number >= LEAST_SHARE * totals[true]:
            low, high = wilson(number, totals[true])
            row = {"true": classes[true], "given": classes[given], "samples": float(number)}
            out.append(row | {"share": float(number / totals[true]), "low": float(low), "high": float(high)})
    return out[:5]
