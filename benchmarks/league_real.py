"""Tables of `league-real`: real noise and small tables, from its stored cells.

    python -m benchmarks.league --league real     # all tables
    python -m benchmarks.pages                    # the tables in docs/league-real.md

A *world* is a kind of data; the regimes of a world share samples, so that worlds are the units.  The design of `auto` was
chosen on the worlds of the first part and frozen in a commit before the runs of the second part were read.
"""

from functools import cache
from statistics import mean, median

from benchmarks.league_cells import ROOT, League, world_of
from fnlkit.reproduce import stored

CELLS = ROOT / "data/cells/league-real.jsonl"
FROZEN = "e1d2a85"
SECOND = ("wine", "shells", "moons", "friedman", "blobs", "swiss-roll", "speech", "images")
# Smallest gap between fedavg and oracle, in points, of which a share is stated.
LEAST_GAP = 2.0
# Kinds of noise by the end of a regime's name.
KINDS = {
    "no wrong labels": ("none",),
    "some clients noisy, some clean": ("clients(0.6, 0.5)", "clients(0.5, 0.3)"),
    "random labels at all clients": ("symmetric 0.3",),
    "another matrix at each client": ("per client", "raters", "annotators", "six annotators", "LabelMe"),
    "one class mistaken for another": ("pairflip 0.35",),
    "errors that depend on the sample": ("instance 0.3", "instance 0.4", "hard samples", "weak labels"),
}


@cache
def stored_league():
    """Return the League of the stored cells."""
    return League(stored.read_cells(str(CELLS))[1])


def regimes_of(league, second):
    """Return the regimes of the first or the second part."""
    return [regime for regime in league.regimes if (world_of(regime) in SECOND) == second]


def by_world(regimes, value):
    """Return {world: mean of value(regime)}."""
    out = {}
    for regime in regimes:
        out.setdefault(world_of(regime), []).append(value(regime))
    return {world: mean(values) for world, values in out.items()}


def regret(league, method, regime, among):
    """Return the points by which a method is behind the best of the methods `among` in a regime."""
    return max(league.mean(name, regime) for name in among) - league.mean(method, regime)


def is_behind(league, method, regime):
    """Return whether a method is 1 point and 2 standard errors over seeds behind fedavg."""
    row = league.rows[regime, method]
    return method != "fedavg" and row["kept_ahead"] < -max(1.0, 2 * row["kept_ahead_spread"] / row["runs"] ** 0.5)


def regret_table(league, second):
    """Yield mean and worst regret of each method, and how often it is clearly behind fedavg."""
    regimes = regimes_of(league, second)
    yield "| method | mean regret | worst regret | in | 2 SE and 1 point behind `fedavg` in | largest loss |"
    yield "|---|---|---|---|---|---|"
    order = {name: mean_regret(league, name, second) for name in league.methods}
    for name in sorted(order, key=order.get):
        worst = max(regimes, key=lambda r, name=name: regret(league, name, r, league.methods))
        cells = f"{order[name]:.1f} | {regret(league, name, worst, league.methods):.1f} | {worst}"
        if name == "fedavg":
            yield f"| `fedavg` | {cells} | | |"
            continue
        behind = sum(is_behind(league, name, regime) for regime in regimes)
        least = min(league.rows[regime, name]["kept_ahead"] for regime in regimes)
        yield f"| `{name}` | {cells} | {behind} of {len(regimes)} | {least:+.1f} |"


def gap_table(league):
    """Yield the share of the gap between fedavg and oracle that each method closes, median and worst over worlds."""
    gaps = by_world(league.regimes, lambda r: league.mean("oracle", r) - league.mean("fedavg", r))
    worlds = [world for world, gap in gaps.items() if gap >= LEAST_GAP]
    yield (
        f"| method | median gap closed over {len(worlds)} worlds | worst world | first part | second part "
        "| P(better) | P(worse) |"
    )
    yield "|---" * 7 + "|"
    rows = {}
    for name in league.methods:
        if name != "fedavg":
            gained = by_world(league.regimes, lambda r, name=name: league.mean(name, r) - league.mean("fedavg", r))
            rows[name] = {world: 100 * gained[world] / gaps[world] for world in worlds}
    for name, shares in sorted(rows.items(), key=lambda pair: -median(pair[1].values())):
        worst = min(shares, key=shares.get)
        parts = [median(share for world, share in shares.items() if (world in SECOND) == second) for second in (False, True)]
        better, _, worse = league.signed_rank(name)
        cells = " | ".join(f"{part:.0f} %" for part in parts)
        yield (
            f"| `{name}` | {median(shares.values()):.0f} % | {worst} {shares[worst]:.0f} % | {cells} "
            f"| {better:.2f} | {worse:.2f} |"
        )


def left_out_table(league):
    """Yield, for each part, the constant method that is best on the other part, compared with `auto`."""
    yield "| judged on | best constant method of the other part | its mean regret | `auto` | `auto` minus this method |"
    yield "|---|---|---|---|---|"
    constants = [name for name in league.methods if name != "auto"]
    for second in (False, True):
        here = regimes_of(league, second)
        best = min(constants, key=lambda name: mean_regret(league, name, not second))  # noqa: B023
        mine, other = (mean_regret(league, name, second) for name in ("auto", best))
        ahead = by_world(here, lambda r, best=best: league.mean("auto", r) - league.mean(best, r))
        won = sum(value > 0 for value in ahead.values())
        part = "second" if second else "first"
        yield f"| {part} part | `{best}` | {other:.1f} | {mine:.1f} | ahead in {won} of {len(ahead)} |"


def kind_table(league):
    """Yield, for each kind of noise, in how many worlds each method is ahead of and behind fedavg by 1 point."""
    names = [name for name in league.methods if name != "fedavg"]
    yield "| noise | worlds | " + " | ".join(f"`{name}`" for name in names) + " |"
    yield "|---" * (len(names) + 2) + "|"
    for kind, ends in KINDS.items():
        regimes = [regime for regime in league.regimes if regime.endswith(tuple(f" {end}" for end in ends))]
        cells = []
        for name in names:
            ahead = by_world(regimes, lambda r, name=name: league.rows[r, name]["kept_ahead"])
            cells.append(f"{sum(v >= 1 for v in ahead.values())} / {sum(v <= -1 for v in ahead.values())}")
        yield f"| {kind} | {len(ahead)} | " + " | ".join(cells) + " |"


def difference_table(league, second):
    """Yield differences from fedavg in each regime of a part; fedavg's column is in percent."""
    names = [*(name for name in league.methods if name != "fedavg"), "oracle"]
    yield "| regime | `fedavg` | " + " | ".join(f"`{name}`" for name in names) + " |"
    yield "|---" * (len(names) + 2) + "|"
    for regime in regimes_of(league, second):
        cells = " | ".join(f"{league.rows[regime, name]['kept_ahead']:+.1f}" for name in names)
        yield f"| {regime} | {league.mean('fedavg', regime):.1f} | {cells} |"


def mean_regret(league, method, second):
    """Return the mean regret of a method over the worlds of a part."""
    return mean(by_world(regimes_of(league, second), lambda r: regret(league, method, r, league.methods)).values())


def statements(league):
    """Yield sentences about `auto` and the best constant method on the second part."""
    constants = [name for name in league.methods if name != "auto"]
    best = min(constants, key=lambda name: mean_regret(league, name, second=False) + mean_regret(league, name, second=True))
    mine, other = (mean_regret(league, name, second=True) for name in ("auto", best))
    worst = max(regret(league, "auto", regime, league.methods) for regime in regimes_of(league, second=True))
    yield (
        f"- **On worlds that were left out**, `auto` {'is' if mine < other else 'is not'} better than always `{best}`: mean "
        f"regret {mine:.1f} against {other:.1f}. The goals, a mean of 1.5 and {4:.1f} in the worst regime, are "
        f"{'reached' if mine <= 1.5 and worst <= 4 else 'not reached'}."
    )
    count = {name: sum(is_behind(league, name, regime) for regime in league.regimes) for name in league.methods}
    shown = ", ".join(
        f"`{name}` {number}" for name, number in sorted(count.items(), key=lambda pair: pair[1]) if name != "fedavg"
    )
    yield f"- **Clearly behind `fedavg`** (2 standard errors and 1 point), in regimes of {len(league.regimes)}: {shown}."
    yield (
        f"- **If the noise is unknown**, the constant method with the smallest regret over both parts is `{best}`. It can fail "
        "on your data: compare two or three methods by held-out labels."
    )


def frozen(league):
    """Yield the commit in which the design of `auto` was frozen."""
    yield f"Commit {FROZEN}; {len(regimes_of(league, True))} regimes of {len(SECOND)} worlds were left out."


def tables():
    """Return {name: lines} of all tables."""
    league = stored_league()
    return {
        "real frozen": list(frozen(league)),
        "real statements": list(statements(league)),
        "real gaps": list(gap_table(league)),
        "real regrets first": list(regret_table(league, second=False)),
        "real regrets second": list(regret_table(league, second=True)),
        "real left out": list(left_out_table(league)),
        "real kinds": list(kind_table(league)),
        "real first": list(difference_table(league, second=False)),
        "real second": list(difference_table(league, second=True)),
    }
