"""Share of contradicted labels at the cleanest site, from which an audit does not judge labels (`verdict.CONTRADICTED`).

    python -m benchmarks.contradicted
    python -m benchmarks.contradicted --kinds table

An audit can judge labels if one site is nearly clean.  In half of the federations only one of five sites has wrong labels; in
the others all sites have them.  Prints, for several limits of the share, how many federations of each kind are judged.
"""

import argparse
from unittest import mock

import numpy as np

from benchmarks import shifts
from fnlkit.audits import audit as audits
from fnlkit.audits import verdict

LIMITS = (0.15, 0.2, 0.25, 0.3, 0.4, 1.0)
# Name, share of wrong labels, whether all sites have them, and whether they are of the next class.
REGIMES = [
    ("one site, symmetric 20 %", 0.2, False, False),
    ("one site, symmetric 40 %", 0.4, False, False),
    ("one site, next class 40 %", 0.4, False, True),
    ("all sites, symmetric 20 %", 0.2, True, False),
    ("all sites, symmetric 30 %", 0.3, True, False),
    ("all sites, symmetric 40 %", 0.4, True, False),
    ("all sites, next class 30 %", 0.3, True, True),
    ("all sites, next class 40 %", 0.4, True, True),
]


def cleanest(kind, share, everywhere, following, seed):
    """Return (smallest upper end, smallest share of contradicted labels) over the sites that the models of the others judge.

    Parameters
    ----------
    kind : {"image", "table"}
    share : float
        Of wrong labels.
    everywhere, following : bool
        As in `REGIMES`.
    seed : int
    """
    federation, data = shifts.federation(kind, "none", "clean", False, seed)
    rng, classes = np.random.default_rng(seed), data.classes
    for part in federation.clients if everywhere else federation.clients[shifts.NOISY : shifts.NOISY + 1]:
        wrong = part[rng.random(len(part)) < share]
        federation.given[wrong] = (data.y_train[wrong] + (1 if following else rng.integers(1, classes, len(wrong)))) % classes
    seen, right = [], verdict.assess

    def assess(judge, estimates, counts, others, own, **more):
        k = np.array([judge[i] == "others" for i in range(len(judge))])
        predicted = others.predicted[k]
        total = predicted.sum((1, 2))
        wrong = total - predicted.trace(axis1=1, axis2=2)
        seen.append((float(estimates["high"][k].min()), float((wrong / total).min())) if k.any() else (1.0, 1.0))
        return right(judge, estimates, counts, others, own, **more)

    warm_up = shifts.WARM_UP | ({"batch_size": 40} if kind != "image" else {})
    with mock.patch.object(audits, "assess", assess):
        audits.audit(federation, data, warm_up=warm_up, detectors=(), folds=2, seed=seed)
    return seen[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", default=["table", "image"])
    parser.add_argument("--development", type=int, nargs="+", default=[0, 1], help="seeds")
    parser.add_argument("--reported", type=int, nargs="+", default=[100, 101], help="seeds")
    chosen = parser.parse_args()
    print(
        f"Audits of 5 sites, 2 folds, {', '.join(chosen.kinds)}; judged: upper end at most {verdict.SEPARABLE:g} at some site,"
    )
    print("and the share of contradicted labels at the cleanest site at most the limit.\n")
    for title, seeds in (("development", chosen.development), ("reported", chosen.report_failure)):
        print(f"{title} seeds {', '.join(map(str, seeds))}")
        print(
            f"{'kind':<8}{'wrong labels':<28}{'upper end':<20}{'contradicted':<20}"
            + "".join(f"{limit:>7g}" for limit in LIMITS)
        )
        for kind in chosen.kinds:
            for name, *regime in REGIMES:
                found = np.array([cleanest(kind, *regime, seed) for seed in seeds])
                ends = [f"{values.min():.3f} to {values.max():.3f}" for values in found.T]
                judged = [((found[:, 0] <= verdict.SEPARABLE) & (found[:, 1] <= limit)).sum() for limit in LIMITS]
                line = f"{kind:<8}{name:<28}{ends[0]:<20}{ends[1]:<20}" + "".join(
                    f"{f'{each}/{len(seeds)}':>7}" for each in judged
                )
                print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
