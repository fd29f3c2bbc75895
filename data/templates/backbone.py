"""A custom backbone: convert samples to vectors.

Save this as mine.py and run it:

    fnlkit partition | fnlkit train --backbone 'mine.py:part(rows=4)' -o run.pt
"""

import numpy as np


def part(dataset, forward, *, rows=2):
    """Return vectors (n, d) of dataset.x_train, here the brightness of image parts.

    To run a torch network over the samples in batches, use forward(module, size, mean, std, normalize=...).
    """
    images = np.asarray(dataset.x_train, np.float32).reshape(len(dataset.x_train), -1)
    parts = np.array_split(images, rows * rows, axis=1)
    return np.stack([piece.mean(1) for piece in parts], axis=1)
