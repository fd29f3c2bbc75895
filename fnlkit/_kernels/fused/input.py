"""Load samples as network input: crop, mirror, normalize, cut out and mix, directly into scratch.

The order of the steps is that of torchvision.  The crop is taken from the image with a border that is zero *before*
normalization.  The crop is mirrored and normalized to ``(byte / 255 - mean) / std``.  A cut-out square is zero *after*
normalization, which is the mean color.
"""

from typing import Any, NamedTuple

import numpy as np

from fnlkit._kernels._compile import strict


class Samples(NamedTuple):
    """The samples of one client, n of H x W x C; `real` is the type of the weights.

    Attributes
    ----------
    shape : (n, H, W, C)
    bytes : (n H W C,) uint8
        Images, or an empty array if `numbers` is used.
    numbers : (n H W C,) real
        Samples that need no normalization, or an empty array.
    table : (C, 256) real
        Normalized value of each byte.
    border : (W * C,) real
        A row of values outside of the image.
    """

    shape: tuple[int, int, int, int]
    bytes: np.ndarray
    numbers: np.ndarray
    table: np.ndarray
    border: np.ndarray


class Augment(NamedTuple):
    """Random choices made by the caller; an array without steps disables a choice.  Kernels get them with a leading axis K.

    Attributes
    ----------
    shift : (steps, B, 2) int
        Row and column, 0 ... 2 pad, of the crop's corner in the image with border.
    pad : int
        Width of the border.
    flip : (steps, B) bool
        Mirror left and right.
    center : (steps, B, 2) int
        Row and column of the center of the cut-out square.
    side : int
        Side of the square; it contains row r if ``center - side // 2 <= r < center - side // 2 + side``.
    partner : (steps, B) int
        Mixup: the column of `order` whose sample is mixed in.
    share : (steps,) float64
        Mixup: weight of the row's sample; the mixed-in sample has weight 1 - share.
    """

    shift: np.ndarray
    pad: int
    flip: np.ndarray
    center: np.ndarray
    side: int
    partner: np.ndarray
    share: np.ndarray


@strict
def augment_of(augment: Augment, k: int) -> Augment:
    """Return the choices of one client."""
    return Augment(
        augment.shift[k],
        augment.pad,
        augment.flip[k],
        augment.center[k],
        augment.side,
        augment.partner[k],
        augment.share[k],
    )


class Frame(NamedTuple):
    """Memory layout that a network expects of its input.

    Samples are `stride` apart.  The number at (row, column, channel) is at ``start + row * row_stride + column * pixel_stride
    + channel * channel_stride`` from the beginning of the sample.
    """

    stride: int
    start: int
    row_stride: int
    pixel_stride: int
    channel_stride: int


@strict
def load_sample(
    samples: Samples,
    index: int,
    augment: Augment,
    step: int,
    slot: int,
    target: np.ndarray,
    at: int,
    frame: Frame,
    line: np.ndarray,
) -> float:
    """Write one sample from ``target[at]`` on; return 0, or NaN if the sample has NaN or infinite numbers.

    The gradients of the convolutions skip zeros, which would lose the NaN of zero times infinity.  The caller therefore adds
    the returned number to the sample's logits, so that NaN or infinity in the data makes the weights NaN.  `line` (W C,) is
    scratch.
    """
    _, height, width, channels = samples.shape
    down = right = 0
    if augment.shift.shape[0]:
        down = augment.shift[step, slot, 0] - augment.pad
        right = augment.shift[step, slot, 1] - augment.pad
    mirrored = augment.flip.shape[0] > 0 and augment.flip[step, slot]
    zero = target.dtype.type(0)
    poison = zero
    # Positions begin ... end of a row of the crop lie inside the image.
    left = min(max(0, -right), width) * channels
    stop = max(left, min(width, width - right) * channels)
    adjacent = frame.pixel_stride == channels and (channels == 1 or frame.channel_stride == 1)
    in_order = adjacent and not mirrored
    size = width * channels
    for row in range(height):
        place, from_row = at + frame.start + row * frame.row_stride, row + down
        into = target[place : place + size] if in_order else line
        begin, end = (left, stop) if 0 <= from_row < height else (size, size)
        # An assignment of slices would compile numba's error messages for unequal shapes, which takes seconds.
        for k in range(begin):
            into[k] = samples.border[k]
        for k in range(end, size):
            into[k] = samples.border[k]
        start = ((index * height + from_row) * width + right) * channels
        inside = into[begin:end]
        if samples.bytes.size:
            pixels = samples.bytes[start + begin : start + end]
            for c in range(channels):
                for k in range(c, end - begin, channels):
                    inside[k] = samples.table[c, pixels[k]]
        else:
            numbers = samples.numbers[start + begin : start + end]
            for k in range(end - begin):
                poison += numbers[k] * zero
                inside[k] = numbers[k]
        if not in_order:
            for c in range(channels):
                for column in range(width):
                    pixel = width - 1 - column if mirrored else column
                    target[place + column * frame.pixel_stride + c * frame.channel_stride] = line[pixel * channels + c]
    if augment.center.shape[0]:
        top = augment.center[step, slot, 0] - augment.side // 2
        left = augment.center[step, slot, 1] - augment.side // 2
        for row in range(max(top, 0), min(top + augment.side, height)):
            for column in range(max(left, 0), min(left + augment.side, width)):
                for c in range(channels):
                    place = frame.start + row * frame.row_stride + column * frame.pixel_stride
                    target[at + place + c * frame.channel_stride] = zero
    return poison


class Batch(NamedTuple):
    """The samples of one step; B is the largest batch size, and a smaller batch uses only the first rows.

    Attributes
    ----------
    chosen : (B,) int64
        Position of each row's sample in the client's samples.
    slots : (B,) int64
        Column of `order` that the row belongs to.
    mates : (B,) int64
        Row whose sample and label are mixed in.
    poison : (B,) real
        Zero, or NaN for a sample that is not finite.
    rows : (B,) int64
        Inverse of `slots`.
    raw : (B stride,) real
        Samples before mixup; length 0 without mixup.
    line : (W C,) real
        Scratch for a row of a sample.
    """

    chosen: np.ndarray
    slots: np.ndarray
    mates: np.ndarray
    poison: np.ndarray
    rows: np.ndarray
    raw: np.ndarray
    line: np.ndarray


def empty_batch(room: int, stride: int, line: int, real: Any) -> Batch:
    """Return memory for `load_batch`; a `stride` of 0 is enough without mixup."""
    chosen, slots, mates, rows = np.empty((4, room), np.int64)
    return Batch(chosen, slots, mates, np.empty(room, real), rows, np.zeros(room * stride, real), np.empty(line, real))


@strict
def choose(batch: Batch, order: np.ndarray, step: int, offset: int) -> int:
    """Find the samples of a step and return their number; `offset` is the position of the client's first sample."""
    count = 0
    for slot in range(order.shape[1]):
        if order[step, slot] >= 0:
            batch.chosen[count], batch.slots[count], batch.mates[count] = offset + order[step, slot], slot, count
            batch.rows[slot] = count
            count += 1
    return count


@strict
def load_batch(
    batch: Batch, count: int, samples: Samples, augment: Augment, step: int, target: np.ndarray, frame: Frame
) -> float:
    """Write the samples of a step to `target`, mixed if `augment` has partners.

    Returns the weight of each row's own label.
    """
    mixing = augment.partner.shape[0] > 0
    for b in range(count):
        into = batch.raw if mixing else target
        at = b * frame.stride
        batch.poison[b] = load_sample(samples, batch.chosen[b], augment, step, batch.slots[b], into, at, frame, batch.line)
    if not mixing:
        return 1.0
    share, rest = target.dtype.type(augment.share[step]), target.dtype.type(1.0 - augment.share[step])
    for b in range(count):
        mate = batch.rows[augment.partner[step, batch.slots[b]]]
        batch.mates[b] = mate
        mine = batch.raw[b * frame.stride : (b + 1) * frame.stride]
        other = batch.raw[mate * frame.stride : (mate + 1) * frame.stride]
        mixed = target[b * frame.stride : (b + 1) * frame.stride]
        for i in range(frame.stride):
            mixed[i] = share * mine[i] + rest * other[i]
    for b in range(count):
        batch.poison[b] += batch.poison[batch.mates[b]]
    return augment.share[step]
