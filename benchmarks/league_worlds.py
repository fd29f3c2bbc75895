"""Sizes and wrong labels of the federations of a part of `league-real`, seed 0, without a score of any method.

fnlkit reproduce league-real -o league-real
python -m benchmarks.league_worlds --runs league-real --part fourth
"""

import argparse
from pathlib import Path

import numpy as np

from benchmarks.league_cells import world_of
from benchmarks.league_real import part_of
from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.recipes import recipe, reproduce


def table(folder, part):
    """Yield a row for each regime of a part whose federation is in a folder."""
    yield "| regime | sites | rows of a site | test rows | classes | features | wrong labels | by site |"
    yield "|---" * 8 + "|"
    for job in reproduce.jobs(recipe.load_recipe("league-real"), seeds=1):
        place = Path(folder) / job.prepare[-1][1]
        if job.label == "fedavg" and part_of(world_of(job.regime)) == part and place.exists():
            federation = Federation.read(str(place))
            yield f"| {job.regime} | {' | '.join(facts(federation, datasets.load(federation.dataset)))} |"


def facts(federation, data):
    """Return the cells of a row: sizes, and shares of wrong labels over all samples and by client."""
    wrong = federation.given != data.truth
    sizes, shares = zip(*((len(part), 100 * wrong[part].mean()) for part in federation.clients), strict=True)
    mean = 100 * wrong[federation.client_indices].mean()
    return [
        str(len(sizes)), f"{min(sizes)} to {max(sizes)}", f"{len(data.y_test):,}", str(data.classes),
        str(np.shape(data.x_train)[1]), f"{mean:.0f} %", f"{min(shares):.0f} to {max(shares):.0f} %",
    ]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", required=True, help="folder of `fnlkit reproduce league-real`")
    parser.add_argument("--part", default="fourth", choices=("first", "second", "third", "fourth"))
    options = parser.parse_args()
    print("\n".join(table(options.runs, options.part)))


if __name__ == "__main__":
    main()
