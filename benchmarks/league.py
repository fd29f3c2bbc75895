"""Tables of the league from its stored runs, and the check of a submitted method.

    python -m benchmarks.league                               # the tables of docs/league.md
    python -m benchmarks.league --check mine.py:m -o mine     # a submitted method
    python -m benchmarks.league --add auto -o league          # store further runs of methods of the recipe
    python -m benchmarks.pages                                # writes the tables into README.md and docs/

The folder of ``-o`` contains the runs of `fnlkit reproduce league`.  A *world* is a kind of data; the regimes of a world share
samples, so that worlds are the units.  The design of `auto` was chosen on the first three parts, and frozen in a commit before
the runs of the fourth part, on which methods are compared.

benchmarks/results/league.csv has a row for each run: scores in percent, the mean cost of the method's runs in the regime, the
commit, whether a repeated run had equal scores, and the first digits of the data set's checksum.
"""

import argparse
import csv
import hashlib
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.kernels.streams import stream
from fnlkit.recipes import recipe, running, scores
from fnlkit.recipes.scores import KINDS as SCORES

ROOT = Path(__file__).parents[1]
STORED = ROOT / "benchmarks/results/league.csv"
REFERENCES = ("oracle", "centralized", "local")
# Differences within this number of points are practically equal.
EQUAL, DRAWS = 1.0, 20_000
FOURTH = ("jira", "cifar10n", "crowdtruth", "column", "glass", "ionosphere", "letter", "segment", "sonar", "spambase",
          "vehicle", "vowel")  # fmt: skip
# Real sites refuse these methods: their sums of features reveal samples.
REFUSED = ("auto", "fedem")
# Method of fnlkit without a row: the regimes have no public set.
PUBLIC = "rhfl"
# Trains more than a head.
FINE_TUNING = "cufit"
# Probability above which one of two methods counts as better.
SURE = 0.95
# Kinds of noise by the end of a regime's name.
KINDS = {
    "no wrong labels": ("none",),
    "some clients noisy, some clean": ("clients(0.6, 0.5)", "clients(0.5, 0.3)"),
    "random labels at all clients": ("symmetric 0.3",),
    "another transition matrix at each client": ("per client", "raters", "annotators", "six annotators", "LabelMe"),
    "one class mistaken for another": ("pairflip 0.35",),
    "errors that depend on the sample": (
        *("instance 0.3", "hard samples", "weak labels"),
        *("heuristic labels", "distant labels", "labels of people"),
    ),
}


def world_of(regime):
    """Return the world in the name of a regime, the text before the colon."""
    return regime.partition(":")[0]


def read_rows(path=STORED):
    """Return the rows of a file of runs, as texts."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(rows, path):
    """Write rows to a file of runs."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def cells_of(rows):
    """Return a dict of each regime and method: regime, method, and {seed: percent} of each kind of score."""
    cells = {}
    for row in rows:
        empty = {"regime": row["regime"], "method": row["method"]} | {kind: {} for kind in SCORES}
        cell = cells.setdefault((row["regime"], row["method"]), empty)
        for kind in SCORES:
            cell[kind][int(row["seed"])] = float(row[kind])
    return [*cells.values()]


@cache
def stored_cells():
    """Return the cells of all stored runs."""
    return cells_of(read_rows())


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


class League:
    """Scores of a league by regime and by world.

    Parameters
    ----------
    cells : list of dict
        As returned by `cells_of`.

    Attributes
    ----------
    rows : dict of (regime, method) to dict
        From `fnlkit.recipes.scores.compare`.
    regimes, methods : list of str
        Methods without the references.
    worlds : dict of str to list of str
        Regimes of each world.
    """

    def __init__(self, cells):
        rows = scores.compare(cells, "fedavg")
        self.rows = {(row["regime"], row["method"]): row for row in rows}
        self.regimes = list(dict.fromkeys(row["regime"] for row in rows))
        self.methods = [name for name in dict.fromkeys(row["method"] for row in rows) if name not in REFERENCES]
        self.worlds = {}
        for regime in self.regimes:
            self.worlds.setdefault(world_of(regime), []).append(regime)

    def mean(self, method, regime):
        return self.rows[regime, method]["kept_mean"]

    def score(self, method, world):
        """Return the mean score in percent over the regimes of a world."""
        return mean(self.mean(method, regime) for regime in self.worlds[world])

    def leads(self, method, worlds=None):
        """Return {world: points ahead of fedavg} in the worlds in which a method has scores.

        Differences are averaged over the seeds that both have in a regime, and then over the regimes of a world.
        """
        out = {}
        for world in worlds or self.worlds:
            names = [regime for regime in self.worlds[world] if (regime, method) in self.rows]
            rows = [(self.rows[regime, method]["kept"], self.rows[regime, "fedavg"]["kept"]) for regime in names]
            found = [mean(ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()) for ours, theirs in rows]
            out |= {world: mean(found)} if found else {}
        return out

    def differences(self, method, other="fedavg", worlds=None):
        """Return the difference of two methods in each world, in points."""
        return [self.score(method, world) - self.score(other, world) for world in worlds or self.worlds]

    def signed_rank(self, method, other="fedavg", worlds=None):
        """Return the `probabilities` that a method is better than, equal to, and worse than another, over worlds."""
        return probabilities(self.differences(method, other, worlds), f"{method} {other}")


@cache
def complete_league():
    """Return the League of the methods with scores of all seeds in all regimes."""
    return League(split_complete(stored_cells())[0])


@cache
def stored_league():
    """Return the League of the methods with scores in all regimes, over common seeds."""
    return common_league(stored_cells())


@cache
def fourth_league():
    """Return the League of all methods in the fourth part; most methods have one seed."""
    return League([cell for cell in stored_cells() if world_of(cell["regime"]) in FOURTH])


def common_league(cells):
    """Return the League of the methods that have scores in all regimes, over the seeds that they all have in a regime."""
    regimes = dict.fromkeys(cell["regime"] for cell in cells)
    count: dict[str, int] = {}
    for cell in cells:
        count[cell["method"]] = count.get(cell["method"], 0) + 1
    common = [cell for cell in cells if count[cell["method"]] == len(regimes)]
    out = []
    for regime in regimes:
        group = [cell for cell in common if cell["regime"] == regime]
        out += keep_seeds(group, set.intersection(*(set(cell["kept"]) for cell in group)))
    return League(out)


def keep_seeds(cells, seeds):
    """Return cells with the scores of some seeds."""
    return [cell | {name: {seed: cell[name][seed] for seed in sorted(seeds)} for name in SCORES} for cell in cells]


def fourth_worlds(league):
    """Return the worlds of the fourth part, on which methods are compared."""
    return [world for world in league.worlds if world in FOURTH]


def by_world(regimes, value):
    """Return {world: mean of value(regime)}."""
    out = {}
    for regime in regimes:
        out.setdefault(world_of(regime), []).append(value(regime))
    return {world: mean(values) for world, values in out.items()}


def regimes_in(league, worlds):
    """Return the regimes of some worlds."""
    return [regime for world in worlds for regime in league.worlds[world]]


def regret(league, method, regime):
    """Return the points by which a method is behind the best method in a regime."""
    return max(league.mean(name, regime) for name in league.methods) - league.mean(method, regime)


def mean_regret(league, method, worlds):
    """Return the mean over worlds of a method's mean regret in the regimes of a world."""
    return mean(by_world(regimes_in(league, worlds), lambda regime: regret(league, method, regime)).values())


def worst_regret(league, method, worlds):
    """Return (largest regret, its regime) of a method."""
    return max((regret(league, method, regime), regime) for regime in regimes_in(league, worlds))


def best_constant(league, worlds, without=("auto",)):
    """Return the method with the smallest mean regret in some worlds, without some methods."""
    names = [name for name in league.methods if name not in without]
    return min(names, key=lambda name: mean_regret(league, name, worlds))


# ---- tables
def method_table(league, reference):
    """Yield all methods by their mean lead on fedavg in the fourth part.

    Parameters
    ----------
    league : League
        As returned by `fourth_league`.
    reference : League
        As returned by `stored_league`: regrets are against its methods, which have all seeds in the fourth part.
    """
    worlds = list(league.worlds)
    yield "| method | lead | worlds ahead/behind | lowest | regret | all parts |"
    yield "|---|---|---|---|---|---|"
    leads = {name: league.leads(name) for name in (*league.methods, *REFERENCES)}
    leads = {name: values for name, values in leads.items() if values}
    for name in sorted(leads, key=lambda name: -mean(leads[name].values())):
        values, cells = list(leads[name].values()), [""] * 3
        if name != "fedavg":
            ahead, behind = (sum(sign * lead >= 1 for lead in values) for sign in (1, -1))
            error = stdev(values) / len(values) ** 0.5
            cells = [f"{mean(values):+.1f} ± {error:.1f}", f"{ahead}/{behind}", f"{min(values):+.1f}"]
        known = name in reference.methods
        cells += [f"{mean_regret(reference, name, each):.1f}" if known else "" for each in (worlds, list(reference.worlds))]
        yield f"| `{name}`{'¹' * (seeds_of(league, name) == 1)} | {' | '.join(cells)} |"


def seeds_of(league, method):
    """Return the number of seeds that a method has in each of its regimes."""
    return min(row["runs"] for (_, name), row in league.rows.items() if name == method)


def ahead_by_world(league, kind, method):
    """Return {world: points ahead of fedavg} of a method with a kind of noise."""
    regimes = [regime for regime in league.regimes if regime.endswith(tuple(f" {end}" for end in KINDS[kind]))]
    return by_world(regimes, lambda regime: league.mean(method, regime) - league.mean("fedavg", regime))


def choose_for(leads, worlds):
    """Return the method with the largest mean lead in some worlds; `fedavg` if none is ahead."""
    best = max(leads, key=lambda name: mean(leads[name][world] for world in worlds))
    return best if mean(leads[best][world] for world in worlds) > 0 else "fedavg"


def advice_table(league):
    """Yield a constant method for each kind of noise, and in how many worlds the method that the others recommend held."""
    yield "| noise | worlds | method | mean lead | chosen without a world: ahead there in | behind in | smallest lead |"
    yield "|---|---|---|---|---|---|---|"
    for kind in KINDS:
        leads = {name: ahead_by_world(league, kind, name) for name in league.methods if name != "auto"}
        if not (worlds := list(leads["fedavg"])):
            continue
        best, held_out = choose_for(leads, worlds), {}
        for world in worlds:
            others = [other for other in worlds if other != world]
            held_out[world] = leads[choose_for(leads, others) if others else best][world]
        ahead, behind = (sum(sign * lead >= 1 for lead in held_out.values()) for sign in (1, -1))
        worst = min(held_out, key=held_out.get)
        yield (
            f"| {kind} | {len(worlds)} | `{best}` | {mean(leads[best].values()):+.1f} | {ahead} of {len(worlds)} | {behind} "
            f"| {worst} {held_out[worst]:+.1f} |"
        )


def regime_table(league):
    """Yield differences from fedavg in each regime; fedavg's column is in percent."""
    names = [*(name for name in league.methods if name != "fedavg"), "oracle"]
    yield "| regime | seeds | `fedavg` | " + " | ".join(f"`{name}`" for name in names) + " |"
    yield "|---" * (len(names) + 3) + "|"
    for regime in league.regimes:
        cells = " | ".join(f"{league.rows[regime, name]['kept_ahead']:+.1f}" for name in names)
        yield f"| {regime} | {league.rows[regime, 'fedavg']['runs']} | {league.mean('fedavg', regime):.1f} | {cells} |"


# ---- statements
def recommended(league):
    """Return two methods for simulations, the one with the smaller regret on the fourth part first, and one for real sites."""
    worlds, judged = list(league.worlds), fourth_worlds(league)
    pair = sorted(("auto", best_constant(league, worlds)), key=lambda name: mean_regret(league, name, judged))
    return (*pair, best_constant(league, worlds, REFUSED))


def recommendation(league):
    """Return the sentences that recommend methods for unknown noise.

    Parameters
    ----------
    league : League
        As returned by `stored_league`.
    """
    worlds, judged = list(league.worlds), fourth_worlds(league)
    name, other, real = recommended(league)
    mine, others = (mean_regret(league, each, judged) for each in (name, other))
    most = max(mine, others)
    less = [f"`{each}`" for each in league.methods if each not in (name, other) and mean_regret(league, each, judged) < most]
    better, equal, _ = league.signed_rank(name, other, judged)
    weak = " **This is weak evidence for a choice between the two.**" if better < SURE else ""
    return (
        f"- **If the noise is unknown**, `{name}` is on average {mine:.1f} points behind the best of {len(league.methods)} "
        f"methods in simulation and `{other}` {others:.1f}, on {size_of(league, judged)} that did not serve to design `auto`; "
        f"{'only ' + ', '.join(less) if less else 'no other method'} loses less than one of these two.{weak} They are within 1 "
        f"point of each other with a probability of {equal:.2f}; `auto` costs about 27 trainings. Real sites refuse "
        f"{' and '.join(f'`{each}`' for each in REFUSED)}; of the others, `{real}` loses least over all {len(worlds)} worlds "
        f"({mean_regret(league, real, worlds):.1f} points). Compare two or three methods, not all, on your data by held-out "
        f"labels."
    )


def judged_statement(league):
    """Return a sentence on `auto` and the best constant method of the first three parts, on the fourth part."""
    judged = fourth_worlds(league)
    best = best_constant(league, [world for world in league.worlds if world not in judged])
    mine, other = (mean_regret(league, name, judged) for name in ("auto", best))
    (worst, where), (lost, _) = (worst_regret(league, name, judged) for name in ("auto", best))
    better, equal, worse = league.signed_rank("auto", best, judged)
    return (
        f"- **On worlds that were not used to design it**, {size_of(league, judged)}, `auto` has a mean regret of {mine:.1f} "
        f"points and at most {worst:.1f} ({where}), against the best of {len(league.methods)} methods. Always `{best}`, the "
        f"best constant method of the other parts, has {other:.1f} and at most {lost:.1f}. Probabilities that `auto` is "
        f"better, equal, worse than `{best}`, with worlds as units: {better:.2f}, {equal:.2f}, {worse:.2f}."
    )


def size_of(league, worlds):
    """Return the numbers of worlds, regimes and seeds as text, such as "7 worlds (14 regimes, one seed each)"."""
    regimes = regimes_in(league, worlds)
    seeds = {league.rows[regime, "fedavg"]["runs"] for regime in regimes}
    least, most = min(seeds), max(seeds)
    each = "one seed" if most == 1 else f"{most} seeds" if least == most else f"{least} to {most} seeds"
    return f"{len(worlds)} world{'s' * (len(worlds) > 1)} ({len(regimes)} regime{'s' * (len(regimes) > 1)}, {each} each)"


def missing_statement(league):
    """Yield a sentence on the methods without a row: excluded ones, and methods of the recipe that have no stored run."""
    names = [entry.label for entry in recipe.entries(recipe.load_recipe("league")["regime"][0])]
    lacking = [name for name in names if not league.leads(name)]
    run = f" Not run: {', '.join(f'`{name}`' for name in lacking)}." if lacking else ""
    yield f"Without a row: `{PUBLIC}`, which needs a public set; `{FINE_TUNING}`, which trains more than a head.{run}"


def partial_statement(cells):
    """Yield the mean regret in the worlds of methods that have five seeds in some of the regimes only."""
    cells = [cell for cell in cells if len(cell["kept"]) == 5]
    regimes = {}
    for cell in cells:
        regimes.setdefault(cell["method"], []).append(cell["regime"])
    most = max(map(len, regimes.values()))
    partly = [name for name, inside in regimes.items() if len(inside) < most and name not in REFERENCES]
    part = common_league([cell for cell in cells if all(cell["regime"] in regimes[name] for name in partly)])
    best = {regime: max(part.mean(method, regime) for method in part.methods) for regime in part.regimes}
    regrets = {
        method: mean(mean(best[each] - part.mean(method, each) for each in inside) for inside in part.worlds.values())
        for method in ("auto", "fedem", "fedavg", *partly)
    }
    row = ", ".join(f"`{method}` {points:.1f}" for method, points in sorted(regrets.items(), key=lambda item: item[1]))
    yield f"Mean regret in {size_of(part, [*part.worlds])}: {row}."


def tables():
    """Return {name: lines} of all tables."""
    league, fourth = stored_league(), fourth_league()
    return {
        "league methods": list(method_table(fourth, league)),
        "league missing": list(missing_statement(fourth)),
        "league partial": list(partial_statement([cell for cell in stored_cells() if world_of(cell["regime"]) in FOURTH])),
        "league statements": [judged_statement(league), recommendation(league)],
        "league advice": list(advice_table(complete_league())),
        "league regimes": list(regime_table(league)),
        "league version": [f"SHA-256 of the stored runs: `{hashlib.sha256(STORED.read_bytes()).hexdigest()}`."],
    }


def score_line(league, method):
    """Return the scores of a method in a league as a line."""
    worlds = list(league.worlds)
    better, _, worse = league.signed_rank(method)
    worst, where = worst_regret(league, method, worlds)
    return (
        f"{method}: {mean(league.differences(method)):+.1f} points from fedavg, P(better) {better:.2f}, P(worse) {worse:.2f}; "
        f"regret {mean_regret(league, method, worlds):.1f}, at most {worst:.1f} in {where}"
    )


# ---- runs in a folder
def rows_of(jobs):
    """Return the rows of finished runs.

    Raises
    ------
    InputError
        If a run was made by other commands than those of the recipe.
    """
    running.must_belong(jobs)
    describe = ["git", "describe", "--always", "--dirty=+", "--abbrev=7"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    data = {job.regime: Run.read(str(Path(job.folder) / job.file)).meta["dataset_checksum"]
            for job in jobs if job.state() == "finished"}  # fmt: skip
    return [
        {"regime": cell["regime"], "method": cell["method"], "seed": str(seed)}
        | {kind: str(round(cell[kind][seed], 4)) for kind in SCORES}
        | {"client_rounds": str(cell["client_rounds"]), "seconds": f"{cell['seconds']:.1f}", "commit": commit}
        | {"repeated": "0", "data": data[cell["regime"]][:12]}
        for cell in scores.measure(jobs)
        for seed in cell["kept"]
    ]


def check(rows, stored):
    """Raise InputError unless the rows of a method have the regimes, the seeds and the samples of stored rows."""
    known = {(row["regime"], row["seed"]): row["data"] for row in stored if row["method"] == "fedavg"}
    found = {(row["regime"], row["seed"]): row["data"] for row in rows}
    if missing := known.keys() - found.keys():
        regime, seed = min(missing)
        raise InputError(f"{len(missing)} of {len(known)} runs are missing, the first is seed {seed} of {regime!r}; run them")
    must_have_samples(rows, stored)


def must_have_samples(rows, stored):
    """Raise InputError if a regime has other samples than in the stored rows."""
    known = {row["regime"]: row["data"] for row in stored}
    for row in rows:
        if row["data"] != known.get(row["regime"], row["data"]):
            raise InputError(f"{row['regime']!r}: measured with other samples than the league; use its data set")


def add(rows, stored, replace=False):
    """Return stored rows with further runs, in the order of the regimes.

    Raises
    ------
    InputError
        If a stored score differs, unless `replace` is true: methods with other code must not share a row.
    """
    must_have_samples(rows, stored)
    merged = {(row["regime"], row["method"], row["seed"]): row for row in stored}
    for row in rows:
        key = row["regime"], row["method"], row["seed"]
        before = merged.get(key)
        equal = before and all(before[kind] == row[kind] for kind in SCORES)
        if before and not equal and not replace:
            raise InputError(
                f"{', '.join(key)}: {row['kept']}, stored {before['kept']}; run all its regimes again with --replace"
            )
        merged[key] = before | {"repeated": "1"} if equal else row
    order = {regime["name"]: i for i, regime in enumerate(recipe.load_recipe("league")["regime"])}
    return sorted(merged.values(), key=lambda row: order.get(row["regime"], len(order)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", metavar="METHOD", help="check the runs of a method, and print its scores (docs/league.md)")
    parser.add_argument("--add", metavar="METHODS", help="store the runs of methods of the recipe, separated by commas")
    parser.add_argument("--replace", action="store_true", help="replace stored scores of methods with new code")
    parser.add_argument("-o", "--folder", help="folder of the runs")
    options = parser.parse_args()
    try:
        run(options)
    except InputError as error:
        print(f"league: {error}", file=sys.stderr)
        sys.exit(2)


def run(options):
    """Print the tables, or read the runs of a folder as the options of the command state."""
    if not (options.check or options.add):
        print("\n\n".join("\n".join([f"{name}:", "", *lines]) for name, lines in tables().items()))
        return
    methods = (options.check or options.add).split(",") if options.add else [options.check]
    chosen = () if options.add else tuple(methods)
    jobs = running.Plan("league", running.Options(output=options.folder, methods=chosen)).jobs
    rows, stored = rows_of([job for job in jobs if job.label in methods]), read_rows()
    if not rows:
        raise InputError(f"{options.folder}: has no finished run of {', '.join(methods)} that `reproduce league` made")
    if options.add:
        write_rows(add(rows, stored, options.replace), STORED)
        return
    check(rows, stored)
    write_rows(rows, Path(options.folder) / "league.csv")
    print(score_line(League([*split_complete(stored_cells())[0], *cells_of(rows)]), options.check))


if __name__ == "__main__":
    main()
