"""Add further seeds and methods of the league to its stored cells, as a new version.

    fnlkit reproduce league -o league
    python -m benchmarks.extend -o league
    python -m benchmarks.extend -o league --replace auto
    python -m benchmarks.pages

The folder contains the runs.  Scores that are stored already must be equal in the new runs: a method with other code would
mix two methods in one row.  ``--replace`` replaces all scores of a method whose code has changed.  Each cell states the
commits of its seeds as ``codes``, and seeds that were compared as ``again``.
"""

import argparse
import json
import sys

from benchmarks.league_cells import CELLS, SCORES, commit, read_lines, write_lines
from fnlkit.errors import InputError
from fnlkit.recipes import recipe, reproduce, stored

FIRST = "596d56c"  # commit of cells without `codes`


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
        print(f"extend: {error}", file=sys.stderr)
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
