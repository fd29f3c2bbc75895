"""Write the images of the recipe `regimes-images`: a part of CIFAR-10 to develop on, and another part to report.

    python -m benchmarks.regimes --dataset cifar10.npz -o images.npz
    python -m benchmarks.regimes --dataset cifar10.npz --develop -o develop.npz
    fnlkit reproduce regimes-images --dataset images.npz

The parts share no image.  Settings are chosen on the development part; its test samples are training images of CIFAR-10 that
neither part trains on.
"""

import argparse

import numpy as np

from fnlkit import datasets
from fnlkit.core.errors import InputError

SIZE = 10_000


def part(data, develop, size=SIZE):
    """Return arrays of a part of the training samples, in the data set's order, with its test samples.

    Parameters
    ----------
    data : Dataset
        At least `3 * size` training samples.
    develop : bool
        True: train on the first `size` training samples and test on the last `size`. False: train on the second `size`
        training samples and test on the test samples.
    size : int
        Number of training samples of a part.

    Raises
    ------
    InputError
        If the data set has fewer training samples.
    """
    x, y = np.asarray(data.x_train), np.asarray(data.y_train)
    needed = 3 * size
    if len(y) < needed:
        raise InputError(f"--dataset has {len(y):,} training samples, but the parts need {needed:,}; use all of CIFAR-10")
    if develop:
        return {"x_train": x[:size], "y_train": y[:size], "x_test": x[-size:], "y_test": y[-size:]}
    second = slice(size, 2 * size)
    return {"x_train": x[second], "y_train": y[second], "x_test": np.asarray(data.x_test), "y_test": data.y_test}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dataset", required=True, help="CIFAR-10, as for `fnlkit partition --dataset`")
    parser.add_argument("--develop", action="store_true", help="the images to choose settings on, instead of the reported ones")
    parser.add_argument("-o", "--output", required=True)
    options = parser.parse_args()
    try:
        np.savez(options.output, **part(datasets.load(options.dataset), options.develop))
    except InputError as error:
        parser.exit(2, f"regimes: error: {error}\n")


if __name__ == "__main__":
    main()
