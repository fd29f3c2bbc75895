"""Quick audits of the federations of `league-real`: precision of the first 50 samples, and coverage of the ranges of sites.

    fnlkit reproduce league-real -o league-real
    python -m benchmarks.league_audit --runs league-real --seeds 3
    python -m benchmarks.league_audit --real DIR --seeds 10

Audits the federations with sites of their own and at most `MOST` samples by sums of the sites (`fnlkit audit --quick`).  The
audit does not use the true labels.  A world's numbers are means over its regimes and seeds.

`--real` audits nine software projects of JIRA, whole and `FEW` files of each (DIR contains jira/jira.npz, Yatish 2019), the
four hospitals of `heart`, clean and with injected noise, and `crowdtruth` if its files are in the cache
folder.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks.guarantee_cells import jira
from benchmarks.league_cells import world_of
from fnlkit import datasets, pipeline
from fnlkit.artifacts.federation import Federation
from fnlkit.audits.quick import quick_audit
from fnlkit.audits.verdict import WRONG
from fnlkit.datasets.dataset import Dataset
from fnlkit.errors import InputError
from fnlkit.kernels.streams import stream
from fnlkit.recipes import recipe, reproduce

FIRST, MOST, FEW = 50, 5_000, 500
HEART = ("clients(rho=0, tau=0)", "clients(rho=0.5, tau=0.3)")
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
                yield job.regime, audit_of(federation, data, job.seed)
            except InputError:  # a site has too few samples of each class to send sums
                yield job.regime, None


def real_audits(folder: Path, seeds: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield (regime, numbers) of the audits of real sites and real errors.

    A seed draws files, noise or clients; audits without such a draw run once.
    """
    data = jira(folder, None)
    whole = pipeline.partition(data, "sites", labels="observed", holdout=0.0, say=None)
    yield "JIRA, whole projects", audit_of(whole, data, 0)
    for seed in range(seeds):
        rng = stream(seed, "league audit")
        parts = [rng.permutation(part)[:FEW] for part in whole.clients]
        offsets = np.cumsum([0, *map(len, parts)])
        made = Federation("jira", whole.classes, offsets, np.concatenate(parts), whole.given)
        yield f"JIRA, {FEW} files of each project", audit_of(made, data, seed)
    for noise in HEART:
        for seed in range(seeds):
            made = pipeline.inject_noise(pipeline.partition("heart", "sites", seed=seed, say=None), noise, seed=seed, say=None)
            yield f"heart, {noise}", audit_of(made, datasets.load("heart"), seed)
    if datasets.present("crowdtruth"):
        for name in ("crowdtruth(relation=cause)", "crowdtruth(relation=treat)"):
            data = datasets.load(name)
            for seed in range(seeds):
                made = pipeline.partition(data, "iid", clients=5, seed=seed, say=None)
                yield f"{name}, five random clients", audit_of(made, data, seed)


def audit_of(federation: Federation, data: Dataset, seed: int) -> dict[str, object]:
    """Return the numbers of a quick audit; see `score`."""
    return score(federation, data.truth, quick_audit(federation, data, seed=seed))


def score(federation, true, found):
    """Return the numbers of an audit.

    Parameters
    ----------
    federation : Federation
    true : (n,) int
    found : fnlkit.audits.audit.Audit

    Returns
    -------
    dict
        ``base``: share of wrong labels; ``precision``: among the `FIRST` samples; ``covered``, ``accused``, ``named``: a value
        of 0 or 1 for each site, each clean site and each noisy site.
    """
    federation = federation.whole()  # an audit also judges held-out samples
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


def table(found, group: Callable[[str], str] = world_of):
    """Yield a row per world, and the mean over worlds.

    Parameters
    ----------
    found : list of (regime, dict or None)
    group : callable
        Returns the row of a regime.
    """
    yield (
        f"| world | audited | wrong labels | wrong among the first {FIRST} | ranges that contain the share "
        "| clean sites accused | noisy sites named |"
    )
    yield "|---" * 7 + "|"
    names, worlds = ("base", "precision", "covered", "accused", "named"), {}
    for regime, numbers in found:
        worlds.setdefault(group(regime), []).append(numbers)
    rows = {}
    for world, each in worlds.items():
        audited = [numbers for numbers in each if numbers is not None]
        rows[world] = [_mean(audited, name) for name in names]
        yield f"| {world} | {len(audited)} of {len(each)} | {' | '.join(map(_percent, rows[world]))} |"
    if group is not world_of:
        return
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
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--runs", help="folder of `fnlkit reproduce league-real`")
    which.add_argument("--real", type=Path, help="folder with jira/jira.npz")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.real:
        print("\n".join(table(list(real_audits(options.real, options.seeds)), group=str)))
    else:
        print("\n".join(table(list(audits(options.runs, options.seeds)))))


if __name__ == "__main__":
    main()
