"""Print the tables of docs/league.md as Markdown, from the output of `reproduce`.

fnlkit reproduce league --dataset features.npz -o league --json > league.jsonl
python -m benchmarks.league league.jsonl
"""

import argparse
import json


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


def main():
    parser = argparse.ArgumentParser(description="Print the tables of the league as Markdown.")
    parser.add_argument("lines", help="output of `fnlkit reproduce league --json`")
    with open(parser.parse_args().lines, encoding="utf-8") as handle:
        print("\n".join(tables([json.loads(line) for line in handle])))


if __name__ == "__main__":
    main()
