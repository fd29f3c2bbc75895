"""Results of an audit of a task: plain values for JSON, and an HTML page."""

from importlib import resources
from typing import Any

from jinja2 import Environment

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.records import from_json, to_json
from fnlkit.artifacts.shown import data_set, plain
from fnlkit.audits import report
from fnlkit.audits.tasks.audit import ASSUMPTIONS
from fnlkit.audits.tasks.records import TaskSite
from fnlkit.audits.wording import COMPARED

RANGE = (
    "Range: 95 % interval of the share of wrong labels, compared with the other sites, over random "
    "samples of the site, allowing for the mistakes that the models make at the median site. A "
    "dash means that no model predicts the labels at this site."
)


def facts(sites: list[TaskSite], federation: Federation, sent: dict[str, Any]) -> dict[str, Any]:
    """Return the results of fnlkit.audits.tasks.audit as plain values for JSON."""
    noisy = [row.site for row in sites if row.noisier]
    text = f"Noisier than the others by more than chance: {', '.join(noisy)}." if noisy else "No site is named as noisier."
    unknown = [row.site for row in sites if not all(one.judge for one in row.labels)]
    return {
        "compared": COMPARED,
        "labels_are": federation.task,
        "dataset": federation.dataset,
        "name": data_set(federation.dataset),
        "samples": int(federation.whole().client_offsets[-1]),
        "sites": to_json(sites),
        "sent": sent,
        "assumptions": list(ASSUMPTIONS),
        "range": RANGE,
        "words": f"{COMPARED} {text}" + (f" Not all labels can be judged: {', '.join(unknown)}." if unknown else ""),
    }


def cells(row: TaskSite) -> list[list[str]]:
    """Return a list of table cells for each label of a site: site, samples, label, level, range, p, judge."""
    out = []
    for one in row.labels:
        ends = f"{100 * one.low:.1f} to {100 * one.high:.1f} %" if one.judge else "-"
        skill = "-" if one.judge is None else f"{one.judge} {getattr(one.skill, one.judge):.2f}"
        p = report.chance(one.p if one.judge else None)
        out.append([row.site, f"{row.samples:,}", one.label, report.level(one), ends, p, skill])
    return out


COLUMNS = ("site", "samples", "label", "estimated wrong", "range", "p", "judging model, skill")


def following(sites: list[TaskSite], judged: str) -> list[str]:
    """Return the next commands: reviews of the noisy sites, otherwise the list of suspects."""
    noisy = any(row.noisier for row in sites)
    return report.following(sites, judged) if noisy else [f"fnlkit review suspects {judged} -o suspects.csv"]


def sites_of(facts: dict[str, Any]) -> list[TaskSite]:
    """Return the sites of the results of an audit.

    Raises
    ------
    InputError
        If an entry is missing or has another type.
    """
    return [from_json(TaskSite, row, f"site {k}") for k, row in enumerate(facts["sites"])]


def page(facts: dict[str, Any], judged: str = "judged.npz") -> str:
    """Return the audit as one HTML page that needs no network; all text from files is escaped."""
    text = resources.files("fnlkit.data").joinpath("audit-tasks.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    sites = sites_of(facts)
    commands = list(map(plain, following(sites, judged)))
    return template.render(facts=facts | {"sites": sites}, cells=cells, columns=COLUMNS, next=commands)
