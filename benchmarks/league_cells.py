"""Scores of a league from its stored cells: means, differences and tests over regimes and worlds."""

import json
import subprocess
from collections import Counter
from pathlib import Path
from statistics import mean

import numpy as np

from fnlkit.artifacts import saving
from fnlkit.kernels.streams import stream
from fnlkit.recipes import reproduce
from fnlkit.results.ranking import ranking
from fnlkit.results.statistics import compare_pairs, holm

ROOT = Path(__file__).parents[1]
SCORES = ("best", "last", "late", "kept")
REFERENCES = ("oracle", "centralized", "local")
# Differences within this number of points are practically equal.
EQUAL, DRAWS = 1.0, 20_000
# Worlds whose data were used before the league to design a method, or to change its defaults.
DEVELOPED = {
    "fedem": ("people", "scans", "text", "digits"),
    "auto": ("digits", "text", "people", "heart", "speech", "scans", "images"),
    "t-revision": ("images",),
    "rofl": ("images",),
    # Other seeds of these data, benchmarks/results/baselines.txt.
    "feddiv": ("digits",),
    "trace-regularization": ("people", "digits"),
    "crowd-layer": ("people", "digits"),
}


def world_of(regime):
    """Return the world in the name of a regime, the text before the colon."""
    return regime.partition(":")[0]


def read_lines(path):
    """Return the JSON objects in the lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path, lines):
    """Write JSON objects to a file, one in each line."""
    saving.write_bytes(["".join(json.dumps(line) + "\n" for line in lines).encode()], str(path))


def commit():
    """Return the commit of the code, with ``+`` if files differ from it."""
    return subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=7"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def split_complete(cells):
    """Return (cells of methods with scores of all seeds in all regimes, other cells).

    A mean over fewer seeds varies more, so that the best of many such methods looks better than it is.
    """
    seeds: dict[str, int] = {}
    for cell in cells:
        seeds[cell["regime"]] = max(seeds.get(cell["regime"], 0), len(cell["kept"]))
    count = Counter(cell["method"] for cell in cells if len(cell["kept"]) == seeds[cell["regime"]])
    return [[cell for cell in cells if (count[cell["method"]] == len(seeds)) == complete] for complete in (True, False)]


def probabilities(differences, name):
    """Return the posterior probabilities (better, equal, worse) of paired differences in points, one for each world.

    Bayesian signed-rank test with a Dirichlet process prior and a region of practical equivalence of 1 point (Benavoli,
    Corani, Mangili, Zaffalon, Ruggeri, ICML 2014; Benavoli et al., JMLR 2017).

    Parameters
    ----------
    differences : list of float
    name : str
        Name of the comparison; it determines the random numbers.
    """
    z = np.array([0.0, *differences])
    weights = stream(0, f"signed rank {name}").dirichlet([1.0] * len(z), DRAWS)
    sums = z[:, None] + z[None, :]
    regions = (sums > 2 * EQUAL, np.abs(sums) <= 2 * EQUAL, sums < -2 * EQUAL)
    shares = np.stack([((weights @ region.astype(float)) * weights).sum(1) for region in regions])
    return np.bincount(shares.argmax(0), minlength=3) / DRAWS


def show_difference(ahead, corrected, developed=False):
    """Return a difference from fedavg for a table, bold if significant, with half of its interval.

    Parameters
    ----------
    ahead : dict
        As returned by `fnlkit.results.statistics.compare_pairs`.
    corrected : float or None
        p-value after Holm's correction.
    developed : bool
        Mark data that were used to develop the method.
    """
    bold = "**" if corrected is not None and corrected < 0.05 else ""
    half = "" if ahead["half"] is None else f" ± {ahead['half']:.1f}"
    return f"{bold}{ahead['mean']:+.1f}{bold}{half}" + (" †" if developed else "")


class League:
    """Scores of a league by regime and by world.

    Parameters
    ----------
    cells : list of dict
        As returned by `fnlkit.recipes.stored.read_cells`.
    search : list of dict
        Lines of the log of the search.
    changed : sequence of str
        Methods whose code has changed since.

    Attributes
    ----------
    rows : dict of (regime, method) to dict
        From `fnlkit.recipes.reproduce.rows`; p-values are corrected by Holm for all methods in all regimes.
    regimes, methods : list of str
        Methods without the references.
    worlds : dict of str to list of str
        Regimes of each world.
    ranking : dict
        From `fnlkit.results.ranking.ranking`: in each world, methods are ranked by their mean score over its regimes.
    """

    def __init__(self, cells, search=(), changed=()):
        found = reproduce.rows([], ".", "fedavg", cells)
        self.rows = {(row["regime"], row["method"]): row for row in found}
        self.regimes, self.changed = list(dict.fromkeys(row["regime"] for row in found)), set(changed)
        everyone = dict.fromkeys(row["method"] for row in found)
        self.methods = [name for name in everyone if name not in REFERENCES]
        tested = [row for row in found if row["method"] in self.methods]
        for row, corrected in zip(tested, holm([row["kept_p"] for row in tested]), strict=True):
            row["kept_holm"] = corrected
        self.worlds = {}
        for regime in self.regimes:
            self.worlds.setdefault(world_of(regime), []).append(regime)
        self.search = {(line["regime"], line["method"]): line["score"] for line in search if "chosen" in line}
        scores = [
            {"regime": world, "method": method, "kept_mean": self.score(method, world), "published": None}
            for world in self.worlds
            for method in self.methods
        ]
        self.ranking = ranking(scores, by="kept_mean")

    def mean(self, method, regime):
        return self.rows[regime, method]["kept_mean"]

    def label(self, method):
        """Return a method's name for a table, with a mark if its code has changed since."""
        return f"`{method}`" + (" ‡" if method in self.changed else "")

    def score(self, method, world):
        """Return the mean score in percent over the regimes of a world."""
        return mean(self.mean(method, regime) for regime in self.worlds[world])

    def ahead(self, method, world):
        """Return the paired difference from fedavg in a world, as `fnlkit.results.statistics.compare_pairs` does.

        The scores of a seed are averaged over the regimes of the world.
        """
        ours, theirs = ([self.rows[regime, name]["kept"] for regime in self.worlds[world]] for name in (method, "fedavg"))
        seeds = set.intersection(*(set(each) for each in (*ours, *theirs)))
        averages = [{seed: mean(each[seed] for each in scores) for seed in sorted(seeds)} for scores in (ours, theirs)]
        return compare_pairs(*averages)

    def differences(self, method, other="fedavg", worlds=None):
        """Return the difference of two methods in each world, in points."""
        return [self.score(method, world) - self.score(other, world) for world in worlds or self.worlds]

    def signed_rank(self, method, other="fedavg", worlds=None):
        """Return the `probabilities` that a method is better than, equal to, and worse than another, over worlds."""
        return probabilities(self.differences(method, other, worlds), f"{method} {other}")

    def others(self, method):
        """Return the worlds that were not used to develop a method."""
        return [world for world in self.worlds if world not in DEVELOPED.get(method, ())]

    def comparisons(self):
        """Return {(test, sign): count} of comparisons with fedavg with p < 0.05, before and after Holm's correction."""
        rows = [row for (_, method), row in self.rows.items() if method in self.methods and row["kept_p"] is not None]
        count = {"all": len(rows)}
        for test in ("kept_p", "kept_holm"):
            hits = [row["kept_ahead"] for row in rows if row[test] < 0.05]
            count[test, "better"], count[test, "worse"] = sum(x > 0 for x in hits), sum(x < 0 for x in hits)
        return count

    def validity(self, regime):
        """Return what the search's criterion, agreement with held-out noisy labels, is worth in a regime.

        Returns
        -------
        dict
            rho, Spearman's correlation over all methods and the oracle of the criterion with accuracy; count of methods; rank
            of the oracle by the criterion; loss in points, from the best method to the method with the best criterion.
        """
        from scipy.stats import spearmanr

        names = [name for name in (*self.methods, "oracle") if (regime, name) in self.search and (regime, name) in self.rows]
        criterion = [self.search[regime, name] for name in names]
        accuracy = [self.mean(name, regime) for name in names]
        rank = 1 + sum(value > self.search[regime, "oracle"] for value in criterion) if "oracle" in names else None
        real = [(c, a) for c, a, name in zip(criterion, accuracy, names, strict=True) if name != "oracle"]
        loss = max(a for _, a in real) - max(real)[1]
        return {"rho": float(spearmanr(criterion, accuracy).statistic), "count": len(names), "rank": rank, "loss": loss}
