"""Noise of your own: how labels become wrong.

Save this as mine.py and run it:

    fnlkit partition --clients 4 | fnlkit inject-noise --noise 'mine.py:part(share=0.3)' -o noisy.npz
"""

import numpy as np

from fnlkit.noise import Corruption


def part(ground, *, share=0.2):
    """Return a Corruption: labels (n,), here each the next class with the chance `share`.

    ground has labels (n,), classes, clients (a list of positions), x() with the samples, and rng() for random draws.
    With a transition T[true, given] the report can compare what was asked for with what came out.
    """
    wrong = ground.rng().random(len(ground.labels)) < share
    labels = np.where(wrong, (ground.labels + 1) % ground.classes, ground.labels)
    eye = np.eye(ground.classes)
    return Corruption(labels, (1 - share) * eye + share * np.roll(eye, 1, axis=1))
