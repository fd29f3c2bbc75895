"""Check a row that somebody submits to a league, against the stored cells of the league (docs/league-real.md).

fnlkit reproduce league-real --add mine.py:m -o mine --export mine.jsonl
python -m benchmarks.league --check mine.jsonl
"""

from statistics import mean

from benchmarks import league_real
from benchmarks.league_cells import League, split_complete
from fnlkit.errors import InputError
from fnlkit.recipes import recipe, stored


def check(path):
    """Yield lines about the methods in a file of cells.

    Parameters
    ----------
    path : str
        Written by ``fnlkit reproduce LEAGUE --add METHOD --export FILE``.

    Raises
    ------
    InputError
        If the file does not belong to a league, was measured with other steps, data or seeds, lacks a regime, or has a method
        that the league has.
    """
    header, cells = stored.read_cells(path)
    name = _league_of(header, path)
    known, rows = stored.read_cells(stored.path_of(name))
    _must_be_alike(header, known, path)
    methods = list(dict.fromkeys(cell["method"] for cell in cells))
    if double := {cell["method"] for cell in rows} & set(methods):
        raise InputError(f"{path}: {name} has the method {min(double)!r} already; give yours another name")
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
    league = League([*split_complete(rows)[0], *cells])
    yield f"{path}: fits {name}@{stored.version_of(name)}, {len(seeds)} regimes of {len(league.worlds)} worlds"
    yield from (score_line(league, method) for method in methods)


def version_table():
    """Yield the versions of each league with the checksum of their cells."""
    yield "| version | SHA-256 of the cells |"
    yield "|---|---|"
    for name, versions in stored.versions().items():
        for version, digest in versions.items():
            yield f"| {name}@{version} | `{digest}` |"


def _league_of(header, path):
    """Return the name of the league whose regimes a header has."""
    for name in stored.list_included():
        if header["regimes"] and header["regimes"].keys() <= stored.fingerprints(recipe.load_recipe(name)).keys():
            return name
    raise InputError(f"{path}: its regimes are those of no league ({', '.join(stored.list_included())})")


def _must_be_alike(header, known, path):
    """Raise InputError unless two headers describe the same steps, options, search and samples."""
    for name, what in (("regimes", "steps or options"), ("datasets", "samples")):
        for regime, digest in header[name].items():
            if known[name].get(regime, digest) != digest:
                raise InputError(f"{path}: measured with other {what} of regime {regime!r} than the league")
    if header.get("search") != known.get("search", header.get("search")):
        raise InputError(f"{path}: measured with another search than the league; run `fnlkit reproduce` without --no-search")


def score_line(league, method):
    """Return the scores of a method in a league as a line."""
    worlds, regimes = list(league.worlds), league.regimes
    better, _, worse = league.signed_rank(method)
    worst, where = league_real.worst_regret(league, method, worlds)
    behind = sum(league_real.is_behind(league, method, regime) for regime in regimes)
    return (
        f"{method}: {mean(league.differences(method)):+.1f} points from fedavg, P(better) {better:.2f}, P(worse) {worse:.2f}; "
        f"regret {league_real.mean_regret(league, method, worlds):.1f}, at most {worst:.1f} in {where}; clearly behind fedavg "
        f"in {behind} of {len(regimes)} regimes"
    )
