"""Audits of simulated federations of five sites with different inputs or classes, and with wrong labels.

    python -m benchmarks.audit [--mixed] [--first SEED] [--repetitions 200] [--jobs 1]

At site 1 the inputs or the classes differ.  Site 3 has wrong labels, and in every second federation of a combination site 1
has them too.  The others are clean.  Images are the embedded digits; tables have eight columns with Gaussian classes, or
2 % positives for missed positives.  Mixed tables also have missing cells, categories and columns that are mostly zero.
Prints how often clean sites are accused, noisy sites are named, shifts are named, and intervals contain the true share of
wrong labels.
"""

import argparse
import contextlib
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.audits.audit import audit
from fnlkit.audits.server.results import AGREEING
from fnlkit.audits.server.verdict import UNKNOWN, WRONG
from fnlkit.datasets import columns
from fnlkit.datasets.table import Table

SHIFTED, NOISY, SITES = 1, 3, 5
SHIFTS = {
    "image": ("none", "inverted", "mirrored", "contrast", "missing", "prevalence", "classes"),
    "table": ("none", "units", "missing", "contrast", "prevalence", "classes"),
}
NOISES = ("clean", "random", "swap", "missed")
COMBINATIONS = [(kind, shift, noise) for noise in NOISES for kind, shifts in SHIFTS.items() for shift in shifts]
MIXED = [("mixed", shift, noise) for noise in NOISES for shift in ("none", "units", "missing", "prevalence", "classes")]
ABSENT = 0.04  # share of missing cells of mixed tables
RANDOM, SWAP, MISSED = 0.2, 0.3, 0.4
CLINICAL = np.array([140.0, 4.2, 95.0, 13.5, 0.9, 250.0, 37.0, 60.0]), np.array([3.0, 0.4, 12.0, 1.4, 0.2, 60.0, 0.5, 15.0])


def federation(kind, shift, noise, both, seed):
    """Return (Federation, Dataset with the true labels).

    Parameters
    ----------
    kind, shift, noise : str
        An entry of COMBINATIONS or MIXED. The kind "noise" is a table without information about the labels.
    both : bool
        Whether the shifted site has wrong labels, too.
    seed : int
    """
    rng = np.random.default_rng(seed)
    x, y, parts = (images if kind == "image" else tables)(shift, noise, rng)
    x = rng.normal(size=(len(y), 8)).astype(np.float32) if kind == "noise" else x.copy()
    x[parts[SHIFTED]] = shifted(x[parts[SHIFTED]], kind, shift)
    x = mixed(x, rng) if kind == "mixed" else x
    classes, given = int(y.max()) + 1, y.copy()
    for k in (NOISY, SHIFTED)[: 1 + both]:
        given[parts[k]] = noised(y[parts[k]], noise, classes, rng)
    return simulated(x, y, given, parts)


def simulated(x, y, given, parts):
    """Return (Federation, Dataset with the true labels) of samples in memory.

    Parameters
    ----------
    x : array (n, ...)
    y, given : int array (n,)
        True and given labels.
    parts : list of int array
        Positions of each site.
    """
    names = [str(c) for c in range(int(max(y.max(), given.max())) + 1)]
    kind = "image" if x.ndim > 2 else "vector"
    data = datasets.Dataset("simulated", kind, y, y[:0], names, lambda: (x, x[:0]), observed=True)
    offsets = np.cumsum([0, *map(len, parts)])
    return Federation("simulated", len(names), offsets, np.concatenate(parts), given), data


def images(shift, noise, rng):
    """Return digits (n, 8, 8, 1), labels and the positions of five sites."""
    data = datasets.load("digits")
    x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
    return x, y, split(y, shift, rng)


def split(y, shift, rng):
    """Return the positions of five sites in random order; the shifted site can have other class shares."""
    order = rng.permutation(len(y))
    if shift not in ("prevalence", "classes"):
        return [np.sort(part) for part in np.array_split(order, SITES)]
    classes, size = int(y.max()) + 1, len(y) // SITES
    share = np.where(np.arange(classes) < max(1, classes // 3), 5.0, 1.0)
    if shift == "classes":
        share = (np.arange(classes) >= classes // 4).astype(float)
    here = order[np.argsort(rng.exponential(size=len(y)) / np.maximum(share[y[order]], 1e-9))][:size]
    rest = np.setdiff1d(order, here)
    if shift == "classes":
        rest = rest[y[rest] < classes - max(1, classes // 5)]
    rest = np.array_split(rng.permutation(rest), SITES - 1)
    return [np.sort(part) for part in [*rest[:SHIFTED], here, *rest[SHIFTED:]]]


def tables(shift, noise, rng):
    """Return eight columns in the units of a laboratory, labels and the positions of five sites."""
    size = SITES * (2000 if noise == "missed" else 400)
    shares = np.array([0.98, 0.02]) if noise == "missed" else np.full(4, 0.25)
    centers = rng.normal(size=(len(shares), 8))
    centers *= 4 / np.mean([np.linalg.norm(a - b) for i, a in enumerate(centers) for b in centers[:i]])
    if shift == "classes" and noise == "missed":
        shares, centers = np.array([0.9, 0.02, 0.08]), np.vstack([centers, centers[0] + 4 * np.eye(8)[0]])
    y = rng.choice(len(shares), size, p=shares)
    parts = split(y, shift, rng)
    if noise == "missed" and shift == "prevalence":  # 8 % positives
        here = parts[SHIFTED]
        y[rng.choice(here, len(here) // 12, replace=False)] = 1
    x = centers[y] + rng.normal(size=(size, 8))
    return (CLINICAL[0] + CLINICAL[1] * x).astype(np.float32), y, parts


def mixed(x, rng):
    """Return a table (n, d) with missing cells, categories with rare levels and rare columns beside the numbers, encoded."""
    size = len(x)
    numbers = np.where(rng.random(x.shape) < ABSENT, np.nan, x).astype(np.float64)
    cells = {f"number {j}": numbers[:, j] for j in range(x.shape[1])}
    for j, levels in enumerate((3, 8)):
        cells[f"category {j}"] = [f"level {c}" for c in rng.choice(levels, size, p=rng.dirichlet(np.ones(levels)))]
    for j, share in enumerate((0.02, 0.1)):
        cells[f"rare {j}"] = np.where(rng.random(size) < share, rng.lognormal(size=size).round(1), 0.0)
        cells[f"mark {j}"] = (rng.random(size) < share).astype(np.float64)
    table, rows = Table("simulated", cells, list(range(size))), np.arange(size)
    return columns.encode(columns.learn(table, list(cells), rows, None), table, rows)


def shifted(x, kind, shift):
    """Return the samples of the shifted site."""
    x = x.copy()
    if shift == "inverted":
        return 255 - x
    if shift == "mirrored":
        return x[:, :, ::-1]
    if shift == "contrast" and kind == "image":
        return (60 + 0.5 * x).astype(np.uint8)
    if shift == "contrast":
        return (CLINICAL[0] + 0.5 * (x - CLINICAL[0])).astype(np.float32)
    if shift == "units":
        x[:, [2, 6]] *= 18
    if shift == "missing" and kind == "image":
        x[:, :3] = 0
    elif shift == "missing":
        x[:, 3] = x[:, 3].mean()
    return x


def noised(y, noise, classes, rng):
    """Return given labels for true labels of a site."""
    given = y.copy()
    if noise == "random":
        wrong = rng.random(len(y)) < RANDOM
        given[wrong] = (y[wrong] + rng.integers(1, classes, wrong.sum())) % classes
    pair = (1, 2) if classes > 2 else (0, 1)
    if noise == "swap":
        chosen = np.isin(y, pair) & (rng.random(len(y)) < SWAP)
        given[chosen] = sum(pair) - y[chosen]
    if noise == "missed":
        given[(y == 1) & (rng.random(len(y)) < MISSED)] = 0
    return given


def once(kind, shift, noise, both, seed):
    """Return a dict per site: what is true, and the row of the audit."""
    made, data = federation(kind, shift, noise, both, seed)
    found = audit(made, data, detectors=(), seed=seed)
    rows = {row.client: row for row in found.sites}
    return [
        {"kind": kind, "shift": shift if k == SHIFTED else "none", "noise": noise, "seed": seed, "row": rows[k],
         "wrong": float((made.given[part] != data.y_train[part]).mean())}
        for k, part in enumerate(made.clients)
    ]  # fmt: skip


def named(row, shift):
    """Return whether a row of the audit names a shift of inputs or of classes."""
    classes = row.shares_differ or bool(row.only_here)
    return classes if shift in ("prevalence", "classes") else row.inputs.differ


def summary(sites):
    """Return the lines of the table for a list of sites."""
    clean, noisy = [s for s in sites if s["wrong"] == 0], [s for s in sites if s["wrong"] > 0]
    shifted_sites = [s for s in sites if s["shift"] != "none"]
    usual = [s for s in sites if s["shift"] == "none"]

    def rate(rows, holds):
        count = sum(map(holds, rows))
        return f"{count:4} of {len(rows):4}  {100 * count / len(rows) if rows else np.nan:5.1f} %"

    skilled = [s for s in noisy if s["row"].judge == "others" and s["row"].finding != UNKNOWN]
    lines = [
        ("clean sites accused", rate(clean, lambda s: s["row"].finding == WRONG)),
        ("clean sites that cannot be judged", rate(clean, lambda s: s["row"].finding == UNKNOWN)),
        ("noisy sites named, where the model has skill", rate(skilled, lambda s: s["row"].finding == WRONG)),
        ("noisy sites named or reported as not judged", rate(noisy, lambda s: s["row"].finding not in AGREEING)),
        ("noisy sites named, of all", rate(noisy, lambda s: s["row"].finding == WRONG)),
        ("shifted sites named as shifted", rate(shifted_sites, lambda s: named(s["row"], s["shift"]))),
        ("other sites named as having other inputs", rate(usual, lambda s: s["row"].inputs.differ)),
        ("intervals contain the share, clean sites", rate(clean, inside)),
        ("intervals contain the share, noisy sites", rate(noisy, inside)),
    ]
    return [f"{name:46}{value}" for name, value in lines]


def inside(one):
    """Return whether the interval of a site contains the true share of wrong labels."""
    return one["row"].low - 1e-9 <= one["wrong"] <= one["row"].high + 1e-9


def case(seed, place, combinations):
    """Return `once` for the combination at a place of the list, which is repeated with wrong labels at the shifted site."""
    return once(*combinations[place % len(combinations)], bool(place // len(combinations) % 2), seed)


def report(first, count, jobs, combinations):
    """Audit `count` federations in some processes and yield the lines of the report.

    Parameters
    ----------
    first : int
        Seed of the first federation.
    count, jobs : int
    combinations : list of (kind, shift, noise)
        COMBINATIONS or MIXED.
    """
    sites, seconds = [], time.process_time()
    with ProcessPoolExecutor(jobs) if jobs > 1 else contextlib.nullcontext() as pool:
        each = range(first, first + count), range(count), [combinations] * count
        for i, found in enumerate(pool.map(case, *each) if pool else map(case, *each)):
            sites += found
            yield f"{first + i} {', '.join(combinations[i % len(combinations)])}"
            yield from unexpected(found)
    yield f"{count} federations of {SITES} sites, seeds {first} to {first + count - 1}"
    yield from summary(sites)
    if jobs == 1:
        yield f"{'CPU seconds per site':46}{(time.process_time() - seconds) / SITES / count:.2f}"
    for kind, shift in dict.fromkeys((kind, shift) for kind, shift, _ in combinations if shift != "none"):
        if here := [s for s in sites if s["kind"] == kind and s["shift"] == shift]:
            yield f"\n{kind}, {shift} (the shifted site alone)"
            yield from summary(here)


def unexpected(found):
    """Yield a line for each site of a federation whose finding is not as simulated."""
    for k, one in enumerate(found):
        row = one["row"]
        as_simulated = (row.finding == WRONG) == (one["wrong"] > 0) and inside(one)
        if not as_simulated or one["shift"] != "none" and not named(row, one["shift"]):
            ends = f"{100 * row.low:.1f} to {100 * row.high:.1f}"
            yield f"    site {k}, {one['shift']}, {100 * one['wrong']:.1f} % wrong ({ends}): {' '.join(row.words)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mixed", action="store_true", help="tables with missing cells and categories")
    parser.add_argument("--first", type=int, default=1000, help="seed of the first federation")
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    combinations = MIXED if options.mixed else COMBINATIONS
    for line in report(options.first, options.repetitions, options.jobs, combinations):
        print(line, flush=True)


if __name__ == "__main__":
    main()
