"""LeNet-5 in one kernel: all local steps of a client without returning to Python.

The network is conv 5x5 (6), ReLU, max pool 2, conv 5x5 (16), ReLU, max pool 2, then 400 - 120 - 84 - classes with ReLU,
on 1 or 3 channels of 32x32.  A smaller image, down to 28x28, is surrounded by zeros.  Layout of the computation:

- Convolution 1 computes 14 pixels of a row in one vector.  Even and odd columns are stored separately ("planes"), so that
  the four candidates of a pooling window are four accumulators and pooling needs no shuffle.
- Convolution 2 computes 16 output channels in one vector, and two rows of ten pixels in twenty accumulators.
- After a max pool only one pixel in four has a gradient, and after a ReLU there can be even fewer.  The backward pass of
  both convolutions runs over lists of (gradient, position of the patch) and skips zeros.  The result is exact at a
  quarter of the work.
- An image is stored pixel by pixel with adjacent channels ("image"), so that five rows of one patch are five runs.
"""

from typing import NamedTuple

import numpy as np

from fnlkit._kernels._compile import strict
from fnlkit._kernels.fused.dense import pitch_for
from fnlkit._kernels.fused.input import Frame
from fnlkit._kernels.fused.step import descend
from fnlkit._kernels.fused.tile import LANES, patch_sum, tile_product
from fnlkit._kernels.fused.training import Layers, Linear, linear_layers, linear_of, network_kernel

_SIDE, _KERNEL = 32, 5
_MAPS1, _POOLED1 = 6, 14
_MAPS2, _CONV2, _POOLED2 = 16, 10, 5
WIDTHS = 400, 120, 84  # of the linear layers, before the classes
_FLAT = WIDTHS[0]
_PIXELS1, _PIXELS2 = _POOLED1 * _POOLED1, _POOLED2 * _POOLED2
_ROW1 = _POOLED1 * _MAPS1  # one row of the first pooled map, channels adjacent
_STRIDE1 = _PIXELS1 * _MAPS1 + 8  # a sample's first pooled map; patches read two numbers after its end
_PATCH1 = _KERNEL * LANES  # a patch of the image: five runs of 5 or 15 numbers, padded to 16
_RUN2 = 2 * LANES  # a patch of the first pooled map: five runs of 30 numbers, padded to 32
_PATCH2 = _KERNEL * _RUN2
_TAPS2 = _KERNEL * _MAPS1
_WEIGHTS2 = _MAPS2 * _MAPS1 * _KERNEL * _KERNEL
_PLACES1 = _MAPS1 * _POOLED1 * LANES
_CORNERS = _PLACES1 + _PIXELS2 * _MAPS2


def _first_convolution(channels):
    """Return the product block of convolution 1: two rows, even and odd columns, six maps.

    One term of the outer sum is a row of one channel.
    """
    scalars = [[tap * _MAPS1 + m for m in range(_MAPS1)] for tap in range(_KERNEL)]
    vectors = [
        [row * channels * _SIDE + (phase + tap) % 2 * LANES + (phase + tap) // 2 for row in range(2) for phase in range(2)]
        for tap in range(_KERNEL)
    ]
    return tile_product(scalars, vectors)


_first_gray, _first_color = _first_convolution(1), _first_convolution(3)
_second = tile_product([[row * _ROW1 + column * _MAPS1 for row in range(2) for column in range(_CONV2)]], [[0]])
_image_patches = patch_sum(_KERNEL, 1)
_map_patches = patch_sum(_KERNEL, 2)


@strict
def layout(channels: int) -> tuple[int, int, int]:
    """Return the start of the weights of conv1, conv2 and the linear layers in the flat vector."""
    conv2 = _MAPS1 * channels * 25 + _MAPS1
    return 0, conv2, conv2 + _MAPS2 * _MAPS1 * 25 + _MAPS2


class _Packed(NamedTuple):
    """Weights of both convolutions in the order in which the blocks read them; see `_pack`."""

    taps1: np.ndarray
    taps2: np.ndarray
    patches2: np.ndarray


@strict
def _pack(theta, channels, packed):
    """Copy the weights of both convolutions into the order in which the blocks read them.

    `taps1` (5, channels, 5, 6): row, channel, column, map.  `taps2` (5, 5, 6, 16): row, column, channel, map, which is the
    order of the pooled map in memory.  `patches2` (16, 5, 32): for each map the same patch as runs; the last two numbers of a
    run are zero.
    """
    for m in range(_MAPS1):
        for c in range(channels):
            for i in range(_KERNEL):
                for j in range(_KERNEL):
                    packed.taps1[((i * channels + c) * _KERNEL + j) * _MAPS1 + m] = theta[((m * channels + c) * 5 + i) * 5 + j]
    start = layout(channels)[1]
    for m in range(_MAPS2):
        for c in range(_MAPS1):
            for i in range(_KERNEL):
                for j in range(_KERNEL):
                    weight = theta[start + ((m * _MAPS1 + c) * _KERNEL + i) * _KERNEL + j]
                    run = j * _MAPS1 + c
                    packed.taps2[(i * _TAPS2 + run) * _MAPS2 + m] = weight
                    packed.patches2[m * _PATCH2 + i * _RUN2 + run] = weight


@strict
def _split(images, image_at, channels, planes):
    """Separate even and odd columns of an image: `planes` (32, channels, 2, 16)."""
    wide = _SIDE * channels
    for row in range(_SIDE):
        pixels = images[image_at + row * wide : image_at + (row + 1) * wide]
        split = planes[row * wide : (row + 1) * wide]
        # Constant distances between the numbers, so that the compiler can use vector instructions.
        if channels == 1:
            for j in range(LANES):
                split[j], split[LANES + j] = pixels[2 * j], pixels[2 * j + 1]
        else:
            for j in range(LANES):
                for c in range(3):
                    split[2 * c * LANES + j] = pixels[6 * j + c]
                    split[(2 * c + 1) * LANES + j] = pixels[6 * j + 3 + c]


@strict
def _first_layer(theta, taps1, planes, channels, image_at, sums, best, pooled, at, places):
    """Compute convolution 1 with ReLU and pooling of one sample.

    Writes `pooled` (14, 14, 6) from position `at` on.  Writes `places` (6, 14, 16): the start of each maximum's patch in the
    batch of images.  The first of equal candidates wins, as in PyTorch.
    """
    zero = theta.dtype.type(0)
    bias = _MAPS1 * channels * 25
    for i in range(_POOLED1):
        start = 2 * i * channels * _SIDE
        if channels == 1:
            _first_gray(sums, 0, 4 * LANES, taps1, 0, planes, start, 1, 5, 0, 30, 0, _SIDE)
        else:
            _first_color(sums, 0, 4 * LANES, taps1, 0, planes, start, 1, 15, 0, 30, 0, _SIDE)
        corner = image_at + start
        for m in range(_MAPS1):
            s0 = sums[4 * m * LANES : (4 * m + 1) * LANES]
            s1 = sums[(4 * m + 1) * LANES : (4 * m + 2) * LANES]
            s2 = sums[(4 * m + 2) * LANES : (4 * m + 3) * LANES]
            s3 = sums[(4 * m + 3) * LANES : (4 * m + 4) * LANES]
            row = best[m * LANES : (m + 1) * LANES]
            place = places[(m * _POOLED1 + i) * LANES : (m * _POOLED1 + i + 1) * LANES]
            add = theta[bias + m]
            step_right, step_down = np.int32(channels), np.int32(channels * _SIDE)
            here = np.int32(corner)
            for j in range(LANES):
                upper = s1[j] if s1[j] > s0[j] else s0[j]
                upper_at = step_right if s1[j] > s0[j] else np.int32(0)
                lower = s3[j] if s3[j] > s2[j] else s2[j]
                lower_at = step_down + step_right if s3[j] > s2[j] else step_down
                top = (lower if lower > upper else upper) + add
                row[j] = zero if top < zero else top
                place[j] = here + np.int32(2 * j) * step_right + (lower_at if lower > upper else upper_at)
        target = pooled[at + i * _ROW1 : at + (i + 1) * _ROW1]
        for j in range(_POOLED1):
            for m in range(_MAPS1):
                target[j * _MAPS1 + m] = best[m * LANES + j]


@strict
def _second_layer(theta, bias_at, taps2, pooled, at, sums, flat, flat_at, places, corners):
    """Compute convolution 2 with ReLU and pooling of one sample.

    Writes 400 numbers of `flat` in PyTorch's order (map, row, column).  Writes by pixel and map `places` (400,), the start
    of each maximum's patch in `pooled`, and `corners` (400,), the number of the maximum among the four candidates.
    """
    zero = theta.dtype.type(0)
    for i in range(_POOLED2):
        corner = at + 2 * i * _ROW1
        _second(sums, 0, LANES, pooled, corner, taps2, 0, _KERNEL, _TAPS2, _ROW1, 1, _TAPS2 * _MAPS2, _MAPS2)
        for j in range(_POOLED2):
            left = 2 * j * LANES
            s0, s1 = sums[left : left + LANES], sums[left + LANES : left + 2 * LANES]
            below = left + _CONV2 * LANES
            s2, s3 = sums[below : below + LANES], sums[below + LANES : below + 2 * LANES]
            pixel = i * _POOLED2 + j
            own = pixel * _MAPS2
            place, which = places[own : own + _MAPS2], corners[own : own + _MAPS2]
            here = np.int32(corner + 2 * j * _MAPS1)
            for m in range(LANES):
                upper = s1[m] if s1[m] > s0[m] else s0[m]
                upper_at = np.int32(1) if s1[m] > s0[m] else np.int32(0)
                lower = s3[m] if s3[m] > s2[m] else s2[m]
                lower_at = np.int32(3) if s3[m] > s2[m] else np.int32(2)
                top = (lower if lower > upper else upper) + theta[bias_at + m]
                corner_of = lower_at if lower > upper else upper_at
                which[m] = corner_of
                place[m] = here + (corner_of >> 1) * np.int32(_ROW1) + (corner_of & 1) * np.int32(_MAPS1)
                s0[m] = zero if top < zero else top
            for m in range(LANES):
                flat[flat_at + m * _PIXELS2 + pixel] = s0[m]


@strict
def _second_layer_back(
    deltas, delta_at, places, corners, patches2, weights, sources, turned, pooled, pooled_delta, taps_delta, bias_delta
):
    """Compute the gradients of convolution 2 from the gradients of its pooled output.

    The 400 gradients are in PyTorch's order.  Adds to `taps_delta` (16, 5, 32) and `bias_delta` (16,); writes
    `pooled_delta` (14, 14, 6).  The other arrays are scratch.
    """
    for m in range(_MAPS2):
        count, total = 0, deltas.dtype.type(0)
        for pixel in range(_PIXELS2):
            g = deltas[delta_at + m * _PIXELS2 + pixel]
            turned[pixel, m] = g
            weights[count] = g
            sources[count] = places[pixel * _MAPS2 + m]
            count += g != 0
            total += g
        bias_delta[m] += total
        _map_patches(taps_delta, m * _PATCH2, _RUN2, weights, sources, 0, count, pooled, _ROW1)
    pooled_delta[:] = 0
    for pixel in range(_PIXELS2):
        corner = pixel // _POOLED2 * 2 * _ROW1 + pixel % _POOLED2 * 2 * _MAPS1
        c0 = c1 = c2 = c3 = 0
        for m in range(_MAPS2):
            g, which, patch = turned[pixel, m], corners[pixel * _MAPS2 + m], m * _PATCH2
            taken = 1 if g != 0 else 0
            count = c0 if which == 0 else c1 if which == 1 else c2 if which == 2 else c3
            weights[which * _MAPS2 + count] = g
            sources[which * _MAPS2 + count] = patch
            c0 += taken if which == 0 else 0
            c1 += taken if which == 1 else 0
            c2 += taken if which == 2 else 0
            c3 += taken if which == 3 else 0
        if c0:
            _map_patches(pooled_delta, corner, _ROW1, weights, sources, 0, c0, patches2, _RUN2)
        if c1:
            _map_patches(pooled_delta, corner + _MAPS1, _ROW1, weights, sources, 16, c1, patches2, _RUN2)
        if c2:
            _map_patches(pooled_delta, corner + _ROW1, _ROW1, weights, sources, 32, c2, patches2, _RUN2)
        if c3:
            _map_patches(pooled_delta, corner + _ROW1 + _MAPS1, _ROW1, weights, sources, 48, c3, patches2, _RUN2)


@strict
def _first_layer_back(pooled_delta, pooled, at, places, channels, weights, sources, images, taps_delta, bias_delta):
    """Add the gradients of convolution 1 to `taps_delta` (6, 5, 16) and `bias_delta` (6,)."""
    zero = pooled.dtype.type(0)
    live = pooled[at : at + _PIXELS1 * _MAPS1]
    for k in range(_PIXELS1 * _MAPS1):
        pooled_delta[k] = zero if live[k] <= zero else pooled_delta[k]
    for m in range(_MAPS1):
        count, total = 0, zero
        for i in range(_POOLED1):
            place = places[(m * _POOLED1 + i) * LANES : (m * _POOLED1 + i + 1) * LANES]
            row = pooled_delta[i * _ROW1 : (i + 1) * _ROW1]
            for j in range(_POOLED1):
                g = row[j * _MAPS1 + m]
                weights[count] = g
                sources[count] = place[j]
                count += g != 0
                total += g
        bias_delta[m] += total
        _image_patches(taps_delta, m * _PATCH1, LANES, weights, sources, 0, count, images, _SIDE * channels)


class _Scratch(NamedTuple):
    """Scratch of the convolutions: of the forward pass, and gradients and sums over the batch of the backward pass."""

    planes: np.ndarray
    sums: np.ndarray
    best: np.ndarray
    turned: np.ndarray
    pooled: np.ndarray
    weights: np.ndarray
    sources: np.ndarray
    taps1: np.ndarray
    bias1: np.ndarray
    taps2: np.ndarray
    bias2: np.ndarray
    gradient: np.ndarray


def allocate(net: tuple[int, int], real: np.dtype) -> _Scratch:
    """Return the scratch of a network."""
    return _Scratch(
        np.zeros(_SIDE * _SIDE * net[0] + LANES, real),
        np.empty(24 * LANES, real),
        np.empty(_MAPS1 * LANES, real),
        np.empty((_PIXELS2, _MAPS2), real),
        np.empty(_STRIDE1, real),
        np.empty(_PIXELS1 + 1, real),
        np.empty(_PIXELS1 + 1, np.int32),
        np.empty(_MAPS1 * _PATCH1, real),
        np.empty(_MAPS1, real),
        np.empty(_MAPS2 * _PATCH2, real),
        np.empty(_MAPS2, real),
        np.empty(_WEIGHTS2 + _MAPS2, real),
    )


class _Front(NamedTuple):
    """Results of the convolutions' forward pass that the backward pass reads, and scratch."""

    channels: int
    linear: Linear  # its input is the output of the convolutions
    packed: _Packed
    scratch: _Scratch
    images: np.ndarray  # (B stride,), see Frame
    pooled: np.ndarray
    places: np.ndarray  # (B, ...) of convolution 1, of convolution 2, and corners


@strict
def _frame(samples):
    """Return the layout of images: pixel by pixel, channels adjacent, centered in 32 x 32."""
    _, height, width, channels = samples.shape
    border = ((_SIDE - height) // 2 * _SIDE + (_SIDE - width) // 2) * channels
    return Frame(_SIDE * _SIDE * channels + LANES, border, _SIDE * channels, channels, 1)


@strict
def _forward(theta, front, samples):
    """Run both convolutions on the images of a batch; the result is the input of ``front.linear``."""
    channels, packed, scratch, flat = front.channels, front.packed, front.scratch, front.linear.values
    _pack(theta, channels, packed)
    bias2, stride = layout(channels)[1] + _WEIGHTS2, _SIDE * _SIDE * channels + LANES
    for b in range(samples):
        places = front.places[b]
        _split(front.images, b * stride, channels, scratch.planes)
        _first_layer(
            theta, packed.taps1, scratch.planes, channels, b * stride, scratch.sums, scratch.best, front.pooled, b * _STRIDE1,
            places[:_PLACES1],
        )  # fmt: skip
        _second_layer(
            theta, bias2, packed.taps2, front.pooled, b * _STRIDE1, scratch.sums, flat, b * pitch_for(_FLAT),
            places[_PLACES1:_CORNERS], places[_CORNERS:],
        )  # fmt: skip


@strict
def _unpack(taps, maps, channels, patch, run, biases, gradient):
    """Write a convolution's gradient in PyTorch's order (map, channel, row, column), followed by the biases."""
    for m in range(maps):
        for c in range(channels):
            for i in range(_KERNEL):
                for j in range(_KERNEL):
                    gradient[((m * channels + c) * _KERNEL + i) * _KERNEL + j] = taps[m * patch + i * run + j * channels + c]
        gradient[maps * channels * _KERNEL * _KERNEL + m] = biases[m]


@strict
def _backward(theta, velocity, front, samples, descent, step, pull):
    """Update both convolutions from the gradient of the input of ``front.linear``."""
    channels, back = front.channels, front.scratch
    conv1, conv2, fc1 = layout(channels)
    back.taps1[:] = 0
    back.taps2[:] = 0
    back.bias1[:] = 0
    back.bias2[:] = 0
    for b in range(samples):
        places = front.places[b]
        _second_layer_back(
            front.linear.deltas, b * pitch_for(_FLAT), places[_PLACES1:_CORNERS], places[_CORNERS:], front.packed.patches2,
            back.weights, back.sources, back.turned, front.pooled, back.pooled, back.taps2, back.bias2,
        )  # fmt: skip
        _first_layer_back(
            back.pooled, front.pooled, b * _STRIDE1, places[:_PLACES1], channels, back.weights, back.sources, front.images,
            back.taps1, back.bias1,
        )  # fmt: skip
    _unpack(back.taps2, _MAPS2, _MAPS1, _PATCH2, _RUN2, back.bias2, back.gradient)
    descend(theta, velocity, conv2, back.gradient[: fc1 - conv2], descent, step, pull)
    _unpack(back.taps1, _MAPS1, channels, _PATCH1, LANES, back.bias1, back.gradient)
    descend(theta, velocity, conv1, back.gradient[: conv2 - conv1], descent, step, pull)


_PACKED = 3 * _KERNEL * _KERNEL * _MAPS1, _KERNEL * _TAPS2 * _MAPS2, _MAPS2 * _PATCH2  # the first for three channels


@strict
def _make(layers, samples, batch, memory, places, scratch):
    channels = samples.shape[3]
    images = batch * (_SIDE * _SIDE * channels + LANES)
    pooled = images + batch * _STRIDE1
    taps2 = pooled + _PACKED[0]
    patches2 = taps2 + _PACKED[1]
    end = patches2 + _PACKED[2]
    front = _Front(
        channels,
        linear_of(layers, memory[end:]),
        _Packed(memory[pooled:taps2], memory[taps2:patches2], memory[patches2:end]),
        scratch,
        memory[:images],
        memory[images:pooled],
        places,
    )
    return front, front.images, _frame(samples)


def stride_of(net: tuple[int, int]) -> int:
    """Return the distance between two samples of a batch."""
    return _SIDE * _SIDE * net[0] + LANES


def layers_of(net: tuple[int, int], batch: int) -> tuple[Layers, int, int]:
    """Return the Layers, and the lengths of `memory` and of `places` of a sample."""
    layers, memory = linear_layers((*WIDTHS, net[1]), layout.py_func(net[0])[2], batch)
    return layers, memory + batch * (stride_of(net) + _STRIDE1) + sum(_PACKED), _CORNERS + _PIXELS2 * _MAPS2


# A network's description `net`: (channels, classes).
advance = network_kernel(__name__, _make, _forward, _backward, True)
