"""Convolutions and batch norm of K stacked clients as matrix products and single calls.

vmap turns the convolutions of K clients into a convolution with K groups, which GPU libraries compute slowly for wide layers.
Here the weights of each client multiply the windows of its images, in a batch of K products. Images have memory order B, H, W,
K, C, so that batch norm is a single call over K x C channels. On a GPU with Triton, the products read the images in place
(`fnlkit.federated.engines.gpu_kernels`). Otherwise the windows are copied into a matrix.
"""

import contextlib
from collections import Counter
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fnlkit.models.parts import normalize_rectify

LOW = (torch.float32, torch.bfloat16)  # types of the GPU kernels


class SideStream:
    """A second stream of a GPU for work that can run beside the main stream.

    It is created at first use. On a device without streams, the work runs at once.

    Parameters
    ----------
    device : torch.device
    """

    def __init__(self, device):
        self.device, self.stream = device, None

    def __call__(self, *reads: torch.Tensor) -> AbstractContextManager[Any]:
        """Open a context whose work starts after all work that is already queued.

        Parameters
        ----------
        reads : Tensor
            What the work reads, so that this memory is not reused before the work ends.
        """
        if self.device.type != "cuda":
            return contextlib.nullcontext()
        self.stream = self.stream or torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        for tensor in reads:
            tensor.record_stream(self.stream)
        return torch.cuda.stream(self.stream)

    def join(self) -> None:
        """Let the main stream wait for the second stream."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


class Uses:
    """How often a network uses each tensor of weights, and the second stream `beside`."""

    def __init__(self, beside):
        self.beside, self.counts = beside, Counter()


class Products(TorchFunctionMode):
    """Context in which a network under vmap computes its convolutions as matrix products.

    Other layers are unchanged, and so are convolutions with groups, dilation, or different numbers for height and width.

    Parameters
    ----------
    beside : SideStream
        Second stream for the gradients of weights. They are complete after its `join`.
    """

    def __init__(self, beside):
        super().__init__()
        self.beside, self.uses = beside, Uses(beside)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is F.conv2d:
            return self._convolution(*args, **kwargs)
        if function is F.batch_norm and args[0].dim() == 4:
            return _normalization(*args, **kwargs)
        if function is normalize_rectify:
            return self._rectified(*args, **kwargs)
        return function(*args, **kwargs)

    def _convolution(self, x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
        numbers = [_same(value) for value in (stride, padding, dilation)]
        if x.dim() == 4 and None not in numbers and numbers[2] == groups == 1 and w.shape[2] == w.shape[3]:
            return Convolve.apply(x, w, bias, numbers[0], numbers[1], self.uses)
        return F.conv2d(x, w, bias, stride, padding, dilation, groups)

    def _rectified(self, norm, x, add=None):
        if type(norm) is nn.BatchNorm2d and norm.training and norm.track_running_stats and norm.num_batches_tracked is None:
            vectors = norm.running_mean, norm.running_var, norm.weight, norm.bias
            return _normalization(x, *vectors, True, norm.momentum, norm.eps, add, True)
        with Products(self.beside):
            normalized = norm(x)
        return (normalized if add is None else normalized + add).relu()


def _normalization(x, mean, var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5, add=None, relu=False):
    return Normalize.apply(x, add, mean, var, weight, bias, training, momentum, eps, relu)


def _same(value):
    """Read a number that holds for both axes; None if they differ."""
    values = {value} if isinstance(value, (int, str)) else set(value)
    number = values.pop()
    return None if values or isinstance(number, str) else number


class _Stacked(torch.autograd.Function):
    """A function that only runs under vmap, where its `vmap` receives the tensors of all clients."""

    @staticmethod
    def forward(*args: Any) -> Any:
        raise RuntimeError("only for networks under vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise RuntimeError("only for networks under vmap")


class Convolve(_Stacked):
    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any, w: Any, bias: Any, stride: int, padding: int, uses: Any) -> Any:
        leaf, key = w, id(w)
        uses.counts[key] += 1
        x, w, bias = (_stack(value, dim, info.batch_size) for value, dim in zip((x, w, bias), in_dims[:3], strict=True))
        device = x.device.type
        if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
            kind = torch.get_autocast_dtype(device)
            x, w, bias = x.to(kind), w.to(kind), None if bias is None else bias.to(kind)
        missing = -x.shape[2] % 16
        if missing and w.shape[1] % 16 == 0 and kernels_for(x.device) is not None:  # a kernel reads multiples of 16 channels
            x, w = (F.pad(part, (0, 0, 0, 0, 0, missing)) for part in (x, w))
        y = StackedConvolution.apply(x, w, stride, padding, uses, key if w is leaf and w.is_leaf else None)
        return (y if bias is None else y + bias[:, None, :, None, None]), 0


class Normalize(_Stacked):
    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
        size = info.batch_size
        x, add, *vectors = (_stack(value, dim, size) for value, dim in zip(inputs[:6], in_dims[:6], strict=True))
        training, momentum, eps, relu = inputs[6:]
        if training and _fits(x, add, vectors):
            return StackedNorm.apply(x, add, *vectors, momentum, eps, relu), 0
        mean, var, weight, bias = (None if v is None else v.reshape(-1) for v in vectors)
        y = F.batch_norm(join_clients(x), mean, var, weight, bias, training, momentum, eps)
        y = y.unflatten(1, (size, -1)).transpose(0, 1)
        y = y if add is None else y + add
        return y.relu() if relu else y, 0


def _fits(x, add, vectors):
    """Whether a kernel computes this batch norm in training."""
    vectors_fit = all(v is not None and v.dtype == torch.float32 and v.is_contiguous() for v in vectors)
    images_fit = x.dtype in LOW and (add is None or (add.dtype, add.shape) == (x.dtype, x.shape))
    more = x.shape[1] * x.shape[3] * x.shape[4] > 1 and x.numel() < 2**31
    return vectors_fit and images_fit and more and kernels_for(x.device) is not None


class StackedNorm(torch.autograd.Function):
    """Batch norm of images (K, B, C, H, W) in training, plus other images, through ReLU; a kernel for each pass over them."""

    @staticmethod
    def forward(ctx: Any, x: Any, add: Any, mean: Any, var: Any, weight: Any, bias: Any, *options: Any) -> Any:
        momentum, eps, ctx.relu = options
        ctx.add, x = add is not None, lay_out(x)
        vectors = tuple(v.view(-1) for v in (weight, bias, mean, var))
        add = None if add is None else _matrix(lay_out(add))
        y, statistics = gpu_kernels().normalize(_matrix(x), add, vectors, momentum, eps, ctx.relu)
        ctx.save_for_backward(x, y if ctx.relu else _matrix(x), weight, statistics)
        return _images(y, x)

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> Any:
        x, y, weight, statistics = ctx.saved_tensors
        parts = _matrix(lay_out(d)), y, _matrix(x), weight.view(-1), statistics
        dx, dadd, dweight, dbias = gpu_kernels().normalize_back(*parts, ctx.relu, ctx.add)
        vectors = (dweight.view(weight.shape), dbias.view(weight.shape))
        return _images(dx, x), None if dadd is None else _images(dadd, x), None, None, *vectors, None, None, None


def _matrix(x):
    """View images (K, B, C, H, W) of memory order B, H, W, K, C as a matrix (B H W, K C)."""
    return x.permute(1, 3, 4, 0, 2).flatten(3).flatten(0, 2)


def _images(rows, like):
    """View rows (B H W, K C) as images of the shape of others (K, B, C, H, W)."""
    k, b, c, height, width = like.shape
    return rows.view(b, height, width, k, c).permute(3, 0, 4, 1, 2)


def _stack(value, dim, size):
    """Move the clients of a tensor to the first axis."""
    if value is None:
        return None
    if dim is None:
        return value.expand(size, *value.shape)
    return value.movedim(dim, 0) if dim else value


def join_clients(x: torch.Tensor) -> torch.Tensor:
    """Join images of K clients (K, B, C, H, W) to (B, K C, H, W) with channels last; a view if possible."""
    return x.permute(1, 3, 4, 0, 2).flatten(3).contiguous().permute(0, 3, 1, 2)


class StackedConvolution(torch.autograd.Function):
    """Convolution of images (K, B, C, H, W) with weights (K, O, C, S, S), client by client, to images (K, B, O, H', W')."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor, stride: int, padding: int, uses: Any, key: Any) -> Any:
        ctx.stride, ctx.padding, ctx.uses, ctx.key = stride, padding, uses, key
        x = lay_out(x)
        ctx.save_for_backward(x, w)
        side = [(n + 2 * padding - w.shape[3]) // stride + 1 for n in x.shape[3:]]
        y = new_images(x, w.shape[1], *side)
        products_of(x, w).convolve(x, w, y, stride=stride, padding=padding, back=False)
        return y

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> Any:
        x, w = ctx.saved_tensors
        d = lay_out(d)
        gradients: list[torch.Tensor | None] = [None, None]
        kernels, options = products_of(x, w), {"stride": ctx.stride, "padding": ctx.padding}
        if ctx.needs_input_grad[1]:
            k, o, c, r, s = w.shape
            gradients[1] = w.new_empty((k, o, r, s, c)).permute(0, 1, 4, 2, 3)
            # Nothing reads this gradient before the join, unless the weights have another gradient that is added to it.
            alone = ctx.uses.counts[ctx.key] == 1
            with ctx.uses.beside(x, d) if alone else contextlib.nullcontext():
                kernels.weigh(x, d, gradients[1], **options)
        if ctx.needs_input_grad[0]:
            gradients[0] = new_images(x, *x.shape[2:])
            kernels.convolve(d, w, gradients[0], back=True, **options)
        return *gradients, None, None, None, None


def lay_out(x: torch.Tensor) -> torch.Tensor:
    """Lay out images (K, B, C, H, W) in memory order B, H, W, K, C; a view if they have it."""
    return x.permute(1, 3, 4, 0, 2).contiguous().permute(3, 0, 4, 1, 2)


def new_images(x: torch.Tensor, channels: int, rows: int, columns: int) -> torch.Tensor:
    """Make uninitialized images (K, B, C, H, W) with memory order B, H, W, K, C."""
    return x.new_empty((x.shape[1], rows, columns, x.shape[0], channels)).permute(3, 0, 4, 1, 2)


def products_of(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Choose the module or class whose `convolve` and `weigh` compute these products."""
    kernels = kernels_for(x.device)
    fits = x.shape[2] % 16 == w.shape[1] % 16 == 0 and x.dtype in LOW and x.numel() < 2**31
    return kernels if kernels and fits else Patches


def kernels_for(device: torch.device) -> Any:
    """Choose the Triton kernels; None if Triton is missing or the device is no GPU."""
    return gpu_kernels() if device.type == "cuda" else None


@cache
def gpu_kernels() -> Any:
    """Import the Triton kernels; None if Triton is missing."""
    try:
        from fnlkit.federated.engines import gpu_kernels  # noqa: PLC0415 - Triton is only part of torch for CUDA
    except ImportError:
        return None
    return gpu_kernels


class Patches:
    """Products with matrices of patches, in plain PyTorch. Arguments as in `fnlkit.federated.engines.gpu_kernels`."""

    @staticmethod
    def convolve(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, *, stride: int, padding: int, back: bool) -> None:
        k, units, channels, side, _ = w.shape
        flat = w.permute(0, 1, 3, 4, 2).reshape(k, units, -1)
        if not back:
            torch.bmm(patches(x, side, stride, padding), flat.mT, out=_rows(y))
            return
        columns = torch.bmm(_rows(x), flat).view(k, *[x.shape[i] for i in (1, 3, 4)], side, side, channels)
        height, width = y.shape[3:]
        total = y.new_zeros((y.shape[1], height + 2 * padding, width + 2 * padding, k, channels)).permute(3, 0, 1, 2, 4)
        for r in range(side):
            for s in range(side):
                part = total[:, :, r : r + stride * x.shape[3] : stride, s : s + stride * x.shape[4] : stride]
                part += columns[..., r, s, :]
        y.copy_(total[:, :, padding : padding + height, padding : padding + width].permute(0, 1, 4, 2, 3))

    @staticmethod
    def weigh(x: torch.Tensor, d: torch.Tensor, g: torch.Tensor, *, stride: int, padding: int) -> None:
        k, units, _, side, _ = g.shape
        out = g.permute(0, 1, 3, 4, 2).view(k, units, -1)
        torch.bmm(_rows(d).mT, patches(x, side, stride, padding), out=out)


def patches(x: torch.Tensor, side: int, stride: int, padding: int) -> torch.Tensor:
    """Collect the windows (K, B H' W', S S C) of images (K, B, C, H, W)."""
    x = F.pad(x.permute(0, 1, 3, 4, 2), (0, 0, padding, padding, padding, padding))
    windows = x.unfold(2, side, stride).unfold(3, side, stride)  # (K, B, H', W', C, S, S)
    return windows.permute(0, 1, 2, 3, 5, 6, 4).reshape(x.shape[0], -1, side * side * x.shape[4])


def _rows(y):
    """View images (K, B, C, H, W) of memory order B, H, W, K, C as rows (K, B H W, C)."""
    return y.permute(1, 3, 4, 0, 2).flatten(0, 2).transpose(0, 1)
