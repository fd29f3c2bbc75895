"""Tables of the league from its stored cells, and the check of a submitted row.

    python -m benchmarks.league                      # the tables of docs/league.md
    python -m benchmarks.league --check mine.jsonl   # a submitted row
    python -m benchmarks.pages                       # writes the tables into README.md and docs/

A *world* is a kind of data; the regimes of a world share samples, so that worlds are the units.  The design of `auto` was
chosen on the first three parts, and frozen in a commit before the runs of the fourth part, on which methods are compared.
"""

import argparse
import sys
from functools import cache
from statistics import mean, stdev

from benchmarks.league_cells import CELLS, REFERENCES, SCORES, League, check, split_complete, world_of
from fnlkit.errors import InputError
from fnlkit.recipes import cells as stored
from fnlkit.recipes import recipe

FOURTH = ("jira", "cifar10n", "crowdtruth", "column", "glass", "ionosphere", "letter", "segment", "sonar", "spambase",
          "vehicle", "vowel")  # fmt: skip
# Real sites refuse these methods: their sums of features reveal samples.
REFUSED = ("auto", "fedem")
# Methods of fnlkit without a row: the regimes have no public set.
PUBLIC = ("rhfl", "clipfl")
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


@cache
def complete_league():
    """Return the League of the methods with scores of all seeds in all regimes."""
    return League(split_complete(stored.read_cells(str(CELLS))[1])[0])


@cache
def stored_league():
    """Return the League of the methods with scores in all regimes, over common seeds."""
    return common_league(stored.read_cells(str(CELLS))[1])


@cache
def fourth_league():
    """Return the League of all methods in the fourth part; most methods have one seed."""
    return League([cell for cell in stored.read_cells(str(CELLS))[1] if world_of(cell["regime"]) in FOURTH])


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
    """Yield the methods without a row in a league: those that it leaves out, and those of the recipe that have not run."""
    names = [entry.label for entry in recipe.entries(recipe.load_recipe("league")["regime"][0])]
    lacking = [name for name in names if not league.leads(name)]
    run = f" Not run: {', '.join(f'`{name}`' for name in lacking)}." if lacking else ""
    yield f"{' and '.join(f'`{name}`' for name in PUBLIC)} have no row: they need a public set.{run}"


def tables():
    """Return {name: lines} of all tables."""
    league, fourth = stored_league(), fourth_league()
    return {
        "league methods": list(method_table(fourth, league)),
        "league missing": list(missing_statement(fourth)),
        "league statements": [judged_statement(league), recommendation(league)],
        "league judged": [judged_statement(league)],
        "league advice": list(advice_table(complete_league())),
        "league regimes": list(regime_table(league)),
        "league version": [f"Version {stored.version_of('league')}, SHA-256 `{stored.checksum_of('league')}`."],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", metavar="FILE", help="check a submitted row and print its scores (docs/league.md)")
    options = parser.parse_args()
    if not options.check:
        print("\n\n".join("\n".join([f"{name}:", "", *lines]) for name, lines in tables().items()))
        return
    try:
        cells = check(options.check)
    except InputError as error:
        print(f"league: {error}", file=sys.stderr)
        sys.exit(2)
    league = League([*split_complete(stored.read_cells(str(CELLS))[1])[0], *cells])
    counts = f"{len(league.regimes)} regimes of {len(league.worlds)} worlds"
    print(f"{options.check}: fits league@{stored.version_of('league')}, {counts}")
    for method in dict.fromkeys(cell["method"] for cell in cells):
        print(score_line(league, method))


def score_line(league, method):
    """Return the scores of a method in a league as a line."""
    worlds = list(league.worlds)
    better, _, worse = league.signed_rank(method)
    worst, where = worst_regret(league, method, worlds)
    return (
        f"{method}: {mean(league.differences(method)):+.1f} points from fedavg, P(better) {better:.2f}, P(worse) {worse:.2f}; "
        f"regret {mean_regret(league, method, worlds):.1f}, at most {worst:.1f} in {where}"
    )


if __name__ == "__main__":
    main()
