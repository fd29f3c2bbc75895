"""Make the data set of the recipe `regimes-features`: principal components of a data set's features, as an .npz of vectors.

    fnlkit embed --dataset cifar10 --backbone 'efficientnet-lite0(size=128)' -o emb.npz
    python -m benchmarks.features --dataset cifar10 --features emb.npz -o features.npz
    fnlkit reproduce regimes-features --dataset features.npz

Components have variance 1 on average: features of length 1 would be too small for the learning rates of images.
"""

import argparse

import numpy as np

from fnlkit import datasets
from fnlkit.datasets.features import with_features


def components(train, test, size):
    """Return (train (n, size), test (m, size)) float32: centred, in the basis of the training vectors' first components.

    The basis is that of every second training vector.
    """
    middle = train.mean(0)
    variances, basis = np.linalg.eigh(np.cov((train[::2] - middle).T.astype(np.float32)))
    scale = np.sqrt(variances[::-1][:size].mean()).astype(np.float32)
    basis = basis[:, ::-1][:, :size].astype(np.float32)
    return tuple(((x - middle) @ basis / scale).astype(np.float32) for x in (train, test))


def main():
    parser = argparse.ArgumentParser(description="Principal components of features, as a data set.")
    parser.add_argument("--dataset", required=True, help="a data set of images with --features, else one of vectors")
    parser.add_argument("--features", default=None, metavar="EMB.npz", help="of `fnlkit embed` over it")
    parser.add_argument("--size", type=int, default=128, help="how many components")
    parser.add_argument("--samples", type=int, default=None, help="how many training samples, the first ones; all without it")
    parser.add_argument("-o", "--output", required=True)
    options = parser.parse_args()
    data = datasets.load(options.dataset)
    data = with_features(data, options.features) if options.features else data
    kept = slice(options.samples)
    train, test = components(np.asarray(data.x_train)[kept], np.asarray(data.x_test), options.size)
    np.savez(options.output, x_train=train, y_train=data.y_train[kept], x_test=test, y_test=data.y_test)


if __name__ == "__main__":
    main()
