"""A backbone of your own: what turns a sample into a vector.

Save this as mine.py and run it:

    fnlkit embed --dataset digits --backbone 'mine.py:part(rows=4)' -o emb.npz
"""

import numpy as np


def part(dataset, forward, *, rows=2):
    """Return a vector (n, d) for each of dataset.x_train: here how bright parts of an image are.

    forward(module, size, mean, std, normalise=...) runs a torch network over the samples in batches instead.
    """
    images = np.asarray(dataset.x_train, np.float32).reshape(len(dataset.x_train), -1)
    parts = np.array_split(images, rows * rows, axis=1)
    return np.stack([piece.mean(1) for piece in parts], axis=1)
