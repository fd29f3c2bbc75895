"""What each part of `auto` contributes, from its runs in league-real.

    fnlkit reproduce league-real -o league-real
    python -m benchmarks.auto_parts league-real > benchmarks/results/auto-parts.txt

A run of `auto` contains the predictions of each method for held-out samples.  They suffice to choose a single method in other
ways; its score is that of the method's own run.  The choice in hindsight is the method with the largest mean score over seeds.
Regrets are those of docs/league-real.md, against the best of all methods.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import numpy as np

from benchmarks import league_real
from benchmarks.league_cells import world_of
from fnlkit.artifacts.run import Run
from fnlkit.kernels.committees import correct_agreement, fit_transition, usable_inverse
from fnlkit.methods.auto import CANDIDATES
from fnlkit.recipes import recipe, reproduce, stored

AUTO, CORRECTED, PLAIN, HINDSIGHT = (
    "`auto`",
    "the method with the largest corrected agreement",
    "the method with the largest agreement",
    "the best of the five methods in hindsight",
)


def choices(run: Run) -> dict[str, str]:
    """Return the method that a rule chooses from the held-out predictions of a run of `auto`.

    Parameters
    ----------
    run : Run
        With the default methods.
    """
    guesses, sums = (run.memory[f"rows/{name}"].numpy() for name in ("guesses", "sums"))
    parts = np.split(run.client_indices, run.client_offsets[1:-1])
    given = run.labels["given"][np.concatenate([parts[k] for k in run.memory["rows/guesses/clients"].tolist()])]
    held_out = (guesses >= 0).all(1)
    guesses, sums, given = guesses[held_out].T, sums[held_out], given[held_out]
    inverse = usable_inverse(fit_transition(sums / sums.sum(1, keepdims=True), given))
    plain = np.eye(len(sums[0]))
    values = {CORRECTED: correct_agreement(guesses, given, plain if inverse is None else inverse), PLAIN: guesses == given}
    return {rule: CANDIDATES[int(np.argmax(each.mean(1)))] for rule, each in values.items()}


def regrets(folder: Path) -> dict[str, dict[str, float]]:
    """Return {rule: {regime: regret}} from the runs of `auto` in a folder and the stored cells."""
    league = league_real.stored_league()
    kept = {(cell["regime"], cell["method"]): cell["kept"] for cell in stored.read_cells(str(league_real.CELLS))[1]}
    found: dict[str, dict[str, list[float]]] = {}
    for job in reproduce.jobs(recipe.load_recipe("league-real")):
        if job.label != "auto" or job.regime not in league.regimes or job.seed not in kept[job.regime, "auto"]:
            continue
        chosen = choices(Run.read(folder / job.file)) | {AUTO: "auto"}
        for rule, name in chosen.items():
            found.setdefault(rule, {}).setdefault(job.regime, []).append(kept[job.regime, name][job.seed])
    best = {regime: max(league.mean(name, regime) for name in league.methods) for regime in found[AUTO]}
    out = {rule: {regime: best[regime] - mean(scores) for regime, scores in each.items()} for rule, each in found.items()}
    out[HINDSIGHT] = {regime: best[regime] - max(league.mean(name, regime) for name in CANDIDATES) for regime in best}
    return out | {f"always `{name}`": {r: league_real.regret(league, name, r) for r in best} for name in CANDIDATES}


def table(found: dict[str, dict[str, float]]) -> Iterator[str]:
    """Yield the table: mean over worlds and largest regret, in the first three parts and in the fourth."""
    yield "| prediction | mean regret, parts 1 to 3 | largest | mean regret, fourth part | largest |"
    yield "|---|---|---|---|---|"
    for rule, each in sorted(found.items(), key=lambda pair: mean(pair[1].values())):
        cells = []
        for parts in (("first", "second", "third"), ("fourth",)):
            here = [regime for regime in each if league_real.part_of(world_of(regime)) in parts]
            worlds = league_real.by_world(here, each.__getitem__)
            cells.append(f"{mean(worlds.values()):.1f} | {max(each[regime] for regime in here):.1f}" if here else " | ")
        yield f"| {rule} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    print("\n".join(table(regrets(parser.parse_args().folder))))


if __name__ == "__main__":
    main()
