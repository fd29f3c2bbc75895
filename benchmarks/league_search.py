"""The same search for every method with scores in all regimes of league-real, in small regimes of the third part.

    python -m benchmarks.league_search -o DIR
    python -m benchmarks.league --league real

Each method has four settings: two learning rates times two values of one option (`SECOND`).  They are compared in one run each
of seed 100, by the late agreement with the given labels of held-out samples (a fifth of each client).  Neither true labels nor
test samples, nor the reported seeds 0 to 4, are read before the choice.  The reported runs train on all samples, with the
chosen settings; if these are the defaults, the run is that of the stored cells.  A second call continues.
"""

import argparse
from functools import cache
from pathlib import Path
from statistics import mean

from benchmarks import league_real
from benchmarks.league_cells import ROOT, League, commit, read_lines, write_lines
from fnlkit.reproduce import recipe, reproduce, search, stored

LOG, CELLS = (ROOT / f"benchmarks/results/league-real-{name}.jsonl" for name in ("search", "searched"))
# A small regime of each world of the third part, two of iris.
REGIMES = (
    "iris: 4 sites, clients(0.6, 0.5)",
    "iris: 4 sites, skew 1, symmetric 0.3",
    "circles: 6 sites, symmetric 0.3",
    "s-curve: 6 sites, clients(0.5, 0.3)",
    "friedman-2: 5 sites, raters",
    "friedman-3: 5 sites, skew 1, shift 0.5, symmetric 0.3",
    "plane: 5 sites, per client",
    "sparse: 6 sites, clients(0.6, 0.5)",
)
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
    "auto": {"method.few": 20.0},
}


class Grid(search.Cell):
    """Search of one method in one regime over two learning rates and two values of one option; the first are the defaults."""

    def __init__(self, plan, regime, number, place):
        super().__init__(plan, regime, number, place)
        second = SECOND[self.entry.label]
        self.left = [{}, RATE, second, RATE | second]


def cells(plan):
    """Return the Grids of a recipe in REGIMES, on federations with held-out samples."""
    held = [
        regime | {"steps": [f"{step} {HOLDOUT}" if step.startswith("partition ") else step for step in regime["steps"]]}
        for regime in plan["regime"]
    ]
    # The budget is that of Grid; the space is not drawn from.
    searching = plan | {"regime": held, "search": {"budget": 4, "seeds": [SEED], "space": {"lr": [RATE["lr"]]}}}
    return [
        Grid(searching, held[number], number, place)
        for name in REGIMES
        for number, _ in reproduce.select_regimes(plan, name)
        for place, entry in enumerate(recipe.entries(plan["regime"][number]))
        if entry.label in SECOND
    ]


def run(folder, train):
    """Search, train the reported seeds with the chosen settings, and write the log and the scores.

    Parameters
    ----------
    folder : Path
    train : callable (jobs, folder) -> {name: error}
    """
    plan = recipe.load_recipe("league-real")
    choices = search.search(cells(plan), folder / "search", lambda jobs: train(jobs, folder / "search"))
    chosen = search.choices_by_cell(choices)
    jobs = [
        job for name in REGIMES for job in reproduce.jobs(plan, only=name, chosen=chosen) if chosen.get((job.regime, job.label))
    ]
    failed = train(jobs, folder / "searched")
    write_lines(LOG, read_lines(folder / "search" / search.LOG))
    scores = reproduce.cells(jobs, folder / "searched", reproduce.DIGITS)
    header = {"kind": stored.KIND, "title": "league-real, searched", "datasets": {}, "regimes": {}, "code": commit()}
    write_lines(CELLS, [header, *scores])
    return failed


@cache
def searched():
    """Return (League of the defaults, League of the searched settings, {(regime, method): chosen}) over common seeds."""
    choices = {(line["regime"], line["method"]): line["chosen"] for line in read_lines(LOG) if "chosen" in line}
    defaults = [
        cell
        for cell in stored.read_cells(str(league_real.CELLS))[1]
        if (cell["regime"], cell["method"]) in choices and cell["regime"] in REGIMES
    ]
    found = {(cell["regime"], cell["method"]): cell for cell in stored.read_cells(str(CELLS))[1]}
    after = [found.get((cell["regime"], cell["method"]), cell) for cell in defaults]
    seeds = set.intersection(*(set(cell["kept"]) for cell in after))
    return *(League(league_real.keep_seeds(cells, seeds)) for cells in (defaults, after)), choices


def table():
    """Yield mean regrets and differences of each method with its defaults and with searched settings."""
    before, after, choices = searched()
    worlds, regimes = list(before.worlds), before.regimes
    yield "| method | regret, defaults | regret, searched | gain | worlds ahead / behind by 1 point | other settings chosen |"
    yield "|---|---|---|---|---|---|"
    for name in sorted(after.methods, key=lambda each: league_real.mean_regret(after, each, worlds)):
        regrets = " | ".join(f"{league_real.mean_regret(league, name, worlds):.1f}" for league in (before, after))
        gains = league_real.by_world(regimes, lambda regime, name=name: after.mean(name, regime) - before.mean(name, regime))
        ahead, behind = (sum(sign * gain >= 1 for gain in gains.values()) for sign in (1, -1))
        other = sum(bool(choices[regime, name]) for regime in regimes)
        cells = f"{regrets} | {mean(gains.values()):+.1f} | {ahead} / {behind} | in {other} of {len(regimes)} regimes"
        yield f"| `{name}` | {cells} |"


def tables():
    """Return {name: lines} of the table of the search."""
    return {"real search": list(table())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--folder", type=Path, required=True)
    options = parser.parse_args()

    def train(jobs, folder):
        return reproduce.run(jobs, folder, at_once=1, on_done=lambda job, error: print(job.name, error or "", flush=True))

    if failed := run(options.folder, train):
        raise SystemExit("\n".join(f"{name}: {error}" for name, error in failed.items()))


if __name__ == "__main__":
    main()
