"""Audit reports: plain values for JSON and an HTML page."""

import math
import re
import shlex
from collections.abc import Sequence
from functools import partial
from importlib import resources
from typing import Any

import numpy as np

from fnlkit.artifacts.display import data_set, plain
from fnlkit.artifacts.exchange import Traffic
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.records import from_json, to_json
from fnlkit.audits import crowd
from fnlkit.audits.audit import ASSUMPTIONS, Audit
from fnlkit.audits.messages import SENDS
from fnlkit.audits.records import SiteAudit
from fnlkit.audits.server.results import AGREEING
from fnlkit.audits.server.verdict import UNKNOWN
from fnlkit.audits.server.wording import COMPARED
from fnlkit.core.declarations import Sent
from fnlkit.core.errors import list_names
from fnlkit.datasets.dataset import Dataset
from fnlkit.estimators.judgment import PREFIX

# A class with more than this share of a site's samples is reported.
LARGE = 0.5
# Classes in the small table of a site.
MOST_CLASSES = 10
# Sentences of a short report.
MOST_FINDINGS = 6
RANGE = (
    "Range: interval of the share of wrong labels, compared with the other sites, if the site had "
    "drawn other samples. It allows for as many mistakes of the model as the cleanest site may show. If mistakes of the "
    "model cannot be told from wrong labels, the range contains both "
    "and no estimate is shown."
)

BASIS = (
    "Estimated: all shares of wrong labels, ranges and confusions here are right only if the assumptions below hold. "
    "Guaranteed, whatever the noise depends on: a list of wrong labels and ranges from a review whose samples were drawn at "
    "random (fnlkit review export --guarantee 0.2)."
)


def facts(audit: Audit, federation: Federation, dataset: Dataset, sends: dict[str, Sent] = SENDS) -> dict[str, Any]:
    """Collect the results of an audit as plain values for JSON.

    Parameters
    ----------
    audit : fnlkit.audits.audit.Audit
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    sends : dict of str to Sent
        Declared replies.
    """
    classes = list(map(str, dataset.class_names))
    return facts_of(
        audit.sites, federation.dataset, classes, audit.traffic, sends, describe_shared_samples(federation), audit.notes
    )


def facts_of(
    sites: list[SiteAudit],
    dataset: str,
    classes: list[str],
    traffic: Traffic,
    sends: dict[str, Sent],
    more: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Collect the results of an audit as plain values for JSON.

    Parameters
    ----------
    sites : list of SiteAudit
    dataset : str
        Name of the data set.
    classes : list of str
    traffic : fnlkit.artifacts.exchange.Traffic
    sends : dict of str to Sent
        Declared replies.
    more, notes : sequence of str
        Further assumptions, and notes.
    """
    return {
        "compared": COMPARED,
        "dataset": dataset,
        "name": data_set(dataset),
        "samples": sum(row.samples for row in sites),
        "classes": classes,
        "sites": [to_json(row) | {"basis": "assumptions"} for row in sites],
        "sent": describe_sent(traffic, sends),
        "assumptions": [*ASSUMPTIONS, *more],
        "range": RANGE,
        "basis": BASIS,
        "notes": list(notes),
        "words": f"{COMPARED} {answer(sites)}",
    }


def describe_sent(traffic: Traffic, sends: dict[str, Sent]) -> dict[str, dict[str, Any]]:
    """Describe the arrays that left the sites, {name: {"bytes", "what"}}; raise if one is not declared in `sends`."""
    if undeclared := sorted(set(traffic.sent) - set(sends)):
        raise RuntimeError(f"sites sent {undeclared}, which is not declared")
    return {name: {"bytes": int(n), "what": f"{sends[name].what}; {sends[name].when}"} for name, n in traffic.sent.items()}


def sites_of(facts: dict[str, Any]) -> list[SiteAudit]:
    """Sites of the results of an audit.

    Raises
    ------
    InputError
        If an entry is missing or has another type.
    """
    return [from_json(SiteAudit, row, f"site {k}") for k, row in enumerate(facts["sites"])]


def needs_a_look(row: SiteAudit) -> bool:
    """Whether a site has a finding other than the agreement of its labels with the models."""
    return row.finding not in AGREEING or row.inputs.differ or bool(row.only_here)


def describe_shared_samples(federation: Federation) -> list[Any]:
    """State in one sentence that clients share samples; [] otherwise."""
    number, samples = crowd.count_shared(federation)
    if not number:
        return []
    return [
        f"{number:,} of {samples:,} samples belong to several clients, so that clients are not independent: each label is "
        "judged by labels of other samples, but levels can be too low where annotators agree on wrong labels of similar "
        "samples, and p-values count these samples several times; upper ends count every contradicted label as wrong"
    ]


def answer(sites: list[SiteAudit], most: int | None = None) -> str:
    """State the result of an audit in a sentence, which names at most `most` sites."""
    noisy = [row for row in sites if row.noisier]
    unknown = sum(row.finding == UNKNOWN for row in sites)
    if noisy:
        named = ", ".join(f"{row.site} ({100 * row.low:.0f} to {100 * row.high:.0f} %)" for row in noisy[:most])
        named += f" and {len(noisy) - most} more" if most is not None and len(noisy) > most else ""
        verb = "has" if len(noisy) == 1 else "have"
        more = f"; {unknown} of {len(sites)} cannot be judged" if unknown else ""
        return f"{len(noisy)} of {len(sites)} sites {verb} more wrong labels than the others, beyond chance: {named}{more}."
    if not unknown:
        return "No site has more wrong labels than the others, beyond chance."
    others = "" if unknown == len(sites) else " None of the others has more wrong labels than the rest, beyond chance."
    return f"{unknown} of {len(sites)} sites cannot be judged; their most suspicious samples can still be reviewed.{others}"


def short_finding(row: SiteAudit) -> str:
    """State the finding about a site in a few words."""
    inputs = ", inputs differ" if row.inputs.differ else ""
    classes = ", classes differ" if row.only_here or row.shares_differ else ""
    return f"{'agrees' if row.finding in AGREEING else row.finding}{inputs}{classes}"


def findings(sites: list[SiteAudit], every: bool = False) -> list[str]:
    """Write a sentence for each finding, and all sentences of all sites with `every`.

    The sites with the same finding share a sentence, and a number or cause of the first site stands for the others.
    """
    if every:
        rows = [(row, row.words) for row in sites]
        return [f"{row.site}: {' '.join(words)}" for row, words in rows] + [
            f"Next at {row.site}: {'; '.join(row.next)}." for row in sites if row.next
        ]
    sites_by_finding: dict[str, list[str]] = {}
    for row in sites:
        if needs_a_look(row):
            for words in row.words:
                sites_by_finding.setdefault(words, []).append(row.site)
    return [f"{', '.join(names)}: {words}" for words, names in sites_by_finding.items()][:MOST_FINDINGS]


def following(sites: Sequence[SiteAudit], judged: str) -> list[str]:
    """List the commands to run next: reviews of noisy sites and of those that cannot be judged, otherwise training.

    Parameters
    ----------
    sites : list of SiteAudit
    judged : str
        The file with the judgment. "" if the sites keep it.
    """
    reviewed = [row.site for row in sites if row.noisier] + [row.site for row in sites if row.finding == UNKNOWN]
    if not judged:
        return [f"fnlkit site review DATA --project PATH  # at {name}" for name in reviewed]
    file = shlex.quote(judged)
    if not reviewed:
        return [f"fnlkit train {file} -o run.pt"]
    folders = ["review-" + re.sub(r"[^\w.-]+", "-", name) for name in reviewed]
    return [
        f"fnlkit review export {file} --client {shlex.quote(name)} -o {shlex.quote(folder)}"
        for name, folder in zip(reviewed, folders, strict=True)
    ]


def level(row: SiteAudit) -> str:
    """Format the estimated share of wrong labels; a dash if it cannot be separated from mistakes of the model."""
    return "-" if row.level is None else f"{100 * row.level:.1f} %"


def ends(row: SiteAudit) -> str:
    """Format the range of the share of wrong labels; a dash if no model judges."""
    if row.judge is None:
        return "-"
    span = f"{100 * row.low:.1f} to {100 * row.high:.1f} %"
    return span if row.judge == "others" else f"{span} (own model)"


def skill(row: SiteAudit) -> str:
    """Format the skill of the models that judged a site: agreement beyond chance, with its interval."""
    return "; ".join(
        f"{name} {score.kappa:.2f} ({score.low:.2f} to {score.high:.2f})" for name, score in row.skill.items()
    )  # fmt: skip


def describe_confusions(row: SiteAudit) -> str:
    """Describe the supported confusions of a site, or a dash; mistakes of the models can explain the others."""
    # Results of older versions have no mark.
    shown = [c for c in row.confused if (row.finding not in AGREEING if c.supported is None else c.supported)]
    return "; ".join(f"{c.true} given as {c.given} {100 * c.share:.0f} %" for c in shown) or "-"


def chance(p: float | None) -> str:
    """Format a p-value: ``0.012``, ``< 0.001``, or a dash for None."""
    if p is None:
        return "-"
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def odd(row: SiteAudit) -> str:
    """Describe the further findings about a site's data."""
    words = [f"{number} {word}" for number, word in (
        (row.copies, "copies"), (row.near_copies, "near copies"), (row.far, "far from all others"),
        (row.unlabeled, "without a label"),
    ) if number]  # fmt: skip
    if row.balance > LARGE:
        words.append(f"{100 * row.balance:.0f} % are {row.largest}")
    if row.withheld:
        words.append(f"fewer than 5 of {list_names(row.withheld)}, left out")
    words += [f"no {name}" for name in row.missing[:3]]
    if len(row.missing) > 3:
        words.append(f"{len(row.missing) - 3} more classes missing")
    return "; ".join(words) or "-"


def matrix(row: SiteAudit, classes: list[str]) -> dict[str, Any] | None:
    """Confusions of a site as {"names": classes, "rows": shares of the true class}, or None if no model judged.

    Of many classes, those with the most confusions are taken.

    Parameters
    ----------
    row : SiteAudit
    classes : list of str
    """
    if row.matrix is None:
        return None
    counts = np.asarray(row.matrix)
    off = counts * ~np.eye(len(counts), dtype=bool)
    taken = np.sort(np.argsort(-(off.sum(0) + off.sum(1)), kind="stable")[:MOST_CLASSES])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1e-9)
    return {"names": [classes[c] for c in taken], "rows": shares[np.ix_(taken, taken)].tolist()}


def detectors(row: SiteAudit) -> str:
    """Describe how many samples each detector flags at a site, and on how many of them they agree."""
    if len(row.detectors) < 2:
        return ""
    half = len(row.detectors) // 2 + 1
    counts = ", ".join(f"{name} {number}" for name, number in row.detectors.items())
    return f"Flagged by {counts}; {sum(row.agreed[half:])} samples by at least {half} of {len(row.detectors)} detectors."


def first_suspects(
    federation: Federation, dataset: Dataset, sites: list[SiteAudit], most: int = 6
) -> dict[str, list[dict[str, Any]]]:
    """Collect {site: views of the flagged samples with the highest scores} of the noisy sites.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
        The judged federation.
    dataset : fnlkit.datasets.Dataset
        Images or waves; other samples have no picture.
    sites : list of SiteAudit
    most : int
        Samples per site.
    """
    if dataset.kind == "vector":
        return {}
    score, flagged, guess = (np.asarray(federation.extra[PREFIX + n]) for n in ("issue_score", "flagged", "suggested_label"))
    from fnlkit.audits.page import view

    names, whole, suspects = list(map(str, dataset.class_names)), federation.whole().clients, {}
    for row in sites:
        held = np.asarray(whole[row.client])
        held = held[flagged[held]]
        chosen = held[np.argsort(-score[held], kind="stable")][:most] if row.noisier else []
        labels = [{"given": names[federation.given[i]], "suggested": names[guess[i]]} for i in chosen]
        suspects[row.site] = [view(dataset, i) | label for i, label in zip(chosen, labels, strict=True)]
    return {site: views for site, views in suspects.items() if views}


def page(facts: dict[str, Any], judged: str = "judged.npz", suspects: dict[str, Any] | None = None) -> str:
    """Write the audit as one HTML page that needs no network; all text from files is escaped.

    Parameters
    ----------
    facts : dict
        From `facts`.
    judged : str
        The file with the judgment, which the next command reads. "" if the sites keep it.
    suspects : dict, optional
        From `first_suspects`.
    """
    from jinja2 import Environment

    text = resources.files("fnlkit.data").joinpath("audit.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    sites = sites_of(facts)
    more = {"sites": sites, "next": list(map(plain, following(sites, judged)))}
    top = max(0.1, math.ceil(10 * max(row.high for row in sites)) / 10)
    sent = sum(row["bytes"] for row in facts["sent"].values())
    attention = [row for row in sites if needs_a_look(row)]
    others = [row for row in sites if not needs_a_look(row)]
    parts = {"suspects": suspects or {}, "attention": attention, "others": others, "most": MOST_CLASSES}
    parts |= {"matrix": partial(matrix, classes=facts["classes"]), "detectors": detectors}
    parts |= {"odd": odd, "chance": chance, "level": level, "ends": ends, "skill": skill}
    return template.render(facts=facts | more, top=top, sent=sent, confused=describe_confusions, **parts)
