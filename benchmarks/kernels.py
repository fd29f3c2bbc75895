"""Time the kernels and other libraries: ``python -m benchmarks.kernels [name ...] [--rounds 9]``.

All libraries of a row run alternately within each round, so that other load on the machine affects all of them.  A ratio is
the median of the rounds' ratios.  The limits of the machine (one sgemm, one read of a large array) are measured in the same
way and show how much can still be gained.  Input is random with a fixed seed.  Libraries that are not installed are skipped.
"""

import argparse
import contextlib
import importlib.util
import os
import platform
import sys
import threading
import time

import numpy as np

from fnlkit import kernels
from fnlkit._kernels.threads import run
from fnlkit.kernels import neighbors


class Row:
    """One row of the table: fnlkit and other libraries on the same work.

    Attributes
    ----------
    name : str
    ours : callable
    peers : dict of str to (callable, float or None)
        The function of each library, and the goal for the ratio.  None: only a part of the work, as a lower limit of its time.
    work : (float, str)
        Floating-point operations or bytes of one call: the minimum that each program must compute or read.
    slow : int
        Divide the number of rounds by this.
    """

    def __init__(self, name, ours, peers, work, slow=1):
        self.name, self.ours, self.peers, self.work, self.slow = name, ours, peers, work, slow


def have(*modules):
    return all(importlib.util.find_spec(module) for module in modules)


def softmax_rows(rng, n, classes, sharp=1.5, lift=2.0):
    labels = rng.integers(0, classes, n)
    scores = rng.standard_normal((n, classes)) * sharp
    scores[np.arange(n), labels] += lift
    probs = np.exp(scores)
    return np.ascontiguousarray(probs / probs.sum(1, keepdims=True), np.float32), labels


def counts(rng):
    for n, classes, least in ((50_000, 10, 40), (50_000, 100, 12), (1_000_000, 10, 40)):
        probs, labels = softmax_rows(rng, n, classes)
        peers = {}
        if have("cleanlab"):
            from cleanlab.count import compute_confident_joint

            def joint(probs=probs, labels=labels):
                return compute_confident_joint(labels, probs, calibrate=False)

            assert (joint().T == kernels.count_matrix(probs, labels)).all()
            peers["cleanlab"] = joint, least
        yield Row(
            f"count matrix n={n:,} C={classes}",
            lambda p=probs, y=labels: kernels.count_matrix(p, y),
            peers,
            (2 * probs.nbytes, "byte"),
            slow=3 if n > 100_000 else 1,
        )


def dimension(rng):
    for clients, size, least in ((100, 500, (35, 35, 10, 6)), (1, 5000, (40, 1, 2, 2))):
        points, _ = softmax_rows(rng, clients * size, 10)
        offsets = np.arange(0, clients * size + 1, size)
        ours = kernels.lid(points, client_offsets=offsets)

        def each(one, points=points, size=size):
            return np.concatenate([one(points[i : i + size]) for i in range(0, len(points), size)])

        def formula(distances):
            return -1 / np.log(distances / distances[:, -1:]).mean(1)

        def published(own):
            # The operations of FedCorr's code: all distances, then a separate sort and separate logarithms for each row.
            from scipy.spatial.distance import cdist

            own = np.asarray(own, np.float32)
            distances = cdist(own, own)
            order = np.apply_along_axis(np.argsort, 1, distances)[:, 1:21]
            nearest = np.take_along_axis(distances, order, 1)
            return np.apply_along_axis(lambda v: -20 / (np.sum(np.log(v / (v[-1] + 1e-6))) + 1e-6), 1, nearest)

        peers = {"FedCorr's operations": (lambda each=each: each(published), least[0])}
        if have("skdim"):
            import skdim

            def dimension_library(own):
                return skdim.id.MLE().fit_transform_pw(own, n_neighbors=20)

            peers["skdim"] = (lambda each=each: each(dimension_library), least[1])
        if have("sklearn"):
            from sklearn.neighbors import NearestNeighbors

            def library(own):
                return formula(NearestNeighbors(n_neighbors=20).fit(own).kneighbors()[0])

            assert np.allclose(each(library), ours, rtol=2e-3)
            peers["sklearn"] = (lambda each=each: each(library), least[2])
        if have("faiss"):
            import faiss

            def index(own):
                flat = faiss.IndexFlatL2(own.shape[1])
                flat.add(own)
                return formula(np.sqrt(np.maximum(flat.search(own, 21)[0][:, 1:], 1e-12)))

            peers["faiss"] = (lambda each=each: each(index), least[3])
        flops = clients * size * size * 10 * 3
        yield Row(
            f"LID k=20, {clients} x {size:,} x 10",
            lambda p=points, o=offsets: kernels.lid(p, client_offsets=o),
            peers,
            (flops, "flop"),
            slow=2,
        )


def inversion(rng):
    for matrices, classes, least in ((10_000, 10, (100, 6)), (100, 100, (20, 0.9))):
        noise = rng.uniform(0.1, 0.8, matrices)[:, None, None]
        identity = np.eye(classes)
        symmetric = (1 - noise) * identity + noise / (classes - 1) * (1 - identity)
        general = 0.5 * identity + 0.5 * rng.dirichlet(np.ones(classes), (matrices, classes))
        for kind, stack, ratio in (("equal off-diagonal values", symmetric, least[0]), ("general", general, least[1])):
            assert np.allclose(kernels.invert_transition(stack)[0], np.linalg.inv(stack))
            peers = {"numpy.linalg.inv": (lambda T=stack: np.linalg.inv(T), ratio)}
            if ratio == least[0]:
                peers["numpy, a copy"] = (lambda T=stack: T.copy(), None)
            yield Row(
                f"inverse {matrices:,} of {classes} x {classes}, {kind}",
                lambda T=stack: kernels.invert_transition(T),
                peers,
                (2 * stack.nbytes, "byte") if ratio == least[0] else (2 * matrices * classes**3, "flop"),
            )


def votes(rng):
    embeddings = rng.standard_normal((50_000, 512), np.float32)
    labels = rng.integers(0, 10, 50_000)
    offsets = np.arange(0, 50_001, 500)
    scratch = threading.local()

    def product(start):
        own = embeddings[start : start + 500]
        scratch.products = np.matmul(own, own.T, out=getattr(scratch, "products", None))

    def half_products():
        with neighbors.blas_threads(1):
            run(product, [(start,) for start in range(0, 50_000, 500)], kernels.get_threads())

    for k, least in ((10, 1.9), (100, 5)):
        peers = {"numpy, the products only": (half_products, None)}

        def majority(neighbors, own):
            return (own[neighbors][:, :, None] == np.arange(10)).sum(1).argmax(1)

        if have("faiss"):
            import faiss

            def search(k=k):
                for i in range(0, 50_000, 500):
                    own = embeddings[i : i + 500]
                    flat = faiss.IndexFlatL2(512)
                    flat.add(own)
                    flat.search(own, k + 1)

            peers["faiss, search only"] = search, least
        if have("sklearn"):
            from sklearn.neighbors import NearestNeighbors

            def brute(k=k):
                for i in range(0, 50_000, 500):
                    own = embeddings[i : i + 500]
                    NearestNeighbors(n_neighbors=k, algorithm="brute").fit(own).kneighbors(return_distance=False)

            peers["sklearn, search only"] = brute, least
        yield Row(
            f"kNN vote k={k}, 100 x 500 x 512",
            lambda k=k: kernels.knn_vote(embeddings, labels, k=k, client_offsets=offsets),
            peers,
            (100 * 500 * 500 * 512, "flop"),
            slow=3,
        )


GROUPS = {"counts": counts, "lid": dimension, "inverse": inversion, "vote": votes}


def limits(threads):
    """Return functions whose times give the machine's floating-point operations and bytes per second."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 1536, 1536), np.float32)
    long = np.ones(50_000_000, np.float32)
    halves = np.array_split(long, threads)

    def read():
        run(lambda part: np.dot(part, part), [(half,) for half in halves], threads)

    return {"flop": (lambda: a @ b, 2 * 1536**3), "byte": (read, long.nbytes)}


def clock(function, now=time.perf_counter):
    start = now()
    function()
    return now() - start


def measure(row, rounds, limit, now):
    """Print the lines of a row; return True if all goals are met."""
    unit = row.work[1]
    contenders = {"fnlkit": row.ours, **{name: peer for name, (peer, _) in row.peers.items()}, "limit": limit[unit][0]}
    for function in contenders.values():
        function()
    times = {name: [] for name in contenders}
    for _ in range(max(3, rounds // row.slow)):
        for name, function in contenders.items():
            # After a product, the threads of BLAS and OpenMP spin for a while on the cores of the next function. Wait for them
            # in a busy loop, because a processor that has slept is slow at first.
            until = time.perf_counter() + 0.1
            while time.perf_counter() < until:
                pass
            taken = [clock(function, now)]
            # Calls of a few milliseconds are repeated, so that the cache contents left by the previous function do not count.
            # The rule is the same for all libraries.
            while len(taken) < 100 and sum(taken) < 0.03:
                taken.append(clock(function, now))
            times[name].append(min(taken))
    ours = np.median(times["fnlkit"])
    best = limit[unit][1] / np.median(times["limit"])
    share = row.work[0] / ours / best
    kind = "of sgemm" if unit == "flop" else "of memory reading"
    print(f"| {row.name} | **fnlkit** | {ours * 1e3:.3f} | | | {share:.0%} {kind} |")
    kept = True
    for name, (_, least) in row.peers.items():
        ratio = np.median(np.array(times[name]) / np.array(times["fnlkit"]))
        missed = least is not None and ratio < least
        kept &= not missed
        promise = "" if least is None else f"{least:g}{' (!)' if missed else ''}"
        print(f"| | {name} | {np.median(times[name]) * 1e3:.3f} | {ratio:.3g} | {promise} | |")
    sys.stdout.flush()
    return kept


def main():
    parser = argparse.ArgumentParser(description="Time fnlkit's kernels and other libraries.")
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS], help="default: all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=kernels.get_threads())
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: CPU time of all threads, for machines with other load; use one thread",
    )
    options = parser.parse_args()
    now = time.perf_counter if options.clock == "wall" else time.process_time
    kernels.set_threads(options.threads)
    limit = limits(options.threads)
    import threadpoolctl

    if have("faiss"):
        import faiss

        faiss.omp_set_num_threads(options.threads)
    pools = threadpoolctl.threadpool_limits(options.threads)
    flops = np.median([limit["flop"][1] / clock(limit["flop"][0], now) for _ in range(5)])
    read = np.median([limit["byte"][1] / clock(limit["byte"][0], now) for _ in range(5)])
    print(f"{platform.machine()}, {options.threads} of {os.cpu_count()} processors, {options.clock} time, ", end="")
    print(f"Python {platform.python_version()}, numpy {np.__version__}; ", end="")
    print(f"sgemm {flops / 1e9:.0f} GFLOP/s, memory {read / 1e9:.0f} GB/s.  Median ms; a ratio")
    print("is the median over interleaved rounds of the library's time divided by fnlkit's time.\n")
    print("| work | library | ms | ratio | at least | share of the limit |\n|---|---|---|---|---|---|")
    kept = True
    with pools:
        for group in options.groups or GROUPS:
            # Each group has a separate generator, so the input of a row does not depend on the selected groups.
            for row in GROUPS[group](np.random.default_rng(0)):
                kept &= measure(row, options.rounds, limit, now)
    return 0 if kept else 1


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
