"""``python -m benchmarks.gpu_tiles``: microseconds of the products of ResNet-18's layers by the size of a tile.

Each layer has ten clients with ten images, in bfloat16.  A row is a product: "forward", "back" (gradient of the input) or
"weights" (gradient of the weights), with the largest relative difference from products in PyTorch.  It prints the time and
TFLOP/s of the tile that the engine uses, then the fastest tiles (pixels, units, channels, warps, stages).  The kernels of all
tiles are compiled in parallel processes first.
"""

import multiprocessing
import os
import sys
from functools import partial

import torch

from fnlkit.engines.products import Patches, gpu_kernels, lay_out, new_images

K, B = 10, 10
PRODUCTS = ("forward", "back", "weights")
LAYERS = [  # channels, units, window, stride, side of the image
    (64, 64, 3, 1, 32), (128, 128, 3, 1, 16), (256, 256, 3, 1, 8), (512, 512, 3, 1, 4),
    (16, 64, 3, 1, 32), (64, 128, 3, 2, 32), (256, 512, 3, 2, 8), (64, 128, 1, 2, 32),
]  # fmt: skip
CONVOLVE = [
    (128, 64, 64, 4, 3), (64, 128, 64, 4, 3), (64, 128, 128, 4, 3), (128, 128, 64, 8, 3), (64, 64, 64, 4, 3),
    (64, 64, 128, 4, 3), (128, 64, 64, 4, 2), (128, 64, 32, 4, 4), (256, 64, 64, 8, 3), (128, 128, 64, 8, 2),
    (64, 128, 128, 8, 3), (64, 128, 128, 4, 2), (128, 128, 64, 4, 3),
]  # fmt: skip
NORM = [
    (128, 64, 32, 8), (64, 64, 32, 4), (64, 64, 16, 4), (128, 64, 16, 8), (64, 128, 32, 8), (64, 64, 64, 4), (256, 64, 32, 8),
    (128, 64, 64, 8),
]  # fmt: skip
WEIGH = [
    (128, 64, 64, 4, 3), (64, 128, 64, 4, 3), (32, 128, 64, 4, 3), (64, 128, 128, 8, 3), (32, 128, 128, 8, 3),
    (32, 64, 64, 4, 3), (128, 64, 64, 4, 2), (32, 128, 128, 8, 2), (32, 64, 128, 4, 3), (256, 64, 64, 4, 2),
    (64, 128, 128, 8, 4),
]  # fmt: skip


def tensors(layer):
    channels, units, side, stride, size = layer
    generator = torch.Generator("cuda").manual_seed(0)
    kind = {"dtype": torch.bfloat16, "device": "cuda", "generator": generator}
    x = lay_out(torch.randn(K, B, channels, size, size, **kind))
    w = torch.randn(K, units, side, side, channels, **kind).permute(0, 1, 4, 2, 3)
    d = lay_out(torch.randn(K, B, units, size // stride, size // stride, **kind))
    return x, w, d


def calls(layer, backend):
    """Return {product: (output, function of the tile)}."""
    x, w, d = tensors(layer)
    shared = {"stride": layer[3], "padding": layer[2] // 2}
    y, back, g = new_images(x, w.shape[1], *d.shape[3:]), new_images(x, *x.shape[2:]), torch.empty_like(w)
    return {
        "forward": (y, lambda **tile: backend.convolve(x, w, y, back=False, **shared, **tile)),
        "back": (back, lambda **tile: backend.convolve(d, w, back, back=True, **shared, **tile)),
        "weights": (g, lambda **tile: backend.weigh(x, d, g, **shared, **tile)),
    }


def tiles_of(layer, product):
    """Return the tiles that fit a layer."""
    channels, units = (layer[1], layer[0]) if product == "back" else layer[:2]
    tiles = dict.fromkeys((m, n, min(c, channels), *more) for m, n, c, *more in (WEIGH if product == "weights" else CONVOLVE))
    fitting = [tile for tile in tiles if tile[1] <= units]
    return fitting if layer[3] == 1 else fitting[:6]


def compiles(job):
    """Compile a kernel, and return whether it runs with this tile."""
    layer, product, tile = job
    try:
        calls(layer, gpu_kernels())[product][1](tiles=tile)
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - a tile can need more memory than a multiprocessor has
        print(job, str(error).splitlines()[0][:120], flush=True)
        return False
    return True


def microseconds(function, repeats=30):
    function()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            function()
    graph.replay()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / repeats


def main():
    if not (torch.cuda.is_available() and gpu_kernels()):
        sys.exit("benchmarks.gpu_tiles needs a CUDA device and Triton")
    jobs = [(layer, product, tile) for layer in LAYERS for product in PRODUCTS for tile in tiles_of(layer, product)]
    with multiprocessing.get_context("spawn").Pool(min(12, os.cpu_count() or 1)) as pool:
        running = {job for job, done in zip(jobs, pool.map(compiles, jobs, chunksize=4), strict=True) if done}
    print(torch.cuda.get_device_name(), f"torch {torch.__version__}, {len(jobs)} kernels", flush=True)
    for layer in LAYERS:
        channels, units, side, stride, size = layer
        work = 2 * K * B * (size // stride) ** 2 * channels * units * side**2
        plain, fast = calls(layer, Patches), calls(layer, gpu_kernels())
        for product, (output, function) in fast.items():
            plain[product][1]()
            function()
            expected = plain[product][0].float()
            error = float((output.float() - expected).norm() / expected.norm())
            default = microseconds(function)
            tiles = [tile for tile in tiles_of(layer, product) if (layer, product, tile) in running]
            times = sorted((microseconds(partial(function, tiles=tile)), tile) for tile in tiles)
            best = "  ".join(f"{us:.1f} {tile}" for us, tile in times[:4])
            row = f"{layer!s:24}{product:9}{error:9.1e}{default:8.1f} us{work / default / 1e6:6.0f} TFLOP/s"
            print(f"{row}   {best}", flush=True)
    for columns, side in ((640, 32), (1280, 16), (2560, 8), (5120, 4)):
        rows = B * side * side
        x, add, d = (torch.randn(rows, columns, device="cuda").bfloat16() for _ in range(3))
        vectors = tuple(torch.ones(columns, device="cuda") for _ in range(4))
        for name, call in norm_calls(x, add, d, vectors).items():
            times = sorted((microseconds(partial(call, tile=tile)), tile) for tile in NORM)
            best = "  ".join(f"{us:.1f} {tile}" for us, tile in times[:6])
            print(f"batch norm {rows} x {columns}, {name:9}{microseconds(call):7.1f} us   {best}", flush=True)


def norm_calls(x, add, d, vectors):
    """Return {direction: function of the tile} of batch norm with a sum and ReLU."""
    kernels = gpu_kernels()
    y, statistics = kernels.normalize(x, add, vectors, 0.1, 1e-5, True)
    return {
        "forward": lambda **tile: kernels.normalize(x, add, vectors, 0.1, 1e-5, True, **tile),
        "back": lambda **tile: kernels.normalize_back(d, y, x, vectors[0], statistics, True, True, **tile),
    }


if __name__ == "__main__":
    main()
