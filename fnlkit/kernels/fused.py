"""Local training of small networks on the CPU, in one compiled call per client.

    ("lenet5", channels, classes)        LeNet-5 with ReLU on images of 28 to 32 rows and columns, 1 or 3 channels
    ("mlp", (inputs, hidden..., classes))    linear layers with ReLU between them

Results equal those of PyTorch up to rounding.  Weights are one flat vector (P,) in the order of the network's
``parameters()``.  The computation has the type of the weights, float32 or float64; losses are computed in float64.  A call
uses one thread and releases the GIL.  The same arguments give the same bytes, independent of other compiled code.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fnlkit._kernels.fused import lenet5 as fused_lenet5
from fnlkit._kernels.fused import loss as fused_loss
from fnlkit._kernels.fused import mlp as fused_mlp
from fnlkit._kernels.fused.dense import SPARE
from fnlkit._kernels.fused.input import Augment, Samples
from fnlkit._kernels.fused.loss import Loss
from fnlkit._kernels.fused.step import Descent
from fnlkit.errors import InputError

_KINDS = {
    "cross_entropy": fused_loss.CROSS_ENTROPY,
    "forward": fused_loss.FORWARD,
    "peer": fused_loss.PEER,
    "mixture": fused_loss.MIXTURE,
    "distill": fused_loss.DISTILL,
    "soft": fused_loss.SOFT,
    "embedding": fused_loss.EMBEDDING,
}


@dataclass(frozen=True)
class FusedLoss:
    """A loss of the fused path, with formulas in `fnlkit._kernels.fused.loss`.

    C is the number of classes, n the number of samples of the client.

    Attributes
    ----------
    kind : str
        ``cross_entropy``, ``forward``, ``peer``, ``mixture``, ``distill``, ``soft`` or ``embedding``.
    smoothing : float
        Label smoothing of ``cross_entropy``; can be negative.
    strength : float
        Coefficient of the second term of ``peer``, ``mixture``, ``distill`` and ``embedding``.
    temperature : float > 0
        Temperature of ``distill``.
    towards : "teacher" or "student"
        Divergence of ``distill``: KL(student || teacher) for "teacher", KL(teacher || student) for "student".
    alpha, beta, gamma : float in [0, 1]
        For ``mixture``: share of the server's average in the mixture, rate of the server's and of the local average.
    floor : float >= 0
        ``forward`` adds it inside the logarithm, ``peer`` inside both logarithms; for ``mixture`` it is the smallest value of
        1 - <p, t>. Default: 1e-12 for ``forward``, 0 for ``peer`` and 1e-4 for ``mixture``.
    clamp : float in [0, 1/2)
        For ``mixture``: predictions are clamped to [clamp, 1 - clamp].
    matrix : (C, C)
        Transition matrix T[true, given] of ``forward``; rows sum to 1.
    other : (steps, B) int
        Second label of ``peer`` for each place of `order`. None: use the expectation over `prior`.
    prior : (C,)
        Class distribution of ``peer``.
    soft : (n, C)
        Target distributions of ``soft``.
    keep : (n,)
        Factor of each sample's loss, not applied to the regularizers of ``mixture`` and ``distill``. Default: 1.
    server, local : (n, C) of the weights' type
        Averages of predictions of ``mixture``, updated in place.  Without `server` the mixture is the local average.
    seen : (n,) bool
        True for the rows of the averages that have a value; updated in place.
    teacher : (n, D)
        Target of ``embedding`` for the last hidden layer.  If D (width + 1) weights of a linear head follow the network's
        weights, it is the target for the output of this head.
    """

    kind: str = "cross_entropy"
    smoothing: float = 0.0
    strength: float = 1.0
    temperature: float = 1.0
    towards: str = "teacher"
    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0
    floor: float | None = None
    clamp: float = 0.0
    matrix: np.ndarray | None = None
    other: np.ndarray | None = None
    prior: np.ndarray | None = None
    soft: np.ndarray | None = None
    keep: np.ndarray | None = None
    server: np.ndarray | None = None
    local: np.ndarray | None = None
    seen: np.ndarray | None = None
    teacher: np.ndarray | None = None


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


class Fitted(NamedTuple):
    """Result of `fused_fit`.

    Attributes
    ----------
    theta, velocity : (P,)
        Weights and momentum buffer after training.
    loss : (epochs,) float64
        Mean training loss of each epoch without drift terms; NaN for an epoch without samples.
    correct : (epochs,) int64
        Number of samples in each epoch that were predicted as their own label during training.
    """

    theta: np.ndarray
    velocity: np.ndarray
    loss: np.ndarray
    correct: np.ndarray


def fused_parameters(net):
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
    widths, first = _shape(net), 0
    if net[0] == "lenet5":
        widths, first = (*fused_lenet5.WIDTHS, net[2]), fused_lenet5.layout.py_func(net[1])[-1]
    return int(first + sum(units * (width + 1) for width, units in zip(widths, widths[1:], strict=False)))


def fused_fit(
    net,
    theta,
    x,
    y,
    order,
    *,
    lr,
    momentum=0.0,
    weight_decay=0.0,
    loss=None,
    proximal=0.0,
    proximal_norm=0.0,
    anchor=None,
    linear=None,
    velocity=None,
    epoch_steps=None,
    mean=None,
    std=None,
    image=True,
    augment=None,
    mixup=None,
):
    """Train one client locally and return a `Fitted`.

    The gradient of step t is the gradient of the mean loss over the step's samples, plus ``weight_decay * w``, plus
    ``proximal * (w - anchor)``, plus the gradient of ``proximal_norm * ||w - anchor||``, plus `linear`.  The step is that of
    `torch.optim.SGD`.  A sample with NaN or infinity makes the weights NaN.  Of the arguments, only the averages `server`,
    `local` and `seen` of the loss change.

    Parameters
    ----------
    net : tuple
        ``("lenet5", channels, classes)`` or ``("mlp", (inputs, hidden..., classes))``.
    theta : (P,) float32 or float64
        Initial weights.  If a head's weights follow the network's weights, P includes them in all arguments.
    x : (n, H, W, C) or (n, ...)
        Samples of the client, uint8 (divided by 255) or float.  Images are normalized by channel.  The perceptron reads images
        channel by channel, and other samples in memory order.
    y : (n,) int
        Labels in 0 ... C - 1.
    order : (steps, B) int
        Positions in x of each step's samples, -1 for an empty place.  A step without samples changes no weight.
    lr : float or (steps,)
    momentum, weight_decay : float
    loss : FusedLoss
        Default: cross entropy.
    proximal, proximal_norm : float
        `proximal_norm` is not applied in the first step of each epoch, as in FedCorr's public code.
    anchor : (P,)
        Center of both proximal terms, and the round's model for ``mixture`` and ``distill``. Default: `theta`.
    linear : (P,)
        Constant term of the gradient: minus the dual variable in FedDyn, c - c_k in SCAFFOLD.
    velocity : (P,)
        Initial momentum buffer. Default: zero.
    epoch_steps : int
        Steps per epoch. Default: all steps are one epoch.
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
    >>> fit = fused_fit(net, np.zeros(6, "f4"), x, y, np.tile([0, 1], (20, 1)), lr=1.0, epoch_steps=1)
    >>> bool(fit.loss[-1] < fit.loss[0]), int(fit.correct[-1])
    (True, 2)
    """
    classes = _classes(net)
    loss = loss or FusedLoss()
    count = fused_parameters(net) + _head(net, loss, np.shape(theta))
    theta = _weights("theta", theta, count)
    real = theta.dtype
    samples = _samples(net, x, mean, std, image, real)
    n = len(x)
    y = _labels("y", y, (n,), classes)
    order = _array("order", order, np.int64, (None, None))
    if order.size and (order.min() < -1 or order.max() >= n):
        raise InputError(f"`order` must contain positions 0 ... {n - 1} or -1, found {order.min()} ... {order.max()}")
    steps = len(order)
    epoch_steps = max(steps, 1) if epoch_steps is None else int(epoch_steps)
    if epoch_steps < 1:
        raise InputError(f"`epoch_steps` must be at least 1, found {epoch_steps}")
    loss = _loss(loss, n, classes, order.shape, real)
    anchored = proximal or proximal_norm or loss.kind in (fused_loss.MIXTURE, fused_loss.DISTILL)
    anchor = theta if anchor is None else _weights("anchor", anchor, count, real)
    descent = Descent(
        rate=_array("lr", np.broadcast_to(lr, steps) if np.ndim(lr) == 0 else lr, real, (steps,)),
        momentum=real.type(momentum),
        decay=real.type(weight_decay),
        pull=real.type(proximal),
        norm_pull=real.type(proximal_norm),
        epoch_steps=epoch_steps,
        anchor=anchor if anchored else np.zeros(0, real),
        linear=np.zeros(0, real) if linear is None else _weights("linear", linear, count, real),
    )
    chosen = _augment(augment or FusedAugment(), mixup, order, np.ndim(x) == 4 and image)
    w, v = np.zeros(count + SPARE, real), np.zeros(count + SPARE, real)
    w[:count] = theta
    if velocity is not None:
        v[:count] = _weights("velocity", velocity, count, real)
    epochs = -(-steps // epoch_steps)
    total, correct = np.zeros(epochs), np.zeros(epochs, np.int64)
    _kernel(net).fit(w, v, *_arguments(net), samples, y, order, descent, loss, chosen, total, correct)
    used = np.add.reduceat((order >= 0).sum(1), np.arange(0, steps, epoch_steps)) if steps else np.zeros(0)
    with np.errstate(invalid="ignore"):
        return Fitted(w[:count], v[:count], total / used, correct)


def fused_forward(net, theta, x, *, mean=None, std=None, image=True):
    """Return the logits (n, C) of samples in the type of `theta`; NaN for a sample with NaN or infinity.

    Parameters
    ----------
    net, theta, x, mean, std, image
        As for `fused_fit`.

    Raises
    ------
    InputError
        If the arguments do not fit each other.
    """
    count = fused_parameters(net)
    theta = _weights("theta", theta, count)
    samples = _samples(net, x, mean, std, image, theta.dtype)
    w = np.zeros(count + SPARE, theta.dtype)
    w[:count] = theta
    logits = np.empty((len(x), _classes(net)), theta.dtype)
    _kernel(net).predict(w, *_arguments(net), samples, _augment(FusedAugment(), None, None, False), logits)
    return logits


def _shape(net):
    """Return the integers of a network description."""
    if isinstance(net, tuple) and len(net) == 3 and net[0] == "lenet5" and net[1] in (1, 3) and net[2] >= 1:
        return int(net[1]), int(net[2])
    if isinstance(net, tuple) and len(net) == 2 and net[0] == "mlp" and len(net[1]) >= 2 and min(net[1]) >= 1:
        return tuple(int(width) for width in net[1])
    raise InputError(
        f'`net` must be ("lenet5", 1 or 3 channels, classes) or ("mlp", (inputs, ..., classes)), found {net!r}; '
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


def _arguments(net):
    return _shape(net) if net[0] == "lenet5" else (np.array(_shape(net), np.int64),)


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
    found = np.asarray(value).dtype
    if dtype is None and found not in (np.float32, np.float64):
        raise InputError(f"`{name}` must be float32 or float64, found {found}")
    return _array(name, value, dtype or found, (count,))


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
    border = np.ascontiguousarray(table[:, 0])
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
            found = f"{partner.min()} ... {partner.max()}"
            raise InputError(f"`partner` must contain columns 0 ... {places[1] - 1} of `order`, found {found}")
        if ((order >= 0) & (np.take_along_axis(order, partner, 1) < 0)).any():
            raise InputError("`partner` refers to an empty place of `order`; draw partners from the step's samples")
    return Augment(shift, int(augment.pad), flip, center, int(augment.side), partner, share)


def _loss(loss, n, classes, places, real):
    """Return the kernel's Loss, after checking the arrays of `loss`."""
    if loss.kind not in _KINDS:
        raise InputError(f"`kind` of a loss must be one of {', '.join(_KINDS)}, found {loss.kind!r}")
    if loss.towards not in ("teacher", "student"):
        raise InputError(f'`towards` must be "teacher" or "student", found {loss.towards!r}')
    needed = {"forward": ("matrix",), "soft": ("soft",), "mixture": ("local", "seen"), "embedding": ("teacher",)}
    needed = needed.get(loss.kind, ())
    for name in needed:
        if getattr(loss, name) is None:
            raise InputError(f'a loss of kind "{loss.kind}" needs `{name}`')
    if loss.kind == "peer" and (loss.other is None) == (loss.prior is None):
        raise InputError('a loss of kind "peer" needs either `other` or `prior`')
    if not loss.temperature > 0:
        raise InputError(f"`temperature` must be positive, found {loss.temperature}")
    floor = {"forward": 1e-12, "mixture": 1e-4}.get(loss.kind, 0.0) if loss.floor is None else loss.floor

    def given(name, dtype, shape):
        value = getattr(loss, name)
        return np.zeros((0,) * len(shape), dtype) if value is None else _array(name, value, dtype, shape)

    for name, dtype in (("server", real), ("local", real), ("seen", np.dtype(bool))):
        value = getattr(loss, name)
        if value is not None and (value.dtype != dtype or not (value.flags.c_contiguous and value.flags.writeable)):
            raise InputError(f"`{name}` is updated in place and must be a contiguous, writable array of {dtype}; convert it")
    return Loss(
        kind=_KINDS[loss.kind],
        smoothing=float(loss.smoothing) if loss.kind == "cross_entropy" else 0.0,
        strength=float(loss.strength),
        temperature=float(loss.temperature),
        backwards=loss.towards == "teacher",
        alpha=float(loss.alpha),
        beta=float(loss.beta),
        gamma=float(loss.gamma),
        floor=float(floor),
        clamp=float(loss.clamp),
        matrix=given("matrix", np.float64, (classes, classes)),
        other=np.zeros((0, 0), np.int64) if loss.other is None else _labels("other", loss.other, places, classes),
        prior=given("prior", np.float64, (classes,)),
        soft=given("soft", real, (n, classes)),
        keep=given("keep", real, (n,)),
        server=given("server", real, (n, classes)),
        local=given("local", real, (n, classes)),
        seen=given("seen", np.bool_, (n,)),
        teacher=given("teacher", real, (n, None)),
    )
