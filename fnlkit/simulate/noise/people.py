"""Label noise with the parameters of human annotators; docs/noise.md states how they were fitted."""

from typing import Annotated, Any, Literal

import numpy as np

from fnlkit.core.declarations import declare
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Automatic, Range, check_arguments
from fnlkit.kernels import matrices
from fnlkit.simulate.noise.ground import Corruption, Ground, need_clients

# Beta distribution of the share of right labels of a class; Dirichlet parameter of the shares of wrong labels of a class;
# strength of the Dirichlet distribution of annotators around the common matrix, in labels per class; share of hard samples;
# and the probability that an annotator gives the common wrong label of a hard sample.
FITTED: dict[str, dict[str, Any]] = {
    "labelme": {"right": (3.94, 1.37), "wrong": 0.31, "strength": 14.5, "hard": 0.12, "agree": 0.71},
    "mriqc": {"right": (1.91, 0.36), "wrong": 1.0, "strength": 4.6, "hard": 0.04, "agree": 0.11},
}
People = Literal["labelme", "mriqc"]
Strength = Annotated[float, Range(open_low=True), Automatic()]
Fraction = Annotated[float, Range(0, 1), Automatic()]


@declare(cite="Rodrigues 2018")
@check_arguments
def annotators(ground: Ground, *, like: People = "labelme", strength: Strength = -1.0) -> Corruption:
    """Make each client an annotator: matrices drawn around a common matrix, with parameters fitted to people.

    Parameters
    ----------
    like : {"labelme", "mriqc"}
        The people: 59 crowd workers on photographs of eight classes, or three raters of brain scans.
    strength : float > 0, or -1
        Similarity of annotators: parameter of the Dirichlet distribution of a row.  Default: -1, the fitted value.
    """
    need_clients(ground, "annotators")
    labels, T = ground.labels.copy(), draw_matrices(ground, FITTED[like], strength)
    for k, members in enumerate(ground.clients):
        labels[members] = matrices.draw(ground.labels[members], T[k], ground.rng(k + 1))
    return Corruption(labels, T)


@declare(cite="Rodrigues 2018")
@check_arguments
def difficult(ground: Ground, *, like: People = "labelme", hard: Fraction = -1.0, agree: Fraction = -1.0) -> Corruption:
    """Let annotators agree on wrong labels of hard samples; other labels as in `annotators`.

    A sample is hard if its features are nearly as close to the mean of another class as to the mean of its class.  This other
    class is the common wrong label, which every annotator gives with probability `agree`.  No transition matrix describes such
    errors.

    Parameters
    ----------
    like : {"labelme", "mriqc"}
    hard : float in [0, 1], or -1
        Share of hard samples.  Default: -1, the fitted value.
    agree : float in [0, 1], or -1
        Probability that an annotator gives the common wrong label.  Default: -1, the fitted value.
    """
    need_clients(ground, "difficult")
    fitted = FITTED[like]
    hard, agree = fitted["hard"] if hard < 0 else hard, fitted["agree"] if agree < 0 else agree
    margin, other = margins(ground.x(), ground.labels, ground.classes)
    bound = np.quantile(margin, hard) if hard else -np.inf
    labels, T = ground.labels.copy(), draw_matrices(ground, fitted, -1.0)
    for k, members in enumerate(ground.clients):
        rng = ground.rng(k + 1)
        labels[members] = matrices.draw(ground.labels[members], T[k], rng)
        agreed = (margin[members] <= bound) & (rng.random(len(members)) < agree)
        labels[members[agreed]] = other[members[agreed]]
    return Corruption(labels)


def draw_matrices(ground: Ground, fitted: dict[str, Any], strength: float) -> np.ndarray:
    """Draw T (N, C, C): a common matrix from the fitted distributions, and a matrix around it for each client."""
    strength = fitted["strength"] if strength < 0 else strength
    classes = ground.classes
    rng = ground.rng()
    common = np.zeros((classes, classes))
    for c in range(classes):
        right = rng.beta(*fitted["right"])
        wrong = rng.dirichlet(np.full(classes - 1, fitted["wrong"]))
        common[c] = np.insert((1 - right) * wrong, c, right)
    matrices = np.empty((len(ground.clients), classes, classes))
    for k in range(len(matrices)):
        own = ground.rng(len(matrices) + 1 + k)
        matrices[k] = [own.dirichlet(strength * row + 1e-3) for row in common]
    return matrices


def margins(x: np.ndarray, labels: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute (margin (n,), nearest other class (n,)) of samples.

    The margin is the distance to the nearest mean of another class, minus the distance to the mean of the sample's class.

    Distances are Euclidean, over features that are scaled to standard deviation 1; a small or negative margin is a hard sample.
    """
    if x is None or len(x) != len(labels):
        raise InputError("difficult: needs the samples of the data set (on the command line the data set must be readable)")
    flat = np.asarray(x[:], np.float32).reshape(len(x), -1)
    flat = (flat - flat.mean(0)) / np.maximum(flat.std(0), 1e-6)
    known = np.unique(labels)
    if len(known) < 2:
        raise InputError("difficult: all samples have one class; no other class can be confused with it")
    distance = np.full((len(flat), classes), np.inf)
    for c in known:
        distance[:, c] = np.linalg.norm(flat - flat[labels == c].mean(0), axis=1)
    label_distance = distance[np.arange(len(flat)), labels].copy()
    distance[np.arange(len(flat)), labels] = np.inf
    return distance.min(1) - label_distance, distance.argmin(1)
