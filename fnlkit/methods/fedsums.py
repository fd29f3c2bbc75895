"""FedSums: a linear head and a model of the wrong labels, both solved from sums over all clients' samples.

A method of this project (docs/pretrained.md).  Analytic federated learning solves heads from sums, for example He et al., AFL,
CVPR 2025 (`ridge`) and Guan et al., FedCGS, AAAI 2025 (`lda`), and assumes right labels.  Here the labels have the noise model
of Dawid, Skene 1979, with a Gaussian classifier in place of class shares.
"""

import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np

from fnlkit.core.declarations import Sent, declare, method
from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.core.parameters import Automatic, Count, Positive, Range, check_arguments
from fnlkit.evidence import label_model as noise
from fnlkit.evidence.gaussian import gaussian_head, symmetric, triangle
from fnlkit.evidence.head import Ascent, gradient, logits_by_class, softmax_by_class
from fnlkit.federated.server.rounds import Round
from fnlkit.kernels.streams import stream
from fnlkit.models import MOST_COSINES

if TYPE_CHECKING:
    from fnlkit.federated.types import Clients, Model

# Largest standard deviation of a constant input, in units of its mean (at least 1).
CONSTANT = 1e-4
# Largest number that a client receives.
LARGEST_NUMBER = 1e9
# Largest error of a count of samples that rounding explains, as a share.
COUNTED = 1e-3
# Mean squared length of a sample, without the constant feature.
LENGTH = 32
# Inputs that are all kept by default: how many at most, samples per input, and how independent they are (1: uncorrelated).
MOST_KEPT, SAMPLES_PER_INPUT, INDEPENDENT = 128, 4, 0.9
# Added to each variance of the Gaussian classifier, in units of the mean variance.
SHRINKAGE = 0.1
# Factors on the logits of the Gaussian classifier are 1 divided by these numbers.
TEMPERATURES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
# Default penalty of the head.  With Fourier features, the likelihood of the other half's labels chooses one of two.
RIDGE, RIDGES_FOURIER = 15.0, (5.0, 50.0)
# Updates of the matrices for each classifier.
EM_STEPS = 3
WHOLE = 2  # number of the part with all samples; 0 and 1 are the halves

_SUMS: dict[str, Any] = {"summed": True, "sum_only": True}
_ONCE, _EACH = "all clients, once", "all clients, each step of the label model"
PROJECTION = {
    "wide_products": Sent(
        "upper triangle of the sum of x x', x inputs and 1; then of x with Fourier features, if the network has them",
        _ONCE,
        ("M(M+1)/2",),
        **_SUMS,
    ),
    "products": Sent("upper triangle of the sum of f f', f principal components and 1", _ONCE, ("halves", "m(m+1)/2"), **_SUMS),
    "class_features": Sent("change of the sum of f by inferred class", f"{_ONCE}; {_EACH}", ("fits", "C", "m"), **_SUMS),
}
SENDS = PROJECTION | {
    "counts": Sent("change of the inferred numbers of samples by true and given class", _EACH, ("fits", "C", "C"), **_SUMS),
    "likelihoods": Sent(
        "change of the log-likelihood of the given labels", f"{_EACH}; after the heads", ("fits", "numbers"), **_SUMS
    ),
    "gradients": Sent("change of the sum of f (p - q)'", "all clients, each step of a head", ("fits", "m", "C"), **_SUMS),
}
Components = Annotated[int, Range(1), Automatic()]


class Fit(NamedTuple):
    """One solution: `part` is `WHOLE` or the half of each client's samples that it is computed from."""

    part: int
    shares: bool

    def __str__(self):
        """Text for names of stored arrays."""
        return f"{self.part}-{int(self.shares)}"


WHOLE_FIT = Fit(WHOLE, False)


# ---- on the client
# A client here can also be several clients side by side, whose sums are added (`Client.numbers`, `Client.owner`).
# A server of real sites may request these sums, but only masked ones (`Sent.sum_only`).
def reply_products(client, model, received):
    """Reply the sum of products of the inputs and 1, and of the cosines of the angles if they are received."""
    _must_be_numbers(received)
    x = _inputs(client, received.get("angles"))
    shift = x.sum(0) / np.float32(max(1, len(x)))
    x = x - shift  # sums of squares in float32 would hide a small variance beside a large mean
    shifted_sum, shift = x.sum(0, dtype=np.float64), shift.astype(np.float64)
    cross = np.outer(shifted_sum, shift)
    products = (x.T @ x).astype(np.float64) + cross + cross.T + len(x) * np.outer(shift, shift)
    return {"wide_products": triangle(products)}


def project_samples(client, model, received):
    """Store the projection, and reply products of features and sums by given class, of both halves of the samples."""
    _must_be_numbers(received)
    client.kept.clear()  # of an earlier run that did not end
    client.state.clear()
    half = _halves(client)
    client.state |= {"order": np.argsort(half, kind="stable"), "first": (half == 0).sum(), "axes": np.asarray(received["axes"])}
    client.state |= {name: received[name] for name in ("angles",) if name in received}
    parts = [_samples(client, part)[:2] for part in (0, 1)]
    sums = [np.eye(client.classes, dtype=np.float32)[y].T @ x for x, y in parts]
    client.state["sums"] = np.stack(sums).astype(np.float64)
    products = np.stack([triangle((x.T @ x).astype(np.float64)) for x, _ in parts])
    return {"products": products, "class_features": client.state["sums"]}


@declare(choices={"temperatures": (TEMPERATURES, (1.0,))})
def reply_likelihoods(client, model, received, *, fits, temperatures, held_out=False):
    """Reply the log-likelihood of the given labels for each fit and temperature, on its samples or on all others."""
    fits = _fits(client, received, fits)
    values = np.zeros((len(fits), len(temperatures)))
    for i, fit in enumerate(fits if "axes" in client.state else ()):
        part = 1 - fit.part if held_out else fit.part
        x, y, owner = _samples(client, part)
        likely, shares = _known_matrices(client, received, i, fit, part)
        logits = logits_by_class(x, received["heads"][i])
        for j, temperature in enumerate(temperatures):
            p = softmax_by_class(logits / temperature + (0 if held_out else shares))
            values[i, j] = np.log((p * likely).sum(0) + 1e-12).sum()
    return {"likelihoods": values}


def infer_labels(client, model, received, *, fits):
    """Infer the class probabilities of all samples of each fit; reply the changes of the counts and class sums."""
    fits = _fits(client, received, fits)
    values = {"counts": np.zeros((len(fits), client.classes, client.classes))}
    values["class_features"] = np.zeros((len(fits), client.classes, received["heads"].shape[1]))
    if "axes" not in client.state:
        return values
    sums = _remembered(client, "sums")
    before = np.stack([sums.sum(0) if fit.part == WHOLE else sums[fit.part] for fit in fits])
    for i, fit in enumerate(fits):
        x, y, owner = _samples(client, fit.part)
        q = _posterior(client, received, i, fit)
        client.state[f"right/{fit}"] = np.bincount(owner, q[y, np.arange(len(y))], len(client.numbers))
        client.state[f"by_class/{fit}"] = np.stack([np.bincount(owner, row, len(client.numbers)) for row in q], 1)
        values["counts"][i] = q @ np.eye(client.classes, dtype=q.dtype)[y]
        values["class_features"][i] = q @ x
    return _changes(client, fits, values, {"class_features": before})


def reply_gradients(client, model, received, *, fits, right=False):
    """Reply the change of the gradient of each fit at the received heads."""
    fits = _fits(client, received, fits)
    gradients = np.zeros(received["heads"].shape)
    for i, fit in enumerate(fits if "axes" in client.state else ()):
        x, y, owner = _samples(client, fit.part)
        likely = None if right else _known_matrices(client, received, i, fit, fit.part)[0]
        gradients[i] = gradient(x, np.asarray(received["heads"][i]), y, likely)
    return _changes(client, fits, {"gradients": gradients}, {})


def keep_labels(client, model, received, *, fits, right=False):
    """Correct the labels, store the class probabilities as rows["inferred"], and remove all other memory."""
    fits = _fits(client, received, fits)
    if "axes" in client.state and not right:
        q = np.empty((len(client), client.classes))
        q[_remembered(client, "order")] = _posterior(client, received, 0, fits[0]).T
        client.keep("inferred", q.astype(np.float32))
        client.y[:] = client.rows["inferred"].argmax(1)
    client.state.clear()
    client.kept.clear()
    return {}


def _inputs(client, angles=None):
    """Append 1 to the inputs: (n, D + 1) float32."""
    x = np.asarray(client.inputs.plain(client.x).reshape(len(client), -1), np.float32)
    x = np.concatenate([_cut(client, x), np.ones((len(x), 1), np.float32)], 1)
    if angles is not None and angles.shape[1] > MOST_COSINES:
        raise InputError(f"received {angles.shape[1]:,} angles; at most {MOST_COSINES:,} are possible")
    return x if angles is None else np.concatenate([np.cos(x @ np.asarray(angles)), x], 1)


def _cut(client, x):
    """Cut inputs or features to the range of the client."""
    if client.largest == np.inf or not (np.abs(x) > client.largest).any():
        return x
    logging.getLogger(__name__).warning("inputs or features above %g are cut; scale the samples", client.largest)
    return np.clip(x, -client.largest, client.largest)


def _halves(client):
    """Assign each sample (n,) to a half of its client's samples."""
    owner = client.owner
    halves, ends = np.empty(len(owner), np.int8), np.searchsorted(owner, np.arange(len(client.numbers) + 1))
    for number, a, b in zip(client.numbers, ends[:-1], ends[1:], strict=True):
        halves[a:b] = stream(0, "halves", client=number).permutation(b - a) % 2
    return halves


def _samples(client, part):
    """Collect features (n, m), given labels (n,) and owner (n,) of a half or of all samples, in the order of the halves."""
    if (kept := client.kept.get("samples")) is None:
        order, x = _remembered(client, "order"), _inputs(client, client.state.get("angles")) @ _remembered(client, "axes")
        x = np.concatenate([_cut(client, x)[order], np.ones((len(x), 1), np.float32)], 1)
        kept = client.kept["samples"] = x, np.asarray(client.given)[order], client.owner[order]
    first = int(client.state["first"])
    rows = {0: slice(first), 1: slice(first, None), WHOLE: slice(None)}[part]
    return tuple(values[rows] for values in kept)


def _known_matrices(client, received, i, fit, part):
    """Compute P(given label | true class) (C, n) and class shares (C, n), logits or 0, of a part under a fit's counts."""
    _, y, owner = _samples(client, part)
    if "counts" not in received:
        return noise.first_matrix(client.classes).astype(np.float32)[:, y], np.float32(0)
    counts = np.asarray(received["counts"])[i]
    if counts.min() < 0:
        raise InputError("the received counts are negative")
    key, stamp = f"matrices of {fit} in {part}", counts.tobytes()
    if client.kept.get(key, (None,))[0] != stamp:
        right, by_class = (_remembered(client, f"{name}/{fit}") for name in ("right", "by_class"))
        odds = np.ones(len(client.numbers)) if right is None else noise.fit_odds(counts, right, by_class)
        likely = noise.likelihood(noise.common_matrix(counts), odds, y, owner).T.astype(np.float32, order="C")
        shares = np.float32(0)
        if fit.shares and right is not None:
            shares = noise.class_shares(counts, by_class).astype(np.float32).T[:, owner]
        client.kept[key] = stamp, likely, shares
    return client.kept[key][1:]


def _posterior(client, received, i, fit):
    """Compute the probabilities (C, n) of the true class, for the samples of a fit."""
    likely, shares = _known_matrices(client, received, i, fit, fit.part)
    q = softmax_by_class(logits_by_class(_samples(client, fit.part)[0], received["heads"][i]) + shares) * likely
    return q / np.maximum(q.sum(0), 1e-30)


def _remembered(client, name, default=None):
    """Read an array of the memory, which some engines return as a Tensor; None if there is none."""
    value = client.state.get(name, default)
    return value if value is None else np.asarray(value)


def _must_be_numbers(received):
    """Raise InputError for received arrays with which a sum could be NaN or infinite."""
    for name, values in received.items():
        if not (np.abs(np.asarray(values)) <= LARGEST_NUMBER).all():
            raise InputError(f"the received {name} are no numbers up to {LARGEST_NUMBER:g}")


def _fits(client, received, pairs):
    """Read the Fits of a request, in which they are pairs; an error if the received heads do not belong to them."""
    _must_be_numbers(received)
    features, shape = client.state.get("axes"), tuple(received["heads"].shape)
    if features is not None and shape != (len(pairs), features.shape[1] + 1, client.classes):
        raise InputError(f"the received heads are {shape}, and this client has {features.shape[1]} features")
    return tuple(Fit(int(part), bool(shares)) for part, shares in pairs)


def _changes(client, fits, values, before):
    """Subtract the last reply's sums from the new ones: for a client that misses a step, the server keeps its last sums."""
    changes = {}
    for name, value in values.items():
        key = "/".join([name, *map(str, fits)])
        changes[name] = value - _remembered(client, key, before.get(name, 0.0))
        client.state[key] = value
    return changes


# ---- the server
class Sums:
    """Sums of all clients, and the steps that need them.

    Attributes
    ----------
    angles : tuple of arrays
        Angles (D + 1, F) of the Fourier features, or empty.
    axes : (F + D + 1, m - 1)
        Projection of the cosines, inputs and 1 to the features.
    products : (2, m, m)
        Products of the features and 1, of both halves of the samples.
    class_features : (2, C, m)
        Sums of features by given class; the last column is the number of samples.
    """

    def __init__(self, clients, model, components):
        self.clients = clients
        self.model = model
        self.everyone = np.arange(len(clients))
        self.classes, self.replies = clients.classes, None
        self.sides = {"halves": 2}
        wide, angles = symmetric(self._ask(reply_products, "wide_products")[0]), {}
        samples = float(clients.sizes[self.replies.ids].sum())
        if abs(wide[-1, -1] - samples) > COUNTED * samples:
            raise WorkStopped(f"the clients have {samples:,.0f} samples, and their sums count {wide[-1, -1]:,.0f}")
        scale = _standardize(wide)
        components = components if components > 0 else _default_components(wide, scale)
        if model.cosines:
            scale /= np.sqrt(max(1, np.count_nonzero(scale)))  # two samples have the mean squared distance 2
            angles = {"angles": _draw_angles(wide, scale, model.cosines).astype(np.float32)}
            wide = symmetric(self._ask(reply_products, "wide_products", **angles)[0])
            scale = np.concatenate([np.full(model.cosines, np.sqrt(2 / model.cosines)), scale])
        self.angles, self.axes = tuple(angles.values()), _principal_axes(wide, scale, components)
        axes, m = self.axes.astype(np.float32), self.axes.shape[1] + 1
        self.sides |= {"m": m, "m(m+1)/2": m * (m + 1) // 2}
        upper, self.class_features = self._ask(project_samples, "products", "class_features", axes=axes, **angles)
        self.products = np.stack([symmetric(half) for half in upper])

    def _ask(self, step, *names, **broadcast):
        numbers = len(getattr(step, "keywords", {}).get("temperatures", ()))
        sides = self.sides | {"fits": len(broadcast.get("heads", (0, 1))), "numbers": numbers}
        self.replies = self.clients.round(
            self.everyone, self.model.empty(), step, expect=names, broadcast=broadcast, sides=sides
        )
        return [np.asarray(self.replies[name].sum(0)) for name in names]

    def of_part(self, values, part):
        """Sum over a half or over all samples."""
        return values.sum(0) if part == WHOLE else values[part]

    def gaussian_head(self, class_features, part):
        """Compute the Gaussian classifier (m, C) of class sums (C, m)."""
        moments = self.of_part(self.products, part)[:-1, :-1]
        return gaussian_head(class_features[:, -1], class_features[:, :-1], moments, SHRINKAGE)

    def fit_label_models(self, fits, passes):
        """Estimate the numbers of labels (fits, C, C) by true and given class."""
        sums, known = np.stack([self.of_part(self.class_features, fit.part) for fit in fits]), {}
        counts = np.zeros((len(fits), self.classes, self.classes))
        for _ in range(passes):
            heads = np.stack([self.gaussian_head(by_class, fit.part) for by_class, fit in zip(sums, fits, strict=True)])
            ask = partial(reply_likelihoods, fits=fits, temperatures=TEMPERATURES)
            best = self._ask(ask, "likelihoods", heads=heads, **known)[0].argmax(1)
            heads /= np.array(TEMPERATURES)[best][:, None, None]
            for _ in range(EM_STEPS):
                changes = self._ask(partial(infer_labels, fits=fits), "counts", "class_features", heads=heads, **known)
                counts, sums = counts + changes[0], sums + changes[1]
                known = {"counts": np.maximum(counts, 0)}  # rounding, and noise on masked sums
        return known["counts"]

    def fit_heads(self, fits, steps, ridges, **known):
        """Fit the heads (fits, m, C) that make the given labels most likely; without counts, all labels are right."""
        products = [self.of_part(self.products, fit.part) for fit in fits]
        ascents = [Ascent(each, self.classes, ridge) for each, ridge in zip(products, ridges, strict=True)]
        gradients, ask = 0.0, partial(reply_gradients, fits=fits, right=not known)
        for _ in range(steps):
            points = np.stack([ascent.head for ascent in ascents])
            gradients = gradients + self._ask(ask, "gradients", heads=points, **known)[0]
            for ascent, slope in zip(ascents, gradients, strict=True):
                ascent.step(slope)
        return np.stack([ascent.head for ascent in ascents])

    def held_out_likelihoods(self, fits, heads, counts):
        """Compute the log-likelihood (fits,) of the given labels of the other half of the samples."""
        ask = partial(reply_likelihoods, fits=fits, temperatures=(1.0,), held_out=True)
        return self._ask(ask, "likelihoods", heads=heads, counts=counts)[0][:, 0]

    def finish(self, head, report, fit, **known):
        """Let the clients keep their inferred labels, and return the Round with the model of a head (m, C)."""
        ask = partial(keep_labels, fits=(fit,), right=not known)
        self._ask(ask, heads=head[None], **known)
        weights = self.axes[:-1] @ head[:-1]
        layers = [part for angles in self.angles for part in (angles[:-1].T, angles[-1])]
        model = self.model.with_layers(*layers, weights.T, self.axes[-1] @ head[:-1] + head[-1])
        return Round(model, "head", self.replies, report)


def _moments(products):
    """Return (samples, mean (D,), covariance (D, D)) of the sum (D + 1, D + 1) of x x' over samples, x values and 1."""
    samples, mean = products[-1, -1], products[-1, :-1] / products[-1, -1]
    return samples, mean, products[:-1, :-1] / samples - np.outer(mean, mean)


def _standardize(products):
    """Return 1 / standard deviation (D,) of each input, and 0 for a constant input."""
    _, mean, covariance = _moments(products)
    std = np.sqrt(np.maximum(np.diag(covariance), 0))
    return np.where(std > CONSTANT * np.maximum(np.abs(mean), 1), 1 / np.maximum(std, 1e-30), 0)


def _draw_angles(products, scale, cosines):
    """Return the angles (D + 1, F) of random Fourier features, as weights of the inputs and 1.

    Their products approximate the kernel exp(-|x - x'|^2 / 2) of the scaled inputs.  Pairs of them differ by a quarter of a
    circle.  Source: Rahimi, Recht 2007.
    """
    directions = stream(0, "fourier").standard_normal((len(scale), cosines // 2)) * scale[:, None]
    offset = -_moments(products)[1] @ directions
    return np.block([[directions, directions], [offset, offset - np.pi / 2]])


def _default_components(products, scale):
    """Return a sixteenth of the samples, but 32 to 256; at least all inputs if they are few and nearly independent.

    Principal components of independent inputs are arbitrary directions, which lose signal.  Of correlated inputs, the small
    components are mostly noise.
    """
    samples, _, covariance = _moments(products)
    number, inputs = min(256, max(32, int(samples) // 16)), np.count_nonzero(scale)
    # Correlations of independent inputs have the mean square 1 / samples.
    squares = np.sum((covariance * np.outer(scale, scale)) ** 2) - inputs**2 / samples
    few = inputs <= min(MOST_KEPT, samples / SAMPLES_PER_INPUT)
    return max(number, inputs) if few and inputs > INDEPENDENT * squares else number


def _principal_axes(products, scale, components):
    """Project (D + 1, m - 1) to principal components of standardized inputs, with mean squared length `LENGTH`.

    Parameters
    ----------
    products : (D + 1, D + 1)
        Sum of x x' over all samples, x values and 1.
    scale : (D,)
    components : int
    """
    _, mean, covariance = _moments(products)
    correlation = covariance * np.outer(scale, scale)
    axes, total = np.eye(len(mean)), float(np.trace(correlation))
    if components < len(mean):
        values, axes = np.linalg.eigh(correlation)
        axes, total = axes[:, -components:], float(values[-components:].sum())
    axes = scale[:, None] * axes * np.sqrt(LENGTH / max(total, 1e-12))
    return np.concatenate([axes, -(mean @ axes)[None]])


@method(sends=SENDS, loss="own", needs=("linear", "fourier"))
@check_arguments
def fedsums(
    clients: "Clients",
    model: "Model",
    opt: Any,
    select: Callable[..., Any],
    *,
    rounds: int,
    label_model: bool = True,
    components: Components = -1,
    passes: Count = 3,
    steps: Count = 20,
    ridge: Annotated[float, Range(open_low=True), Automatic()] = -1.0,
) -> "Generator[Round, None, Model]":
    """Solve a linear head and a model of the wrong labels from sums over all clients, without local training.

    Features are principal components of the standardized inputs, and of random cosines of them (for curved borders) if the
    network is `fourier`: by default for at most 256 inputs and 100,000 samples that no backbone has encoded.  A Gaussian
    classifier p and transition matrices explain the given labels: q(z) ~ p(z|x) T_k[z, y], with one common matrix T and one
    factor per client on the odds of right labels.  The head then maximizes log sum_z softmax(W x)_z T_k[z, y] over all samples,
    with T_k fixed.

    Parameters
    ----------
    rounds : int
        Not used: the number of messages follows from `passes` and `steps`.
    label_model : bool
        Whether to model wrong labels.  False: the plain multinomial head.
    components : int >= 1, or -1
        Number of principal components.  Default: -1, which is a sixteenth of all samples, at least 32 and at most 256, and
        at least all inputs if these are at most 128, nearly uncorrelated, and have 4 samples each.
    passes : int >= 1
        Updates of the Gaussian classifier.  More passes drift from classes to clusters.
    steps : int >= 1
        Steps of the head, with L-BFGS and Boehning's bound of the curvature.
    ridge : float > 0, or -1
        Penalty of the head: ridge / 2 times its squared entries.  Default: -1, which is 15; with Fourier features 5 or 50,
        chosen as the label model is, and 5 without a label model.

    Notes
    -----
    Class shares of each client in q help if clients have few true classes, and harm if clients have few given labels.  Both
    label models, and their heads under each penalty, are computed from all samples and from each half of each client's samples.
    The choice is the head under which the given labels of the other half are most likely.  All are computed together: a
    client sends 36 messages by default, and one more with Fourier features.

    Clients send changes of their sums since their last reply, so that the sums of a client that misses a step remain in those
    of the server.  Clients correct their labels to the most likely class at the end.

    **The sums of a single client reveal its samples** if it has fewer samples than features (docs/privacy.md).  The server
    needs only the sums over all clients; a run stores only these.

    No random number is drawn, except that the halves are drawn with a fixed seed.

    Errors at the borders between classes are not found.  The classifier memorizes labels if there are about as many features
    as samples; fewer `components` prevent it.

    Reports
    -------
    common_transition (C, C); class_shares, whether they are part of the label model; ridge, the penalty of the head; once.
    """
    sums, ridges = Sums(clients, model, components), (ridge,) if ridge > 0 else RIDGES_FOURIER if model.cosines else (RIDGE,)
    if not label_model:
        head = sums.fit_heads((WHOLE_FIT,), steps, ridges[:1])[0]
        return (yield from _only(sums.finish(head, {}, WHOLE_FIT)))
    fits = tuple(Fit(part, shares) for part in (0, 1, WHOLE) for shares in (False, True))
    counts, penalties = sums.fit_label_models(fits, passes), ridges * len(fits)
    fits, counts = tuple(fit for fit in fits for _ in ridges), counts.repeat(len(ridges), 0)
    heads = sums.fit_heads(fits, steps, penalties, counts=counts)
    whole = len(fits) * 2 // 3  # number of the first head from all samples
    scores = sums.held_out_likelihoods(fits[:whole], heads[:whole], counts[:whole]).reshape(2, -1).sum(0)
    best = whole + int(scores.argmax())
    fit, head, counts = fits[best], heads[best], counts[best]
    report = {"common_transition": noise.common_matrix(counts), "class_shares": fit.shares, "ridge": penalties[best]}
    return (yield from _only(sums.finish(head, report, fit, counts=counts[None])))


def _only(last):
    """Yield the only Round of a method, and return its model."""
    yield last
    return last.model


@method(sends=PROJECTION, loss="own", needs=("linear",), cite="He 2025")
@check_arguments
def ridge(
    clients: "Clients",
    model: "Model",
    opt: Any,
    select: Callable[..., Any],
    *,
    rounds: int,
    components: Components = -1,
    penalty: Positive = 15.0,
) -> "Generator[Round, None, Model]":
    """Solve the least-squares head of the given labels from sums, a reference without a model of wrong labels.

    W minimizes sum |W x - onehot(y)|^2 + `penalty` |W|^2, as in AFL (He et al., CVPR 2025) after the penalties of its clients
    are removed.

    Parameters
    ----------
    rounds : int
        Not used.
    components : int >= 1, or -1
        As for `fedsums`.
    penalty : float > 0
        Weight of the squared norm of the head.  Default: 15.
    """
    sums = Sums(clients, model, components)
    products = sums.products.sum(0)
    head = np.linalg.solve(products + penalty * np.eye(len(products)), sums.class_features.sum(0).T)
    return (yield from _only(sums.finish(head, {}, WHOLE_FIT)))


@method(sends=PROJECTION, loss="own", needs=("linear",), cite="Guan 2025")
@check_arguments
def lda(
    clients: "Clients", model: "Model", opt: Any, select: Callable[..., Any], *, rounds: int, components: Components = -1
) -> "Generator[Round, None, Model]":
    """Solve the Gaussian classifier of the given labels from sums, a reference without a model of wrong labels.

    As in FedCGS (Guan et al., AAAI 2025), with one shrunken covariance.

    Parameters
    ----------
    rounds : int
        Not used.
    components : int >= 1, or -1
        As for `fedsums`.
    """
    sums = Sums(clients, model, components)
    return (yield from _only(sums.finish(sums.gaussian_head(sums.class_features.sum(0), WHOLE), {}, WHOLE_FIT)))
