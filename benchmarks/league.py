"""Print the tables of the leagues as Markdown, and check the statements of a page against them.

    python -m benchmarks.league                              # league 2, from the stored cells of data/cells/league2.jsonl
    python -m benchmarks.league --rows > league2.jsonl       # rows for `fnlkit plot league`
    python -m benchmarks.league --check docs/league2.md
    python -m benchmarks.league league.jsonl                 # league 1, from the output of `fnlkit reproduce league --json`

A statement of a page is followed by a comment with its number, for example `<!-- check: ahead | METHOD | REGIME | > 3 -->`.
`quantity` computes the numbers.
"""

import argparse
import json
import operator
import re
import sys
from pathlib import Path

import numpy as np

from fnlkit.kernels.streams import stream
from fnlkit.reproduce import reproduce, stored
from fnlkit.results.ranking import ranking
from fnlkit.results.statistics import holm, paired

CELLS, SEARCH = Path("data/cells/league2.jsonl"), Path("benchmarks/results/league2-search.jsonl")
REFERENCES = ("oracle", "centralized", "local")
# Differences within this number of points are practically equal.
EQUAL, DRAWS = 1.0, 20_000


# ---- league 1
def tables(lines):
    """Yield lines of Markdown: methods by mean rank, with late accuracy by regime.

    FedAvg's accuracy is absolute; the other methods show their difference from FedAvg.

    Parameters
    ----------
    lines : list of dict
        Rows of regime and method, and one row with the key ``ranking``.
    """
    rows = {(row["regime"], row["method"]): row for row in lines if "regime" in row}
    order = next(row["ranking"] for row in lines if "ranking" in row)
    regimes = list(dict.fromkeys(regime for regime, _ in rows))
    yield "| method | mean rank | " + " | ".join(regimes) + " |"
    yield "|---" * (len(regimes) + 2) + "|"
    for method, rank in order["mean_rank"].items():
        cells = [_cell(rows[regime, method], method) for regime in regimes]
        yield f"| `{method}` | {rank:.1f} | " + " | ".join(cells) + " |"
    yield ""
    runs = sorted({row["runs"] for row in rows.values()})
    yield (
        f"Runs per cell: {', '.join(map(str, runs))}. Two methods differ significantly if their mean ranks are at least "
        f"{order['apart']:.1f} apart (Nemenyi's test at 5 %)."
    )
    yield ""
    yield "| regime | best method except `oracle` | rank correlation with the published order (Spearman) |"
    yield "|---|---|---|"
    for regime in regimes:
        found = {method: row["late_mean"] for (where, method), row in rows.items() if where == regime and method != "oracle"}
        best = max(found, key=found.get)
        rho = order["published"].get(regime)
        yield f"| {regime} | `{best}` {found[best]:.1f} | {'' if rho is None else f'{rho:.2f}'} |"


def _cell(row, method):
    if method == "fedavg":
        return f"{row['late_mean']:.1f}"
    half, ahead = row["late_ahead_half"], f"{row['late_ahead']:+.1f}"
    if half is None:
        return ahead
    if row["runs"] < 3:  # Student's t with one degree of freedom is very wide; a star marks differences beyond it
        return ahead + ("\\*" if abs(row["late_ahead"]) > half else "")
    return f"{ahead} ± {half:.1f}"


# ---- league 2
class League:
    """The rows of league 2 and statistics of the methods outside the references.

    Parameters
    ----------
    cells : list of dict
        As returned by `fnlkit.reproduce.stored.read`.

    Attributes
    ----------
    rows : dict of (regime, method) to dict
        From `fnlkit.reproduce.reproduce.rows`; p-values are corrected by Holm for all methods in all regimes.
    regimes, methods : list of str
    """

    def __init__(self, cells):
        found = reproduce.rows([], ".", "fedavg", cells)
        self.rows = {(row["regime"], row["method"]): row for row in found}
        self.regimes = list(dict.fromkeys(row["regime"] for row in found))
        self.methods = list(dict.fromkeys(row["method"] for row in found if row["method"] not in REFERENCES))
        tested = [row for row in found if row["method"] in self.methods]
        for row, corrected in zip(tested, holm([row["kept_p"] for row in tested]), strict=True):
            row["kept_holm"] = corrected
        self.ranking = ranking(tested, by="kept_mean")

    def mean(self, method, regime):
        return self.rows[regime, method]["kept_mean"]

    def ahead(self, method, regime):
        """Mean paired difference from fedavg in points."""
        return self.rows[regime, method]["kept_ahead"] or 0.0

    def whole(self, method):
        """Return the regimes with a result of a method."""
        return [regime for regime in self.regimes if (regime, method) in self.rows]

    def signed_rank(self, method, other="fedavg"):
        """Return the posterior probabilities (better, equal, worse) of a method against another over regimes.

        Bayesian signed-rank test with a Dirichlet process prior and a region of practical equivalence of 1 point (Benavoli,
        Corani, Mangili, Zaffalon, Ruggeri, ICML 2014; Benavoli et al., JMLR 2017).
        """
        common = [regime for regime in self.whole(method) if (regime, other) in self.rows]
        z = np.array([0.0] + [self.mean(method, regime) - self.mean(other, regime) for regime in common])
        weights = stream(0, f"signed rank {method} {other}").dirichlet([1.0] * len(z), DRAWS)
        sums = z[:, None] + z[None, :]
        shares = np.stack([
            np.einsum("di,dj,ij->d", weights, weights, region)
            for region in (sums > 2 * EQUAL, np.abs(sums) <= 2 * EQUAL, sums < -2 * EQUAL)
        ])  # fmt: skip
        return np.bincount(shares.argmax(0), minlength=3) / DRAWS

    def constants(self):
        """Return {regime: (method, regret)}: the method with the smallest mean regret in the other worlds, without `auto`."""
        top, out = {regime: self.mean(self.best(regime)[0], regime) for regime in self.regimes}, {}
        names = [method for method in self.methods if method != "auto"]
        for regime in self.regimes:
            others = [each for each in self.regimes if world_of(each) != world_of(regime)]
            name = min(names, key=lambda method: sum(top[each] - self.mean(method, each) for each in others))  # noqa: B023
            out[regime] = name, top[regime] - self.mean(name, regime)
        return out

    def best(self, regime):
        """Return (best method, methods that are not clearly behind it, with a paired 95 % interval that contains 0)."""
        found = {method: self.mean(method, regime) for method in self.methods if (regime, method) in self.rows}
        first = max(found, key=found.get)
        scores = self.rows[regime, first]["kept"]
        others = [m for m in found if m != first and not _behind(self.rows[regime, m]["kept"], scores)]
        return first, sorted(others, key=found.get, reverse=True)


def _behind(ours, theirs):
    found = paired(ours, theirs)
    return found is None or found["half"] is None or found["mean"] < -found["half"]


def main_table(league):
    """Yield the table of kept scores: fedavg in percent, others as differences from fedavg."""
    yield "| method | mean rank | " + " | ".join(league.regimes) + " |"
    yield "|---" * (len(league.regimes) + 2) + "|"
    order = [*league.ranking["mean_rank"]]
    order += [method for method in league.methods if method not in order]
    references = [name for name in REFERENCES if league.whole(name)]
    for method in [*order, *references]:
        rank = league.ranking["mean_rank"].get(method)
        cells = [_score(league.rows.get((regime, method)), method) for regime in league.regimes]
        yield f"| `{method}` | {'' if rank is None else f'{rank:.1f}'} | " + " | ".join(cells) + " |"


def _score(row, method):
    if row is None:
        return ""
    if method == "fedavg":
        return f"{row['kept_mean']:.1f}"
    half, p = row["kept_ahead_half"], row["kept_holm"]
    bold = "**" if p is not None and p < 0.05 and method not in REFERENCES else ""
    return f"{bold}{row['kept_ahead']:+.1f}{bold}" + ("" if half is None else f" ± {half:.1f}")


def bayes_table(league):
    """Yield the table of the signed-rank test against fedavg."""
    yield "| method | regimes | mean difference | P(better) | P(equal) | P(worse) |"
    yield "|---|---|---|---|---|---|"
    rows = []
    for method in league.methods:
        if method != "fedavg" and len(common := league.whole(method)) > 1:
            mean = np.mean([league.ahead(method, regime) for regime in common])
            rows.append((mean, method, len(common), *league.signed_rank(method)))
    for mean, method, count, *probabilities in sorted(rows, reverse=True):
        yield f"| `{method}` | {count} | {mean:+.1f} | " + " | ".join(f"{p:.2f}" for p in probabilities) + " |"


def best_table(league):
    """Yield the best methods of each regime."""
    yield "| regime | `fedavg` | `oracle` | best method | not clearly behind it |"
    yield "|---|---|---|---|---|"
    for regime in league.regimes:
        first, others = league.best(regime)
        shown = ", ".join(f"`{name}`" for name in others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        oracle = f"{league.mean('oracle', regime):.1f}" if (regime, "oracle") in league.rows else ""
        base = f"{league.mean('fedavg', regime):.1f}"
        yield f"| {regime} | {base} | {oracle} | `{first}` {league.ahead(first, regime):+.1f} | {shown} |"


def search_table(lines):
    """Yield how often the search chose each learning rate, by world."""
    chosen = [line for line in lines if "chosen" in line]
    rates = sorted({line["chosen"].get("lr", 0.01) for line in chosen})
    yield "| world | searches | " + " | ".join(f"lr {rate:g}" for rate in rates) + " | failed runs |"
    yield "|---" * (len(rates) + 3) + "|"
    for world in dict.fromkeys(world_of(line["regime"]) for line in chosen):
        here = [line for line in chosen if world_of(line["regime"]) == world]
        counts = [sum(line["chosen"].get("lr", 0.01) == rate for line in here) for rate in rates]
        yield f"| {world} | {len(here)} | {' | '.join(map(str, counts))} | {sum(line['failed'] for line in here)} |"


def world_of(regime):
    """Return the world in the name of a regime, the text before the colon."""
    return regime.partition(":")[0]


# ---- statements of the page
def quantity(league, name, method, regime):
    """Return a number that a statement depends on: ahead, least, mean, regret, worst, holm, rank, ...

    ``least`` and ``mean`` are the smallest and the mean difference from fedavg over the regimes; ``regret`` and ``worst`` are
    the mean and the largest difference to the best method of a regime.
    """
    if name == "ahead":
        return league.ahead(method, regime)
    if name in ("least", "mean"):
        return float({"least": np.min, "mean": np.mean}[name]([league.ahead(method, each) for each in league.regimes]))
    if name in ("regret", "worst"):
        behind = [league.mean(league.best(each)[0], each) - league.mean(method, each) for each in league.regimes]
        return float({"regret": np.mean, "worst": np.max}[name](behind))
    if name == "holm":
        return league.rows[regime, method]["kept_holm"]
    if name == "rank":
        return league.ranking["mean_rank"][method]
    if name == "best":
        return float(league.best(regime)[0] == method)
    if name in ("better", "equal", "worse"):
        return float(league.signed_rank(method)[("better", "equal", "worse").index(name)])
    raise KeyError(name)


def check(text, league):
    """Return the statements of a page that the tables contradict, and the number of statements.

    Parameters
    ----------
    text : str
        The page.
    league : League
    """
    compare, wrong = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}, []
    claims = re.findall(r"<!-- check: (.*?) -->", text)
    for claim in claims:
        name, method, regime, condition = (part.strip() for part in claim.split("|"))
        sign, _, limit = condition.partition(" ")
        try:
            true = compare[sign](quantity(league, name, method, regime), float(limit))
        except (KeyError, TypeError):
            true = False
        if not true:
            wrong.append(claim)
    for name, lines in printed(league).items():
        if f"<!-- table: {name} -->" in text and "\n".join(lines) not in text:
            wrong.append(f"table {name}")
    return wrong, len(claims)


def printed(league):
    """Return {name: lines} of the tables of league 2."""
    found = {"main": main_table, "bayes": bayes_table, "best": best_table}
    out = {name: list(make(league)) for name, make in found.items()}
    if SEARCH.exists():
        out["search"] = list(search_table([json.loads(line) for line in SEARCH.read_text().splitlines()]))
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lines", nargs="?", help="stored cells, or the output of `fnlkit reproduce league --json`")
    parser.add_argument("--rows", action="store_true", help="print rows as JSON, for `fnlkit plot league`")
    parser.add_argument("--check", metavar="PAGE.md", help="check the statements and tables of a page")
    options = parser.parse_args()
    path = Path(options.lines or CELLS)
    with open(path, encoding="utf-8") as handle:
        first = json.loads(handle.readline())
    if first.get("kind") != stored.KIND:
        print("\n".join(tables([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()])))
        return
    league = League(stored.read(str(path))[1])
    if options.rows:
        print("\n".join(json.dumps(row) for row in league.rows.values() if row["method"] in league.methods))
    elif options.check:
        wrong, count = check(Path(options.check).read_text(encoding="utf-8"), league)
        print("\n".join([*(f"contradicted: {claim}" for claim in wrong), f"{count} statements checked"]))
        sys.exit(bool(wrong))
    else:
        print("\n\n".join("\n".join(lines) for lines in printed(league).values()))
        rows = [row for row in league.rows.values() if row["method"] in league.methods and row["kept_holm"] is not None]
        counts = [sum(row[name] < 0.05 for row in rows) for name in ("kept_p", "kept_holm")]
        print(f"\n{len(rows)} comparisons with fedavg: {counts[0]} with p < 0.05, {counts[1]} after Holm's correction")
        found = league.constants()
        losses = [loss for _, loss in found.values()]
        names = ", ".join(f"{regime}: {name} {loss:.1f}" for regime, (name, loss) in found.items())
        print(f"Best constant method of the other worlds: mean regret {np.mean(losses):.1f}, worst {max(losses):.1f} ({names})")
        apart = league.ranking["apart"]
        print(f"\nNemenyi's critical difference of mean ranks at 5 %: {'none' if apart is None else f'{apart:.1f}'}")


if __name__ == "__main__":
    main()
