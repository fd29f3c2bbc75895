"""Describe the findings of an audit about a site in sentences."""

import numpy as np

from fnlkit.audits.records import SiteAudit
from fnlkit.audits.server.statistics import LEAST_REFERENCE
from fnlkit.audits.server.verdict import AGREES, DOUBT, UNKNOWN, WITHIN, WRONG
from fnlkit.core.errors import list_names
from fnlkit.estimators.intervals import wilson

# A class with a larger share of the labels is named as the reason if no model has skill.
ONE_CLASS = 0.9
COMPARED = "Sites are compared with the other sites; errors that most sites share cannot be seen."


def describe_site(row: SiteAudit) -> tuple[list[str], list[str]]:
    """Describe the findings about a site in sentences, and the next step for each: (words, next), lists of texts.

    Parameters
    ----------
    row : SiteAudit
        With its `finding`.
    """
    words, following = [_labels(row)], []
    if row.finding == WRONG:
        following.append("review the suspicious samples of this site")
    elif row.finding == UNKNOWN:
        following.append("review the samples with the highest scores of this site: their order does not need a finding")
        if number := samples_needed(row):
            following.append(f"about {number:,} samples like these would be enough to judge this site")
    inputs = row.inputs
    if inputs.differ:
        words.append(_inputs(inputs))
        cause = "the units" if any(c.kind == "units" for c in inputs.columns) else "the export and the device"
        following.append(
            "find out which devices, exports and units the sites use"
            if inputs.common
            else f"compare {cause} with the other sites, correct the inputs, and audit again"
        )
    if row.only_here:
        words.append(f"Classes differ: only this site has {list_names(row.only_here)}. No other site can judge these labels.")
        following.append("check that these classes have the same name at all sites")
    elif row.shares_differ:
        words.append("Classes differ: the shares of the classes are not those of the other sites.")
    if row.unseen:
        words.append(
            f"{100 * row.unseen:.0f} % of the labels are not judged, because this site or the other sites have too few samples "
            "of their classes. The upper end of the range counts all of them as wrong."
        )
    return words, following


def samples_needed(row: SiteAudit) -> int | None:
    """Number of samples like these with which a site could be judged; None if more samples do not help.

    A model of the site itself contradicts some share of the labels.  If this share is below `DOUBT`, the upper end of its range
    is as well with enough samples.
    """
    if row.samples < LEAST_REFERENCE:
        return LEAST_REFERENCE
    if row.judge != "own" or row.contradicted:
        return None
    ends = wilson(np.arange(row.samples + 1), np.full(row.samples + 1, row.samples))[1]
    share = np.searchsorted(ends, row.high - row.unseen + 1e-9, side="right") / row.samples
    sizes = np.ceil(row.samples * 1.1 ** np.arange(100))
    enough = sizes[wilson(share * sizes, sizes)[1] <= DOUBT]
    return int(float(f"{enough[0]:.2g}")) if len(enough) and enough[0] > row.samples else None


def _labels(row):
    span = f"{100 * row.low:.1f} to {100 * row.high:.1f} %"
    most = f"{100 * (row.high - row.unseen):.1f} %"
    judged = f"{100 * row.low:.1f} to {most}"
    if row.finding == WRONG:
        level = f"about {100 * row.level:.1f} % ({span})" if row.level is not None else span
        text = f"Wrong labels, compared with the other sites: {level}."
        if row.judge == "own":
            text = f"Wrong labels: {level}, judged by a model of the site itself."
        for one in row.classes[:3]:
            part = f"{100 * one.share:.0f} % ({100 * one.low:.0f} to {100 * one.high:.0f} %)"
            text += f" Of the samples that look like {one.true}, {part} have another label, mainly {list_names(one.given)}."
        return text
    if row.finding == AGREES:
        return f"Compared with the other sites, {judged} of the labels can be wrong."
    if row.finding == WITHIN:
        return (f"Only a model of the site itself judges: it contradicts at most {most} of the labels. It "
                "cannot see errors that follow a rule.")  # fmt: skip
    return f"Labels cannot be judged: {_reason(row)}"


def _reason(row):
    """Explain why the labels of a site cannot be judged, in sentences that follow a colon."""
    if row.contradicted:
        return ("a model of the site itself supports labels that the models of the other sites "
                "contradict. The site labels by another rule, or its inputs differ in another way.")  # fmt: skip
    if row.judge == "others" and not row.separable:
        return (f"the models contradict many labels at every site, here up to {100 * row.high:.0f} %, so that mistakes of "
                "the models cannot be told from wrong labels.")  # fmt: skip
    if row.judge == "others":
        return f"the models of the other sites contradict up to {100 * (row.high - row.unseen):.0f} % of the labels."
    if row.judge == "own":
        return (f"a model of the site itself, the only one that applies, contradicts up to {100 * (row.high - row.unseen):.0f} "
                "% of the labels; its mistakes cannot be told from wrong labels.")  # fmt: skip
    if row.samples < LEAST_REFERENCE:
        return f"the site has fewer than {LEAST_REFERENCE} samples."
    if row.balance > ONE_CLASS:
        return f"{100 * row.balance:.1f} % of the labels are {row.largest}, and no model predicts the others."
    if row.inputs.differ and not row.inputs.undone:
        return "the inputs differ, and a model of the site itself has no skill."
    return "the models cannot tell these classes apart here."


def _inputs(inputs):
    known = f"(a linear classifier recognizes the site with AUC {inputs.auc:.2f})"
    if inputs.common:
        columns = list_names([one.name for one in inputs.columns])
        return f"Inputs differ between most sites, so no site is the reference{columns and f': here in {columns}'} {known}."
    words = list(inputs.words)
    for kind, text in (("units", "units differ in {}"), ("offset", "values are shifted in {}"), ("missing", "{} is constant")):
        columns = [one for one in inputs.columns if one.kind == kind]
        if columns:
            names = list_names([f"column {one.name}" + (f" (factor {one.factor:.3g})" if kind == "units" else "")
                           for one in columns])  # fmt: skip
            words.append(text.format(names))
    why = "; ".join(words) or "for an unknown reason"
    undone = " The labels were judged after the difference was undone." if inputs.undone else ""
    undone = " The features by which the models judge labels do not differ." if inputs.equal_features else undone
    return f"Inputs differ: {why} {known}.{undone}"
