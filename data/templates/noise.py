"""A custom noise model: corrupt labels.

Save this as mine.py and run it:

    fnlkit partition --clients 4 | fnlkit inject-noise --noise 'mine.py:part(share=0.3)' -o noisy.npz
"""

import numpy as np

from fnlkit.simulate.noise import Corruption


def part(ground, *, share=0.2):
    """Return a Corruption with labels (n,).

    With probability `share` a label becomes the next class.

    ground has labels (n,), classes, clients (a list of positions), x() with the samples, and rng() for random draws.
    With a transition T[true, given] the report can compare the requested noise with the drawn noise.
    """
    wrong = ground.rng().random(len(ground.labels)) < share
    labels = np.where(wrong, (ground.labels + 1) % ground.classes, ground.labels)
    eye = np.eye(ground.classes)
    return Corruption(labels, (1 - share) * eye + share * np.roll(eye, 1, axis=1))
