"""Quick audits of the federations of `league-real`: precision of the first 50 samples, and coverage of the ranges of sites.

    fnlkit reproduce league-real -o league-real
    python -m benchmarks.league_audit --runs league-real --seeds 3 > benchmarks/results/league-audit.txt

Audits the federations with sites of their own and at most `MOST` samples by sums of the sites (`fnlkit audit --quick`).  The
audit does not use the true labels.  A world's numbers are means over its regimes and seeds.
"""

import argparse
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks.league_cells import world_of
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.errors import InputError
from fnlkit.reproduce import recipe, reproduce
from fnlkit.review.quick import quick_audit
from fnlkit.review.verdict import WRONG

FIRST, MOST = 50, 5_000
# A site with a larger share of wrong labels counts as noisy, one without any as clean.
NOISY = 0.1


def audits(folder, seeds):
    """Yield (regime, numbers) of each federation in a folder of runs, and (regime, None) of one that cannot be audited."""
    for job in reproduce.jobs(recipe.load_recipe("league-real"), seeds=seeds):
        place = Path(folder) / job.prepare[-1][1]
        if (
            job.label != "fedavg"
            or not place.exists()
            or "--scheme" not in job.prepare[0][0]
            or "sites" not in job.prepare[0][0]
        ):
            continue
        federation = Federation.read(str(place))
        data = datasets.load(federation.dataset)
        if data.truth is not None and len(federation.client_indices) <= MOST:
            try:
                found = quick_audit(federation, data, seed=job.seed)
            except InputError:  # a site has too few samples of each class to send sums
                yield job.regime, None
            else:
                yield job.regime, score(federation, data.truth, found)


def score(federation, true, found):
    """Return the numbers of an audit.

    Parameters
    ----------
    federation : Federation
    true : (n,) int
    found : fnlkit.review.audit.Audit

    Returns
    -------
    dict
        ``base``: share of wrong labels; ``precision``: among the `FIRST` samples; ``covered``, ``accused``, ``named``: a value
        of 0 or 1 for each site, each clean site and each noisy site.
    """
    held = federation.client_indices
    wrong = federation.given[held] != true[held]
    first = np.argsort(-found.judgment.issue, kind="stable")[:FIRST]
    rows, out = {row.client: row for row in found.sites}, {"covered": [], "accused": [], "named": []}
    for k, part in enumerate(federation.clients):
        share, row = (federation.given[part] != true[part]).mean(), rows[k]
        out["covered"].append(float(row.low - 1e-9 <= share <= row.high + 1e-9))
        if share == 0 or share > NOISY:
            out["named" if share else "accused"].append(float(row.finding == WRONG))
    return out | {"base": float(wrong.mean()), "precision": float(wrong[first].mean())}


def table(found):
    """Yield a row per world, and the mean over worlds.

    Parameters
    ----------
    found : list of (regime, dict or None)
    """
    yield (
        f"| world | audited | wrong labels | wrong among the first {FIRST} | ranges that contain the share "
        "| clean sites accused | noisy sites named |"
    )
    yield "|---" * 7 + "|"
    names, worlds = ("base", "precision", "covered", "accused", "named"), {}
    for regime, numbers in found:
        worlds.setdefault(world_of(regime), []).append(numbers)
    rows = {}
    for world, each in worlds.items():
        audited = [numbers for numbers in each if numbers is not None]
        rows[world] = [_mean(audited, name) for name in names]
        yield f"| {world} | {len(audited)} of {len(each)} | {' | '.join(map(_percent, rows[world]))} |"
    columns = ([value for value in column if value is not None] for column in zip(*rows.values(), strict=True))
    means = [mean(column) if column else None for column in columns]
    yield f"| mean of worlds | | {' | '.join(map(_percent, means))} |"


def _mean(rows, name):
    """Return the mean of numbers, or of all entries of lists; None if there are none."""
    values = [value for row in rows for value in (row[name] if isinstance(row[name], list) else [row[name]])]
    return mean(values) if values else None


def _percent(value):
    return "" if value is None else f"{100 * value:.1f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", required=True, help="folder of `fnlkit reproduce league-real`")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print("\n".join(table(list(audits(options.runs, options.seeds)))))


if __name__ == "__main__":
    main()
