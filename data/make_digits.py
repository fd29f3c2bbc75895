"""Make digits.npz from scikit-learn's copy of the UCI digits.

python data/make_digits.py OUT.npz
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

from fnlkit.datasets.class_folders import split

if __name__ == "__main__":
    digits = load_digits()
    # Scale the 17 gray levels, 0 to 16, to the range of a byte.
    images = np.rint(digits.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = digits.target.astype(np.int64)
    train, test = split(labels)
    np.savez_compressed(sys.argv[1], x_train=images[train], y_train=labels[train], x_test=images[test], y_test=labels[test])
