"""Audit of labels other than classes: noise levels and findings per site, and scores of samples.

The models of the other sites judge a site if they predict the labels there better than a constant does; otherwise a
cross-validated model of the site itself judges.  If neither model predicts the labels, no level is reported and no sample is
flagged.  Only the sums and counts of `SENDS` leave a site.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.artifacts.exchange import Traffic
from fnlkit.audits.statistics import holm, more_than_others
from fnlkit.audits.tasks import confidence, model, regression
from fnlkit.audits.tasks.records import LabelAudit, LabelSkill, PresentLabelAudit, TaskSite
from fnlkit.audits.tasks.tokens import sentence_quality
from fnlkit.audits.verdict import AGREES, WITHIN, WRONG
from fnlkit.client.client_list import ClientList
from fnlkit.client.inputs import Inputs
from fnlkit.datasets.groups import effective_size, of_federation
from fnlkit.errors import InputError
from fnlkit.estimators.federated import ClientSession, describe_traffic
from fnlkit.estimators.intervals import wilson
from fnlkit.estimators.judgment import PREFIX
from fnlkit.kernels.streams import stream

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation
    from fnlkit.datasets.dataset import Dataset


LINKS = {"multilabel": "sigmoid", "regression": "identity", "tokens": "softmax"}
SENDS = {**model.SENDS, **confidence.SENDS, **regression.SENDS}
# A model can judge if its skill (fnlkit.audits.tasks.model.skills) is at least SKILL, and above 0 by more than SURE standard
# errors.
SKILL, SURE = {"identity": 0.1, "sigmoid": 0.2, "softmax": 0.2}, 2.0
# The models of the other sites do not apply if their skill is below this share of the skill of the site's own model.
APPLIES = 0.5
# A site is noisy if its share of suspicious labels surely exceeds EXCESS, and FACTOR times the share of the other sites, with
# a p-value below SIGNIFICANT.
EXCESS, FACTOR, SIGNIFICANT = 0.03, 2.0, 0.01
ASSUMPTIONS = (
    "at least half of the sites are nearly clean, and the models make no more mistakes at the other sites",
    "whether a label is wrong does not depend on how hard the sample is",
)


@dataclass
class Exchange:
    """Traffic and declared replies of an audit."""

    seed: int
    sends: dict[str, Any]
    traffic: Traffic = field(default_factory=Traffic)
    replies: list[Any] = field(default_factory=list)
    sites: None = None  # the samples of these tasks are in this process
    engine: str = "sequential"

    def add_traffic(self, traffic: Traffic) -> None:
        """Add the traffic of a round."""
        self.traffic.add(traffic)


def audit(
    federation: "Federation",
    dataset: "Dataset",
    *,
    embeddings: np.ndarray | None = None,
    folds: int = 5,
    seed: int = 0,
    say: Callable[..., Any] | None = None,
) -> tuple[list[TaskSite], dict[str, Any], dict[str, dict[str, Any]], Traffic]:
    """Return (sites, arrays, sent, traffic) of an audit of a federation with a task in `LINKS`.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    embeddings : float (n, D), optional
        Inputs of the models.  Default: the values of the samples; images are averaged to a side of 16 pixels.
    folds : int >= 2
        Groups of sites; each group is judged by a model fitted on the others.
    seed : int
    say : callable, optional

    Returns
    -------
    sites : list of fnlkit.audits.tasks.records.TaskSite
        One per site, noisy sites first.
    arrays : dict
        Arrays for the judged federation by name, as from other estimates.
    sent : dict
        Bytes and description of each reply.
    traffic : fnlkit.artifacts.exchange.Traffic

    Raises
    ------
    InputError
        If there are fewer than two sites, or the samples are waves without embeddings.
    """
    if len(federation) < 2:
        raise InputError(f"an audit compares at least 2 sites, found {len(federation)}; write `scheme='sites'` or `clients`")
    if dataset.kind == "wave" and embeddings is None:
        raise InputError(f"an audit of the task {federation.task} reads no sounds; write `embeddings`")
    whole, link = federation.whole(), LINKS[federation.task]
    exchange = Exchange(seed, SENDS)
    session = ClientSession(exchange, _members(whole, dataset, embeddings))
    group = stream(seed, "folds").permutation(len(whole)) % min(folds, len(whole))
    (say or (lambda text: None))(f"{group.max() + 1} models, each fitted on the other sites by sums")
    weights, spread = model.fit(session, group, link, seed)
    step = partial(model.predict, link=link, seed=seed)
    told = session.ask(step, scatter={"weights": torch.from_numpy(weights[group])})
    skill, errors = model.skills(told, link, np.diff(whole.client_offsets))
    per = _independence(whole)
    chosen, differs = _judges(skill, errors, SKILL[link])
    if link == "identity":
        levels, wrong, totals, lines = regression.estimate(session, chosen, float(spread[0]), seed, per)
        parts = {"lines": lines}
    else:
        levels, wrong, totals, cells = confidence.estimate(session, chosen, federation.task, seed, per)
        parts = {"cells": cells}
    wrong, totals = (np.rint(values * per[:, None]).astype(np.int64) for values in (wrong, np.where(chosen >= 0, totals, 0)))
    found = assess(levels, wrong, totals)
    rows = _rows(whole, chosen, skill, differs, found, **parts)
    return rows, _arrays(session, whole, found), describe_traffic(exchange.traffic, SENDS), exchange.traffic


def _members(federation, dataset, embeddings):
    given = federation.given
    if federation.task == "tokens":
        given = np.eye(federation.classes)[given]
    targets = np.asarray(given, np.float64).reshape(len(given), -1)
    samples = dataset.x_train if embeddings is None else np.asarray(embeddings, np.float32)
    inputs = Inputs(embeddings is None and dataset.kind == "image")
    none, rows = np.zeros(len(given), np.int64), {"input/target": targets}
    if (groups := of_federation(federation)) is not None:
        rows["input/group"] = groups
    return ClientList(samples, federation.client_offsets, federation.client_indices, none, 2, inputs, rows)


def _independence(federation):
    """Return the number of independent observations per sample of each client (N,), above 0 to 1; below 1 with groups."""
    groups = of_federation(federation)
    parts = [part if groups is None else groups[part] for part in federation.clients]
    return np.array([effective_size(part) / max(1, len(part)) for part in parts])


def _judges(skill, errors, least):
    """Return (chosen (N, L), differs (N, L)) from skills and their numbers of standard errors (N, 2, L).

    The chosen model is 0 for the models of the other sites, 1 for the model of the site itself, and -1 for none.  A site
    differs if the model of the site itself judges because the models of the others do not apply.
    """
    able = (skill >= least) & (errors > SURE)
    apart = able[:, 1] & (skill[:, 0] < APPLIES * skill[:, 1])
    return np.where(able[:, 0] & ~apart, 0, np.where(able[:, 1], 1, -1)), apart


@dataclass(frozen=True, slots=True)
class LabelLevels:
    """Wrong labels by site and label, each (N, L).

    Attributes
    ----------
    level, low, high : (N, L)
        Share of wrong labels, with its range.
    p : (N, L)
        Of the test that the site is noisier than the others.
    noisier : bool (N, L)
    """

    level: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    noisier: np.ndarray


def assess(levels: np.ndarray, wrong: np.ndarray, totals: np.ndarray) -> LabelLevels:
    """Return the LabelLevels, allowing for mistakes of the models.

    The share of the cleanest site is subtracted from the estimate.  The lower end of the range allows for the mistakes at the
    median site, or for `FACTOR` times the suspicious labels of the other sites.

    Parameters
    ----------
    levels : (3, N, L)
        Share of suspicious labels, and both ends of the 95 % interval.
    wrong, totals : int (N, L)
        Suspicious and judged labels; a total of 0 means not judged.
    """
    judged = totals > 0
    level, low, high = np.where(judged, levels, np.array([0.0, 0.0, 1.0])[:, None, None])
    cleanest = np.where(judged, levels[0], 1.0).min(0)
    usual = np.sort(np.where(judged, levels[2], 1.0), 0)[(len(totals) - 1) // 2]
    p, reference = more_than_others(wrong, totals)
    p = holm(np.where(judged, p, 1))
    surely = wilson(wrong, totals)[0] - np.maximum(FACTOR * reference, EXCESS)
    low = np.where(judged, np.clip(np.maximum(low - usual, surely), 0, high), 0)
    level = np.clip(level - cleanest, low, high)
    return LabelLevels(level, low, high, p, judged & (p < SIGNIFICANT) & (surely > 0))


def _arrays(session, federation, found):
    """Return the results per sample and per client by name."""
    held, given = federation.client_indices, np.asarray(federation.given)
    levels = {"": found.level, "_low": found.low, "_high": found.high}
    out = {f"client_level{name}": values.mean(1) for name, values in levels.items()}
    out |= {"client_score": out["client_level"], "suggested_label": given.copy(), "flagged": np.zeros(len(given), bool)}
    out["suggested_label"][held] = session.kept("guess").astype(given.dtype)
    out["flagged"][held] = session.kept("flagged")
    robust = ("robust",) if federation.task == "regression" else ()
    for name, of in (("issue_score", "issue"), ("quality", "quality"), *((name, name) for name in robust)):
        out[name] = np.zeros(len(given))
        out[name][held] = session.kept(of)
    if federation.task == "tokens":
        out["sentence_quality"] = sentence_quality(out["quality"], federation.extra["sentence"])
    return {PREFIX + name: values for name, values in out.items()}


def _rows(federation, chosen, skill, differs, found, *, cells=None, lines=None):
    """Return the TaskSite of each site, noisy ones first."""
    rows, sizes = [], np.diff(federation.client_offsets)
    bare = federation.meta.get("client_unlabeled", [0] * len(federation))
    present = cells is not None and federation.task == "multilabel"
    names = federation.meta.get("class_names") if federation.task != "tokens" else ["tags"]
    for k, site in enumerate(federation.names):
        judge = [{0: "others", 1: "own", -1: None}[int(number)] for number in chosen[k]]
        labels = [
            (PresentLabelAudit if present else LabelAudit)(
                label=name,
                judge=judge[j],
                level=float(found.level[k, j]) if judge[j] else None,
                low=float(found.low[k, j]),
                high=float(found.high[k, j]),
                p=float(found.p[k, j]),
                noisier=bool(found.noisier[k, j]),
                skill=LabelSkill(*map(float, skill[k, :, j])),
                differs=bool(differs[k, j]),
                **({"missing": _missing(cells[k, j])} if present else {}),
            )
            for j, name in enumerate(names)
        ]
        known = [one for one in labels if one.judge]
        row = TaskSite(
            client=k,
            site=site,
            samples=int(sizes[k]),
            labels=labels,
            low=float(np.mean([one.low for one in labels])),
            high=float(np.mean([one.high for one in labels])),
            level=float(np.mean([one.level for one in known])) if len(known) == len(labels) else None,
            p=min(one.p for one in labels),
            noisier=any(one.noisier for one in labels),
            judge=known[0].judge if known else None,
            unlabeled=int(bare[k]),
            line=None if lines is None else lines[k].tolist(),
        )
        finding, words, following = describe_site(row)
        rows.append(replace(row, finding=finding, words=words, next=following))
    return sorted(rows, key=lambda row: (-row.noisier, row.finding in (AGREES, WITHIN), -row.low, row.client))


def _missing(cells):
    """Return the share of confident positives that lack the label, from cells (3, 2), or None."""
    missed, kept = int(cells[1, 0]), int(cells[0, 1])
    return missed / (missed + kept) if missed + kept else None


def describe_site(row: TaskSite) -> tuple[str, list[str], list[str]]:
    """Return (finding, words, next steps) of a site."""
    words, following, finding = [], [], AGREES
    unknown = [one.label for one in row.labels if not one.judge]
    if unknown:
        finding = "labels cannot be judged"
        words.append(f"No model predicts {', '.join(unknown[:6])} at this site, so these labels cannot be judged.")
        following.append("give better inputs with `embeddings`, or more samples")
    apart = [one.label for one in row.labels if one.differs]
    if apart:
        finding = "labels relate to the inputs differently"
        words.append(f"The models of the other sites do not fit {', '.join(apart[:6])}; a model of the site itself judges.")
        if row.line and (not 0.7 < row.line[0] < 1.4 or abs(row.line[1]) > 1):
            words.append(
                f"Targets spread {row.line[0]:.2g} times as wide as the "
                f"predictions of the other sites, shifted by {row.line[1]:.2g} standard deviations."
            )
        following.append("compare units, coding and inputs with the other sites")
    for one in row.labels:
        if one.noisier:
            finding = WRONG
            missing = (one.missing or 0.0) if isinstance(one, PresentLabelAudit) else 0.0
            more = f", {100 * missing:.0f} % of the positives lack it" if missing > 0.1 else ""
            ends = f"{100 * one.low:.0f} to {100 * one.high:.0f} %"
            words.append(f"{one.label}: {100 * (one.level or 0.0):.0f} % wrong ({ends}){more}.")
    if row.noisier:
        following.append("review the suspects")
    if not words and any(one.judge == "own" for one in row.labels):
        finding = WITHIN
        words.append("Only a model of the site itself judges some labels. It cannot see errors that follow a rule.")
    if not words:
        most = f"{100 * row.high:.1f} %"
        words.append(f"Compared with the other sites, at most {most} of the labels can be wrong.")
    return finding, words, following
