"""Stored cells of the league: scores by regime and world, the check of a submitted row, and further runs.

    fnlkit reproduce league -o league
    python -m benchmarks.league_cells -o league                  # add further seeds and methods to the stored cells
    python -m benchmarks.league_cells -o league --replace auto
    python -m benchmarks.pages

The folder contains the runs.  Scores that are stored already must be equal in the new runs: a method with other code would
mix two methods in one row.  ``--replace`` replaces all scores of a method whose code has changed.  Each cell states the
commits of its seeds as ``codes``, and seeds that were compared as ``again``.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import mean

import numpy as np

from fnlkit.artifacts import saving
from fnlkit.errors import InputError
from fnlkit.kernels.streams import stream
from fnlkit.recipes import cells as stored
from fnlkit.recipes import recipe, reproduce

ROOT = Path(__file__).parents[1]
CELLS = ROOT / "data/cells/league.jsonl"
SCORES = ("best", "last", "late", "kept")
REFERENCES = ("oracle", "centralized", "local")
FIRST = "596d56c"  # commit of cells without `codes`
# Differences within this number of points are practically equal.
EQUAL, DRAWS = 1.0, 20_000


def world_of(regime):
    """Return the world in the name of a regime, the text before the colon."""
    return regime.partition(":")[0]


def read_lines(path):
    """Return the JSON objects in the lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_lines(path, lines):
    """Write JSON objects to a file, one in each line."""
    saving.write_bytes(["".join(json.dumps(line) + "\n" for line in lines).encode()], str(path))


def commit():
    """Return the commit of the code, with ``+`` if files differ from it."""
    return subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=7"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def split_complete(cells):
    """Return (cells of methods with scores of all seeds in all regimes, other cells).

    A mean over fewer seeds varies more, so that the best of many such methods looks better than it is.
    """
    seeds: dict[str, int] = {}
    for cell in cells:
        seeds[cell["regime"]] = max(seeds.get(cell["regime"], 0), len(cell["kept"]))
    count = Counter(cell["method"] for cell in cells if len(cell["kept"]) == seeds[cell["regime"]])
    return [[cell for cell in cells if (count[cell["method"]] == len(seeds)) == complete] for complete in (True, False)]


def probabilities(differences, name):
    """Return the posterior probabilities (better, equal, worse) of paired differences in points, one for each world.

    Bayesian signed-rank test with a Dirichlet process prior and a region of practical equivalence of 1 point (Benavoli,
    Corani, Mangili, Zaffalon, Ruggeri, ICML 2014; Benavoli et al., JMLR 2017).

    Parameters
    ----------
    differences : list of float
    name : str
        Name of the comparison; it determines the random numbers.
    """
    z = np.array([0.0, *differences])
    weights = stream(0, f"signed rank {name}").dirichlet([1.0] * len(z), DRAWS)
    sums = z[:, None] + z[None, :]
    regions = (sums > 2 * EQUAL, np.abs(sums) <= 2 * EQUAL, sums < -2 * EQUAL)
    shares = np.stack([((weights @ region.astype(float)) * weights).sum(1) for region in regions])
    return np.bincount(shares.argmax(0), minlength=3) / DRAWS


class League:
    """Scores of a league by regime and by world.

    Parameters
    ----------
    cells : list of dict
        As returned by `fnlkit.recipes.cells.read_cells`.

    Attributes
    ----------
    rows : dict of (regime, method) to dict
        From `fnlkit.recipes.reproduce.rows`.
    regimes, methods : list of str
        Methods without the references.
    worlds : dict of str to list of str
        Regimes of each world.
    """

    def __init__(self, cells):
        rows = reproduce.rows([], ".", "fedavg", cells)
        self.rows = {(row["regime"], row["method"]): row for row in rows}
        self.regimes = list(dict.fromkeys(row["regime"] for row in rows))
        self.methods = [name for name in dict.fromkeys(row["method"] for row in rows) if name not in REFERENCES]
        self.worlds = {}
        for regime in self.regimes:
            self.worlds.setdefault(world_of(regime), []).append(regime)

    def mean(self, method, regime):
        return self.rows[regime, method]["kept_mean"]

    def score(self, method, world):
        """Return the mean score in percent over the regimes of a world."""
        return mean(self.mean(method, regime) for regime in self.worlds[world])

    def leads(self, method, worlds=None):
        """Return {world: points ahead of fedavg} in the worlds in which a method has scores.

        Differences are averaged over the seeds that both have in a regime, and then over the regimes of a world.
        """
        out = {}
        for world in worlds or self.worlds:
            names = [regime for regime in self.worlds[world] if (regime, method) in self.rows]
            rows = [(self.rows[regime, method]["kept"], self.rows[regime, "fedavg"]["kept"]) for regime in names]
            found = [mean(ours[seed] - theirs[seed] for seed in ours.keys() & theirs.keys()) for ours, theirs in rows]
            out |= {world: mean(found)} if found else {}
        return out

    def differences(self, method, other="fedavg", worlds=None):
        """Return the difference of two methods in each world, in points."""
        return [self.score(method, world) - self.score(other, world) for world in worlds or self.worlds]

    def signed_rank(self, method, other="fedavg", worlds=None):
        """Return the `probabilities` that a method is better than, equal to, and worse than another, over worlds."""
        return probabilities(self.differences(method, other, worlds), f"{method} {other}")


# ---- a submitted row
def check(path):
    """Return the cells of a submitted row.

    Parameters
    ----------
    path : str
        Written by ``fnlkit reproduce league --add METHOD --export FILE``.

    Raises
    ------
    InputError
        If the file does not belong to the league, was measured with other steps, data or seeds, lacks a regime, or has a method
        that the league has.
    """
    header, cells = stored.read_cells(path)
    if not header["regimes"] or not header["regimes"].keys() <= stored.fingerprints(recipe.load_recipe("league")).keys():
        raise InputError(f"{path}: its regimes are not those of the league")
    known, rows = stored.read_cells(str(CELLS))
    _must_be_alike(header, known, path)
    methods = list(dict.fromkeys(cell["method"] for cell in cells))
    if double := {cell["method"] for cell in rows} & set(methods):
        raise InputError(f"{path}: the league has the method {min(double)!r} already; give yours another name")
    seeds = {cell["regime"]: set(cell["kept"]) for cell in rows if cell["method"] == "fedavg"}
    cells = [cell for cell in cells if cell["regime"] in seeds]  # the league lacks scores of regimes that are new in the recipe
    for method in methods:
        found = {cell["regime"]: set(cell["kept"]) for cell in cells if cell["method"] == method}
        if missing := [regime for regime in seeds if regime not in found]:
            raise InputError(
                f"{path}: {method} lacks {len(missing)} of {len(seeds)} regimes, the first is {missing[0]!r}; run them"
            )
        if other := [regime for regime, used in found.items() if not used >= seeds[regime]]:
            raise InputError(
                f"{path}: {method} has seeds {sorted(found[other[0]])} of {other[0]!r}, the league has "
                f"{sorted(seeds[other[0]])}; run these"
            )
    return cells


def _must_be_alike(header, known, path):
    """Raise InputError unless two headers describe the same steps, options and samples."""
    for name, what in (("regimes", "steps or options"), ("datasets", "samples")):
        for regime, digest in header[name].items():
            if known[name].get(regime, digest) != digest:
                raise InputError(f"{path}: measured with other {what} of regime {regime!r} than the league")


# ---- further runs
def extend(old, new, code):
    """Return cells with the seeds and the methods of further runs.

    Parameters
    ----------
    old, new : list of dict
        Stored cells as JSON, and those of `fnlkit.recipes.reproduce.cells`.
    code : str
        Commit of the new runs.

    Raises
    ------
    InputError
        If a score that is stored differs in the new runs.
    """
    new = {(cell["regime"], cell["method"]): json.loads(json.dumps(cell)) for cell in new}
    out = []
    for cell in old:
        codes = cell.get("codes", {FIRST: sorted(map(int, cell["kept"]))})
        more = new.pop((cell["regime"], cell["method"]), {name: {} for name in SCORES})
        common = sorted(cell["kept"].keys() & more["kept"].keys(), key=int)
        for seed in common:
            if any(cell[name][seed] != more[name][seed] for name in SCORES):
                raise InputError(
                    f"{cell['method']}, {cell['regime']!r}, seed {seed}: {more['kept'][seed]} and stored {cell['kept'][seed]}; "
                    "run all its regimes and seeds again and add --replace"
                )
        added = [int(seed) for seed in more["kept"] if seed not in cell["kept"]]
        merged = {name: dict(sorted((cell[name] | more[name]).items(), key=lambda pair: int(pair[0]))) for name in SCORES}
        checked = sorted({*cell.get("again", []), *map(int, common)} - {*codes.get(code, [])})
        out.append(cell | merged | {"codes": codes | ({code: sorted(added)} if added else {}), "again": checked})
    fresh = [
        cell | {"seconds": round(cell["seconds"], 1), "codes": {code: sorted(map(int, cell["kept"]))}, "again": []}
        for cell in new.values()
    ]
    return [*out, *fresh]


def drop(old, new, methods):
    """Return stored cells without some methods, whose regimes and seeds must all be in the new runs.

    Parameters
    ----------
    old, new : list of dict
        As for `extend`.
    methods : sequence of str

    Raises
    ------
    InputError
        If a stored seed of a method has no new run.
    """
    made = {(cell["regime"], cell["method"]): {str(seed) for seed in cell["kept"]} for cell in new}
    for cell in old:
        missing = cell["kept"].keys() - made.get((cell["regime"], cell["method"]), ())
        if cell["method"] in methods and missing:
            raise InputError(
                f"`--replace {cell['method']}`: no new run in {cell['regime']!r} of seed {min(missing, key=int)}; run all "
                "its regimes and seeds with the same code"
            )
    return [cell for cell in old if cell["method"] not in methods]


def add_regimes(header, prints, checksums):
    """Return the header with the regimes that have their first runs.

    Parameters
    ----------
    header : dict
        First line of the stored cells.
    prints : dict of str to str
        Fingerprints of all regimes of the recipe.
    checksums : dict of str to str
        Checksum of the data set of each regime with runs.
    """
    new = {regime: prints[regime] for regime in checksums if regime not in header["regimes"]}
    return header | {
        "regimes": header["regimes"] | new,
        "datasets": header["datasets"] | {regime: checksums[regime] for regime in new},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--folder", required=True)
    parser.add_argument("--only", help="regimes with this text in the name")
    parser.add_argument("--methods", help="labels of the recipe, separated by commas; default: all")
    parser.add_argument("--replace", metavar="METHODS", default="", help="replace all stored scores of methods with new code")
    parser.add_argument("--code", help="commit of the new runs; default: of this checkout")
    options = parser.parse_args()
    try:
        run(options)
    except InputError as error:
        print(f"league_cells: {error}", file=sys.stderr)
        sys.exit(2)


def run(options):
    """Extend the stored cells of the league by the runs in a folder, as the options of the command state."""
    plan, path = recipe.load_recipe("league"), CELLS
    header, *old = read_lines(path)
    names = options.methods and options.methods.split(",")
    jobs = [job for job in reproduce.jobs(plan, only=options.only) if not names or job.label in names]
    stored.must_fit(header, str(path), plan, jobs, options.folder)
    new = reproduce.cells(jobs, options.folder, reproduce.DIGITS)
    found = extend(drop(old, new, options.replace.split(",")), new, options.code or commit())
    checksums = {regime: meta["dataset_checksum"] for regime, meta in stored.metas(jobs, options.folder).items()}
    header = add_regimes(header, stored.fingerprints(plan), checksums)
    order = {regime["name"]: i for i, regime in enumerate(plan["regime"])}
    write_lines(path, [header, *sorted(found, key=lambda cell: order[cell["regime"]])])
    print(f"{path}: {len(found)} cells, {sum(len(cell['kept']) for cell in found)} runs; add to data/cells/versions.toml:")
    print(f'"VERSION" = "{stored.checksum_of("league")}"')


if __name__ == "__main__":
    main()
