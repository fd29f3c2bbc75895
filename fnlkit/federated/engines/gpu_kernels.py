"""Triton kernels for convolutions of K clients on a GPU, as matrix products that read the images in place.

An image of K clients has C channels of each client, with memory order B, H, W, K, C. Weights have memory order K, O, R, S, C
for R x S windows. Each program computes a tile of a client's product; a window's elements are found by their addresses, so that
no matrix of patches is written.
"""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["images", "rows_in", "columns_in", "rows_out", "columns_out"])
def _convolve(
    x, w, y, images, rows_in, columns_in, rows_out, columns_out, channels, units,
    x_client, x_image, x_row, x_column, w_client, w_unit, w_place, w_channel, y_client, y_image, y_row, y_column,
    SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BACK: tl.constexpr, TF32: tl.constexpr,
    PIXELS: tl.constexpr, UNITS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Write a tile (PIXELS, UNITS) of a convolution, or of the gradient of its input if BACK.

    Output pixels of a gradient have a parity for each axis: a program computes pixels of equal parity, which share the places
    of the window that reached them.
    """
    client, tiles = tl.program_id(1), tl.cdiv(units, UNITS)
    first_pixel, first_unit = tl.program_id(0) // tiles * PIXELS, tl.program_id(0) % tiles * UNITS
    if BACK:
        top, left = tl.program_id(2) // STRIDE, tl.program_id(2) % STRIDE
        height, width = (rows_out - top + STRIDE - 1) // STRIDE, (columns_out - left + STRIDE - 1) // STRIDE
        begin_r, begin_s = (top + PAD) % STRIDE, (left + PAD) % STRIDE
        count_r, count_s = (SIDE - begin_r + STRIDE - 1) // STRIDE, (SIDE - begin_s + STRIDE - 1) // STRIDE
    else:
        top, left, height, width = 0, 0, rows_out, columns_out
        begin_r, begin_s, count_r, count_s = 0, 0, SIDE, SIDE
    pixel = first_pixel + tl.arange(0, PIXELS)
    area = height * width
    image = pixel // tl.maximum(area, 1)
    row, column = pixel // tl.maximum(width, 1) % tl.maximum(height, 1), pixel % tl.maximum(width, 1)
    inside = pixel < images * area
    if BACK:
        base_r, base_s = row + (top + PAD - begin_r) // STRIDE, column + (left + PAD - begin_s) // STRIDE
    else:
        base_r, base_s = row * STRIDE - PAD, column * STRIDE - PAD
    unit = first_unit + tl.arange(0, UNITS)
    channel = tl.arange(0, CHANNELS)
    x_at = client * x_client + image * x_image + base_r * x_row + base_s * x_column
    w_at = client * w_client + unit * w_unit
    blocks = channels // CHANNELS
    total = tl.zeros((PIXELS, UNITS), tl.float32)
    for turn in range(count_r * count_s * blocks):
        place, block = turn // blocks, turn % blocks * CHANNELS
        r, s = place // count_s, place % count_s
        if BACK:
            dr, ds, tap = -r, -s, (begin_r + r * STRIDE) * SIDE + begin_s + s * STRIDE
        else:
            dr, ds, tap = r, s, r * SIDE + s
        here_r, here_s = base_r + dr, base_s + ds
        valid = inside & (here_r >= 0) & (here_r < rows_in) & (here_s >= 0) & (here_s < columns_in)
        a_at = x_at + (dr * x_row + ds * x_column + block)
        a = tl.load(x + a_at[:, None] + channel[None, :], mask=valid[:, None], other=0.0)
        b_at = w_at[None, :] + (tap * w_place + (block + channel)[:, None] * w_channel)
        b = tl.load(w + b_at, mask=(unit < units)[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision="tf32" if TF32 else "ieee")
    row, column = row * (STRIDE if BACK else 1) + top, column * (STRIDE if BACK else 1) + left
    y_at = client * y_client + image * y_image + row * y_row + column * y_column
    tl.store(y + y_at[:, None] + unit[None, :], total.to(y.dtype.element_ty), mask=inside[:, None] & (unit < units)[None, :])


@triton.jit(do_not_specialize=["images", "rows_in", "columns_in"])
def _weigh(
    x, d, g, images, rows_in, columns_in, channels, units,
    x_client, x_image, x_row, x_column, d_client, d_pixel, g_client, g_unit, g_place,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SIDE: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, TF32: tl.constexpr,
    PIXELS: tl.constexpr, UNITS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Write a tile (UNITS, CHANNELS) of the gradient of weights at a place of the window; d is the gradient of the output."""
    client, blocks = tl.program_id(1), channels // CHANNELS
    tiles = blocks * SIDE * SIDE
    first_unit, place, block = tl.program_id(0) // tiles * UNITS, tl.program_id(0) % tiles // blocks, tl.program_id(0) % blocks
    r, s = place // SIDE - PAD, place % SIDE - PAD
    unit, channel = first_unit + tl.arange(0, UNITS), block * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros((UNITS, CHANNELS), tl.float32)
    count = images * (ROWS * COLUMNS)
    for first in range(0, count, PIXELS):
        pixel = first + tl.arange(0, PIXELS)
        image, row, column = pixel // (ROWS * COLUMNS), pixel // COLUMNS % ROWS * STRIDE + r, pixel % COLUMNS * STRIDE + s
        valid = (pixel < count) & (row >= 0) & (row < rows_in) & (column >= 0) & (column < columns_in)
        x_at = client * x_client + image * x_image + row * x_row + column * x_column
        a_at = client * d_client + unit[:, None] + (pixel * d_pixel)[None, :]
        a = tl.load(d + a_at, mask=(unit < units)[:, None] & (pixel < count)[None, :], other=0.0)
        b = tl.load(x + x_at[:, None] + channel[None, :], mask=valid[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision="tf32" if TF32 else "ieee")
    g_at = client * g_client + unit[:, None] * g_unit + place * g_place + channel[None, :]
    tl.store(g + g_at, total.to(g.dtype.element_ty), mask=(unit < units)[:, None])


@triton.jit(do_not_specialize=["rows", "split"])
def _moments(x, means, squares, rows, columns, split, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Write the mean and the sum of squared distances from it of `split` rows of each column (Chan 1983)."""
    part, column = tl.program_id(1), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mean, square, count = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32), 0.0
    end = tl.minimum(part * split + split, rows)
    for first in range(part * split, end, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < end)[:, None] & (column < columns)[None, :]
        value = tl.load(x + row[:, None] * columns + column[None, :], mask=inside, other=0.0).to(tl.float32)
        new = tl.minimum(end - first, ROWS).to(tl.float32)
        new_mean = tl.sum(value, 0) / new
        away = tl.where(inside, value - new_mean[None, :], 0.0)
        step = new_mean - mean
        square += tl.sum(away * away, 0) + step * step * (count * new / (count + new))
        mean += step * (new / (count + new))
        count += new
    tl.store(means + part * columns + column, mean, mask=column < columns)
    tl.store(squares + part * columns + column, square, mask=column < columns)


@triton.jit(do_not_specialize=["rows", "split", "parts"])
def _normalize(
    x, add, y, means, squares, weight, bias, running_mean, running_var, statistics, rows, columns, split, parts, momentum, eps,
    ADD: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write a tile of the normalized rows, and in the first rows the statistics of the columns."""
    column, row = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    part, known = tl.arange(0, PARTS), column < columns
    count = tl.maximum(tl.minimum(rows - part * split, split), 0).to(tl.float32)[:, None]
    at, present = part[:, None] * columns + column[None, :], (part < parts)[:, None] & known[None, :]
    part_means = tl.load(means + at, mask=present, other=0.0)
    mean = tl.sum(part_means * count, 0) / rows
    away = part_means - mean[None, :]
    square = tl.sum(tl.load(squares + at, mask=present, other=0.0) + count * away * away, 0)
    scale = tl.rsqrt(square / rows + eps)
    if tl.program_id(1) == 0:
        tl.store(statistics + column, mean, mask=known)
        tl.store(statistics + columns + column, scale, mask=known)
        old_mean, old_var = tl.load(running_mean + column, mask=known), tl.load(running_var + column, mask=known)
        tl.store(running_mean + column, old_mean + momentum * (mean - old_mean), mask=known)
        tl.store(running_var + column, old_var + momentum * (square / (rows - 1) - old_var), mask=known)
    factor = scale * tl.load(weight + column, mask=known)
    shift = tl.load(bias + column, mask=known) - mean * factor
    place, inside = row[:, None] * columns + column[None, :], (row < rows)[:, None] & known[None, :]
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * factor[None, :] + shift[None, :]
    if ADD:
        value += tl.load(add + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        value = tl.where(value < 0, 0.0, value)  # NaN stays NaN, as in PyTorch
    tl.store(y + place, value.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "split"])
def _gradient_sums(
    d, y, x, statistics, sums, products, rows, columns, split, RELU: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Write the sums over `split` rows of the gradient, and of its product with the normalized values."""
    part, column = tl.program_id(1), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total, product = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
    mean, scale = (
        tl.load(statistics + column, mask=column < columns),
        tl.load(statistics + columns + column, mask=column < columns),
    )
    end = tl.minimum(part * split + split, rows)
    for first in range(part * split, end, ROWS):
        row = first + tl.arange(0, ROWS)
        place, inside = row[:, None] * columns + column[None, :], (row < end)[:, None] & (column < columns)[None, :]
        gradient = tl.load(d + place, mask=inside, other=0.0).to(tl.float32)
        if RELU:
            gradient = tl.where(tl.load(y + place, mask=inside, other=0.0).to(tl.float32) <= 0, 0.0, gradient)
        value = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
        total += tl.sum(gradient, 0)
        product += tl.sum(gradient * value, 0)
    tl.store(sums + part * columns + column, total, mask=column < columns)
    tl.store(products + part * columns + column, product, mask=column < columns)


@triton.jit(do_not_specialize=["rows", "parts"])
def _gradient(
    d, y, x, statistics, sums, products, weight, dx, dadd, dweight, dbias, rows, columns, parts,
    ADD: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write a tile of the gradients of both inputs, and in the first rows those of the columns' weight and bias."""
    column, row = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    part, known = tl.arange(0, PARTS), column < columns
    at, present = part[:, None] * columns + column[None, :], (part < parts)[:, None] & known[None, :]
    total = tl.sum(tl.load(sums + at, mask=present, other=0.0), 0)
    product = tl.sum(tl.load(products + at, mask=present, other=0.0), 0)
    if tl.program_id(1) == 0:
        tl.store(dbias + column, total, mask=known)
        tl.store(dweight + column, product, mask=known)
    mean, scale = tl.load(statistics + column, mask=known), tl.load(statistics + columns + column, mask=known)
    factor = scale * tl.load(weight + column, mask=known)
    place, inside = row[:, None] * columns + column[None, :], (row < rows)[:, None] & known[None, :]
    gradient = tl.load(d + place, mask=inside, other=0.0).to(tl.float32)
    if RELU:
        gradient = tl.where(tl.load(y + place, mask=inside, other=0.0).to(tl.float32) <= 0, 0.0, gradient)
    if ADD:
        tl.store(dadd + place, gradient.to(dadd.dtype.element_ty), mask=inside)
    value = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) - mean[None, :]) * scale[None, :]
    out = factor[None, :] * (gradient - (total[None, :] + value * product[None, :]) / rows)
    tl.store(dx + place, out.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _descend(w, g, v, low, rate, count, momentum, decay, MOMENTUM: tl.constexpr, SIZE: tl.constexpr):
    """Take a step of SGD on `count` weights, and write them in the type of `low`."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < count
    weight = tl.load(w + at, mask=inside)
    step = tl.load(g + at, mask=inside).to(tl.float32) + decay * weight
    if MOMENTUM:
        step += momentum * tl.load(v + at, mask=inside)
        tl.store(v + at, step, mask=inside)
    weight -= tl.load(rate) * step
    tl.store(w + at, weight, mask=inside)
    tl.store(low + at, weight.to(low.dtype.element_ty), mask=inside)


def descend(
    w: torch.Tensor,
    g: torch.Tensor,
    v: torch.Tensor | None,
    low: torch.Tensor,
    rate: torch.Tensor,
    momentum: float,
    decay: float,
) -> None:
    """Take a step of SGD with gradients of a lower precision, without a pass over the weights for each conversion.

    Parameters
    ----------
    w, v : Tensor of float32
        Weights and momentum, which are updated; dense in any memory order. None without momentum.
    g, low : Tensor
        Gradient, and where to write the new weights in a lower precision; in the same memory order.
    rate : Tensor ()
    """
    count, size = w.numel(), 2048
    _descend[(-(-count // size),)](w, g, w if v is None else v, low, rate, count, momentum, decay, v is not None, size)


# Rows and columns of a tile, and most programs that share the sum over a column.
_ROWS, _COLUMNS, _PARTS = 128, 64, 32
_TILE = {"ROWS": _ROWS, "COLUMNS": _COLUMNS, "num_warps": 8}


def _parts(rows, columns):
    """Divide sums over the rows of each column: rows of each part, parts, tiles of columns."""
    split = _ROWS * -(-rows // (_ROWS * _PARTS))
    return split, -(-rows // split), -(-columns // _COLUMNS)


def normalize(
    x: torch.Tensor,
    add: torch.Tensor | None,
    vectors: tuple[torch.Tensor, ...],
    momentum: float,
    eps: float,
    relu: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalize rows (M, N) by batch norm, plus `add`, through ReLU; also the columns' mean and 1 / deviation (2, N).

    Parameters
    ----------
    x, add : Tensor (M, N)
    vectors : tuple of Tensor (N,) of float32
        Weight, bias, running mean, running variance. The last two are updated.
    """
    rows, columns = x.shape
    y, statistics = torch.empty_like(x), x.new_empty((2, columns), dtype=torch.float32)
    split, parts, width = _parts(rows, columns)
    means, squares = x.new_empty((2, parts, columns), dtype=torch.float32)
    _moments[(width, parts)](x, means, squares, rows, columns, split, **_TILE)
    _normalize[(width, -(-rows // _ROWS))](
        x, x if add is None else add, y, means, squares, *vectors, statistics, rows, columns, split, parts, momentum, eps,
        ADD=add is not None, RELU=relu, PARTS=_PARTS, **_TILE,
    )  # fmt: skip
    return y, statistics


def normalize_back(
    d: torch.Tensor,
    y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    statistics: torch.Tensor,
    relu: bool,
    add: bool,
) -> tuple[torch.Tensor | None, ...]:
    """Compute gradients of `x`, `add` (None if absent), weight and bias of `normalize`; `d` (M, N) is that of its output."""
    rows, columns = x.shape
    split, parts, width = _parts(rows, columns)
    sums, products = x.new_empty((2, parts, columns), dtype=torch.float32)
    _gradient_sums[(width, parts)](d, y, x, statistics, sums, products, rows, columns, split, RELU=relu, **_TILE)
    dx, dadd, (dweight, dbias) = torch.empty_like(x), torch.empty_like(x) if add else None, torch.empty_like(statistics)
    _gradient[(width, -(-rows // _ROWS))](
        d, y, x, statistics, sums, products, weight, dx, dx if dadd is None else dadd, dweight, dbias, rows, columns, parts,
        ADD=add, RELU=relu, PARTS=_PARTS, **_TILE,
    )  # fmt: skip
    return dx, dadd, dweight, dbias


def convolve(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, *, stride: int, padding: int, back: bool) -> None:
    """Write the convolution of images into `y`, or with `back` the gradient of its input, where `x` is that of its output.

    Parameters
    ----------
    x : Tensor (K, B, C, H, W)
        Strides of K, B, H and W are free; those of C are 1.
    w : Tensor (K, O, C, S, S)
        With `back`, O and C are the channels of x and y.
    y : Tensor (K, B, O, H', W')
    """
    k, images, channels, rows_in, columns_in = x.shape
    units, rows, columns = y.shape[2:]
    groups = stride * stride if back else 1
    pixels = images * -(-rows // stride) * -(-columns // stride) if back else images * rows * columns
    m, n, c, warps, stages = tiles_for(pixels, units, channels, x.dtype)
    unit, channel = (w.stride(2), w.stride(1)) if back else (w.stride(1), w.stride(2))
    _convolve[(-(-pixels // m) * -(-units // n), k, groups)](
        x, w, y, images, rows_in, columns_in, rows, columns, channels, units, *_strides(x),
        w.stride(0), unit, w.stride(4), channel, *_strides(y), SIDE=w.shape[3], STRIDE=stride, PAD=padding, BACK=back,
        TF32=_rounded(), PIXELS=m, UNITS=n, CHANNELS=c, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def weigh(x: torch.Tensor, d: torch.Tensor, g: torch.Tensor, *, stride: int, padding: int) -> None:
    """Write the gradient of a convolution's weights into `g`.

    Parameters
    ----------
    x : Tensor (K, B, C, H, W)
    d : Tensor (K, B, O, H', W')
        Gradient of the output, with memory order B, H', W', K, O.
    g : Tensor (K, O, C, S, S)
        Memory order K, O, S, S, C.
    """
    k, images, channels, rows_in, columns_in = x.shape
    units, rows, columns = d.shape[2:]
    m, n, c, warps, stages = tiles_for_weights(images * rows * columns, units, channels, x.dtype)
    _weigh[(-(-units // n) * (channels // c) * g.shape[3] ** 2, k)](
        x, d, g, images, rows_in, columns_in, channels, units, *_strides(x), d.stride(0), d.stride(4), g.stride(0), g.stride(1),
        g.stride(4), ROWS=rows, COLUMNS=columns, SIDE=g.shape[3], STRIDE=stride, PAD=padding, TF32=_rounded(),
        PIXELS=m, UNITS=n, CHANNELS=c, num_warps=warps, num_stages=stages,
    )  # fmt: skip


def tiles_for(pixels: int, units: int, channels: int, dtype: torch.dtype) -> tuple[int, int, int, int, int]:
    """Choose (pixels, units, channels, warps, stages) of a tile of a convolution with `pixels` outputs per client.

    The choices are the fastest on an H200, measured at commit 4d89694f.
    """
    few = pixels <= 256
    n = 128 if units % 128 == 0 and pixels < 4096 else 64 if units >= 64 else 32 if units >= 32 else 16
    m, c = 64 if few else 128, _largest(channels, 32 if dtype == torch.float32 else 128 if few else 64)
    return m, n, c, 8 if m * n > 8192 else 4, 3


def tiles_for_weights(pixels: int, units: int, channels: int, dtype: torch.dtype) -> tuple[int, int, int, int, int]:
    """Choose (pixels, units, channels, warps, stages) of a tile of the gradient of weights; see `tiles_for`."""
    n = 128 if units % 128 == 0 else 64 if units >= 64 else 32 if units >= 32 else 16
    c = _largest(channels, 128 if n == 128 else 64)
    m = 32 if pixels < 1024 or dtype == torch.float32 else 64 if n == 128 else 128
    return m, n, c, 8 if n * c > 8192 else 4, 4 if n == 128 else 3


def _largest(channels, most):
    """Find the largest power of two up to `most` that divides the number of channels."""
    return min(most, channels & -channels)


def _strides(t):
    return t.stride(0), t.stride(1), t.stride(3), t.stride(4)


def _rounded():
    return torch.backends.cuda.matmul.allow_tf32
