"""Peak memory and time of each command on data larger than memory.

    python -m benchmarks.scale FOLDER [--only bytes|photos|vectors] [--gigabytes 20] [--photos 100000] [--vectors 1000000]
                                      [--start COMMAND] [--audit OPTIONS]

Creates a data set of mostly empty .npy files (sparse files if the file system supports them), a folder of small JPEG files and
a data set of vectors, unless they exist in FOLDER.  Runs partition, inject-noise, estimate-noise, train and evaluate on
the first two, and an audit and a table of suspects on the vectors.
"""

import argparse
import resource
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

SIDE, CLASSES = 96, 10
FNLKIT = "from fnlkit.cli import main; main()"


def make_bytes(folder, gigabytes):
    """Write x_train.npy of this size and the other arrays; every hundredth image is random, the others are holes."""
    count = int(gigabytes * 1e9) // (3 * SIDE * SIDE)
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    for part, size in (("test", 2000), ("train", count)):
        np.save(folder / f"y_{part}.npy", rng.integers(0, CLASSES, size))
        header = np.lib.format.header_data_from_array_1_0(np.empty((1, SIDE, SIDE, 3), np.uint8))
        with open(folder / f"x_{part}.npy", "wb") as file:
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (size, SIDE, SIDE, 3)})
            start = file.tell()
            file.truncate(start + size * 3 * SIDE * SIDE)
            for i in range(0, size, 100):
                file.seek(start + i * 3 * SIDE * SIDE)
                file.write(rng.integers(0, 256, 3 * SIDE * SIDE, np.uint8).data)


def make_photos(folder, count):
    """Write `count` JPEG files of 32 x 32 pixels on all cores: a color for each class, plus noise."""
    for part in ("train", "test"):
        for c in range(CLASSES):
            (folder / part / str(c)).mkdir(parents=True)
    starts = range(0, count, 1000)
    with ProcessPoolExecutor() as processes:
        list(processes.map(partial(_photos, folder), starts, [min(count, start + 1000) for start in starts]))


def _photos(folder, start, stop):
    from PIL import Image

    rng = np.random.default_rng([0, start])
    colors = np.random.default_rng(0).integers(60, 196, (CLASSES, 3))
    for i in range(start, stop):
        c = i // 10 % CLASSES
        pixels = colors[c] + rng.integers(-60, 60, (32, 32, 3))
        place = folder / ("test" if i % 10 == 9 else "train") / str(c) / f"{i:06}.jpg"
        Image.fromarray(pixels.astype(np.uint8)).save(place, quality=85)


def make_vectors(folder, count):
    """Write `count` vectors of 64 numbers in ten classes that overlap a little."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True)
    centers = rng.normal(size=(CLASSES, 64)).astype(np.float32)
    for part, size in (("test", 2000), ("train", count)):
        y = rng.integers(0, CLASSES, size)
        np.save(folder / f"y_{part}.npy", y)
        x = np.lib.format.open_memmap(folder / f"x_{part}.npy", "w+", np.float32, (size, 64))
        for start in range(0, size, 50_000):
            rows = y[start : start + 50_000]
            x[start : start + 50_000] = centers[rows] + 2 * rng.normal(size=(len(rows), 64))
        x.flush()


def measured(arguments):
    """Run one command; return (seconds, CPU seconds, peak in MiB)."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    # Each command runs in a separate process, because the peak of children is the maximum over all of them.
    child = subprocess.run(
        [sys.executable, "-c", _PEAK, sys.executable, "-c", FNLKIT, *map(str, arguments)], stdout=subprocess.PIPE, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu, int(child.stdout.split()[-1]) / 1024


_PEAK = """import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=["bytes", "photos", "vectors"], default=None)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--photos", type=int, default=100_000)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--audit", default="", help="Options of the audit, for example '--detectors none'.")
    parser.add_argument("--start", default="partition", help="First command to run, on files of an earlier call.")
    parser.add_argument("--make", action="store_true", help="Create the data and stop.")
    options = parser.parse_args()
    sets = {
        # The few random images are far from the mean and need small steps.
        "bytes": (make_bytes, options.gigabytes, "pca(dim=16)", "--model mlp(hidden=16) --augment none --lr 1e-5".split()),
        "photos": (
            make_photos,
            options.photos,
            "torchvision(name=shufflenet_v2_x0_5, weights=random, size=32)",
            ["--model", "lenet5"],
        ),
        "vectors": (make_vectors, options.vectors, None, None),
    }
    units = {"bytes": "GB", "photos": "files", "vectors": "vectors"}
    for name, (make, amount, backbone, network) in sets.items():
        if options.only not in (None, name):
            continue
        data = options.folder / name
        if not data.exists():
            make(data, amount)
        if options.make:
            continue
        fed, noisy, run = (options.folder / f"{name}-{part}" for part in ("fed.npz", "noisy.npz", "run.pt"))
        short = ["--rounds", "3", "--fraction", "0.01", "--epochs", "1"]
        judged = options.folder / f"{name}-judged.npz"
        audit = [
            ["partition", "--dataset", data, "--clients", "20", "--labels", "true", "-o", fed],
            ["inject-noise", fed, "-o", noisy],
            ["audit", noisy, *options.audit.split(), "-o", judged],
            ["review", "suspects", judged, "-o", options.folder / f"{name}-suspects.csv"],
        ]
        commands = (
            audit
            if name == "vectors"
            else [
                ["partition", "--dataset", data, "--clients", "1000", "--labels", "true", "-o", fed],
                ["partition", "--dataset", data, "--clients", "1000", "--labels", "true", "-o", fed],
                ["inject-noise", fed, "-o", noisy],
                ["estimate-noise", noisy, "--estimator", "knn", "--embeddings", backbone, "-o", judged],
                ["train", noisy, *short, *network, "-o", run],
                ["evaluate", run],
            ]
        )
        print(f"{name}: {amount:,} {units[name]}; seconds, CPU seconds, peak MiB")
        for command in commands[[command[0] for command in commands].index(options.start) :]:
            seconds, cpu, peak = measured(command)
            print(f"  {command[0]:15} {seconds:8.1f} {cpu:8.1f} {peak:8.0f}", flush=True)


if __name__ == "__main__":
    main()
