"""Benefit of a review of 200 samples: audit five sites, review two of them with the true labels, audit again.

    python -m benchmarks.review --repetitions 20

The federation is that of benchmarks.audit: a quarter of the labels of two classes swapped at one site, 10 % random labels at
another.  From each of the two sites 100 samples are exported like `fnlkit review export` does, the column `decision` of the
table is filled in from the true labels, and the table is imported.  Prints the share of wrong labels of each site before and
after the review: the true share, the audit's estimate from newly trained models, and the estimate from the reviewed samples.
Also prints the share of wrong labels among the first samples to review, for the audit and for cleanlab's ranking of the same
probabilities (extra `bench`).
"""

import argparse
import csv
import io

import numpy as np

from benchmarks.audit import RANDOM, SWAPPED, scores, world
from fnlkit.audits import decisions
from fnlkit.audits.statistics import SIGNIFICANT, noisier_than_others
from fnlkit.audits.suspects import choose
from fnlkit.estimators import em
from fnlkit.estimators.apply import add_judgment
from fnlkit.estimators.federated import with_rows
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.judgment import owners

REVIEWED = SWAPPED, RANDOM
ENDS = "level", "low", "high"


def decided(federation, data, client, budget, seed):
    """Return the federation after a review of one client with the true labels, and the record of the review."""
    selection = choose(federation, client, budget=budget, seed=seed)
    rows = list(csv.DictReader(io.StringIO(decisions.decision_template(federation, data, client, selection))))
    for row in rows:
        true = data.class_names[data.y_train[int(row["position"])]]
        decision, label = ("keep", "") if true == row["given"] else ("relabel", true)
        row |= {"decision": decision, "label": label, "reviewer": "the truth"}
    text = io.StringIO()
    writer = csv.DictWriter(text, decisions.COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    out = decisions.decide(federation, decisions.read_decisions(text.getvalue(), federation, data), when="2026-01-01")
    return out, out.meta["reviews"][-1]


def audited(federation, probabilities, seed):
    """Return each site's level, low and high (5, 3), the numbers of noisier sites, and the Judgment.

    The steps are those of `fnlkit.audits.audit`, on predictions of models that were trained on the other sites.
    """
    evidence = EstimatorInputs(federation, None, seed=seed, form="federated")
    found, said = em.by_clients(with_rows(evidence, probabilities=probabilities), prior=1.0, seed=seed)
    estimates = em.estimates_of(*(said[name].numpy() for name in ("low", "high", "counts")))
    p = noisier_than_others(found.level, estimates["deviation"])
    low, high = np.minimum(found.low, found.level), np.maximum(found.high, found.level)
    return np.stack([found.level, low, high], 1), set(np.flatnonzero(p < SIGNIFICANT).tolist()), found


def share_wrong(federation, data):
    return np.array([(federation.given[part] != data.y_train[part]).mean() for part in federation.clients])


def precision(order, wrong, count):
    """Return the share of wrong labels among the first `count` samples in ascending order."""
    return wrong[np.argsort(order, kind="stable")[:count]].mean()


def once(seed, rounds, budget, keep):
    """Return the results of one repetition."""
    federation, data = world(seed, 0.25, 0.1)
    probabilities = scores(federation, data, rounds, seed, keep)
    before, named, judgment = audited(federation, probabilities, seed)
    federation = add_judgment(federation, judgment.arrays(federation))
    out = {"before": before, "true before": share_wrong(federation, data), "named": named == set(REVIEWED)}
    there = np.isin(owners(federation.client_offsets), REVIEWED)
    held = federation.client_indices[there]
    given, wrong = federation.given[held], federation.given[held] != data.y_train[held]
    out["precision"] = [precision(-judgment.issue[there], wrong, count) for count in (30, 100)]
    try:
        from cleanlab.rank import get_label_quality_scores
    except ImportError:
        pass
    else:
        quality = get_label_quality_scores(given, probabilities[there])
        out["cleanlab"] = [precision(quality, wrong, count) for count in (30, 100)]
    records = {}
    for client in REVIEWED:
        federation, records[client] = decided(federation, data, client, budget, seed)
    out["found"] = sum(len(record["changed"]) for record in records.values()) / wrong.sum()
    out["review"] = {k: [[record[when][end] for end in ENDS] for when in ("level", "after")] for k, record in records.items()}
    again = scores(federation, data, rounds, seed, None)
    out["after"], out["named after"], _ = audited(federation, again, seed)
    out["true after"] = share_wrong(federation, data)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget", type=int, default=100, help="samples to review at each of the two sites")
    parser.add_argument("--keep", help="folder for the first audit's probabilities; existing files are not computed again")
    options = parser.parse_args()
    found = [once(seed, options.rounds, options.budget, options.keep) for seed in range(options.repetitions)]
    print(f"{options.repetitions} repetitions, 5 sites of 288 digits; {options.budget} samples reviewed at each of two sites")
    print("\nshare of wrong labels in %, means; in brackets the range and how often it contains the true share\n")
    print(f"{'site':24}{'true':>6}  {'by the audit':30}{'by the review':30}")
    for k, name in ((SWAPPED, "swapped classes"), (RANDOM, "random labels"), (None, "each clean site")):
        for when, row in (("before", 0), ("after", 1)):
            sites = [k] if k is not None else [s for s in range(5) if s not in REVIEWED]
            true = np.array([one[f"true {when}"][sites] for one in found]).reshape(-1)
            by_audit = said(np.array([one[when][sites] for one in found]).reshape(-1, 3), true)
            looked_at = "" if k is None else said(np.array([one["review"][k][row] for one in found], float), true)
            print(f"{name + ', ' + when:24}{100 * true.mean():6.1f}  {by_audit:30}{looked_at:30}")
    print(f"\nboth sites and no other flagged before the review  {np.mean([one['named'] for one in found]):.2f}")
    print(f"no site flagged after the review                   {np.mean([not one['named after'] for one in found]):.2f}")
    print(f"share of the two sites' wrong labels corrected      {np.mean([one['found'] for one in found]):.3f}")
    print("\nshare of wrong labels among the first 30 and the first 100 samples to review, both sites")
    for name, ranking in (("precision", "by the audit's score"), ("cleanlab", "by cleanlab's quality, same probabilities")):
        if name in found[0]:
            first, second = np.mean([one[name] for one in found], 0)
            print(f"  {ranking:48}{first:.3f} and {second:.3f}")
    most = np.mean([len(REVIEWED) * 288 * one["true before"][list(REVIEWED)].mean() for one in found]) / 100
    print(f"  {'if all wrong labels were first':48}1.000 and {min(1.0, most):.3f}")


def said(levels, true):
    """Return a text with the mean level, the range, and how often the range contains the true share."""
    level, low, high = np.nanmean(levels, 0)
    inside = np.mean((levels[:, 1] <= true + 1e-9) & (true <= levels[:, 2] + 1e-9))
    return f"{100 * level:.1f} ({100 * low:.1f} to {100 * high:.1f}; {100 * inside:.0f} %)"


if __name__ == "__main__":
    main()
