"""Write the data sets of the recipes `regimes-features` and `regimes-images`.

    fnlkit embed --dataset cifar10 --backbone 'efficientnet-lite0(size=128)' -o emb.npz
    python -m benchmarks.regimes --dataset cifar10 --features emb.npz -o features.npz
    fnlkit reproduce regimes-features --dataset features.npz

    python -m benchmarks.regimes --dataset cifar10.npz -o images.npz
    python -m benchmarks.regimes --dataset cifar10.npz --develop -o develop.npz
    fnlkit reproduce regimes-images --dataset images.npz

With --features, principal components of the features are written as vectors, with a mean variance of 1: features of length 1
would be too small for the learning rates of images.  Otherwise a part of the images is written.  The two parts share no image.
Settings are chosen on the development part; its test samples are training images that neither part trains on.
"""

import argparse

import numpy as np

from fnlkit import datasets
from fnlkit.datasets.features import with_features
from fnlkit.errors import InputError

SIZE, COMPONENTS = 10_000, 128


def components(train, test, size):
    """Return (train (n, size), test (m, size)) float32: centered principal components.

    The components are computed from every second training vector.
    """
    middle = train.mean(0)
    variances, basis = np.linalg.eigh(np.cov((train[::2] - middle).T.astype(np.float32)))
    scale = np.sqrt(variances[::-1][:size].mean()).astype(np.float32)
    basis = basis[:, ::-1][:, :size].astype(np.float32)
    return tuple(((x - middle) @ basis / scale).astype(np.float32) for x in (train, test))


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
    parser.add_argument("--features", metavar="EMB.npz", help="write components of these features, by `fnlkit embed`")
    parser.add_argument("--develop", action="store_true", help="the images to choose settings on, instead of the reported ones")
    parser.add_argument("-o", "--output", required=True)
    options = parser.parse_args()
    data = datasets.load(options.dataset)
    try:
        if not options.features:
            np.savez(options.output, **part(data, options.develop))
            return
        data = with_features(data, options.features)
        train, test = components(np.asarray(data.x_train), np.asarray(data.x_test), COMPONENTS)
        np.savez(options.output, x_train=train, y_train=data.y_train, x_test=test, y_test=data.y_test)
    except InputError as error:
        parser.exit(2, f"regimes: error: {error}\n")


if __name__ == "__main__":
    main()
