"""Run methods of league 2 again, and replace their stored cells and the lines of their search.

    python -m benchmarks.worlds --data DIR --images cifar10-20k.npz --features emb.npz -o league2
    python -m benchmarks.again --methods fedem,auto -o league2
    python -m benchmarks.pages

The folder contains the data sets and the runs; a second call continues.  Each replaced cell states the commit of the code as
``code``; cells without it are those of commit bfc1613.  --keep-choices uses the stored choices of the search.
"""

import argparse

from benchmarks.league import CELLS, SEARCH
from benchmarks.league_cells import commit, read_lines, write_lines
from fnlkit.recipes import recipe, reproduce, search


def merged(old, new):
    """Return lines with those of `new` in place of the lines of the same regime and method; further ones at the end.

    Parameters
    ----------
    old, new : list of dict
        Lines with ``regime`` and ``method``; several lines may belong to one pair.
    """
    groups = {}
    for line in new:
        groups.setdefault((line["regime"], line["method"]), []).append(line)
    out, done = [], set()
    for line in old:
        pair = (line["regime"], line["method"])
        if pair not in groups:
            out.append(line)
        elif pair not in done:
            out += groups[pair]
            done.add(pair)
    return [*out, *(line for pair, lines in groups.items() if pair not in done for line in lines)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--methods", required=True, help="labels of the recipe, separated by commas")
    parser.add_argument("-o", "--folder", required=True)
    parser.add_argument("--only", help="regimes with this text in the name")
    parser.add_argument("--keep-choices", action="store_true")
    options = parser.parse_args()
    names, plan = set(options.methods.split(",")), recipe.load_recipe("league2")

    def make(jobs):
        failed = reproduce.run(
            jobs, options.folder, at_once=1, on_done=lambda job, error: print(job.name, error or "", flush=True)
        )
        if failed:
            raise SystemExit("\n".join(f"{name}: {error}" for name, error in failed.items()))
        return failed

    if not options.keep_choices:
        found = [cell for cell in search.cells(plan, options.only) if cell.name[1] in names]
        search.search(found, options.folder, make)
        write_lines(SEARCH, merged(read_lines(SEARCH), [line for cell in found for line in (*cell.lines, cell.choice)]))
    chosen = search.choices_by_cell(line for line in read_lines(SEARCH) if "chosen" in line)
    jobs = [job for job in reproduce.jobs(plan, only=options.only, chosen=chosen) if job.label in names]
    make(jobs)
    replace(jobs, options.folder, commit())


def replace(jobs, folder, code):
    """Replace the stored cells of finished jobs."""
    header, *old = read_lines(CELLS)
    fresh = [cell | {"code": code} for cell in reproduce.cells(jobs, folder, digits=reproduce.DIGITS)]
    write_lines(CELLS, [header, *merged(old, fresh)])


if __name__ == "__main__":
    main()
