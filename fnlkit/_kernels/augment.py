"""Crop, flip, normalization and cutout of a batch of images, in one pass from bytes to network input."""

import numpy as np

from fnlkit._kernels._compile import inlined, kernel


@inlined
def copy_bytes(pixels, at, step, values, line, first, last):
    """Write values[pixels[at]], values[pixels[at + step]], ... to line[first:last].

    The loop processes four pixels at a time, because computing positions costs more than the table look-ups.
    """
    x = first
    while x + 4 <= last:
        a, b = pixels[np.uintp(at)], pixels[np.uintp(at + step)]
        c, d = pixels[np.uintp(at + 2 * step)], pixels[np.uintp(at + 3 * step)]
        line[np.uintp(x)], line[np.uintp(x + 1)] = values[a], values[b]
        line[np.uintp(x + 2)], line[np.uintp(x + 3)] = values[c], values[d]
        at += 4 * step
        x += 4
    while x < last:
        line[np.uintp(x)] = values[pixels[np.uintp(at)]]
        at += step
        x += 1


@kernel
def augment_images(images, index, shift, flip, center, pad, size, table, start, stop, out):
    """Write the augmented images start..stop of a batch to `out` (B, C, H, W).

    Parameters
    ----------
    images : (n, H, W, C) uint8
    index : (B,)
    shift, center : (B, 2)
    flip : (B,)
    pad, size : int
        Width of the zero padding around an image; side of the cutout square, 0 for no cutout.
    table : (C, 256) float32
        Normalized value of each byte.  A look-up is faster than two divisions and gives the same bits.
    """
    _, height, width, channels = images.shape
    for b in range(start, stop):
        image = images[index[b]]
        top, left = shift[b, 0] - pad, shift[b, 1] - pad
        mirrored = flip[b]
        for c in range(channels):
            values = table[c]
            zero = values[0]
            for row in range(height):
                line = out[b, c, row]
                source = row + top
                if source < 0 or source >= height:
                    line[:] = zero
                    continue
                pixels = image[source].reshape(-1)
                # Columns first..last are inside the image, the other columns are padding.
                if mirrored:
                    first = min(max(left, 0), width)
                    last = max(min(width, width + left), first)
                    for x in range(0, first):
                        line[x] = zero
                    for x in range(last, width):
                        line[x] = zero
                    copy_bytes(pixels, (width - 1 - first + left) * channels + c, -channels, values, line, first, last)
                else:
                    first = min(max(-left, 0), width)
                    last = max(min(width, width - left), first)
                    for x in range(0, first):
                        line[x] = zero
                    for x in range(last, width):
                        line[x] = zero
                    copy_bytes(pixels, (first + left) * channels + c, channels, values, line, first, last)
        if size > 0:
            row, column = center[b, 0] - size // 2, center[b, 1] - size // 2
            for c in range(channels):
                for y in range(max(row, 0), min(row + size, height)):
                    for x in range(max(column, 0), min(column + size, width)):
                        out[b, c, y, x] = 0
