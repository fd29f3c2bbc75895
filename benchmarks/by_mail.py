"""Audit from two small files per site: CPU time, size of the files, samples that an attacker recovers.

    python -m benchmarks.by_mail --cost
    python -m benchmarks.by_mail --reconstruction
    python -m benchmarks.by_mail --epsilon --first 2000 --seeds 200

`--reconstruction` uses the attacks of benchmarks.reconstruction.  The sites hold digits as tables of 64 columns.  The attacker
holds both files and public data: other digits with the same classes and scale.  Candidates are class means of the features,
turned back to columns; class means of columns, and these plus and minus a standard deviation; mean and quantiles of columns;
the vertices of the span of the second moments; and the class means of the second file, which are compared with the described
features.  All count up to their length.  `without limits`: second moments of 5 samples alone, to show that the attack works.
`public`: an attacker who guesses the class means of the public data.

`hostile heads` of `--reconstruction`: the author of heads.npz describes the inputs of a site by a narrow range near a quantile
of each column, so that all values but one are clipped in some classes.  Mean and mean square of the class state this value.
The share of classes and columns with such a value is printed, for any range and for the narrowest one that a site accepts.

`count cells` of `--reconstruction`: the author of heads.npz cuts off caps of the feature space, each with about two samples
of the public data, so that most cells of the second file have fewer than five samples.  Linear programs over all counts by
prediction of the head, prediction of the site's own model, and given class give the bounds of each such cell that follow from
the file.  Printed is the share of the cells of 1 to 4 samples whose count follows exactly, and the share of which follows
that it is 1 to 4.  `control`: the same programs for a file with exact counts from 5 samples, and the exact number of wrong
labels of each class.
"""

import argparse
import time

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

from benchmarks.audit import simulated
from benchmarks.reconstruction import Data, recovered, span
from fnlkit import datasets
from fnlkit.artifacts import files
from fnlkit.audits import messages, rounding
from fnlkit.audits.audit import audit
from fnlkit.audits.changes import possible
from fnlkit.audits.messages import LEAST
from fnlkit.audits.private import DELTA
from fnlkit.audits.server.heads import make_heads
from fnlkit.audits.server.verdict import UNKNOWN, WRONG
from fnlkit.audits.site import inputs, judging, summaries
from fnlkit.audits.site.samples import Samples, large_classes
from fnlkit.kernels.streams import stream

SIZES, CLASSES, PUBLIC, SITES = (20, 32, 100, 300), 10, 600, 3
ATTACKED = (100, 300)  # smaller sites send no covariances of these features, and no described inputs
ATTACKED_CELLS = 20
EPSILONS, PROTECTED_SIZES = (0.5, 1, 2, 4, 8), (100, 200, 300, 500, 1000, 3000)
# The first federation includes the loading of libraries and compiled kernels.
COSTS = ((1_000, 128), (1_000, 128), (100_000, 256))


def site(x, y, number):
    """Return the Samples of a table (n, d) with labels (n,)."""
    return Samples(np.asarray(x, np.float32), np.asarray(y, np.int64), CLASSES, number=number)


def cost(samples, width, seed=0):
    """Return CPU seconds of the first and second file of a site, and the bytes of first file, heads and second file."""
    rng = np.random.default_rng(seed)
    centers, clients = 0.5 * rng.normal(size=(CLASSES, width)), []
    for k in range(SITES):
        y = rng.integers(0, CLASSES, samples)
        clients.append(site(centers[y] + rng.normal(size=(samples, width)), y, k))
    scale, changes = (np.zeros(width), np.ones(width)), possible("vector", (width,))
    firsts = [summaries.summarize(client, scale) for client in clients[1:]]
    started = time.process_time()
    firsts.insert(0, summaries.summarize(clients[0], scale))
    first = time.process_time() - started
    heads = make_heads(firsts, scale)
    started = time.process_time()
    second = judging.judge(clients[0], heads, 0, changes=changes)
    judged = time.process_time() - started
    sent = [files.Artifact("fnlkit.state/1", parts) for parts in (firsts[0], heads, second)]
    sizes = [sum(len(memoryview(c).cast("B")) for c in files.encode(each)) for each in sent]
    return first, judged, sizes


def sites_of_digits(size, seed):
    """Return (Data, Clients, scale, slice of the public data): a site of `size` digits and three sites of 250 digits."""
    data = Data(seed)
    # A small site has few classes, so that some have samples enough to leave.
    order = np.argsort(data.y >= max(3, size // 10), kind="stable")
    order[size:] = order[size:][stream(seed, "others").permutation(len(order) - size)]
    data.x, data.y, data.true = data.x[order], data.y[order], data.true[order]
    public = slice(len(data.x) - PUBLIC, None)
    mean, std = data.x[public].mean(0), np.maximum(data.x[public].std(0), 0.02)
    starts = np.cumsum([0, size, 250, 250, 250])
    clients = [site(data.x[a:b], data.y[a:b], k) for k, (a, b) in enumerate(zip(starts[:-1], starts[1:], strict=True))]
    return data, clients, (mean.astype(np.float64), std.astype(np.float64)), public


def attack(size, seed):
    """Return {attack: (exactly, approximately) recovered shares} of a site with `size` digits."""
    data, clients, scale, public = sites_of_digits(size, seed)
    rng, own = stream(seed, "by mail"), data.x[:size].astype(np.float64)
    firsts = [summaries.summarize(client, scale) for client in clients]
    heads = make_heads(firsts, scale)
    changes = possible("vector", (64,))
    second = judging.judge(clients[0], heads, 0, changes=changes)
    first, m = firsts[0], firsts[0]["sums"].shape[1]
    rotation = np.linalg.qr(stream(0, "summaries").standard_normal((64, 64)))[0][:, :m]
    turn = lambda rows: rows @ rotation.T * scale[1] + scale[0]  # noqa: E731
    held = first["counts"] > 0
    means = first["class_columns"][0][held]
    away = first["class_columns"][1][held]
    candidates = {
        "first file, class sums": turn(first["sums"][held] / first["counts"][held, None]),
        "first file, class columns": np.concatenate([means, means - away, means + away]),
        "first file, columns": first["columns"][[0, 2, 3, 4]],
        "first file, span of moments": turn(span(first["moments"] @ rotation.T, rng) @ rotation) if m else own[:0],
        "public": np.stack([data.x[public][data.true[public] == c].mean(0) for c in range(CLASSES)]),
    }
    every = data.x.astype(np.float64)
    out = {name: recovered(np.maximum(rows, 0), own, every, scaled=True) for name, rows in candidates.items()}
    out["without limits, 5 samples"] = recovered(span(own[:5].T @ own[:5], rng), own[:5], every, scaled=True)
    kept, _ = large_classes(clients[0])
    told = {name: heads[name] for name in ("center", "suspects", "tone")} | {"fits": heads["fits"][0]}
    points = inputs.describe(kept, told, changes)[0]
    width = int(heads["compared"])
    if points.shape[1] > width:
        points = points @ (stream(0, "shifts").standard_normal((points.shape[1], width)) / np.sqrt(points.shape[1]))
    out["second file, class means"] = recovered(second["class_means"][0], points, points)
    return out


def single_values(size, seed, limited):
    """Return the share of classes and columns of which hostile heads reveal the value of one sample.

    Parameters
    ----------
    size, seed : int
    limited : bool
        Use the narrowest range that a site accepts. Default: any range.
    """
    rng, width = stream(seed, "hostile"), 8
    clients = [site(rng.normal(size=(size, width)), np.arange(size) % 2, k) for k in range(SITES)]
    scale = np.zeros(width), np.ones(width)
    firsts = [summaries.summarize(client, scale) for client in clients]
    heads, changes = make_heads(firsts, scale), possible("vector", (width,))
    # Beyond the 90 % quantile, few values are close to each other.
    center = firsts[0]["columns"][4] + 0.7
    heads |= {"compared": np.array(messages.MOST_COLUMNS), "center": np.stack([center, np.full(width, 0.05)])}
    refused = judging.narrow(heads, 0, clients[0], scale)
    if limited and refused:
        heads["center"] = messages.widen(heads["center"], scale)
    second = judging.judge(clients[0], heads, 0, changes=changes)
    found, x, y = 0, clients[0].x.astype(np.float64), clients[0].y
    for c in range(2):
        n, most = (y == c).sum(), messages.CLIPPED
        mean, square = (second["class_means"][0][c, part] for part in (slice(width), slice(width, 2 * width)))
        alone = n * square - most**2 * (n - 1)  # the square of z if all others are clipped
        size_of = np.sqrt(np.clip(alone, 0, most**2))
        for sign in (-1, 1):
            clipped = (n * mean - sign * size_of) / most
            whole = (np.abs(clipped - np.round(clipped)) < 1e-6) & (alone > 0) & (alone < most**2)
            value = heads["center"][0] + heads["center"][1] * sign * size_of
            found += (whole & (np.abs(x[y == c] - value).min(0) < 1e-4)).sum()
    return found / (2 * width)


def cap_heads(heads, points, size, rng):
    """Return heads that cut off caps of the feature space, each with about two of `size` samples like the points (n, m)."""
    m, caps = int(heads["sizes"][0]), rng.normal(size=(CLASSES, heads["coefficients"].shape[2]))
    caps[0] = caps[:, m:] = 0
    along = np.sort(points[:, :m] @ caps[:, :m].T, 0)
    bounds = along[max(0, len(points) - 1 - round(2 * len(points) / size))]
    steep = messages.LARGEST / 2 / np.abs(caps).max()
    coefficients, offsets = heads["coefficients"].copy(), heads["offsets"].copy()
    coefficients[0], offsets[0] = steep * caps, -steep * bounds
    offsets[0, 0] = 0
    return heads | {"coefficients": coefficients, "offsets": offsets}


def windows_of(second, counts):
    """Yield (which of the counts [head, own model, given], low, high) that follow from a second file."""
    each = np.arange(CLASSES)
    head, own, given = np.meshgrid(each, each, each, indexing="ij")
    for c in each:
        yield given == c, counts[c], counts[c]
    places = {"predicted": head, "within": own, "doubted": np.where(head == own, head, -1)}
    for name, place in places.items():
        cells, wrong = second[name], second[f"{name}_wrong"]
        least, most = rounding.sums_of(cells)
        for t, c in np.argwhere(~np.eye(CLASSES, dtype=bool)):
            # A cell with which the total has no room for more can stand for a larger one.
            low, _, width = (
                bound[c] for bound in rounding.bounds_of(cells + rounding.STEP * (np.eye(CLASSES)[t][:, None] > 0))
            )
            end = counts[c] if counts[c] - low < width else cells[t, c] + rounding.AWAY
            yield (place == t) & (given == c), cells[t, c] - rounding.AWAY, end
        for c in each:
            # The smallest and the largest sum can stand for more distant ones.
            low = 0 if wrong[c] == least[c] else wrong[c] - rounding.AWAY
            high = counts[c] if wrong[c] == most[c] else wrong[c] + rounding.AWAY
            yield (place != c) & (place >= 0) & (given == c), low, high
    if second["supported"] < second["predicted_wrong"].sum() - second["doubted_wrong"].sum():
        yield (head != given) & (own == given), second["supported"] - rounding.AWAY, second["supported"] + rounding.AWAY


def exact_windows(table, counts):
    """Yield as `windows_of` what follows from exact counts of 5 and more, and exact numbers of wrong labels by class."""
    each = np.arange(CLASSES)
    head, _, given = np.meshgrid(each, each, each, indexing="ij")
    for c in each:
        yield given == c, counts[c], counts[c]
        yield (given == c) & (head != c), counts[c] - table[c, c], counts[c] - table[c, c]
        for t in each[each != c]:
            small = 0 < table[t, c] < LEAST
            yield (given == c) & (head == t), *((1, LEAST - 1) if small else (table[t, c], table[t, c]))


def bounds_of_cells(windows, cells):
    """Return the smallest and largest whole numbers (m, 2) of samples of each cell (predicted, given); NaN if nothing fits."""
    rows, low, high = zip(*((which.reshape(-1), low, high) for which, low, high in windows), strict=True)
    matrix = csr_array(np.array(rows, np.float64))
    limits = csr_array(vstack([matrix, -matrix])), np.concatenate([np.array(high, float), -np.array(low, float)])
    found = []
    for t, c in cells:
        goal = np.zeros((CLASSES, CLASSES, CLASSES))
        goal[t, :, c] = 1
        ends = [linprog(sign * goal.reshape(-1), A_ub=limits[0], b_ub=limits[1], method="highs") for sign in (1, -1)]
        done = all(end.status == 0 for end in ends)
        found.append([np.ceil(ends[0].fun - 1e-6), np.floor(-ends[1].fun + 1e-6)] if done else [np.nan, np.nan])
    return np.array(found).reshape(-1, 2)


def attack_counts(size, seed):
    """Return shares of the cells of 1 to 4 samples that follow (exactly, as 1 to 4), from the file and from the control."""
    data, clients, scale, public = sites_of_digits(size, seed)
    firsts = [summaries.summarize(client, scale) for client in clients]
    heads = make_heads(firsts, scale)
    points = summaries.features(site(data.x[public], data.y[public], 0), scale)
    heads = cap_heads(heads, points, size, stream(seed, "caps"))
    second = judging.judge(clients[0], heads, 0, changes=possible("vector", (64,)))
    kept, _ = large_classes(clients[0])
    guess = (summaries.features(kept, scale)[:, : heads["sizes"][0]] @ heads["coefficients"][0, :, : heads["sizes"][0]].T
             + heads["offsets"][0]).argmax(1)  # fmt: skip
    table = np.zeros((CLASSES, CLASSES), int)
    np.add.at(table, (guess, kept.y), 1)
    small = np.argwhere((table > 0) & (table < LEAST) & ~np.eye(CLASSES, dtype=bool))[:ATTACKED_CELLS]
    counts, true = firsts[0]["counts"], np.array([table[t, c] for t, c in small])
    out = []
    for windows in (windows_of(second, counts), exact_windows(table, counts)):
        low, high = bounds_of_cells(list(windows), small).T
        out.append((((low == high) & (low == true)).mean(), ((low >= 1) & (high < LEAST)).mean()))
    return len(small), out


def protected_federation(size, seed):
    """Return (Federation, Dataset with the true labels, name of the shift) with five sites of `size` samples.

    Site 3 has 20 to 40 % wrong labels, at random or by swapped pairs of classes. At every second federation, the inputs of
    site 1 differ: units, an offset, or half of the spread. Every third federation of up to 300 samples consists of digits,
    the others of tables with 2 to 6 classes and 4 to 16 columns.
    """
    rng = stream(seed, "protected")
    if seed % 3 == 0 and size <= 300:
        data = datasets.load("digits")
        x, y = np.concatenate([data.x_train, data.x_test]), np.concatenate([data.y_train, data.y_test])
        order = rng.permutation(len(x))[: 5 * size]
        x, y, classes, kind = x[order], y[order], 10, "image"
    else:
        classes, width, kind = int(rng.integers(2, 7)), int(rng.choice([4, 8, 16])), "vector"
        centers = rng.normal(size=(classes, width))
        away = np.linalg.norm(centers[:, None] - centers[None], axis=2)
        centers *= rng.uniform(3, 5) / away[np.triu_indices(classes, 1)].mean()
        y = rng.choice(classes, 5 * size, p=rng.dirichlet(np.full(classes, 10.0)))
        x = (centers[y] + rng.normal(size=(len(y), width))).astype(np.float32)
    parts, given, shift = np.array_split(np.arange(len(y)), 5), y.copy(), "none"
    if seed % 2:
        shift = rng.choice(["units", "offset", "contrast"]) if kind == "vector" else rng.choice(["inverted", "contrast"])
        x = x.copy()
        here = x[parts[1]]
        if shift == "units":
            here[:, 0] *= 18
        elif shift == "offset":
            here += 2
        elif shift == "inverted":
            here = 255 - here
        else:
            here = (60 + 0.5 * here).astype(np.uint8) if kind == "image" else 0.5 * here
        x[parts[1]] = here
    level, noisy = rng.uniform(0.2, 0.4), parts[3]
    wrong = noisy[rng.permutation(len(noisy))[: int(np.ceil(level * len(noisy)))]]
    turn = classes // 2 if seed % 4 < 2 else rng.integers(1, classes, len(wrong))
    given[wrong] = (given[wrong] + turn) % classes
    return *simulated(x, y, given, parts), shift


def protected(size, epsilon, seed):
    """Return a list of (noisy, shift, finding) of the sites of a federation, audited from protected sums."""
    made, data, shift = protected_federation(size, seed)
    rows = audit(made, data, epsilon=epsilon, seed=seed).sites
    return [(row.client == 3, shift if row.client == 1 else "none", row.finding) for row in rows]


def protection_table(seeds):
    """Yield the lines of `--epsilon`."""
    reached = []
    yield "epsilon  samples  clean sites accused  noisy sites named  not judged, of all  not judged, inputs alike"
    for epsilon in EPSILONS:
        good = []
        for size in PROTECTED_SIZES:
            rows = [row for seed in seeds for row in protected(size, epsilon, seed)]
            clean, noisy = [r for r in rows if not r[0]], [r for r in rows if r[0]]
            alike = [r for r in rows if r[1] == "none"]
            accused = sum(found == WRONG for *_, found in clean)
            named = sum(found == WRONG for *_, found in noisy)
            unknown, alike_unknown = (100 * np.mean([found == UNKNOWN for *_, found in part]) for part in (rows, alike))
            accusations = f"{accused:4} of {len(clean):4} {100 * accused / len(clean):5.1f} %"
            names = f"{named:3} of {len(noisy):3} {100 * named / len(noisy):3.0f} %"
            yield f"{epsilon:7g}  {size:7,}  {accusations}  {names}  {unknown:15.0f} %  {alike_unknown:22.0f} %"
            within = accused <= 0.01 * len(clean) and named >= 0.8 * len(noisy) and unknown <= 20
            good = [*good, size] if within else []
        reached.append(f"{epsilon:g} {f'from {good[0]:,} samples' if good else 'not'}")
    yield (
        "clean sites accused at most 1 %, noisy sites named at least 80 % and not judged at most 20 %, by epsilon: "
        + ", ".join(reached)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cost", action="store_true", help="CPU time and size of the files")
    parser.add_argument("--reconstruction", action="store_true", help="samples that an attacker recovers")
    parser.add_argument("--epsilon", action="store_true", help="findings from protected sums")
    parser.add_argument("--first", type=int, default=500, help="first seed of --reconstruction")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.cost:
        print("samples  columns  first file [CPU s]  second file [CPU s]  first, heads, second [bytes]")
        for samples, width in COSTS:
            first, judged, sizes = cost(samples, width)
            print(f"{samples:7,}  {width:7}  {first:18.2f}  {judged:19.2f}  {', '.join(f'{size:,}' for size in sizes)}")
    if options.reconstruction:
        seeds = range(options.first, options.first + options.seeds)
        print(f"recovered samples in %, exactly / approximately, mean of seeds {seeds[0]} to {seeds[-1]}")
        for size in SIZES:
            found = [attack(size, seed) for seed in seeds]
            for name in found[0]:
                exact, near = 100 * np.mean([one[name] for one in found], 0)
                print(f"{size:4} samples  {name:32} {exact:5.1f} / {near:5.1f}")
        print("count cells of 1 to 4 samples: known exactly, known to be 1 to 4, in %: second file; control")
        for size in SIZES:
            found = [attack_counts(size, seed) for seed in seeds]
            cells, shares = sum(number for number, _ in found), 100 * np.mean([shares for _, shares in found], 0)
            file, control = (f"{exact:5.1f}, {few:5.1f}" for exact, few in shares)
            print(f"{size:4} samples, {cells:3} cells  {file};  {control}")
        print(
            "hostile heads: classes and columns of which the value of one sample is revealed, in %: any range, accepted range"
        )
        for size in ATTACKED:
            shares = [100 * np.mean([single_values(size, seed, limited) for seed in seeds]) for limited in (False, True)]
            print(f"{size:4} samples  {shares[0]:5.1f}, {shares[1]:5.1f}")
    if options.epsilon:
        seeds = range(options.first, options.first + options.seeds)
        print(f"federations of five sites, seeds {seeds[0]} to {seeds[-1]}; epsilon is that of both files, delta {DELTA:g}")
        for line in protection_table(seeds):
            print(line, flush=True)


if __name__ == "__main__":
    main()
