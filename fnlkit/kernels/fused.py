"""Local training of small networks on the CPU, in one compiled function for each network.

    ("lenet5", channels, classes)        LeNet-5 with ReLU on images of 28 to 32 rows and columns, 1 or 3 channels
    ("mlp", (inputs, hidden..., classes))    linear layers with ReLU between them
    ("pair", net)                        two such networks, one after the other in the weights

Results equal PyTorch up to rounding.  Weights are one flat vector (P,) in the order of the network's ``parameters()``.  The
computation has the type of the weights, float32 or float64.  A call uses one thread and releases the GIL.  The same arguments
give the same bytes, independent of other compiled code.
"""

import functools
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fnlkit._kernels.fused import lenet5, mlp
from fnlkit._kernels.fused.dense import SPARE
from fnlkit._kernels.fused.input import Augment, Samples, empty_batch
from fnlkit._kernels.fused.step import Descent
from fnlkit._kernels.fused.training import Scratch, Targets
from fnlkit.core.errors import InputError

_BLOCK = 10  # samples of a step in predictions


class FusedAugment(NamedTuple):
    """Random choices for each place of `order`; None disables a step.

    The crop is taken from the image with a border of `pad` zeros before normalization, then the image is mirrored.  The square
    of a cutout is zero after normalization.

    Attributes
    ----------
    shift : (K, steps, B, 2) int, 0 ... 2 pad
    pad : int
    flip : (K, steps, B) bool
    center : (K, steps, B, 2) int
        Center of the cut-out square; the square begins ``side // 2`` before it.
    side : int
    partner : (K, steps, B) int
        Mixup: column of the sample that is mixed in.
    share : (K, steps)
        Mixup: weight of the sample at this place.
    """

    shift: np.ndarray | None = None
    pad: int = 0
    flip: np.ndarray | None = None
    center: np.ndarray | None = None
    side: int = 0
    partner: np.ndarray | None = None
    share: np.ndarray | None = None


class FusedSteps(NamedTuple):
    """Optimizer and drift terms of a local training; per client or equal for all.

    The gradient of a step is the gradient of the mean loss over the step's samples, plus ``weight_decay * w``, plus
    ``proximal * (w - w_start)``, plus the gradient of ``proximal_norm * ||w - w_start||``, plus `linear`.  The step is that of
    `torch.optim.SGD` or `torch.optim.Adam`.

    Attributes
    ----------
    lr, momentum, weight_decay : float
    optimizer : "sgd" or "adam"
        Adam ignores `momentum`, and every step must have samples.
    proximal, proximal_norm : float or (K,)
        `proximal_norm` is not applied in the first step of each epoch, as in FedCorr's public code; of a pair, each network
        has its norm.
    linear : (K, P)
        Constant term of the gradient: minus the dual variable in FedDyn, c - c_k in SCAFFOLD.
    epoch_steps : int or (K,)
        Steps per epoch. Default: all steps are one epoch.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    proximal: ArrayLike = 0.0
    proximal_norm: ArrayLike = 0.0
    linear: np.ndarray | None = None
    epoch_steps: ArrayLike | None = None


class FusedCohort:
    """K clients in local training.

    Parameters
    ----------
    net : tuple
        Description of the network.
    theta : (K, P + H) float32 or float64
        Initial weights of the network, and H weights of a second linear layer (default: none).  This layer also reads the last
        hidden layer; results have its D outputs before the logits.
    x : (n, H, W, C) or (n, ...)
        Samples of all clients, uint8 (divided by 255) or float.  Images are normalized by channel.  The perceptron reads
        images channel by channel, and other samples in memory order.
    order : (K, steps, B) int
        Positions of each step's samples after the client's first, -1 for an empty place.  A step without samples changes no
        weight.
    steps : FusedSteps
    offset : (K,) int
        Position of each client's first sample. Default: 0.
    mean, std : (channels,)
        Mean and standard deviation of images scaled to [0, 1]. None: no normalization.
    image : bool
        True if four-dimensional samples are images.
    augment : FusedAugment
        Crop, flip and cutout only for images.
    width : int
        Numbers of the last hidden layer that `forward` returns; 0 for none.
    threads : Executor or None
        Runs the clients of a step in `workers` parts.
    workers : int

    Raises
    ------
    InputError
        If the arguments do not fit each other.
    """

    def __init__(
        self,
        net: tuple[Any, ...],
        theta: np.ndarray,
        x: np.ndarray,
        order: np.ndarray,
        steps: FusedSteps,
        *,
        offset: np.ndarray | None = None,
        mean: ArrayLike | None = None,
        std: ArrayLike | None = None,
        image: bool = True,
        augment: FusedAugment | None = None,
        width: int = 0,
        threads: Executor | None = None,
        workers: int = 1,
    ):
        self.networks, single = 1 + (net[0] == "pair"), single_network(net)
        if np.ndim(theta) != 2 or np.shape(theta)[1] < (count := fused_parameters(net)):
            raise InputError(f"`theta` must have at least {count:,} weights for each client, found shape {np.shape(theta)}")
        if theta.dtype not in (np.float32, np.float64):
            raise InputError(f"`theta` must be float32 or float64, found {theta.dtype}")
        k, real, self.threads, self.workers = len(theta), theta.dtype, threads, workers
        self.order = _array("order", order, np.int64, (k, None, None))
        self.offset = np.zeros(k, np.int64) if offset is None else _array("offset", offset, np.int64, (k,))
        if self.offset.min(initial=0) < 0:
            raise InputError(f"`offset` must be positions of at least 0, found {self.offset.min()}")
        if self.order.size and (self.order.min() < -1 or (self.order.max((1, 2)) + self.offset).max() >= len(x)):
            span = f"{self.order.min()} ... {self.order.max()}"
            raise InputError(f"`order` must contain positions 0 ... {len(x) - 1} or -1, found {span}")
        self.kernel, self.classes, self.width = _MODULES[single[0]], shape_of(single)[-1], width
        self.size, inputs = theta.shape[1] // self.networks, widths_of(single)[-2]
        more = self.size - count // self.networks
        if more % (inputs + 1):
            raise InputError(f"`theta` has {more:,} weights after those of the network, no linear layer of {inputs:,} inputs")
        self.units = self.classes + more // (inputs + 1)
        self.inner: Any = slice(None)  # positions of the kernel's weights
        if self.units > self.classes:  # both last layers are one layer of the kernel: the weights of both, then the biases
            end = self.size - (self.units - self.classes) * (inputs + 1)
            ends = [end - self.classes, end, self.size - self.units + self.classes]
            before, biases, weights, after = np.split(np.arange(self.size), ends)
            before, own = np.split(before, [len(before) - self.classes * inputs])
            self.inner = np.concatenate([before, weights, own, after, biases])
        self.net = (*shape_of(single)[:-1], self.units)
        self.samples = _samples(single, x, mean, std, image, real)
        self.augment = _augment(augment or FusedAugment(), self.order, np.ndim(x) == 4 and image)
        # The same samples without mixup.
        self.unmixed = self.augment._replace(partner=self.augment.partner[:, :0], share=self.augment.share[:, :0])
        self.theta = self._spread(theta)
        self.start = self.theta.copy()
        self.velocity = np.zeros_like(self.theta)
        rows, batch = len(self.theta), self.order.shape[2]
        self.layers, memory, places = self.kernel.layers_of(self.net, batch)
        self.memory = _aligned(rows, memory, real), np.zeros((rows, batch, places), np.int32)
        self.scratch: list[Scratch] = []  # of each thread
        self.targets = Targets(np.zeros(0, np.int64), np.zeros((0, 0), real), np.zeros(0, real), 0.0)
        self.descent = self._descent(steps, theta)
        self._none = np.zeros((0, 0, 0), real)

    @functools.cached_property
    def _beside(self):
        """Memory of forward passes between `forward` and `backward` of a step."""
        memory, places = self.memory
        return _aligned(*memory.shape, memory.dtype), np.zeros_like(places)

    def _spread(self, vectors):
        """Copy vectors (K, P + H) to one row of each network, with space after the last weight."""
        padded = _aligned(len(vectors) * self.networks, self.size + SPARE, vectors.dtype)
        padded[:, : self.size] = vectors.reshape(len(padded), -1)[:, self.inner]
        return padded

    def _join(self, rows):
        """Copy one row of each network to vectors (K, P + H)."""
        vectors = np.empty((len(rows), self.size), rows.dtype)
        vectors[:, self.inner] = rows[:, : self.size]
        return vectors.reshape(len(self.order), -1)

    @property
    def weights(self) -> np.ndarray:
        """The weights (K, P + H)."""
        return self._join(self.theta)

    @property
    def gradients(self) -> np.ndarray:
        """The gradients (K, P + H) of the last step, if it had momentum 0."""
        return self._join(self.velocity)

    def replace_weights(self, pick: Any, weights: np.ndarray) -> None:
        """Set the weights (g, P + H) of some clients."""
        rows = self.theta.reshape(len(self.order), self.networks, -1)
        rows[pick, :, : self.size] = weights.reshape(len(weights), self.networks, -1)[:, :, self.inner]

    def train(self, y: np.ndarray, *, soft: Any = None, keep: Any = None, smoothing: float = 0.0) -> np.ndarray:
        """Train on the cross entropy with hard, soft, smoothed and mixed labels, and return the weights (K, P + H).

        Parameters
        ----------
        y : (n,) int
        soft : (n, C)
            Distributions instead of labels.
        keep : (n,)
            Factor of each sample.
        smoothing : float
            Share of each target that is spread over all classes.
        """
        if self.units > self.classes:
            raise InputError("`theta` has weights after those of the network; use `forward` and `backward`")
        real, n, k = self.theta.dtype, len(y), len(self.order)
        y = _array("y", y, np.int64, (n,))
        if n != self.samples.shape[0]:
            raise InputError(f"`y` must have one label per sample, found shape ({n})")
        if y.size and (y.min() < 0 or y.max() >= self.classes):
            raise InputError(f"`y` must be in 0 ... {self.classes - 1}, found {y.min()} ... {y.max()}")
        soft = np.zeros((0, 0), real) if soft is None else _array("soft", soft, real, (n, self.classes))
        keep = np.zeros(0, real) if keep is None else _array("keep", keep, real, (n,))
        self.targets = Targets(y, soft, keep, float(smoothing))
        begin, end = np.zeros(k, np.int64), np.full(k, self.order.shape[1])
        self._advance(True, np.arange(k), begin, begin, end, self.augment, self._none, self._none)
        return self.weights

    def forward(
        self, who: np.ndarray, at: np.ndarray, size: int, *, mixed: bool = True, start: bool = False, steps: int = 1
    ) -> np.ndarray:
        """Compute last hidden layer, outputs of the second layer, and logits (g N, B, width + D + C) of g clients in a step.

        Parameters
        ----------
        who, at : (g,) int64
            Clients, and the number of the step of each.
        size : int
            Number of samples of each.
        mixed : bool
            False: the samples before mixup.
        start : bool
            Use the weights in `start`.
        steps : int
            Number of steps from `at` on; results have a row for each.
        """
        results = self._results(len(who) * steps, size)
        choices, theta = self.augment if mixed else self.unmixed, self.start if start else self.theta
        memory = self._beside if start or not mixed else self.memory
        self._advance(False, who, at, at, at + steps, choices, self._none, results, theta, memory)
        return results

    def _results(self, count, size):
        return np.zeros((count * self.networks, size, self.width + self.units), self.theta.dtype)

    def backward(self, who: np.ndarray, at: np.ndarray, slopes: np.ndarray, *, then: Any = None) -> np.ndarray:
        """Take the step of the last `forward` from the gradients of its results.

        With `then`, the arguments (who, at, size) of the next `forward`, return its results: each client takes its step and
        computes the next results while its weights are in the cache.
        """
        ahead, steps, size = then or (who[:0], at[:0], 0)
        results = self._results(len(ahead), size)
        now, later, begin = np.zeros((3, len(self.order)), np.int64)
        now[who], later[ahead], begin[who], begin[ahead] = 1, 1, at + 1, steps
        every = np.flatnonzero(now | later)
        first, begin, end = (each[every] for each in (begin - now, begin, begin + later))
        self._advance(False, every, first, begin, end, self.augment, slopes, results)
        return results

    def _advance(self, train, who, first, begin, end, augment, slopes, results, theta=None, memory=None):
        theta = self.theta if theta is None else theta

        def advance(number: int, part: slice, taken: slice, written: slice) -> None:
            self.kernel.advance(
                train, theta, self.velocity, *(memory or self.memory), self.scratch[number], self.layers, self.samples,
                self.offset, self.targets, self.order, who[part], first[part], begin[part], end[part], self.descent, augment,
                slopes[taken], results[written],
            )  # fmt: skip

        count = 1 if self.threads is None else max(1, min(self.workers, len(who)))
        while len(self.scratch) < count:
            self.scratch.append(self._scratch())
        if self.threads is None or count == 1:
            advance(0, slice(None), slice(None), slice(None))
        else:
            ends = np.linspace(0, len(who), count + 1).astype(int)
            rows = [ends, *(np.append(0, steps.cumsum())[ends] * self.networks for steps in (begin - first, end - begin))]
            parts = [list(map(slice, each[:-1], each[1:])) for each in rows]
            list(self.threads.map(advance, range(count), *parts))

    def _scratch(self):
        real, (_, _, width, channels) = self.theta.dtype, self.samples.shape
        stride = self.kernel.stride_of(self.net) if self.augment.partner.shape[1] else 0
        batch = empty_batch(self.order.shape[2], stride, width * channels, real)
        return Scratch(batch, *np.empty((2, self.units)), self.kernel.allocate(self.net, real))

    def _descent(self, steps, start):
        """Make the kernel's Descent."""
        real, adam, k, count = start.dtype, steps.optimizer == "adam", len(start), self.order.shape[1]
        if steps.optimizer not in ("sgd", "adam"):
            raise InputError(f"must be sgd or adam, found {steps.optimizer!r}", parameter="optimizer")

        def each(value: ArrayLike, dtype: Any) -> np.ndarray:
            return np.repeat(np.broadcast_to(np.asarray(value, dtype), k), self.networks)

        def vectors(value: np.ndarray) -> np.ndarray:
            rows = np.asarray(value, real).reshape(len(self.theta), -1)
            return np.require(rows[:, self.inner] if rows.size else rows, real, ["C", "W"])

        anchored, moments = np.any(steps.proximal) or np.any(steps.proximal_norm), (len(self.theta), self.size)
        rate, none = np.full(count, steps.lr, real), np.zeros((k, 0), real)
        return Descent(
            rate=np.zeros(count, real) if adam else rate,
            momentum=real.type(0 if adam else steps.momentum),
            decay=real.type(steps.weight_decay),
            pull=each(steps.proximal, real),
            norm_pull=each(steps.proximal_norm, real),
            epoch_steps=each(max(count, 1) if steps.epoch_steps is None else steps.epoch_steps, np.int64),
            anchor=vectors(start if anchored else none),
            linear=vectors(none if steps.linear is None else _array("linear", steps.linear, real, start.shape)),
            first=np.zeros(moments if adam else (len(self.theta), 0), real),
            second=np.zeros(moments if adam else (len(self.theta), 0), real),
            adam=rate if adam else rate[:0],
        )


def _aligned(count, size, real):
    """Allocate zeros (count, size or a few more) whose rows begin at multiples of 64 bytes, as long as a vector register."""
    row = -(-size * real.itemsize // 64) * 64
    raw = np.zeros(count * row + 64, np.uint8)
    return raw[-raw.ctypes.data % 64 :][: count * row].view(real).reshape(count, -1)


_MODULES: dict[str, Any] = {"lenet5": lenet5, "mlp": mlp}


def fused_parameters(net: tuple[Any, ...]) -> int:
    """Number of weights P of a network description.

    Raises
    ------
    InputError
        If there is no kernel for the network.

    Examples
    --------
    >>> fused_parameters(("lenet5", 3, 10)), fused_parameters(("mlp", (4, 3, 2)))
    (62006, 23)
    """
    single = single_network(net)
    shape, widths = shape_of(single), widths_of(single)
    first = lenet5.layout.py_func(shape[0])[-1] if single[0] == "lenet5" else 0
    size = first + sum(units * (width + 1) for width, units in zip(widths, widths[1:], strict=False))
    return (1 + (net[0] == "pair")) * int(size)


def fused_fit(
    net: tuple[Any, ...],
    theta: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    order: np.ndarray,
    steps: FusedSteps,
    *,
    targets: dict[str, Any] | None = None,
    **samples: Any,
) -> np.ndarray:
    """Train one client on the cross entropy and return the weights (P,).

    A sample with NaN or infinity makes the weights NaN.

    Parameters
    ----------
    net, theta, x, order, steps, samples
        As for `FusedCohort`, without the axis K of `theta` and `order`.
    y : (n,) int
    targets : dict
        Keywords of `FusedCohort.train`.

    Examples
    --------
    >>> import numpy as np
    >>> net, x, y = ("mlp", (2, 2)), np.eye(2, dtype="f4"), np.array([0, 1])
    >>> theta = fused_fit(net, np.zeros(6, "f4"), x, y, np.tile([0, 1], (20, 1)), FusedSteps(1.0))
    >>> fused_forward(net, theta, x).argmax(1).tolist()
    [0, 1]
    """
    return FusedCohort(net, theta[None], x, np.asarray(order)[None], steps, **samples).train(y, **targets or {})[0]


def fused_forward(
    net: tuple[Any, ...], theta: np.ndarray, x: np.ndarray, *, features: bool = False, **samples: Any
) -> np.ndarray:
    """Compute logits (n, C) of samples in the type of `theta`; NaN for a sample with NaN or infinity.

    The logits of a pair are the logarithms of the mean probabilities of both networks.

    Parameters
    ----------
    net, theta, x, samples
        As for `fused_fit`.
    features : bool
        Return the last hidden layer (n, width) instead; of a pair, the logits of both networks (n, 2 C).
    """
    if net[0] == "pair":
        both = [fused_forward(net[1], half, x, **samples) for half in theta.reshape(2, -1)]
        return np.concatenate(both, 1) if features else np.logaddexp(*map(_log_softmax, both)) - theta.dtype.type(np.log(2))
    count = -(-len(x) // _BLOCK)
    order = np.where(np.arange(count * _BLOCK) < len(x), np.arange(count * _BLOCK), -1).reshape(1, count, _BLOCK)
    cohort = FusedCohort(net, theta[None], x, order, FusedSteps(0.0), width=features * widths_of(net)[-2], **samples)
    outputs = cohort.forward(np.zeros(1, np.int64), np.zeros(1, np.int64), _BLOCK, steps=count)
    outputs = outputs.reshape(count * _BLOCK, outputs.shape[-1])[: len(x)]
    return outputs[:, : cohort.width] if features else outputs


def _log_softmax(logits):
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def single_network(net: tuple[Any, ...]) -> tuple[Any, ...]:
    """The network of a pair, or the network itself."""
    return net[1] if isinstance(net, tuple) and len(net) == 2 and net[0] == "pair" else net


def widths_of(net: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes of the input and output of the linear layers of a network."""
    return (*lenet5.WIDTHS, net[2]) if net[0] == "lenet5" else net[1]


def shape_of(net: tuple[Any, ...]) -> tuple[int, ...]:
    """Integers of the description of a single network."""
    if isinstance(net, tuple) and len(net) == 3 and net[0] == "lenet5" and net[1] in (1, 3) and net[2] >= 1:
        return int(net[1]), int(net[2])
    if isinstance(net, tuple) and len(net) == 2 and net[0] == "mlp" and len(net[1]) >= 2 and min(net[1]) >= 1:
        return tuple(int(width) for width in net[1])
    raise InputError(
        f'`net` must be ("lenet5", 1 or 3 channels, classes), ("mlp", (inputs, ..., classes)) or a pair, found {net!r}; '
        "use PyTorch for other networks"
    )


def _array(name, value, dtype, shape):
    """Check a contiguous, writable array of a type; None in `shape` allows any length."""
    value = np.asarray(value)
    fits = value.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, value.shape, strict=True))
    if not fits:
        wanted = ", ".join("any" if want is None else f"{want:,}" for want in shape)
        raise InputError(f"`{name}` must have shape ({wanted}), found {value.shape}")
    if np.issubdtype(dtype, np.integer) and not np.issubdtype(value.dtype, np.integer):
        raise InputError(f"`{name}` must contain integers, found {value.dtype}; convert it")
    return np.require(value, dtype, ["C", "W"])


def _samples(net, x, mean, std, image, real):
    """Check bytes or numbers (n, H, W, C); samples that are not images are stored along W."""
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
        return Samples(x.shape, np.require(x, np.uint8, ["C", "W"]).reshape(-1), np.zeros(0, real), table, border)
    numbers = x.astype(real, copy=False)
    if normal:
        numbers = (numbers - middle) / spread
    return Samples(x.shape, np.zeros(0, np.uint8), np.require(numbers, real, ["C", "W"]).reshape(-1), table, border)


def _augment(augment, order, picture):
    """Make the kernel's Augment of all random choices, after checking them against `order`."""
    k, count, batch = order.shape
    shift, center = np.zeros((k, 0, 0, 2), np.int64), np.zeros((k, 0, 0, 2), np.int64)
    flip, partner, share = np.zeros((k, 0, 0), bool), np.zeros((k, 0, 0), np.int64), np.zeros((k, 0))
    if not picture and any(choice is not None for choice in (augment.shift, augment.flip, augment.center)):
        raise InputError("needs `x` with images (n, H, W, C); remove it for other samples", parameter="augment")
    if augment.shift is not None:
        shift = _array("shift", augment.shift, np.int64, (*order.shape, 2))
        if shift.size and not (0 <= shift.min() and shift.max() <= 2 * augment.pad):
            raise InputError(f"`shift` must be in 0 ... {2 * augment.pad}, found {shift.min()} ... {shift.max()}")
    if augment.flip is not None:
        flip = _array("flip", augment.flip, bool, order.shape)
    if augment.center is not None:
        center = _array("center", augment.center, np.int64, (*order.shape, 2))
    if augment.partner is not None:
        partner = _array("partner", augment.partner, np.int64, order.shape)
        share = _array("share", augment.share, np.float64, (k, count))
        if partner.size and not (0 <= partner.min() and partner.max() < batch):
            span = f"{partner.min()} ... {partner.max()}"
            raise InputError(f"`partner` must contain columns 0 ... {batch - 1} of `order`, found {span}")
        if ((order >= 0) & (np.take_along_axis(order, partner, 2) < 0)).any():
            raise InputError("`partner` refers to an empty place of `order`; draw partners from the step's samples")
    return Augment(shift, int(augment.pad), flip, center, int(augment.side), partner, share)
