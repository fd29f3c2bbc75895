"""The same search for every method in the regimes of league-real.

    python -m benchmarks.league_search -o DIR
    python -m benchmarks.league_search -o DIR --only wine --methods fedem
    python -m benchmarks.league --league real

Each method has four settings: two learning rates times two values of one option (`SECOND`).  They are compared in one run each
of seed 100, by the late agreement with the given labels of held-out samples (a fifth of each client).  Neither true labels nor
test samples, nor the reported seeds 0 to 4, are read before the choice.  The reported runs train on all samples, with the
chosen settings; if these are the defaults, the run is that of the stored cells.  `auto` is not searched: it compares methods
by held-out labels itself, and has its defaults beside the searched settings of the others.  A second call continues.  Stored
results of regimes and methods that a call does not search are kept.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev

from benchmarks import league_real
from benchmarks.league_cells import ROOT, League, commit, probabilities, read_lines, write_lines
from fnlkit.recipes import recipe, reproduce, search, stored

LOG, CELLS = (ROOT / f"benchmarks/results/league-real-{name}.jsonl" for name in ("search", "searched"))
RATE, SEED, HOLDOUT = {"lr": 0.03}, 100, "--holdout 0.2"
# Searched methods, and the second value of an option of each; methods without a parameter of their own have fewer local epochs.
SECOND = {
    "fedavg": {"epochs": 2},
    "oracle": {"epochs": 2},
    "slr": {"method.strength": 0.5},
    "rofl": {"method.forget": 0.4},
    "fedefc": {"method.start": 24},
    "flr": {"method.strength": 0.5},
    "confident-learning": {"method.start": 24},
    "fedem": {"method.warmup": 24},
}


class Grid(search.Cell):
    """Search of one method in one regime over two learning rates and two values of one option; the first are the defaults."""

    def __init__(self, plan, regime, number, place):
        super().__init__(plan, regime, number, place)
        second = SECOND[self.entry.label]
        self.left = [{}, RATE, second, RATE | second]


def cells(plan, only=None, methods=tuple(SECOND)):
    """Return the Grids of methods in the regimes of a recipe with the text `only`, on federations with held-out samples."""
    held = [
        regime | {"steps": [f"{step} {HOLDOUT}" if step.startswith("partition ") else step for step in regime["steps"]]}
        for regime in plan["regime"]
    ]
    # The budget is that of Grid; the space is not drawn from.
    searching = plan | {"regime": held, "search": {"budget": 4, "seeds": [SEED], "space": {"lr": [RATE["lr"]]}}}
    return [
        Grid(searching, held[number], number, place)
        for number, _ in reproduce.select_regimes(plan, only)
        for place, entry in enumerate(recipe.entries(plan["regime"][number]))
        if entry.label in methods
    ]


def run(folder: Path, train: Callable, only: str | None = None, methods: Sequence[str] = tuple(SECOND)) -> dict[str, Exception]:
    """Search, train the reported seeds with the chosen settings, and store the log and the scores.

    Parameters
    ----------
    folder : Path
    train : callable (jobs, folder) -> {name: error}
    only : str or None
        Text in the names of the regimes; default: all.
    methods : sequence of str

    Returns
    -------
    dict
        {name: error} of failed jobs.
    """
    plan = recipe.load_recipe("league-real")
    found = cells(plan, only, methods)
    choices = search.search(found, folder / "search", lambda jobs: train(jobs, folder / "search"))
    chosen = search.choices_by_cell(choices)
    jobs = [job for job in reproduce.jobs(plan, only=only, chosen=chosen) if chosen.get((job.regime, job.label))]
    failed = train(jobs, folder / "searched")
    searched = {cell.name for cell in found}
    log = [line for line in read_lines(folder / "search" / search.LOG) if _name(line) in searched]
    scores = [cell | {"code": commit()} for cell in reproduce.cells(jobs, folder / "searched", reproduce.DIGITS)]
    header = {"kind": stored.KIND, "title": "league-real, searched", "datasets": {}, "regimes": {}}
    write_lines(LOG, _merge(plan, read_lines(LOG), log, searched))
    write_lines(CELLS, [header, *_merge(plan, read_lines(CELLS)[1:], scores, searched)])
    return failed


def _name(line):
    return line["regime"], line["method"]


def _merge(plan, old, new, searched):
    """Return new lines and the old ones of other regimes and methods, in the order of the recipe."""
    order = {regime["name"]: i for i, regime in enumerate(plan["regime"])}
    kept = [line for line in old if _name(line) not in searched]
    return sorted([*kept, *new], key=lambda line: (order[line["regime"]], list(SECOND).index(line["method"])))


@cache
def searched():
    """Return Leagues of the defaults and of the searched settings, and the choices, in regimes in which all were searched.

    Returns
    -------
    (League, League, dict)
        Leagues over common seeds; {(regime, method): line of the log with the chosen values}.
    """
    choices = {_name(line): line for line in read_lines(LOG) if "chosen" in line}
    everywhere = {regime for regime, _ in choices if all((regime, name) in choices for name in SECOND)}
    defaults = [
        cell
        for cell in stored.read_cells(str(league_real.CELLS))[1]
        if cell["regime"] in everywhere and cell["method"] in (*SECOND, "auto")
    ]
    found = {_name(cell): cell for cell in stored.read_cells(str(CELLS))[1]}
    after = [found.get(_name(cell), cell) for cell in defaults]
    seeds = set.intersection(*(set(cell["kept"]) for cell in after))
    both = [league_real.keep_seeds(each, seeds) for each in (defaults, after)]
    return *map(League, both), {name: line for name, line in choices.items() if name[0] in everywhere}


def regret(league, picked, reference):
    """Return (mean over worlds, largest) of the points that picked methods are behind the best one of a reference League.

    Parameters
    ----------
    league, reference : League
    picked : dict of str to str
        A method for each regime.
    """
    best = {regime: max(reference.mean(name, regime) for name in reference.methods) for regime in picked}
    lost = {regime: best[regime] - league.mean(name, regime) for regime, name in picked.items()}
    return mean(league_real.by_world(lost, lost.get).values()), max(lost.values())


def table():
    """Yield regrets of each method with its defaults and with searched settings, and the gain with its test over worlds."""
    before, after, choices = searched()
    worlds, regimes = list(before.worlds), before.regimes
    yield "| method | regret, defaults | regret, searched | gain | P(better) | P(worse) | other settings chosen |"
    yield "|---|---|---|---|---|---|---|"
    for name in sorted(after.methods, key=lambda each: league_real.mean_regret(after, each, worlds)):
        regrets = " | ".join(f"{league_real.mean_regret(league, name, worlds):.1f}" for league in (before, after))
        gains = league_real.by_world(regimes, lambda regime, name=name: after.mean(name, regime) - before.mean(name, regime))
        error = stdev(gains.values()) / len(gains) ** 0.5
        better, _, worse = probabilities(list(gains.values()), f"searched {name}")
        if name not in SECOND:
            yield f"| `{name}`, not searched | {regrets} | | | | |"
            continue
        other = sum(bool(choices[regime, name]["chosen"]) for regime in regimes)
        facts = f"{mean(gains.values()):+.1f} ± {error:.1f} | {better:.2f} | {worse:.2f} | in {other} of {len(regimes)} regimes"
        yield f"| `{name}` | {regrets} | {facts} |"


def choice_statements():
    """Yield regrets of a choice by held-out given labels, among all methods and among the two constant recommended ones."""
    before, after, choices = searched()
    league = league_real.stored_league()
    everyone = [name for name in before.methods if name in SECOND]
    pair = list(dict.fromkeys(name for name in league_real.recommended(league) if name in everyone))
    constant = {name: regret(before, dict.fromkeys(before.regimes, name), before)[0] for name in before.methods}
    yield f"Searched: {league_real.size_of(before, list(before.worlds))}."
    yield ""
    for names, text in ((everyone, f"all {len(everyone)} methods"), (pair, " and ".join(f"`{n}`" for n in pair))):
        picked = [
            {regime: max(names, key=lambda name: choices[regime, name][score]) for regime in before.regimes}
            for score in ("own_score", "score")
        ]
        (defaults, worst), (settings, least) = (
            regret(league, each, before) for league, each in zip((before, after), picked, strict=True)
        )
        best = min(names, key=constant.get)
        gains = league_real.by_world(
            before.regimes,
            lambda regime, names=picked[0], best=best: before.mean(names[regime], regime) - before.mean(best, regime),
        )
        better, equal, worse = probabilities(list(gains.values()), f"chosen among {text}")
        yield (
            f"- **A method that held-out labels of one run choose among {text}:** a mean regret of {defaults:.1f} (at most "
            f"{worst:.1f}) with defaults, and {settings:.1f} (at most {least:.1f}) with searched settings; always `{best}` "
            f"with defaults: {constant[best]:.1f}. Probabilities that the choice with defaults is better, equal, worse: "
            f"{better:.2f}, {equal:.2f}, {worse:.2f}."
        )


def tables():
    """Return {name: lines} of the table and the statements of the search."""
    return {"real search": list(table()), "real choice": list(choice_statements())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--folder", type=Path, required=True)
    parser.add_argument("--only", help="regimes with this text in the name; default: all")
    parser.add_argument("--methods", default=",".join(SECOND), help="separated by commas; default: all")
    options = parser.parse_args()

    def train(jobs, folder):
        return reproduce.run(jobs, folder, at_once=1, on_done=lambda job, error: print(job.name, error or "", flush=True))

    if failed := run(options.folder, train, options.only, options.methods.split(",")):
        raise SystemExit("\n".join(f"{name}: {error}" for name, error in failed.items()))


if __name__ == "__main__":
    main()
