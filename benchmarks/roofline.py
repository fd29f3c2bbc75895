"""Time, operations and bytes of each part of a local step of LeNet-5, next to sgemm on the same core.

    python -m benchmarks.roofline [--repeats 9] [--batch 10] [--channels 3]

Each part runs alone, many times, on the state of a network in training; "whole" is `fused_fit`.  Times are CPU seconds of one
thread, medians with quartiles, and sgemm runs in turn with the parts, so that both see the same load.  "dense" counts the
operations of the layer as in `benchmarks.training`.  "done" counts those that remain: behind a max pool at most one gradient
in four is not zero, and behind a ReLU fewer.  "bytes" are those that leave the first-level cache: weights, momentum, images.
"""

import argparse
import time

import numpy as np
import torch
from numba import njit

from benchmarks.training import data, machine
from fnlkit._kernels.fused import lenet5
from fnlkit._kernels.fused.dense import dense_backward_input, dense_step, gate, pitch_for
from fnlkit._kernels.fused.input import choose, empty_batch, load_batch
from fnlkit._kernels.fused.step import descend
from fnlkit._kernels.fused.training import _copy_gradient, _copy_logits, linear_forward, loss_and_gradient, loss_room
from fnlkit.kernels import fused

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
CLASSES, SIDE = 10, 32
PARTS = [
    "load, crop, flip, normalize",
    "split columns",
    "conv1, ReLU, pool",
    "conv2, ReLU, pool",
    "linear layers",
    "loss",
    "linear layers, inputs back",
    "linear layers, weights and SGD",
    "conv2 back, weights and inputs",
    "conv1 back, weights",
    "pack, unpack and SGD of convs",
]


@njit(nogil=True, error_model="numpy")
def part_of_step(part, times, theta, velocity, net, samples, y, order, descent, loss, augment):
    """Prepare the state of a step and run one part `times` times; return the numbers of gradients of both convolutions."""
    (front, _), images, frame = lenet5._make(net, samples, order.shape[1], 0, 1, theta.dtype)
    linear, back, packed, channels = front.linear, front.back, front.packed, front.channels
    batch, room = empty_batch(order.shape[1], augment, frame, theta.dtype), loss_room(1, order.shape[1], net[1])
    count, flat, last = choose(batch, order, 0), linear.values, linear.widths.size - 1
    conv1, conv2, fc1 = lenet5.layout(channels)
    bias2, stride, pitch = conv2 + lenet5._WEIGHTS2, frame.stride, pitch_for(lenet5._FLAT)
    live = np.zeros(2, np.int64)
    for turn in range(times + 1):
        first = turn == 0
        if first or part == 0:
            load_batch(batch, count, samples, augment, 0, images, frame)
        if first or part == 10:
            lenet5._pack(theta, channels, packed)
        for b in range(count):
            if first or part == 1:
                lenet5._split(images, b * stride, channels, front.planes)
            if first or part == 2:
                lenet5._first_layer(
                    theta, packed.taps1, front.planes, channels, b * stride, front.sums, front.best, front.pooled,
                    b * lenet5._STRIDE1, front.places1[b],
                )  # fmt: skip
            if first or part == 3:
                lenet5._second_layer(
                    theta, bias2, packed.taps2, front.pooled, b * lenet5._STRIDE1, front.sums, flat, b * pitch,
                    front.places2[b], front.corners[b],
                )  # fmt: skip
        if first or part == 4:
            linear_forward(theta, linear, count)
        if first or part == 5:
            _copy_logits(linear, count, room.logits[0])
            loss_and_gradient(loss, y, batch, 0, 1.0, count, room)
            _copy_gradient(room.gradient[0], count, linear)
        for layer in range(last - 1, -1, -1):
            at, x_at, delta_at = linear.weights_at[layer], linear.values_at[layer], linear.values_at[layer + 1]
            width, units = linear.widths[layer], linear.widths[layer + 1]
            if first or part == 6:
                dense_backward_input(
                    theta, at, linear.deltas, delta_at, units, linear.deltas, x_at, width, count, linear.scratch
                )
                gate(linear.deltas, flat, x_at, width, count)
            if first or part == 7:
                dense_step(
                    theta, velocity, at, flat, x_at, width, linear.deltas, delta_at, units, count, linear.scratch, descent, 0,
                    theta.dtype.type(0),
                )  # fmt: skip
        for b in range(count):
            if first or part == 8:
                lenet5._second_layer_back(
                    linear.deltas, b * pitch, front.places2[b], front.corners[b], packed.patches2, back.weights, back.sources,
                    back.turned, front.pooled, back.pooled, back.taps2, back.bias2,
                )  # fmt: skip
            if first or part == 9:
                lenet5._first_layer_back(
                    back.pooled, front.pooled, b * lenet5._STRIDE1, front.places1[b], channels, back.weights, back.sources,
                    images, back.taps1, back.bias1,
                )  # fmt: skip
            if first:
                live[0] += np.count_nonzero(back.pooled[: lenet5._PIXELS1 * lenet5._MAPS1])
                live[1] += np.count_nonzero(linear.deltas[b * pitch : b * pitch + lenet5._FLAT])
        if first or part == 10:
            lenet5._unpack(back.taps2, lenet5._MAPS2, lenet5._MAPS1, lenet5._PATCH2, lenet5._RUN2, back.bias2, back.gradient)
            descend(theta, velocity, conv2, back.gradient, 0, fc1 - conv2, descent, 0, theta.dtype.type(0))
            lenet5._unpack(back.taps1, lenet5._MAPS1, channels, lenet5._PATCH1, 16, back.bias1, back.gradient)
            descend(theta, velocity, conv1, back.gradient, 0, conv2 - conv1, descent, 0, theta.dtype.type(0))
            back.taps1[:] = 0
            back.taps2[:] = 0
    return live


def operations(channels, live, batch):
    """Return {part: (dense, done, bytes) per sample}; `live` are the gradients that are not zero, per sample."""
    conv1, conv2 = 2 * 28 * 28 * 6 * 25 * channels, 2 * 10 * 10 * 16 * 150
    linear = 2 * (400 * 120 + 120 * 84 + 84 * CLASSES)
    weights = linear // 2 + 120 + 84 + CLASSES
    taps = 150 * channels + 6 + 2400 + 16
    return {
        PARTS[0]: (0, 0, SIDE * SIDE * channels * 5),
        PARTS[1]: (0, 0, SIDE * SIDE * channels * 8),
        PARTS[2]: (conv1, conv1, 0),
        PARTS[3]: (conv2, conv2, 0),
        PARTS[4]: (linear, linear, 4 * weights / batch),
        PARTS[5]: (0, 0, 0),
        PARTS[6]: (linear, linear, 4 * weights / batch),
        PARTS[7]: (linear, linear, 16 * weights / batch),
        PARTS[8]: (2 * conv2, 2 * 2 * 150 * live[1], 0),
        PARTS[9]: (conv1, 2 * 25 * channels * live[0], SIDE * SIDE * channels * 4),
        PARTS[10]: (0, 0, 16 * taps / batch),
    }


def timed(work):
    began = time.process_time()
    work()
    return time.process_time() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--channels", type=int, choices=[1, 3], default=3)
    options = parser.parse_args()
    channels, batch, count = options.channels, options.batch, 500 // options.batch * options.batch
    net, rng = ("lenet5", channels, CLASSES), np.random.default_rng(0)
    x, y = (part[0].numpy() for part in data((channels, SIDE, SIDE), count, 1))
    order = np.concatenate([rng.permutation(count) for _ in range(4)]).reshape(-1, batch)
    augment = fused.FusedAugment(rng.integers(0, 9, (*order.shape, 2)), 4, rng.integers(0, 2, order.shape).astype(bool))
    settings = {"momentum": 0.5, "mean": MEAN[:channels], "std": STD[:channels], "augment": augment}
    theta = rng.normal(0, 0.06, fused.fused_parameters(net)).astype(np.float32)
    theta = fused.fused_fit(net, theta, x, y, order, lr=0.02, **settings).theta  # a network in training

    real = theta.dtype
    samples = fused._samples(net, x, MEAN[:channels], STD[:channels], True, real)
    none = np.zeros(0, real)
    descent = fused.Descent(np.zeros(1, real), real.type(0.5), real.type(0), real.type(0), real.type(0), 1, none, none,
                            *[none] * (len(fused.Descent._fields) - 8))  # fmt: skip
    w, v = np.zeros((2, theta.size + fused.SPARE), real)
    w[: theta.size] = theta
    drawn = fused._augment(augment, None, order, True)
    loss = fused._loss(fused.FusedLoss(), count, CLASSES, order.shape, real, net, 1)
    labels = np.ascontiguousarray(y, np.int64)

    def run(part, times):
        return part_of_step(part, times, w, v, (channels, CLASSES), samples, labels, order[:1], descent, loss, drawn)

    live, times = run(0, 1) / batch, 4000 // batch
    torch.set_num_threads(1)
    a = torch.rand(1024, 1024)
    found = {"sgemm": [], "whole": []} | {name: [] for name in PARTS}
    for repeat in range(options.repeats + 1):
        seconds = {"sgemm": timed(lambda: [a @ a for _ in range(4)]) / 4}
        seconds["whole"] = timed(lambda: fused.fused_fit(net, theta, x, y, order, lr=0.0, **settings)) / order.size
        for part, name in enumerate(PARTS):
            seconds[name] = (timed(lambda part=part: run(part, times)) - timed(lambda part=part: run(part, 0))) / times / batch
        for name, value in seconds.items():
            if repeat:  # the first is a warm-up
                found[name].append(value)
    quartiles = {name: np.quantile(values, [0.25, 0.5, 0.75]) for name, values in found.items()}
    peak = 2 * 1024**3 / quartiles["sgemm"][1]
    print(machine())
    print(f"LeNet-5, {channels} channels, batch {batch}; sgemm of 1024 x 1024 on one core: {peak / 1e9:.0f} GFLOP/s")
    print(f"gradients that are not zero: conv1 {live[0]:.0f} of 4704, conv2 {live[1]:.0f} of 1600 per sample\n")
    print(
        f"{'per sample':32}{'us (quartiles)':>24}{'share':>8}{'kFLOP dense':>13}{'done':>8}{'of sgemm':>10}{'kB':>7}{'GB/s':>7}"
    )
    work, whole = operations(channels, live, batch), quartiles["whole"][1]
    work["sum of the parts"] = tuple(np.sum(list(work.values()), 0))
    work["whole"] = work["sum of the parts"]
    quartiles["sum of the parts"] = np.sum([quartiles[name] for name in PARTS], 0)
    for name, (dense, done, size) in work.items():
        low, middle, high = quartiles[name]
        cell = f"{1e6 * middle:.2f} ({1e6 * low:.2f} - {1e6 * high:.2f})"
        share = f"{100 * done / middle / peak:.0f} %" if done else ""
        print(f"{name:32}{cell:>24}{100 * middle / whole:6.0f} %{dense / 1e3:13.0f}{done / 1e3:8.0f}{share:>10}", end="")
        print(f"{size / 1e3:7.1f}{size / middle / 1e9:7.1f}" if size else "")
    dense, done, _ = work["whole"]
    shares = [100 * each / whole / peak for each in (dense, done)]
    print(
        f"\nwhole: {1 / whole:,.0f} samples per CPU second, {shares[0]:.0f} % of sgemm by dense operations, {shares[1]:.0f} %"
    )
    print(f"by operations that remain, which would take {1e6 * done / peak:.1f} us at the speed of sgemm")


if __name__ == "__main__":
    main()
