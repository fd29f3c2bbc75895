"""Decide what an audit reports for each site: wrong labels, other inputs, other classes, or that it cannot judge.

Wrong labels are reported only if the models of the other sites have skill and the inputs of the site agree with those of
the others, or if a cross-validated model of the site itself is certain and still contradicts the labels.
"""

import numpy as np
from scipy.special import ndtr

from fnlkit.estimators.em import allowing_for_mistakes
from fnlkit.estimators.intervals import wilson
from fnlkit.review.shifts import DIFFERENT

# Largest p-value after Holm's correction of the test that a site has more wrong labels than the others.
SIGNIFICANT = 0.05
# The same for single confusions, for samples that both models contradict, and without the support of the site's own model.
SIGNIFICANT_CLASS = 0.01
# Fewer samples of the other sites give no reference, and fewer samples of a site are not judged.
LEAST_REFERENCE = 5
# A confusion is reported if it has at least this many expected samples and at least this share of the true class.
LEAST_SAMPLES, LEAST_SHARE = 3, 0.02
# A model has skill if its agreement with the labels exceeds chance by this share of the possible excess (Cohen's kappa).
SKILL = 0.3
# If more labels can be wrong even at the cleanest site, mistakes of the models cannot be told from wrong labels.
SEPARABLE = 0.1
# The same if the predictions differ from a larger share of the labels at every site: a calibrated model that has learned wrong
# labels explains them as samples that are hard to classify. Within the limits that separate the development seeds of
# benchmarks.contradicted, and confirmed on its reported seeds (tables).
CONTRADICTED = 0.25
# If the site's own model may contradict more labels, the finding is not that they agree with this model.
DOUBT = 0.1
# Class shares differ if their total variation is larger, or the share of one class by this factor.
SHARES, RATIO = 0.15, 2.0
RARE = 1e-4  # p-value of the tests of class shares
# A class with a larger share of the labels is named as the reason if no model has skill.
ONE_CLASS = 0.9


def skill_of(table):
    """Return the skill of predictions from counts by predicted class and given label (C, C).

    Returns
    -------
    dict
        agreement, chance; kappa, low, high: agreement beyond chance, as a share of the largest possible, with the
        95 % interval.
    """
    table = np.asarray(table, np.float64)
    total = max(1.0, table.sum())
    share, chance = table.trace() / total, float(table.sum(1) @ table.sum(0)) / total**2
    chance = min(chance, 1.0)
    low, high = wilson(table.trace(), total)
    kappa, low, high = ((value - chance) / max(1e-9, 1 - chance) for value in (share, low, high))
    return {"agreement": float(share), "chance": float(chance), "kappa": float(kappa), "low": float(low), "high": float(high)}


def skill_by_class(predicted, doubted, classes):
    """Return the share of each class that the models of the others predict, among labels that not both models contradict.

    Parameters
    ----------
    predicted, doubted : int (C, C)
        Counts by predicted class and given label, of all samples and of those for which both models predict the same other
        class.
    classes : list of str

    Returns
    -------
    list of dict
        class, samples, share, low, high; classes without samples are left out.
    """
    out = []
    for c, total in enumerate(predicted.sum(0) - doubted.sum(0)):
        if total > 0:
            right = min(predicted[c, c], total)
            low, high = wilson(right, total)
            share = float(right / total)
            out.append({"class": classes[c], "samples": int(total), "share": share, "low": float(low), "high": float(high)})
    return out


def holm(p):
    """Return p-values after Holm's correction, of the same shape."""
    flat = np.asarray(p, np.float64).reshape(-1)
    order = np.argsort(flat, kind="stable")
    corrected = np.maximum.accumulate(flat[order] * (len(flat) - np.arange(len(flat))))
    out = np.empty(len(flat))
    out[order] = np.minimum(1, corrected)
    return out.reshape(np.shape(p))


def noisier_than_others(level, deviation):
    """Return one-sided p-values (N,) that a site is noisier than the median of the others.

    Holm's correction is applied. The reference is the median, so that a site with mostly wrong labels does not hide another
    noisy site.

    Parameters
    ----------
    level, deviation : (N,)
        Estimated levels and their standard deviations.

    Source: Holm 1979. Each test is of a normal difference; the variance of the median is pi / 2 times that of the mean.
    """
    level, variance, count = np.asarray(level), np.maximum(np.asarray(deviation), 1e-3) ** 2, len(level)
    if count < 2:
        return np.ones(count)
    others = np.array([np.median(np.delete(level, k)) for k in range(count)])
    of_median = np.pi / 2 * np.array([np.median(np.delete(variance, k)) for k in range(count)]) / (count - 1)
    spread = np.sqrt(variance + of_median)
    return holm(ndtr((others - level) / spread))


def more_than_others(counts, totals, away=0):
    """Return one-sided p-values (N, ...) that a share is larger at a site than at the others, and the others' shares.

    The other site with the largest share is left out if at least two remain, so that a noisy site does not hide another one.
    The test is Fisher's exact test.

    Parameters
    ----------
    counts, totals : int (N, ...)
    away : int
        The site is tested with a count that is smaller by this number, because counts are rounded.
    """
    from scipy.stats import hypergeom

    counts, totals = np.broadcast_arrays(np.asarray(counts), np.asarray(totals))
    rates = counts / np.maximum(totals, 1)
    p, reference = np.ones(counts.shape), np.zeros(counts.shape)
    for k in range(len(counts)):
        others = np.arange(len(counts)) != k
        x, n, rate = counts[others], totals[others], np.where(totals[others] > 0, rates[others], -1)
        if len(x) > 2:
            worst = np.argmax(rate, 0)[None]
            x, n = x.copy(), n.copy()
            np.put_along_axis(x, worst, 0, 0)
            np.put_along_axis(n, worst, 0, 0)
        x, n = x.sum(0), n.sum(0)
        least = np.maximum(counts[k] - away, 0)
        found = hypergeom.sf(least - 1, totals[k] + n, least + x, totals[k])
        p[k] = np.where((n > 0) & (totals[k] > 0), found, 1)
        # Half a sample more, because no mistakes among few samples do not mean a share of 0.
        reference[k] = np.where(n >= LEAST_REFERENCE, (x + 0.5) / (n + 1), 0)
    return p, reference


def confuses_beyond_chance(predicted, counts, away=0):
    """Return whether a site has more of a confusion than the others, and the p-values of these confusions.

    Either more samples of the given label are predicted as the other class, after Holm's correction for all confusions of
    all sites; shares of predictions within a given label do not depend on the class shares of a site. Or this holds without
    the correction, and more of the expected samples of the true class have the label, with the correction.

    Parameters
    ----------
    predicted : int (N, C, C)
        Counts by predicted class and given label.
    counts : (N, C, C)
        Expected numbers of samples by true and given class.
    away : int
        As for `more_than_others`.

    Returns
    -------
    cells : bool (N, C, C)
        By true and given class.
    p : (N,)
        Smallest p-value of the confusions in `cells` after Holm's correction for all confusions of all sites; 1 for none.
    """
    off = ~np.eye(predicted.shape[1], dtype=bool)
    totals, expected = predicted.sum(1, keepdims=True), np.round(counts).astype(int)
    p, reference = more_than_others(predicted, totals, away)
    by_row, _ = more_than_others(expected, expected.sum(2, keepdims=True), away)
    surely = np.zeros(predicted.shape, bool)
    columns, rows = holm(p[:, off]), holm(by_row[:, off])
    surely[:, off] = columns < SIGNIFICANT_CLASS
    both = np.zeros(predicted.shape, bool)
    both[:, off] = (rows < SIGNIFICANT_CLASS) & (p[:, off] < SIGNIFICANT_CLASS)
    enough = (predicted - totals * reference >= LEAST_SAMPLES) & (counts >= LEAST_SAMPLES)
    cells, smallest = (surely | both) & enough, np.ones(predicted.shape)
    smallest[:, off] = np.minimum(columns, rows)
    return cells, np.where(cells, smallest, 1).min((1, 2))


def shares_differ(counts):
    """Return a mask (N,) of sites whose class shares differ from those of at least half of the other sites.

    Parameters
    ----------
    counts : int (N, C)
    """
    counts = np.asarray(counts, np.float64)
    sites, out, totals = len(counts), np.zeros(len(counts), bool), np.asarray(counts, np.float64).sum(1, keepdims=True)
    for k in np.flatnonzero(totals[:, 0]):
        others = counts[(np.arange(sites) != k) & (totals[:, 0] > 0)]
        mine, n, m = counts[k], totals[k, 0], others.sum(1, keepdims=True)
        others, m = (values[chi_square(mine, others) <= RARE] for values in (others, m))
        single = chi_square(np.stack(np.broadcast_arrays(mine, n - mine), -1), np.stack([others, m - others], -1)) < RARE
        shares = mine / n, others / m
        ratio = np.maximum(*shares) / np.maximum(np.minimum(*shares), 1e-9)
        far = np.abs(shares[0] - shares[1]).sum(1) / 2 > SHARES
        out[k] = (far | (single & (ratio > RATIO)).any(1)).sum() >= max(1, (sites - 1) / 2)
    return out


def chi_square(mine, others):
    """Return the p-values (...,) that counts have the same shares, by Pearson's test; 1 for fewer than two classes.

    Tables of two classes have Yates' correction, as in `scipy.stats.chi2_contingency`, which computes one table at a time.

    Parameters
    ----------
    mine, others : (..., C)
        Each with at least one sample; they are broadcast.
    """
    from scipy.stats import chi2

    mine, others = np.broadcast_arrays(np.asarray(mine, np.float64), np.asarray(others, np.float64))
    both, n, m = mine + others, mine.sum(-1, keepdims=True), others.sum(-1, keepdims=True)
    expected, rest, present = both * n / (n + m), both * m / (n + m), both > 0
    freedom = present.sum(-1) - 1
    away = np.abs(mine - expected)
    away = np.where(freedom[..., None] == 1, away - np.minimum(0.5, away), away)
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = np.where(present, away**2 / expected + away**2 / rest, 0.0).sum(-1)
    return np.where(freedom > 0, chi2.sf(statistic, np.maximum(freedom, 1)), 1.0)


def seen_elsewhere(counts):
    """Return (N, C): whether the other sites have a class often enough, also without the site that has it most often."""
    counts = np.asarray(counts)
    if len(counts) <= 2:
        return counts[::-1] >= 5 if len(counts) == 2 else np.zeros(counts.shape, bool)
    ordered = np.sort(counts, 0)
    largest = np.where(counts == ordered[-1], ordered[-2], ordered[-1])  # of the other sites
    return counts.sum(0) - counts - largest >= 5


def judges(auc, predicted, within, known):
    """Return for each site "others", "own" or None: the model that can judge the labels.

    Parameters
    ----------
    auc : (N,)
        Difference of the inputs after the chosen change; infinite if the difference cannot be undone.
    predicted, within : int (N, C, C)
        Predictions of the models of the other sites, and of the model of the site itself.
    known : bool (N, C)
        Classes that the models of the others can judge; skill is measured on samples with these labels.
    """
    others = [skill_of(table * columns) for table, columns in zip(predicted, known, strict=True)]
    own = [skill_of(table) for table in within]
    agree, out = auc < DIFFERENT, []
    for k in range(len(auc)):
        if predicted[k].sum() < LEAST_REFERENCE:
            out.append(None)
            continue
        elsewhere = [others[j]["kappa"] for j in range(len(auc)) if j != k and agree[j]]
        skilled = np.median(elsewhere) >= SKILL if elsewhere else others[k]["low"] >= SKILL
        # A site whose labels are all of one class shows no skill.
        skilled = skilled and np.count_nonzero(predicted[k].sum(0)) > 1
        out.append("others" if agree[k] and skilled else "own" if own[k]["low"] >= SKILL else None)
    return out


def assess(judge, estimates, predicted, within, doubted, supported, certain, unseen, *, shared=False, away=0):
    """Return the numbers of each site on which the report rests.

    Parameters
    ----------
    judge : list of N str or None
        From `judges`.
    estimates : dict of (N, ...)
        level, low, high, deviation, counts of fnlkit.estimators.em.
    predicted, within, doubted : int (N, C, C)
    supported : int (N,)
    certain : int (N, 2)
    unseen : (N,)
        Share of the labels of classes that no other site has. No model judges these labels.
    shared : bool
        Sites share samples.  Upper ends then count every contradicted label as wrong, because annotators who agree on wrong
        labels of similar samples teach these labels to the models. The model of the site itself is no independent evidence,
        because other sites have the same inputs.
    away : int
        As for `more_than_others`, for counts by class.

    Returns
    -------
    list of dict
        level (None if it cannot be separated from mistakes of the model), low, high, p (of the level, or of the confusions if
        only these are more than at the others), accused, contradicted, separable, cells (C, C).
    """
    sites, classes = len(judge), predicted.shape[1]
    out = [None] * sites
    by = {name: np.array([k for k in range(sites) if judge[k] == name], int) for name in ("others", "own")}
    total = predicted.sum((1, 2))
    k = by["others"]
    if len(k):
        high = estimates["high"][k]
        wrong = total[k] - predicted[k].trace(axis1=1, axis2=2)
        separable = len(k) > 1 and high.min() <= SEPARABLE and (wrong / np.maximum(total[k], 1)).min() <= CONTRADICTED
        low = np.minimum(allowing_for_mistakes(estimates["low"][k], high), estimates["level"][k])
        least = np.minimum(estimates["low"][k], estimates["level"][k]) if shared else low
        # A bootstrap of few samples can have no spread, for example if all are contradicted.
        expected = (estimates["level"][k] * total[k] + 1) / (total[k] + 2)
        deviation = np.maximum(estimates["deviation"][k], np.sqrt(expected * (1 - expected) / (total[k] + 2)))
        p = noisier_than_others(estimates["level"][k], deviation)
        cells, by_cells = confuses_beyond_chance(predicted[k], estimates["counts"][k], away)
        excess = _excess(predicted[k])
        more, _ = more_than_others(doubted[k].sum((1, 2)), total[k])
        agreed = holm(more) < SIGNIFICANT_CLASS
        for i, site in enumerate(k):
            # A model of the site itself learns systematic errors. Only where inputs can differ does it speak for the labels.
            contradicted = _fewer(doubted[site].sum(), supported[site]) and not agreed[i] and not shared
            # A p-value that is not very small needs the support of the site's own model.
            noisy = p[i] < (SIGNIFICANT if agreed[i] else SIGNIFICANT_CLASS) and low[i] > 0 and excess[i] > 1.64
            shown = p[i] if noisy or not cells[i].any() else by_cells[i]
            noisy = noisy or cells[i].any()
            accused = bool(noisy and not contradicted)
            # No sign of wrong labels in a sample does not mean that there are none.
            upper = max(high[i], float(wilson(0, total[site])[1]))
            upper = upper if separable and not shared else max(upper, wilson(wrong[i], total[site])[1])
            out[site] = {"level": float(estimates["level"][site]) if separable else None, "p": float(shown),
                         "low": float(least[i]) if accused or shared else 0.0, "separable": bool(separable),
                         "high": float(min(1, max(upper, estimates["level"][site]) + unseen[site])),
                         "accused": accused, "contradicted": bool(noisy and contradicted),
                         "cells": cells[i]}  # fmt: skip
    skilled = [j for j in range(sites) if skill_of(within[j])["low"] >= SKILL] if len(by["own"]) else []
    ends = {j: wilson(*certain[j], 0.99)[1] for j in skilled}
    for site in by["own"]:
        most = wilson(total[site] - within[site].trace(), total[site])[1]
        least = wilson(*certain[site], 0.99)[0]
        mistakes = min((end for j, end in ends.items() if j != site), default=1.0)
        low = float(max(0.0, least - mistakes))
        low = low if low > LEAST_SHARE else 0.0
        out[site] = {"level": None, "p": None, "low": low, "high": float(most), "separable": False,
                     "accused": low > 0, "contradicted": False, "cells": np.zeros((classes, classes), bool)}  # fmt: skip
    empty = {"level": None, "p": None, "low": 0.0, "high": 1.0, "separable": False, "accused": False, "contradicted": False}
    return [one or empty | {"cells": np.zeros((classes, classes), bool)} for one in out]


def _excess(predicted):
    """Return (N,): number of contradicted labels beyond that of the others for the same labels, in standard deviations."""
    totals = predicted.sum(1)
    wrong = totals - np.einsum("kcc->kc", predicted)
    _, reference = more_than_others(wrong, totals)
    expected = (totals * reference).sum(1)
    return (wrong.sum(1) - expected) / np.sqrt(np.maximum((totals * reference * (1 - reference)).sum(1), 1))


def _fewer(one, other):
    """Return whether a count is smaller than another by more than chance."""
    from scipy.stats import binom

    return bool(other > one and binom.cdf(one, one + other, 0.5) < SIGNIFICANT_CLASS)


def confusions_of_mistakes(expected):
    """Return (C, C): upper bounds of the shares of each true class that mistakes of the models assign to each given class.

    The bound is the smallest upper end of Wilson's intervals at the sites, as `allowing_for_mistakes` has it for levels: at
    the cleanest site, all confusions are mistakes.

    Parameters
    ----------
    expected : (N, C, C)
        Expected numbers of samples by true and given class at the sites that the models of the others judge. 0 sites bound
        nothing (1).
    """
    counts = np.maximum(expected, 0)
    _, high = wilson(counts, counts.sum(2, keepdims=True))
    return high.min(0, initial=1.0)


def mark_supported(confused, classes, one, mistakes):
    """Return the confusions of a site with the entry ``supported``: it cannot be explained by mistakes of the models.

    A confusion is supported if the site has wrong labels and either more of this confusion than the others (`cells`), or an
    interval of the level above 0 and an interval of this confusion above the bound of the mistakes.

    Parameters
    ----------
    confused : list of dict
        From `confusions`.
    classes : list of str
    one : dict
        accused, low, cells of `assess`.
    mistakes : (C, C)
        From `confusions_of_mistakes`.
    """
    out = []
    for row in confused:
        cell = classes.index(row["true"]), classes.index(row["given"])
        supported = one["accused"] and (one["cells"][cell] or one["low"] > 0 and row["low"] > mistakes[cell])
        out.append(row | {"supported": bool(supported)})
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


def by_class(counts, cells, classes):
    """Return the shares of wrong labels of the classes with more confusions than elsewhere, as `confusions` does.

    Parameters
    ----------
    counts : (C, C)
        Expected numbers of samples by true and given class.
    cells : bool (C, C)
        From `confuses_beyond_chance`.
    classes : list of str
    """
    out = []
    for true in np.flatnonzero(cells.any(1)):
        total = counts[true].sum()
        number = float(total - counts[true, true])
        low, high = wilson(min(number, total), total)
        given = [classes[g] for g in np.flatnonzero(cells[true])]
        share = {"share": float(number / max(total, 1e-9)), "low": float(low), "high": float(high)}
        out.append({"true": classes[true], "given": given, "samples": number, **share})
    return sorted(out, key=lambda row: -row["samples"])


# ---- words
COMPARED = "Sites are compared with the other sites; errors that most sites share cannot be seen."
AGREES, WITHIN = "agrees with the other sites", "agrees with its own model"
WRONG, UNKNOWN = "wrong labels", "cannot be judged"


def finding(row):
    """Return AGREES, WITHIN, WRONG or UNKNOWN for the labels of a site, from the row of the audit.

    Labels agree with the other sites only if their models contradict few labels at some site: mistakes of the models and wrong
    labels at all sites look alike.
    """
    if row["noisier"]:
        return WRONG
    if row["judge"] is None or row["contradicted"]:
        return UNKNOWN
    if row["judge"] == "own":
        return WITHIN if row["high"] <= DOUBT else UNKNOWN
    return AGREES if row["separable"] and row["high"] - row["unseen"] <= 0.5 else UNKNOWN


def describe_site(row):
    """Return (words, next): the findings about a site in sentences, and the next step for each, as lists of texts.

    Parameters
    ----------
    row : dict
        A site of fnlkit.review.audit.Audit.
    """
    words, following = [_labels(row)], []
    if row["finding"] == WRONG:
        following.append("review the suspicious samples of this site")
    elif row["finding"] == UNKNOWN:
        following.append("let a person review random samples of this site before its labels are judged")
    inputs = row["inputs"]
    if inputs["differ"]:
        words.append(_inputs(inputs))
        cause = "the units" if any(c["kind"] == "units" for c in inputs["columns"]) else "the export and the device"
        following.append(
            "find out which devices, exports and units the sites use"
            if inputs["common"]
            else f"compare {cause} with the other sites, correct the inputs, and audit again"
        )
    if row["only_here"]:
        words.append(
            f"Classes differ: only this site has {_list(row['only_here'])}. Nobody can judge these labels, "
            f"{100 * row['unseen']:.0f} % of the site; the range contains them."
        )
        following.append("check that these classes have the same name at all sites")
    elif row["shares_differ"]:
        words.append("Classes differ: the shares of the classes are not those of the other sites.")
    return words, following


def _labels(row):
    span = f"{100 * row['low']:.1f} to {100 * row['high']:.1f} %"
    judged = f"{100 * row['low']:.1f} to {100 * (row['high'] - row['unseen']):.1f} %"
    if row["finding"] == WRONG:
        level = f"about {100 * row['level']:.1f} % ({span})" if row["level"] is not None else span
        text = f"Wrong labels, compared with the other sites: {level}."
        if row["judge"] == "own":
            text = f"Wrong labels: {level}, judged by a model of the site itself."
        for one in row["classes"][:3]:
            part = f"{100 * one['share']:.0f} % ({100 * one['low']:.0f} to {100 * one['high']:.0f} %)"
            text += f" Of the samples that look like {one['true']}, {part} have another label, mainly {_list(one['given'])}."
        return text
    if row["finding"] == AGREES:
        return f"Compared with the other sites, {judged} of the labels can be wrong."
    if row["finding"] == WITHIN:
        return (f"Only a model of the site itself judges: it contradicts at most {100 * row['high']:.1f} % of the labels. It "
                "cannot see errors that follow a rule.")  # fmt: skip
    return f"Labels cannot be judged: {_reason(row)}"


def _reason(row):
    """Return why the labels of a site cannot be judged, as sentences that follow a colon."""
    if row["contradicted"]:
        return ("a model of the site itself supports labels that the models of the other sites "
                "contradict. The site labels by another rule, or its inputs differ in another way.")  # fmt: skip
    if row["judge"] == "others" and not row["separable"]:
        return (f"the models contradict many labels at every site, here up to {100 * row['high']:.0f} %, so that mistakes of "
                "the models cannot be told from wrong labels.")  # fmt: skip
    if row["judge"] == "others":
        return f"the models of the other sites contradict up to {100 * (row['high'] - row['unseen']):.0f} % of the labels."
    if row["judge"] == "own":
        return (f"a model of the site itself, the only one that applies, contradicts up to {100 * row['high']:.0f} % of the "
                "labels; its mistakes cannot be told from wrong labels.")  # fmt: skip
    if row["samples"] < LEAST_REFERENCE:
        return f"the site has fewer than {LEAST_REFERENCE} samples."
    if row["balance"] > ONE_CLASS:
        return f"{100 * row['balance']:.1f} % of the labels are {row['largest']}, and no model predicts the others."
    if row["inputs"]["differ"] and not row["inputs"]["undone"]:
        return "the inputs differ, and a model of the site itself has no skill."
    return "the models cannot tell these classes apart here."


def _inputs(inputs):
    known = f"(a linear classifier recognizes the site with AUC {inputs['auc']:.2f})"
    if inputs["common"]:
        columns = _list([one["name"] for one in inputs["columns"]])
        return (
            f"Inputs differ between most sites, so that no site is the reference{columns and f': here in {columns}'} {known}."
        )
    found = list(inputs["words"])
    for kind, text in (("units", "units differ in {}"), ("offset", "values are shifted in {}"), ("missing", "{} is constant")):
        columns = [one for one in inputs["columns"] if one["kind"] == kind]
        if columns:
            names = _list([f"column {one['name']}" + (f" (factor {one['factor']:.3g})" if kind == "units" else "")
                           for one in columns])  # fmt: skip
            found.append(text.format(names))
    why = "; ".join(found) or "for an unknown reason"
    undone = " The labels were judged after the difference was undone." if inputs["undone"] else ""
    undone = " The features by which the models judge labels do not differ." if inputs["equal_features"] else undone
    return f"Inputs differ: {why} {known}.{undone}"


def _list(names, most=5):
    names = list(map(str, names))
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
