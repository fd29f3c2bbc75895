"""Tables of `league-real`: real noise and small tables, from its stored cells.

    python -m benchmarks.league --league real     # all tables
    python -m benchmarks.pages                    # the tables in docs/league-real.md

A *world* is a kind of data; the regimes of a world share samples, so that worlds are the units.  The design of `auto` was
chosen on the worlds of the first and the second part, and frozen in a commit before the runs of the third part.  It is
judged on the last part that has scores: its design did not use these worlds.
"""

from collections import Counter
from functools import cache
from statistics import mean, median, stdev

from benchmarks.league_cells import ROOT, SCORES, League, read_lines, show_difference, split_complete, world_of
from fnlkit.recipes import stored
from fnlkit.results.statistics import holm

CELLS, AUDITS = ROOT / "data/cells/league-real.jsonl", ROOT / "benchmarks/results/league-audit.txt"
# Last commit of the design of `auto` before the runs of a part.
FROZEN = {"fourth": "51da626"}
SECOND = ("wine", "shells", "moons", "friedman", "blobs", "swiss-roll", "speech", "images")
THIRD = ("iris", "circles", "s-curve", "friedman-2", "friedman-3", "plane", "sparse")
FOURTH = ("jira", "cifar10n", "crowdtruth", "column", "glass", "ionosphere", "letter", "segment", "sonar", "spambase",
          "vehicle", "vowel")  # fmt: skip
PARTS = {"second": SECOND, "third": THIRD, "fourth": FOURTH}
# Real sites refuse these methods: their sums of features reveal samples.
REFUSED = ("auto", "fedem")
# Smallest gap between fedavg and oracle, in points, of which a share is stated.
LEAST_GAP = 2.0
# Probability above which one of two methods counts as better.
SURE = 0.95
# Goals of `auto` on worlds that were not used to design it: mean and largest regret, in points.
GOALS = (1.5, 4.0)
# Kinds of noise by the end of a regime's name.
KINDS = {
    "no wrong labels": ("none",),
    "some clients noisy, some clean": ("clients(0.6, 0.5)", "clients(0.5, 0.3)"),
    "random labels at all clients": ("symmetric 0.3",),
    "another transition matrix at each client": ("per client", "raters", "annotators", "six annotators", "LabelMe"),
    "one class mistaken for another": ("pairflip 0.35",),
    "errors that depend on the sample": (
        *("instance 0.3", "instance 0.4", "hard samples", "weak labels"),
        *("heuristic labels", "distant labels", "labels of people"),
    ),
}


@cache
def stored_league():
    """Return the League of the methods with scores of all seeds in all regimes."""
    return League(split_complete(stored.read_cells(str(CELLS))[1])[0])


@cache
def newer_league():
    """Return the League of all methods in the regimes in which all have scores, over common seeds."""
    return common_league(stored.read_cells(str(CELLS))[1])


def common_league(cells):
    """Return the League of the regimes that have scores of all methods, over the seeds that all methods have there."""
    methods, groups = {cell["method"] for cell in cells}, {}
    for cell in cells:
        groups.setdefault(cell["regime"], []).append(cell)
    out = []
    for group in groups.values():
        if {cell["method"] for cell in group} == methods:
            out += keep_seeds(group, set.intersection(*(set(cell["kept"]) for cell in group)))
    return League(out)


def keep_seeds(cells, seeds):
    """Return cells with the scores of some seeds."""
    return [cell | {name: {seed: cell[name][seed] for seed in sorted(seeds)} for name in SCORES} for cell in cells]


def part_of(world):
    """Return the part of the recipe that contains a world."""
    return next((part for part, worlds in PARTS.items() if world in worlds), "first")


def parts_of(league):
    """Return the parts with scores, in the order of the recipe; `auto` is judged on the last."""
    return list(dict.fromkeys(part_of(world) for world in league.worlds))


def judged_worlds(league):
    """Return the worlds on which `auto` is judged, those of the last part with scores."""
    return worlds_of(league, parts_of(league)[-1])


def worlds_of(league, *parts):
    """Return the worlds of some parts."""
    return [world for world in league.worlds if part_of(world) in parts]


def regimes_in(league, worlds):
    """Return the regimes of some worlds."""
    return [regime for world in worlds for regime in league.worlds[world]]


def constants_of(league):
    """Return the methods of a league other than `auto`."""
    return [name for name in league.methods if name != "auto"]


def by_world(regimes, value):
    """Return {world: mean of value(regime)}."""
    out = {}
    for regime in regimes:
        out.setdefault(world_of(regime), []).append(value(regime))
    return {world: mean(values) for world, values in out.items()}


def regret(league, method, regime):
    """Return the points by which a method is behind the best method in a regime."""
    return max(league.mean(name, regime) for name in league.methods) - league.mean(method, regime)


def mean_regret(league, method, worlds):
    """Return the mean over worlds of a method's mean regret in the regimes of a world."""
    return mean(by_world(regimes_in(league, worlds), lambda regime: regret(league, method, regime)).values())


def worst_regret(league, method, worlds):
    """Return (largest regret, its regime) of a method."""
    return max((regret(league, method, regime), regime) for regime in regimes_in(league, worlds))


def best_constant(league, worlds, among=None):
    """Return the method other than `auto` with the smallest mean regret in some worlds."""
    return min(among or constants_of(league), key=lambda name: mean_regret(league, name, worlds))


def is_behind(league, method, regime):
    """Return whether a method is 1 point and 2 standard errors over seeds behind fedavg; False with a single seed."""
    row = league.rows[regime, method]
    if method == "fedavg" or row["runs"] < 2:
        return False
    return row["kept_ahead"] < -max(1.0, 2 * row["kept_ahead_spread"] / row["runs"] ** 0.5)


def regret_table(league):
    """Yield regrets of each method over all worlds and in each part, how often it is clearly behind fedavg, and its test.

    Regimes with a single seed do not count as clearly behind.
    """
    worlds, parts = list(league.worlds), parts_of(league)
    tested = [regime for regime in league.regimes if league.rows[regime, "fedavg"]["runs"] > 1]
    yield (
        f"| method | mean regret | {' | '.join(f'{part} part' for part in parts)} | largest regret | in "
        "| 2 SE and 1 point behind `fedavg` in | P(better) | P(worse) |"
    )
    yield "|---" * (7 + len(parts)) + "|"
    order = {name: mean_regret(league, name, worlds) for name in league.methods}
    for name in sorted(order, key=order.get):
        worst, where = worst_regret(league, name, worlds)
        means = " | ".join(f"{mean_regret(league, name, worlds_of(league, part)):.1f}" for part in parts)
        cells = f"{order[name]:.1f}{_error(league, name, worlds)} | {means} | {worst:.1f} | {where}"
        if name == "fedavg":
            yield f"| `fedavg` | {cells} | | | |"
            continue
        behind = f"{sum(is_behind(league, name, regime) for regime in tested)} of {len(tested)}"
        better, _, worse = league.signed_rank(name)
        yield f"| `{name}` | {cells} | {behind} | {better:.2f} | {worse:.2f} |"


def gap_table(league):
    """Yield the share of the gap between fedavg and oracle that each method closes, median and worst over worlds."""
    gaps = by_world(league.regimes, lambda r: league.mean("oracle", r) - league.mean("fedavg", r))
    worlds = [world for world, gap in gaps.items() if gap >= LEAST_GAP]
    parts = parts_of(league)
    columns = " | ".join(f"{part} part" for part in parts)
    yield f"| method | median gap closed over {len(worlds)} worlds | worst world | {columns} |"
    yield "|---" * (3 + len(parts)) + "|"
    rows = {}
    for name in league.methods:
        if name != "fedavg":
            gained = by_world(league.regimes, lambda r, name=name: league.mean(name, r) - league.mean("fedavg", r))
            rows[name] = {world: 100 * gained[world] / gaps[world] for world in worlds}
    for name, shares in sorted(rows.items(), key=lambda pair: -median(pair[1].values())):
        worst = min(shares, key=shares.get)
        found = ([share for world, share in shares.items() if part_of(world) == part] for part in parts)
        cells = " | ".join(f"{median(part):.0f} %" if part else "" for part in found)
        yield f"| `{name}` | {median(shares.values()):.0f} % | {worst} {shares[worst]:.0f} % | {cells} |"


def left_out_table(league):
    """Yield regrets over left-out worlds of `auto`, each constant method, and the best constant of the other worlds."""
    yield f"| method | mean regret, all worlds | worst world | mean regret, {parts_of(league)[-1]} part | worst world |"
    yield "|---|---|---|---|---|"
    worlds, judged = list(league.worlds), judged_worlds(league)
    rows = {f"`{name}`": {world: mean_regret(league, name, [world]) for world in worlds} for name in league.methods}
    chosen = {world: best_constant(league, [other for other in worlds if other != world]) for world in worlds}
    rows["best constant method of the other worlds"] = {
        world: mean_regret(league, name, [world]) for world, name in chosen.items()
    }
    for name, found in sorted(rows.items(), key=lambda pair: mean(pair[1].values())):
        cells = []
        for part in (worlds, judged):
            worst = max(part, key=found.get)
            cells.append(f"{mean(found[world] for world in part):.1f} | {worst} {found[worst]:.1f}")
        yield f"| {name} | {' | '.join(cells)} |"


def kind_table(league):
    """Yield, for each kind of noise, in how many worlds each method is ahead of and behind fedavg by 1 point."""
    names = [name for name in league.methods if name != "fedavg"]
    yield "| noise | worlds | " + " | ".join(f"`{name}`" for name in names) + " |"
    yield "|---" * (len(names) + 2) + "|"
    for kind in KINDS:
        cells = []
        for name in names:
            ahead = ahead_by_world(league, kind, name)
            cells.append(f"{sum(v >= 1 for v in ahead.values())} / {sum(v <= -1 for v in ahead.values())}")
        yield f"| {kind} | {len(ahead)} | " + " | ".join(cells) + " |"


def ahead_by_world(league, kind, method):
    """Return {world: points ahead of fedavg} of a method with a kind of noise."""
    regimes = [regime for regime in league.regimes if regime.endswith(tuple(f" {end}" for end in KINDS[kind]))]
    return by_world(regimes, lambda regime: league.mean(method, regime) - league.mean("fedavg", regime))


def choose_for(found, worlds):
    """Return the method with the largest mean lead in some worlds; `fedavg` if none is ahead."""
    best = max(found, key=lambda name: mean(found[name][world] for world in worlds))
    return best if mean(found[best][world] for world in worlds) > 0 else "fedavg"


def advice_table(league):
    """Yield a constant method for each kind of noise, and in how many worlds the method that the others recommend held."""
    yield "| noise | worlds | method | mean lead | chosen without a world: ahead there in | behind in | smallest lead |"
    yield "|---|---|---|---|---|---|---|"
    for kind in KINDS:
        found = {name: ahead_by_world(league, kind, name) for name in constants_of(league)}
        if not (worlds := list(found["fedavg"])):
            continue
        best, leads = choose_for(found, worlds), {}
        for world in worlds:
            others = [other for other in worlds if other != world]
            leads[world] = found[choose_for(found, others) if others else best][world]
        ahead, behind = (sum(sign * lead >= 1 for lead in leads.values()) for sign in (1, -1))
        worst = min(leads, key=leads.get)
        yield (
            f"| {kind} | {len(worlds)} | `{best}` | {mean(found[best].values()):+.1f} | {ahead} of {len(worlds)} | {behind} "
            f"| {worst} {leads[worst]:+.1f} |"
        )


def world_table(league):
    """Yield differences from fedavg in each world with half of the 95 % interval over seeds; fedavg's column is in percent."""
    names = [name for name in league.methods if name != "fedavg"]
    yield "| world | `fedavg` | " + " | ".join(f"`{name}`" for name in (*names, "oracle")) + " |"
    yield "|---" * (len(names) + 3) + "|"
    found = {(name, world): league.ahead(name, world) for world in league.worlds for name in names}
    corrected = dict(zip(found, holm([ahead["p"] for ahead in found.values()]), strict=True))
    for world in league.worlds:
        cells = [show_difference(found[name, world], corrected[name, world]) for name in names]
        cells += [f"{league.ahead('oracle', world)['mean']:+.1f}"]
        yield f"| {world} | {league.score('fedavg', world):.1f} | {' | '.join(cells)} |"


def regime_table(league):
    """Yield differences from fedavg in each regime; fedavg's column is in percent."""
    names = [*(name for name in league.methods if name != "fedavg"), "oracle"]
    yield "| regime | seeds | `fedavg` | " + " | ".join(f"`{name}`" for name in names) + " |"
    yield "|---" * (len(names) + 3) + "|"
    for regime in league.regimes:
        cells = " | ".join(f"{league.rows[regime, name]['kept_ahead']:+.1f}" for name in names)
        yield f"| {regime} | {league.rows[regime, 'fedavg']['runs']} | {league.mean('fedavg', regime):.1f} | {cells} |"


def held(league, kind, methods):
    """Return in how many worlds with a kind of noise methods are ahead of and behind fedavg by 1 point, as text.

    Methods that the league does not have are left out.
    """
    parts = []
    for name in methods:
        if name in league.methods and kind in KINDS:
            ahead = ahead_by_world(league, kind, name).values()
            parts.append(f"`{name}` {sum(v >= 1 for v in ahead)} / {sum(v <= -1 for v in ahead)} of {len(ahead)}")
    return ", ".join(parts)


def statements(league):
    """Yield sentences about `auto` and the best constant method on the last part, and about losses against fedavg."""
    *others, last = parts_of(league)
    judged, before = worlds_of(league, last), worlds_of(league, *others)
    regimes = regimes_in(league, judged)
    best = best_constant(league, before)
    mine, other = (mean_regret(league, name, judged) for name in ("auto", best))
    (worst, where), (lost, _) = (worst_regret(league, name, judged) for name in ("auto", best))
    better, equal, worse = league.signed_rank("auto", best, judged)
    count = {name: sum(is_behind(league, name, regime) for regime in regimes) for name in league.methods}
    goals = {
        f"a mean regret of at most {GOALS[0]}": mine <= GOALS[0],
        f"at most {GOALS[1]:.0f} in every regime": worst <= GOALS[1],
        "in no regime 2 standard errors and 1 point behind `fedavg`": not count["auto"],
        f"a smaller mean regret than `{best}`": mine < other,
    }
    yield (
        f"- **On worlds that were not used to design it**, {size_of(league, judged)}, `auto` has a mean regret of {mine:.1f} "
        f"points{_error(league, 'auto', judged)} and at most {worst:.1f} ({where}), against the best of {len(count)} methods. "
        f"Always `{best}`, the best constant method of the other parts, has {other:.1f}{_error(league, best, judged)} and "
        f"{lost:.1f}. Goals: {', '.join(f'{goal}: {_reached(met)}' for goal, met in goals.items())}. Probabilities that `auto` "
        f"is better, equal, worse than `{best}`, with worlds as units: {better:.2f}, {equal:.2f}, {worse:.2f}."
    )
    yield (
        f"- **Clearly behind `fedavg`** (2 standard errors and 1 point), in {len(regimes)} regimes of the {last} part: "
        f"{_counts(count)}. In all {len(league.regimes)} regimes: "
        + _counts({name: sum(is_behind(league, name, regime) for regime in league.regimes) for name in league.methods})
        + "."
    )
    yield recommendation(league)


def newer_statement(league, older):
    """Return a sentence with the smallest regrets in the regimes of `newer_league`.

    Parameters
    ----------
    league : League
        Of all methods.
    older : sequence of str
        Methods with scores in all regimes; the others are those of 2025 and 2026.
    """
    worlds, judged = list(league.worlds), judged_worlds(league)
    newer = [name for name in league.methods if name not in older]
    order = {name: mean_regret(league, name, worlds) for name in league.methods}
    best = min(newer, key=order.get)
    first = ", ".join(f"`{name}` {order[name]:.1f}" for name in sorted(order, key=order.get)[:3])
    sure = [f"`{name}`" for name in newer if league.signed_rank(name)[0] >= SURE]
    last = {name: mean_regret(league, name, judged) for name in league.methods}
    ahead = [f"`{name}` {last[name]:.1f}" for name in sorted(last, key=last.get)[:3]]
    most, where = worst_regret(league, "auto", judged)
    return (
        f"- **With the methods of 2025 and 2026**, on {size_of(league, worlds)}, the smallest mean regrets against the best of "
        f"{len(order)} methods are {first}. Of the five, `{best}` has the smallest, {order[best]:.1f} (`fedavg`: "
        f"{order['fedavg']:.1f}); better than `fedavg` by 1 point with a probability of {SURE}: {', '.join(sure) or 'none'}. "
        f"On the {parts_of(league)[-1]} part, the smallest are {', '.join(ahead)}; `auto` is at most {most:.1f} behind "
        f"({where})."
    )


def _reached(met):
    return "reached" if met else "**not reached**"


def _counts(count):
    """Return counts of methods other than fedavg as text, the smallest first."""
    order = sorted(count.items(), key=lambda pair: pair[1])
    return ", ".join(f"`{name}` {number}" for name, number in order if name != "fedavg")


def _error(league, method, worlds):
    """Return the standard error over worlds of a mean regret as text; nothing with a single world."""
    if len(worlds) < 2:
        return ""
    return f" ± {stdev(mean_regret(league, method, [world]) for world in worlds) / len(worlds) ** 0.5:.1f}"


def recommended(league):
    """Return two methods for simulations, the one with the smaller regret on the last part first, and one for real sites."""
    judged, worlds = judged_worlds(league), list(league.worlds)
    pair = sorted(("auto", best_constant(league, worlds)), key=lambda each: mean_regret(league, each, judged))
    return (*pair, best_constant(league, worlds, [each for each in constants_of(league) if each not in REFUSED]))


def recommendation(league):
    """Return the sentence that recommends methods for unknown noise."""
    judged, worlds = judged_worlds(league), list(league.worlds)
    name, other, real = recommended(league)
    mine, others = (mean_regret(league, each, judged) for each in (name, other))
    equal = league.signed_rank(name, other, judged)[1]
    return (
        f"- **If the noise is unknown**, `{name}` has a mean regret of {mine:.1f} points in simulation and `{other}` "
        f"{others:.1f}, on {size_of(league, judged)}, which did not serve to design `auto`; {_smaller(league)}.{_weak(league)} "
        f"They are within 1 point of each other with a probability of {equal:.2f}; `auto` costs about 27 trainings. "
        f"Real sites refuse {' and '.join(f'`{each}`' for each in REFUSED)}; of the other methods, `{real}` has the smallest "
        f"mean regret over all {len(worlds)} worlds ({mean_regret(league, real, worlds):.1f}, at most "
        f"{worst_regret(league, real, worlds)[0]:.1f}), on which it is also chosen here. Any method can "
        "fail on your data: compare two or three methods, not all, by held-out labels."
    )


def short_recommendation(league):
    """Return the recommendation as README states it."""
    judged, worlds = judged_worlds(league), list(league.worlds)
    name, other, real = recommended(league)
    mine, others = (mean_regret(league, each, judged) for each in (name, other))
    refused = " and ".join(f"`{each}`" for each in REFUSED)
    return (
        f"- **If the noise is unknown**, `{name}` is on average {mine:.1f} points behind the best method in simulation and "
        f"`{other}` {others:.1f}, on {size_of(league, judged)} that did not serve to design `auto`; {_smaller(league)}."
        f"{_weak(league)} `auto` costs about 27 trainings. Real sites refuse {refused}; of the others, `{real}` loses least "
        f"({mean_regret(league, real, worlds):.1f} points). Compare two or three methods, not all, on your data by held-out "
        "labels ([evidence](docs/league-real.md))."
    )


def _smaller(league):
    """Return which methods lose less on the last part than one of the two recommended methods, as text."""
    judged = judged_worlds(league)
    *pair, _ = recommended(league)
    most = max(mean_regret(league, name, judged) for name in pair)
    less = [f"`{name}`" for name in league.methods if name not in pair and mean_regret(league, name, judged) < most]
    if not less:
        return f"none of the {len(league.methods) - 2} other methods loses less than these two"
    verb = "loses" if len(less) == 1 else "lose"
    return f"of the {len(league.methods) - 2} other methods, {', '.join(less)} {verb} less than one of these two"


def _weak(league):
    """Return a sentence if the worlds of the last part do not separate the two recommended methods."""
    name, other, _ = recommended(league)
    better = league.signed_rank(name, other, judged_worlds(league))[0]
    return " **This is weak evidence for a choice between the two.**" if better < SURE else ""


def size_of(league, worlds):
    """Return the numbers of worlds, regimes and seeds as text, such as "7 worlds (14 regimes, one seed each)"."""
    regimes = regimes_in(league, worlds)
    seeds = {league.rows[regime, "fedavg"]["runs"] for regime in regimes}
    least, most = min(seeds), max(seeds)
    each = "one seed" if most == 1 else f"{most} seeds" if least == most else f"{least} to {most} seeds"
    return f"{len(worlds)} world{'s' * (len(worlds) > 1)} ({len(regimes)} regime{'s' * (len(regimes) > 1)}, {each} each)"


def frozen(league):
    """Yield the commit in which the design of `auto` was frozen."""
    judged = judged_worlds(league)
    commit = FROZEN[parts_of(league)[-1]]
    yield f"Commit {commit}; {len(regimes_in(league, judged))} regimes of {len(judged)} worlds were left out."


def audit_tables():
    """Return the stored tables of `benchmarks.league_audit`, of the league and of sets with known errors."""
    names = ("real audits", "real audits of known errors")
    paragraphs = AUDITS.read_text(encoding="utf-8").strip().split("\n\n")
    return {name: text.splitlines()[1:] for name, text in zip(names, paragraphs, strict=True)}


def code_statement():
    """Yield the commits that made the stored runs, and the number of runs that were compared with a later commit."""
    cells = read_lines(CELLS)[1:]
    runs = Counter()
    for cell in cells:
        runs.update({code: len(seeds) for code, seeds in cell["codes"].items()})
    made = ", ".join(f"{count:,} with {code}" for code, count in runs.items())
    later = sum(len(cell["again"]) for cell in cells)
    yield (
        f"Runs by commit: {made}. {later:,} runs of an earlier commit were repeated with the last one: their scores are equal. "
        "`benchmarks.extend` accepts no others."
    )


def tables():
    """Return {name: lines} of all tables."""
    league = stored_league()
    return {
        "real newer": list(regret_table(newer := newer_league())),
        "real newer regimes": list(regime_table(newer)),
        "real regrets": list(regret_table(league)),
        "real worlds": list(world_table(league)),
        "real regimes": list(regime_table(league)),
        "real frozen": list(frozen(league)),
        "real code": list(code_statement()),
        "real statements": [*statements(league), newer_statement(newer, league.methods)],
        "real recommendation": [recommendation(league)],
        "real short recommendation": [short_recommendation(league)],
        "real gaps": list(gap_table(league)),
        "real left out": list(left_out_table(league)),
        "real advice": list(advice_table(league)),
        "real kinds": list(kind_table(league)),
        **audit_tables(),
    }
