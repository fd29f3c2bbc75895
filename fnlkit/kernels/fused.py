"""Local training of small networks on the CPU, in one compiled call per client.

    ("lenet5", channels, classes)        LeNet-5 with ReLU on images of 28 to 32 rows and columns, 1 or 3 channels
    ("mlp", (inputs, hidden..., classes))    linear layers with ReLU between them
    ("pair", net)                        two such networks with a common loss, one after the other in the weights

Results equal PyTorch up to rounding.  Weights are one flat vector (P,) in the order of the network's
``parameters()``.  The computation has the type of the weights, float32 or float64; losses are computed in float64.  A call
uses one thread and releases the GIL.  The same arguments give the same bytes, independent of other compiled code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from fnlkit._kernels.fused import lenet5 as fused_lenet5
from fnlkit._kernels.fused import mlp as fused_mlp
from fnlkit._kernels.fused.dense import SPARE
from fnlkit._kernels.fused.input import Augment, Samples
from fnlkit._kernels.fused.losses import fields as fused_loss
from fnlkit._kernels.fused.losses.fields import Choice, Division, Loss, Memory, Terms
from fnlkit._kernels.fused.step import Descent
from fnlkit.errors import InputError
from fnlkit.kernels.terms import FusedLoss as FusedLoss

_KINDS = {
    "cross_entropy": fused_loss.CROSS_ENTROPY,
    "forward": fused_loss.FORWARD,
    "peer": fused_loss.PEER,
    "mixture": fused_loss.MIXTURE,
    "distill": fused_loss.DISTILL,
    "soft": fused_loss.SOFT,
    "embedding": fused_loss.EMBEDDING,
    "two_views": fused_loss.VIEWS,
    "reweighted": fused_loss.REWEIGHTED,
}


class FusedAugment(NamedTuple):
    """Random choices for each place of `order`; None disables a step.

    The crop is taken from the image with a border of `pad` zeros before normalization, then the image is mirrored.  The square
    of a cutout is zero after normalization.

    Attributes
    ----------
    shift : (steps, B, 2) int, 0 ... 2 pad
    pad : int
    flip : (steps, B) bool
    center : (steps, B, 2) int
        Center of the cut-out square; the square begins ``side // 2`` before it.
    side : int
    """

    shift: np.ndarray | None = None
    pad: int = 0
    flip: np.ndarray | None = None
    center: np.ndarray | None = None
    side: int = 0


class FusedSteps(NamedTuple):
    """Optimizer and drift terms of a local training.

    Attributes
    ----------
    lr : float or (steps,)
    momentum, weight_decay : float
    optimizer : "sgd" or "adam"
        Adam ignores `momentum`, and every step must have samples.
    proximal, proximal_norm : float
        `proximal_norm` is not applied in the first step of each epoch, as in FedCorr's public code.
    anchor : (P,)
        Center of both proximal terms, and the round's model for ``mixture`` and ``distill``. Default: the initial weights.
    linear : (P,)
        Constant term of the gradient: minus the dual variable in FedDyn, c - c_k in SCAFFOLD.
    velocity : (P,)
        Initial momentum buffer; without effect on Adam. Default: zero.
    epoch_steps : int
        Steps per epoch. Default: all steps are one epoch.
    """

    lr: float | np.ndarray
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    proximal: float = 0.0
    proximal_norm: float = 0.0
    anchor: np.ndarray | None = None
    linear: np.ndarray | None = None
    velocity: np.ndarray | None = None
    epoch_steps: int | None = None


class Fitted(NamedTuple):
    """Result of `fused_fit`.

    Attributes
    ----------
    theta, velocity : (P,)
        Weights and momentum buffer after training; with Adam, the last gradient instead of the buffer.
    loss : (epochs,) float64
        Mean training loss of each epoch without drift terms; NaN for an epoch without samples.
    correct : (epochs,) int64
        Number of samples in each epoch that were predicted as their own label during training.
    """

    theta: np.ndarray
    velocity: np.ndarray
    loss: np.ndarray
    correct: np.ndarray


def fused_parameters(net: tuple[object, ...]) -> int:
    """Return the number of weights P of a network description.

    Raises
    ------
    InputError
        If there is no fused kernel for the network.

    Examples
    --------
    >>> fused_parameters(("lenet5", 3, 10)), fused_parameters(("mlp", (4, 3, 2)))
    (62006, 23)
    """
    _shape(net)
    single, first = _single(net), 0
    widths = _widths(single)
    if single[0] == "lenet5":
        first = fused_lenet5.layout.py_func(single[1])[-1]
    size = first + sum(units * (width + 1) for width, units in zip(widths, widths[1:], strict=False))
    return (1 + (net[0] == "pair")) * int(size)


def fused_fit(
    net: tuple[object, ...],
    theta: np.ndarray,
    x: np.ndarray | Sequence[np.ndarray],
    y: np.ndarray,
    order: np.ndarray,
    steps: FusedSteps,
    *,
    loss: FusedLoss | None = None,
    mean: ArrayLike | None = None,
    std: ArrayLike | None = None,
    image: bool = True,
    augment: FusedAugment | None = None,
    mixup: tuple[np.ndarray, np.ndarray] | None = None,
) -> Fitted:
    """Train one client locally and return a `Fitted`.

    The gradient of step t is the gradient of the mean loss over the step's samples, plus ``weight_decay * w``, plus
    ``proximal * (w - anchor)``, plus the gradient of ``proximal_norm * ||w - anchor||``, plus `linear`.  The step is that of
    `torch.optim.SGD` or `torch.optim.Adam`.  A sample with NaN or infinity makes the weights NaN.  Of the arguments, only the
    arrays of the loss that `FusedLoss` describes as updated in place change.

    Parameters
    ----------
    net : tuple
        ``("lenet5", channels, classes)``, ``("mlp", (inputs, hidden..., classes))``, or ``("pair", net)`` with one of these.
    theta : (P,) float32 or float64
        Initial weights.  If a head's weights follow the network's weights, P includes them in all arguments.
    x : (n, H, W, C) or (n, ...)
        Samples of the client, uint8 (divided by 255) or float.  Images are normalized by channel.  The perceptron reads images
        channel by channel, and other samples in memory order.
    y : (n,) int
        Labels in 0 ... C - 1.
    order : (steps, B) int
        Positions in x of each step's samples, -1 for an empty place.  A step without samples changes no weight.
    steps : FusedSteps
        Optimizer and drift terms.
    loss : FusedLoss
        Default: cross entropy.
    mean, std : (channels,)
        Mean and standard deviation of images scaled to [0, 1]. None: no normalization.
    image : bool
        True if four-dimensional samples are images.
    augment : FusedAugment
        Only for images.
    mixup : (partner (steps, B) int, share (steps,))
        Column of the sample that is mixed in, and weight of the sample at this place.  The averages of ``mixture`` use
        predictions on samples without mixup.

    Raises
    ------
    InputError
        If the arguments do not fit each other.

    Examples
    --------
    >>> import numpy as np
    >>> net, x, y = ("mlp", (2, 2)), np.eye(2, dtype="f4"), np.array([0, 1])
    >>> fit = fused_fit(net, np.zeros(6, "f4"), x, y, np.tile([0, 1], (20, 1)), FusedSteps(1.0, epoch_steps=1))
    >>> bool(fit.loss[-1] < fit.loss[0]), int(fit.correct[-1])
    (True, 2)
    """
    classes, networks, single = _classes(net), 1 + (net[0] == "pair"), _single(net)
    loss = loss or FusedLoss()
    count = fused_parameters(net) + _head(net, loss, np.shape(theta))
    theta = _weights("theta", theta, count)
    real = theta.dtype
    samples = _samples(single, x, mean, std, image, real)
    n = len(x)
    y = _labels("y", y, (n,), classes)
    order = _array("order", order, np.int64, (None, None))
    if order.size and (order.min() < -1 or order.max() >= n):
        raise InputError(f"`order` must contain positions 0 ... {n - 1} or -1, found {order.min()} ... {order.max()}")
    _check_steps(steps, order)
    loss = _loss(loss, n, classes, order.shape, real, single, networks)
    descent = _descent(steps, loss, theta, len(order))
    chosen = _augment(augment or FusedAugment(), mixup, order, np.ndim(x) == 4 and image)
    w, v = (np.zeros((networks, count // networks + SPARE), real) for _ in range(2))
    w[:, :-SPARE] = theta.reshape(networks, -1)
    if steps.velocity is not None:
        v[:, :-SPARE] = _weights("velocity", steps.velocity, count, real).reshape(networks, -1)
    epochs = -(-len(order) // descent.epoch_steps)
    total, correct = np.zeros(epochs), np.zeros(epochs, np.int64)
    kernel, shape = _kernel(single), _describe(single)
    if networks == 1 and loss.plain:
        kernel.fit_plain(w, v, shape, samples, y, order, descent, chosen, total, correct)
    else:
        descents = _of_network(descent, 0, networks), _of_network(descent, networks - 1, networks)
        kernel.fit(w, v, shape, samples, y, order, descents, loss, chosen, total, correct)
    used = np.add.reduceat((order >= 0).sum(1), np.arange(0, len(order), descent.epoch_steps)) if len(order) else np.zeros(0)
    with np.errstate(invalid="ignore"):
        return Fitted(w[:, :-SPARE].reshape(-1), v[:, :-SPARE].reshape(-1), total / used, correct)


def _check_steps(steps, order):
    """Raise InputError unless optimizer, epochs and order of the samples fit each other."""
    if steps.optimizer not in ("sgd", "adam"):
        raise InputError(f"`optimizer` must be sgd or adam, found {steps.optimizer!r}")
    if steps.optimizer == "adam" and (order < 0).all(1).any():
        raise InputError("adam needs samples in every step of `order`; remove the empty steps")
    if steps.epoch_steps is not None and steps.epoch_steps < 1:
        raise InputError(f"`epoch_steps` must be at least 1, found {steps.epoch_steps}")


def _descent(steps, loss, theta, count):
    """Return the kernel's Descent of `count` steps that start at theta (P,)."""
    real, size, adam = theta.dtype, len(theta), steps.optimizer == "adam"
    anchored = (
        steps.proximal or steps.proximal_norm or loss.terms.teach or loss.kind in (fused_loss.MIXTURE, fused_loss.DISTILL)
    )
    anchor = theta if steps.anchor is None else _weights("anchor", steps.anchor, size, real)
    rate = _array("lr", np.broadcast_to(steps.lr, count) if np.ndim(steps.lr) == 0 else steps.lr, real, (count,))
    return Descent(
        rate=np.zeros(count, real) if adam else rate,
        momentum=real.type(0 if adam else steps.momentum),
        decay=real.type(steps.weight_decay),
        pull=real.type(steps.proximal),
        norm_pull=real.type(steps.proximal_norm),
        epoch_steps=max(count, 1) if steps.epoch_steps is None else int(steps.epoch_steps),
        anchor=anchor if anchored else np.zeros(0, real),
        linear=np.zeros(0, real) if steps.linear is None else _weights("linear", steps.linear, size, real),
        first=np.zeros(size if adam else 0, real),
        second=np.zeros(size if adam else 0, real),
        adam=rate if adam else rate[:0],
    )


def _of_network(descent, k, networks):
    """Return the Descent of a network, with this network's part of the vectors."""
    vectors = {name: getattr(descent, name).reshape(networks, -1)[k] for name in ("anchor", "linear", "first", "second")}
    return descent._replace(**vectors)


def fused_forward(
    net: tuple[object, ...],
    theta: np.ndarray,
    x: np.ndarray,
    *,
    mean: ArrayLike | None = None,
    std: ArrayLike | None = None,
    image: bool = True,
    features: bool = False,
) -> np.ndarray:
    """Return the logits (n, C) of samples in the type of `theta`; NaN for a sample with NaN or infinity.

    The logits of a pair are the logarithms of the mean probabilities of both networks.

    Parameters
    ----------
    net, theta, x, mean, std, image
        As for `fused_fit`.
    features : bool
        Return the last hidden layer (n, width) instead; of a pair, the logits of both networks (n, 2 C).

    Raises
    ------
    InputError
        If the arguments do not fit each other.
    """
    count = fused_parameters(net)
    theta = _weights("theta", theta, count)
    if net[0] == "pair":
        single: Any = net[1]
        both = [fused_forward(single, half, x, mean=mean, std=std, image=image) for half in theta.reshape(2, -1)]
        return np.concatenate(both, 1) if features else np.logaddexp(*map(_log_softmax, both)) - theta.dtype.type(np.log(2))
    samples, layer = _samples(net, x, mean, std, image, theta.dtype), len(_widths(net)) - 1
    w = np.zeros(count + SPARE, theta.dtype)
    w[:count] = theta
    if features and net[0] == "mlp" and layer == 1:
        raise InputError("`features` needs a network with hidden layers, found a perceptron without; add a hidden layer")
    layer -= features
    out = np.empty((len(x), _widths(net)[layer]), theta.dtype)
    _kernel(net).predict(w, _describe(net), samples, _augment(FusedAugment(), None, None, False), layer, out)
    return out


def _log_softmax(logits):
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def _single(net):
    """Return the network of a pair, or the network itself."""
    return net[1] if isinstance(net, tuple) and len(net) == 2 and net[0] == "pair" else net


def _widths(net):
    """Return the sizes of the input and output of the linear layers."""
    return (*fused_lenet5.WIDTHS, net[2]) if net[0] == "lenet5" else net[1]


def _shape(net):
    """Return the integers of a network description; of a pair, the integers of a single network."""
    net = _single(net)
    if isinstance(net, tuple) and len(net) == 3 and net[0] == "lenet5" and net[1] in (1, 3) and net[2] >= 1:
        return int(net[1]), int(net[2])
    if isinstance(net, tuple) and len(net) == 2 and net[0] == "mlp" and len(net[1]) >= 2 and min(net[1]) >= 1:
        return tuple(int(width) for width in net[1])
    raise InputError(
        f'`net` must be ("lenet5", 1 or 3 channels, classes), ("mlp", (inputs, ..., classes)) or a pair, found {net!r}; '
        "use PyTorch for other networks"
    )


def _classes(net):
    return _shape(net)[-1]


def _kernel(net):
    return fused_lenet5 if net[0] == "lenet5" else fused_mlp


def _head(net, loss, shape):
    """Return the number of weights of a head that follows the network's weights, 0 without head.

    There is a head if the teacher and the features have different widths, or if theta is longer than the network's weights.
    """
    if loss.teacher is None:
        return 0
    size, width = np.shape(loss.teacher)[-1], fused_lenet5.WIDTHS[-1] if net[0] == "lenet5" else _shape(net)[-2]
    if net[0] == "mlp" and len(_shape(net)) < 3:
        raise InputError("`teacher` needs a network with hidden layers, found a perceptron without; add a hidden layer")
    return 0 if size == width and shape == (fused_parameters(net),) else size * (width + 1)


def _describe(net):
    """Return the description of a network for its kernels."""
    return _shape(net) if net[0] == "lenet5" else np.array(_shape(net), np.int64)


def _array(name, value, dtype, shape):
    """Return a contiguous, writable array of a type; None in `shape` allows any length."""
    value = np.asarray(value)
    fits = value.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, value.shape, strict=True))
    if not fits:
        wanted = ", ".join("any" if want is None else f"{want:,}" for want in shape)
        raise InputError(f"`{name}` must have shape ({wanted}), found {value.shape}")
    if np.issubdtype(dtype, np.integer) and not np.issubdtype(value.dtype, np.integer):
        raise InputError(f"`{name}` must contain integers, found {value.dtype}; convert it")
    return np.require(value, dtype, ["C", "W"])


def _weights(name, value, count, dtype=None):
    """Return a vector of P numbers, float32 or float64."""
    kind = np.asarray(value).dtype
    if dtype is None and kind not in (np.float32, np.float64):
        raise InputError(f"`{name}` must be float32 or float64, found {kind}")
    return _array(name, value, dtype or kind, (count,))


def _labels(name, value, shape, classes):
    value = _array(name, value, np.int64, shape)
    if value.size and (value.min() < 0 or value.max() >= classes):
        raise InputError(f"`{name}` must be in 0 ... {classes - 1}, found {value.min()} ... {value.max()}")
    return value


def _samples(net, x, mean, std, image, real):
    """Return bytes or numbers (n, H, W, C); samples that are not images are stored along W."""
    x = np.asarray(x)
    if x.ndim < 2 or not (x.dtype == np.uint8 or np.issubdtype(x.dtype, np.floating)):
        raise InputError(f"`x` must be uint8 or float with shape (n, ...), found {x.dtype} {x.shape}")
    if net[0] == "lenet5":
        fits = image and x.ndim == 4 and x.shape[3] == net[1] and all(28 <= side <= 32 for side in x.shape[1:3])
        if not fits:
            raise InputError(f"`x` must be images (n, 28 ... 32, 28 ... 32, {net[1]}), found {x.shape}")
    elif x[:1].size != net[1][0] * min(len(x), 1):
        raise InputError(f"`x` must have {net[1][0]:,} numbers per sample, found shape {x.shape}")
    pictures = image and x.ndim == 4
    if not pictures:
        x = x.reshape(len(x), 1, -1, 1)
    channels = x.shape[3]
    normal = [_array(name, v, real, (channels,)) for name, v in (("mean", mean), ("std", std)) if v is not None]
    if len(normal) == 1:
        raise InputError("`mean` and `std` must be passed together, found only one; pass both or none")
    middle, spread = normal or (np.zeros(channels, real), np.ones(channels, real))
    if not (np.isfinite(middle).all() and np.isfinite(spread).all() and (spread > 0).all()):
        raise InputError(f"`mean` must be finite and `std` positive, found {mean} and {std}")
    scale = np.arange(256, dtype=real) / real.type(255)
    table = np.ascontiguousarray((scale - middle[:, None]) / spread[:, None])
    border = np.tile(table[:, 0], x.shape[2])
    if x.dtype == np.uint8:
        return Samples(np.require(x, np.uint8, ["C", "W"]), np.zeros((0, 1, 1, 1), real), table, border)
    numbers = x.astype(real, copy=False)
    if normal:
        numbers = (numbers - middle) / spread
    return Samples(np.zeros((0, 1, 1, 1), np.uint8), np.require(numbers, real, ["C", "W"]), table, border)


def _augment(augment, mixup, order, picture):
    """Return all random choices as the kernel's Augment, after checking them against `order`."""
    places = (0, 0) if order is None else order.shape
    shift, center = np.zeros((0, 0, 2), np.int64), np.zeros((0, 0, 2), np.int64)
    flip, partner, share = np.zeros((0, 0), bool), np.zeros((0, 0), np.int64), np.zeros(0)
    if not picture and any(choice is not None for choice in (augment.shift, augment.flip, augment.center)):
        raise InputError("`augment` needs `x` with images (n, H, W, C); remove it for other samples")
    if augment.shift is not None:
        shift = _array("shift", augment.shift, np.int64, (*places, 2))
        if shift.size and not (0 <= shift.min() and shift.max() <= 2 * augment.pad):
            raise InputError(f"`shift` must be in 0 ... {2 * augment.pad}, found {shift.min()} ... {shift.max()}")
    if augment.flip is not None:
        flip = _array("flip", augment.flip, bool, places)
    if augment.center is not None:
        center = _array("center", augment.center, np.int64, (*places, 2))
    if mixup is not None:
        partner = _array("partner", mixup[0], np.int64, places)
        share = _array("share", mixup[1], np.float64, places[:1])
        if partner.size and not (0 <= partner.min() and partner.max() < places[1]):
            span = f"{partner.min()} ... {partner.max()}"
            raise InputError(f"`partner` must contain columns 0 ... {places[1] - 1} of `order`, found {span}")
        if ((order >= 0) & (np.take_along_axis(order, partner, 1) < 0)).any():
            raise InputError("`partner` refers to an empty place of `order`; draw partners from the step's samples")
    return Augment(shift, int(augment.pad), flip, center, int(augment.side), partner, share)


_CHOICES = {"all": fused_loss.ALL, "smallest": fused_loss.SMALLEST, "exchanged": fused_loss.EXCHANGED}
# Arrays that a loss needs together, by its kind or by an array.
_NEEDED = {
    "forward": ("matrix",),
    "soft": ("soft",),
    "mixture": ("local", "seen"),
    "embedding": ("teacher",),
    "two_views": ("share",),
    "reweighted": ("matrix",),
    "history": ("counts",),
    "guesses": ("counts", "fixed"),
    "clean": ("labels",),
}


def _check_loss(loss, net, networks):
    """Raise if the parts of a loss do not fit each other or the network."""
    if loss.kind not in _KINDS:
        raise InputError(f"`kind` of a loss must be one of {', '.join(_KINDS)}, found {loss.kind!r}")
    if loss.choice not in _CHOICES:
        raise InputError(f"`choice` of a loss must be one of {', '.join(_CHOICES)}, found {loss.choice!r}")
    if loss.towards not in ("teacher", "student"):
        raise InputError(f'`towards` must be "teacher" or "student", found {loss.towards!r}')
    for part, needed in _NEEDED.items():
        for name in needed if loss.kind == part or getattr(loss, part, None) is not None else ():
            if getattr(loss, name) is None:
                what = f'of kind "{part}"' if loss.kind == part else f"with `{part}`"
                raise InputError(f"a loss {what} needs `{name}`")
    if loss.kind == "peer" and (loss.other is None) == (loss.prior is None):
        raise InputError('a loss of kind "peer" needs either `other` or `prior`')
    for name in ("temperature", "teach_temperature", "sharpen", "power"):
        if not getattr(loss, name) > 0:
            raise InputError(f"`{name}` must be positive, found {getattr(loss, name)}")
    if not 0 <= loss.forget < 1:
        raise InputError(f"`forget` must be at least 0 and below 1, found {loss.forget}")
    if networks == 1 and (loss.choice == "exchanged" or loss.disagreeing or loss.clean is not None):
        raise InputError("a loss with `exchanged`, `disagreeing` or `clean` needs a pair of networks")
    if loss.kind == "two_views" and (loss.views != 2 or networks == 2 or loss.choice != "all"):
        raise InputError('a loss of kind "two_views" needs `views` 2, a single network and all samples of a batch')
    alone = ("history", "guesses", "learned", "centroids", "agree")
    if networks == 2 and (loss.kind in ("mixture", "embedding") or any(getattr(loss, name) is not None for name in alone)):
        raise InputError(f"a pair of networks takes no loss of kind {loss.kind!r} or with {', '.join(alone)}")
    if loss.centroids is not None and len(_widths(net)) < 3:
        raise InputError("`centroids` needs a network with hidden layers, found a perceptron without; add a hidden layer")


def _loss(loss, n, classes, places, real, net, networks):
    """Return the kernel's Loss, after checking the arrays of `loss`."""
    _check_loss(loss, net, networks)
    floor = {"forward": 1e-12, "reweighted": 1e-12, "mixture": 1e-4}.get(loss.kind, 0.0) if loss.floor is None else loss.floor

    def to_array(name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> np.ndarray:
        value = getattr(loss, name)
        return np.zeros((0,) * len(shape), dtype) if value is None else _array(name, value, dtype, shape)

    def of_classes(name: str, shape: tuple[int, ...]) -> np.ndarray:
        value = getattr(loss, name)
        return np.zeros((0,) * len(shape), np.int64) if value is None else _labels(name, value, shape, classes)

    whole = np.dtype(np.int64)
    in_place = {"server": real, "local": real, "seen": np.dtype(bool), "learned": real, "history": real}
    for name, dtype in (in_place | {"guesses": whole, "fixed": whole, "counts": whole}).items():
        value = getattr(loss, name)
        if value is not None and (value.dtype != dtype or not (value.flags.c_contiguous and value.flags.writeable)):
            raise InputError(f"`{name}` is updated in place and must be a contiguous, writable array of {dtype}; convert it")
    offset = to_array("offset", np.float64, (classes,))
    if np.isnan(offset).any() or (offset == np.inf).any() or (offset.size and not np.isfinite(offset).any()):
        raise InputError("`offset` must be finite or -inf, and finite for at least one class; check the class shares")
    if loss.balance and not np.isfinite(offset).all():
        raise InputError("`balance` compares the probabilities of all classes; remove it, or -inf from `offset`")
    centers = to_array("centroids", real, (classes, _widths(net)[-2] if len(_widths(net)) > 2 else 0))
    terms = Terms(
        offset=offset,
        label=float(loss.label),
        bounded=float(loss.bounded),
        power=float(loss.power),
        entropy=float(loss.entropy),
        balance=float(loss.balance),
        teach=float(loss.teach),
        teach_heat=float(loss.teach_temperature),
        reverse=float(loss.reverse),
        pull=float(loss.pull),
        centroids=np.concatenate([centers.ravel(), np.zeros(classes + SPARE, real)]),
        norms=np.linalg.norm(centers.astype(np.float64), axis=1),
        pseudo=of_classes("pseudo", (n,)),
    )
    memory = Memory(
        history=to_array("history", real, (n, None, classes)),
        guesses=to_array("guesses", np.int64, (n, None)),
        seen=to_array("counts", np.int64, (n,)),
        record=bool(loss.record),
        fixed=to_array("fixed", np.int64, (n,)),
        certain=float(loss.certain),
        learned=to_array("learned", real, (n, classes)),
        rate=float(loss.rate),
        hold=float(loss.hold),
    )
    choice = Choice(
        rule=_CHOICES[loss.choice],
        forget=float(loss.forget),
        upwards=bool(loss.upwards),
        disagreeing=bool(loss.disagreeing),
        agreed=bool(loss.agreed),
        mated=bool(loss.mated),
        agree=of_classes("agree", (n,)),
        agree_offset=np.zeros(classes) if loss.agree_offset is None else to_array("agree_offset", np.float64, (classes,)),
    )
    division = Division(
        to_array("clean", real, (n, 2)), float(loss.threshold), float(loss.sharpen), float(loss.unlabeled), int(loss.views)
    )
    return Loss(
        kind=_KINDS[loss.kind],
        plain=all(getattr(loss, entry.name) is entry.default for entry in fields(FusedLoss)),
        smoothing=float(loss.smoothing) if loss.kind == "cross_entropy" else 0.0,
        strength=float(loss.strength),
        temperature=float(loss.temperature),
        backwards=loss.towards == "teacher",
        alpha=float(loss.alpha),
        beta=float(loss.beta),
        gamma=float(loss.gamma),
        floor=float(floor),
        clamp=float(loss.clamp),
        matrix=to_array("matrix", np.float64, (classes, classes)),
        other=of_classes("other", places),
        prior=to_array("prior", np.float64, (classes,)),
        soft=to_array("soft", real, (n, classes)),
        keep=to_array("keep", real, (n,)),
        labels=of_classes("labels", (n,)),
        server=to_array("server", real, (n, classes)),
        local=to_array("local", real, (n, classes)),
        seen=to_array("seen", np.bool_, (n,)),
        teacher=to_array("teacher", real, (n, None)),
        norm=bool(loss.norm),
        share=to_array("share", np.float64, places[:1]),
        double=bool(loss.double),
        terms=terms,
        memory=memory,
        choice=choice,
        division=division,
    )
