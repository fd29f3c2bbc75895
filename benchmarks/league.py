"""Tables of the leagues, from their stored results.

    python -m benchmarks.league > benchmarks/results/league2.txt     # all tables
    python -m benchmarks.league --rows > league2.jsonl               # rows for `fnlkit plot league`
    python -m benchmarks.league --league real                        # the tables of benchmarks.league_real
    python -m benchmarks.league --check mine.jsonl                   # a submitted row, docs/league-real.md
    python -m benchmarks.pages                                       # the tables in README.md and docs/

League 2 has 13 regimes in seven worlds (kinds of data): data/cells/league2.jsonl, and the log of its search.  Regimes of a
world share samples and partition, so worlds are the units of all tests over the league.  League 1 has ten regimes of one
world: benchmarks/results/league.jsonl, rows of the output of ``fnlkit reproduce league`` without per-seed scores.
"""

import argparse
import json
import re
import sys
from functools import cache
from statistics import mean

from benchmarks import league_check, league_real, league_search
from benchmarks.league_cells import DEVELOPED, EQUAL, REFERENCES, ROOT, League, show_difference
from fnlkit.errors import InputError
from fnlkit.recipes import stored
from fnlkit.results.statistics import holm

CELLS, SEARCH = ROOT / "data/cells/league2.jsonl", ROOT / "benchmarks/results/league2-search.jsonl"
FIRST, PEOPLE = ROOT / "benchmarks/results/league.jsonl", ROOT / "benchmarks/results/people.txt"
# Methods whose code has changed since their stored cells without ``code``; `benchmarks.again` replaces the cells.
CHANGED = ("akd", "crowd-layer", "elr", "feddiv", "feddpcont", "fedem", "rhfl", "trace-regularization")
# Methods that have changed since all their stored cells.
NEWER = ("auto", "fedem")
# Kinds of noise: regimes of league 1, and of league 2.
KINDS = {
    "no wrong labels": (["none"], ["digits: none"]),
    "some clients noisy, some clean": (
        ["clients(0.6, 0.5)", "clients(0.8, 0)"],
        ["digits: clients(0.6, 0.5)", "text: clients(0.6, 0.5)", "heart: clients(0.5, 0.3)", "images: clients(0.6, 0.5)"],
    ),
    "another transition matrix at each client": (["per client, n_l 0.7"], ["speech: per client, n_l 0.7"]),
    "random labels at all clients": (["symmetric 0.5"], ["speech: symmetric 0.5"]),
    "one class mistaken for another": (
        ["asymmetric 0.4", "pairflip 0.45"],
        ["digits: pairflip 0.4, skewed", "images: pairflip 0.45"],
    ),
    "clients without some classes": (
        ["sparse(0.4, 0.8), skewed", "random 0.4, open set"],
        ["images: sparse(0.4, 0.8), skewed"],
    ),
    "errors that depend on the sample": (["instance 0.4"], ["text: weak labels", "people: LabelMe", "scans: raters"]),
}


@cache
def stored_league():
    """Return League 2 from the stored cells and search."""
    _, *cells = map(json.loads, CELLS.read_text(encoding="utf-8").splitlines())
    changed = {cell["method"] for cell in cells if cell["method"] in CHANGED and "code" not in cell}
    changed |= set(NEWER)
    return League(stored.read_cells(str(CELLS))[1], map(json.loads, SEARCH.read_text(encoding="utf-8").splitlines()), changed)


def code_statement():
    """Yield the versions of the code that made the stored cells."""
    by = {}
    for line in CELLS.read_text(encoding="utf-8").splitlines()[1:]:
        cell = json.loads(line)
        by.setdefault(cell.get("code", "bfc1613"), {}).setdefault(cell["method"])
    newer = "; ".join(f"{code}: {_names(names)}" for code, names in by.items() if code != "bfc1613")
    yield f"- **Code:** commit bfc1613, and newer for some methods ({newer or 'none'})."
    if changed := stored_league().changed:
        yield f"- **‡:** the code of the method has changed since its runs: {_names(sorted(changed))}."


def first_league():
    """Return {(regime, method): row} of league 1."""
    rows = map(json.loads, FIRST.read_text(encoding="utf-8").splitlines())
    return {(row["regime"], row["method"]): row for row in rows}


def settings_of_fedem():
    """Return the number of settings of fedem that its development compared."""
    section = PEOPLE.read_text(encoding="utf-8").partition("log likelihood of held-out labels")[2]
    return len(re.findall(r"(?m)^fedem", section))


# ---- tables of league 2
def world_table(league):
    """Yield methods by mean rank over worlds, with their differences from fedavg in each world."""
    yield "| method | mean rank | mean | P(better) | P(worse) | " + " | ".join(league.worlds) + " |"
    yield "|---" * (5 + len(league.worlds)) + "|"
    tests = [(method, world) for method in league.methods for world in league.worlds if method != "fedavg"]
    found = {pair: league.ahead(*pair) for pair in tests}
    corrected = dict(zip(tests, holm([found[pair]["p"] for pair in tests]), strict=True))
    for method, rank in league.ranking["mean_rank"].items():
        if method == "fedavg":
            yield (
                f"| `fedavg` | {rank:.1f} | | | | " + " | ".join(f"{league.score(method, w):.1f}" for w in league.worlds) + " |"
            )
            continue
        better, _, worse = league.signed_rank(method)
        cells = [show_difference(found[method, world], corrected[method, world], world in DEVELOPED.get(method, ()))
                 for world in league.worlds]  # fmt: skip
        facts = f"{rank:.1f} | {mean(league.differences(method)):+.1f} | {better:.2f} | {worse:.2f}"
        yield f"| {league.label(method)} | {facts} | {' | '.join(cells)} |"
    for method in REFERENCES:
        if (league.regimes[0], method) in league.rows:
            cells = " | ".join(f"{league.ahead(method, world)['mean']:+.1f}" for world in league.worlds)
            yield f"| `{method}` | | {mean(league.differences(method)):+.1f} | | | {cells} |"


def regime_table(league):
    """Yield differences from fedavg in each regime; fedavg's row is in percent."""
    yield "| method | " + " | ".join(league.regimes) + " |"
    yield "|---" * (len(league.regimes) + 1) + "|"
    for method in (*league.ranking["mean_rank"], *REFERENCES):
        cells = []
        for regime in league.regimes:
            row = league.rows.get((regime, method))
            if row is None or method == "fedavg":
                cells.append("" if row is None else f"{row['kept_mean']:.1f}")
            else:
                ahead = {"mean": row["kept_ahead"], "half": row["kept_ahead_half"]}
                cells.append(show_difference(ahead, None if method in REFERENCES else row["kept_holm"], False))
        yield f"| {league.label(method)} | {' | '.join(cells)} |"


def validity_table(league):
    """Yield the relation of the search's criterion to accuracy, by regime."""
    yield "| regime | Spearman | rank of `oracle` by the criterion | best criterion: points behind the best method |"
    yield "|---|---|---|---|"
    for regime in league.regimes:
        found = league.validity(regime)
        yield f"| {regime} | {found['rho']:+.2f} | {found['rank']} of {found['count']} | {found['loss']:.1f} |"


def development_table(league):
    """Yield methods that were developed on data of the league, with their differences in the other worlds."""
    yield "| method | settings compared before the league | on the data of | mean in other worlds | P(better) there |"
    yield "|---|---|---|---|---|"
    counts = {"fedem": str(settings_of_fedem()), "auto": "several versions", "t-revision": "2", "rofl": "2"}
    counts |= {"feddiv": "4", "trace-regularization": "4", "crowd-layer": "3"}
    for method, worlds in DEVELOPED.items():
        if method not in league.methods:
            continue
        left = league.others(method)
        cells = f"{mean(league.differences(method, worlds=left)):+.1f} ({', '.join(left)}) | " if left else "none | "
        cells += f"{league.signed_rank(method, worlds=left)[0]:.2f}" if left else ""
        data = "all worlds" if len(worlds) == len(league.worlds) else ", ".join(worlds)
        yield f"| `{method}` | {counts[method]} | {data} | {cells} |"


def statements(league):
    """Yield sentences about league 2."""
    order, apart = league.ranking["mean_rank"], league.ranking["apart"]
    clear = [name for name, rank in order.items() if abs(rank - order["fedavg"]) > apart]
    yield (
        f"- **Units:** {len(league.worlds)} worlds ({len(league.regimes)} regimes). Methods are ranked in each world by their "
        f"mean over its regimes. By Nemenyi's test (critical difference {apart:.1f} ranks) {_names(clear)} "
        f"{'differs' if len(clear) < 2 else 'differ'} from `fedavg`."
    )
    sure = [name for name in order if name != "fedavg" and league.signed_rank(name)[0] >= 0.95]
    elsewhere = [name for name in sure if name not in DEVELOPED]
    yield (
        f"- **Better than `fedavg` by at least 1 point with a probability of 0.95** (Bayesian signed-rank test over worlds): "
        f"{_names(sure)}. Not developed on data of the league: {_names(elsewhere)}."
    )
    count = league.comparisons()
    yield (
        f"- **Single comparisons:** of {count['all']} methods in regimes, {count['kept_p', 'better']} are better and "
        f"{count['kept_p', 'worse']} worse than `fedavg` with p < 0.05; after Holm's correction {count['kept_holm', 'better']} "
        f"and {count['kept_holm', 'worse']}."
    )
    behind = {
        name: min(league.rows[regime, name]["kept_ahead"] for regime in league.regimes) for name in order if name != "fedavg"
    }
    safe = [name for name, least in behind.items() if least > -EQUAL]
    yield f"- **Nowhere more than 1 point behind `fedavg` in this league:** {_names(safe)}."
    rhos = [league.validity(regime)["rho"] for regime in league.regimes]
    yield (
        f"- **The search's criterion** has a rank correlation with accuracy between {min(rhos):+.2f} and {max(rhos):+.2f}, "
        f"{sum(rho < 0.5 for rho in rhos)} of {len(rhos)} below 0.5."
    )


def _names(names):
    return ", ".join(f"`{name}`" for name in names) or "no method"


# ---- both leagues
def recommendations(league, first, real):
    """Yield, for each kind of noise, the methods whose 95 % interval is above 0 in all its regimes of both leagues.

    The last column has their worlds of league-real with this noise, which the choice does not use.

    Parameters
    ----------
    league : League
    first : dict
        As returned by `first_league`.
    real : League
        As returned by `benchmarks.league_real.stored_league`.
    """
    yield (
        "| noise | regimes in league 1, 2 | ahead of `fedavg` in all (smallest difference) | methods behind in one or more "
        "| worlds of league-real: ahead / behind by 1 point |"
    )
    yield "|---|---|---|---|---|"
    for kind, (one, two) in KINDS.items():
        supported, behind = [], 0
        for method in league.methods:
            rows = [first.get((regime, method), {}) for regime in one]
            found = [(row.get("late_ahead"), row.get("late_half")) for row in rows]
            rows = [league.rows.get((regime, method), {}) for regime in two]
            found += [(row.get("kept_ahead"), row.get("kept_ahead_half")) for row in rows]
            known = [pair for pair in found if None not in pair]
            behind += any(ahead < -half for ahead, half in known)
            if len(known) == len(found) and all(ahead > half for ahead, half in known):
                supported.append((min(ahead for ahead, _ in known), method))
        best = ", ".join(f"{league.label(method)} {ahead:+.1f}" for ahead, method in sorted(supported, reverse=True)[:4])
        more = f" and {len(supported) - 4} more" if len(supported) > 4 else ""
        elsewhere = league_real.held(real, kind, [method for _, method in sorted(supported, reverse=True)])
        yield f"| {kind} | {len(one)}, {len(two)} | {best or 'none'}{more} | {behind} | {elsewhere} |"


def first_table(first):
    """Yield league 1: fedavg in percent, differences of the others, by mean difference."""
    regimes = list(dict.fromkeys(regime for regime, _ in first))
    methods = list(dict.fromkeys(method for _, method in first))
    average = {name: mean(first[regime, name]["late_ahead"] for regime in regimes) for name in methods}
    yield "| method | mean | " + " | ".join(regimes) + " |"
    yield "|---" * (len(regimes) + 2) + "|"
    for name in sorted(methods, key=average.get, reverse=True):
        rows = [first[regime, name] for regime in regimes]
        shown = [
            f"{row['late']:.1f}" if name == "fedavg" else f"{row['late_ahead']:+.1f} ± {row['late_half']:.1f}" for row in rows
        ]
        yield f"| `{name}` | {'' if name == 'fedavg' else f'{average[name]:+.1f}'} | {' | '.join(shown)} |"


def first_statements(first):
    """Yield sentences about league 1."""
    regimes = list(dict.fromkeys(regime for regime, _ in first))
    names = [name for name in dict.fromkeys(m for _, m in first) if name not in (*REFERENCES, "fedavg")]

    def behind(name):
        return [r for r in regimes if first[r, name]["late_ahead"] < -first[r, name]["late_half"]]

    never = [name for name in names if not behind(name)]
    yield f"- **Clearly behind `fedavg` in no regime:** {_names(never)}."
    for regime in ("asymmetric 0.4", "none"):
        worse = sorted((first[regime, name]["late_ahead"], name) for name in names if regime in behind(name))
        shown = ", ".join(f"`{name}` {ahead:+.1f}" for ahead, name in worse[:8])
        yield f"- **Behind with `{regime}`:** {len(worse)} of {len(names)} methods, the most {shown}."


def tables():
    """Return {name: lines} of all tables and statements."""
    league, first = stored_league(), first_league()
    return {
        "league2 worlds": list(world_table(league)),
        "league2 statements": list(statements(league)),
        "league2 code": list(code_statement()),
        "league2 development": list(development_table(league)),
        "league2 validity": list(validity_table(league)),
        "recommendations": list(recommendations(league, first, league_real.stored_league())),
        "league2 regimes": list(regime_table(league)),
        "league1": list(first_table(first)),
        "league1 statements": list(first_statements(first)),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", action="store_true", help="print rows of league 2 as JSON, for `fnlkit plot league`")
    parser.add_argument("--league", choices=("2", "real"), default="2", help="default: 2, which includes league 1")
    parser.add_argument("--check", metavar="FILE", help="check a submitted row and print its scores (docs/league-real.md)")
    options = parser.parse_args()
    if options.check:
        try:
            print("\n".join(league_check.check(options.check)))
        except InputError as error:
            print(f"league: {error}", file=sys.stderr)
            sys.exit(2)
    elif options.rows:
        league = stored_league()
        print("\n".join(json.dumps(row) for row in league.rows.values() if row["method"] in league.methods))
    else:
        shown = tables()
        if options.league == "real":
            shown = league_real.tables() | league_search.tables() | {"league versions": list(league_check.version_table())}
        print("\n\n".join("\n".join([f"{name}:", "", *lines]) for name, lines in shown.items()))


if __name__ == "__main__":
    main()
