"""Run a network over images in batches, on all cores of a CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F

from fnlkit._kernels.threads import core_count
from fnlkit.artifacts.stored import Rows, Stored
from fnlkit.datasets.batches import Batches
from fnlkit.errors import InputError
from fnlkit.models.devices import device_of
from fnlkit.models.exact import exactness


def run_network(
    module: torch.nn.Module,
    images: np.ndarray | Rows,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    normalize: bool,
    interpolation: str,
    device: str,
    batch_size: int | None,
    progress: Callable[[int, int], object] | None,
    place: Path | None = None,
) -> np.ndarray | Stored:
    """Run a module over images (n, H, W, C) in batches; return float32 (n, d).

    On a CPU, each core runs a single-threaded batch.
    """
    on = device_of(device)
    if images.shape[-1] not in (1, 3):
        raise InputError(f"images have {images.shape[-1]} channels; backbones for images accept 1 or 3")
    count = batch_size or (16 if str(on) == "cpu" else 256)
    exactness(on)  # the embeddings must not depend on previous work of this process
    # Convolutions run on this memory layout without a copy.
    module = cast(Any, module.eval().requires_grad_(False)).to(on, memory_format=torch.channels_last)
    center, width = (torch.tensor(value, dtype=torch.float32, device=on)[:, None, None] for value in (mean, std))

    def batch(start: int) -> np.ndarray:
        with torch.inference_mode():
            part = torch.from_numpy(np.ascontiguousarray(images[start : start + count]))
            return _features(module, _scale(part.to(on), size, center, width, interpolation), normalize, size)

    cores = core_count() if str(on) == "cpu" else 1
    before = torch.get_num_threads()
    torch.set_num_threads(1 if str(on) == "cpu" else before)
    try:
        kept = Batches(place, len(images), count)
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            todo = iter(kept.missing())
            running = {threads.submit(batch, start): start for start in islice(todo, 2 * cores)}
            try:
                while running:
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        kept.put(running.pop(future), future.result())
                        running |= {threads.submit(batch, start): start for start in islice(todo, 1)}
                        if progress:
                            progress(kept.done, len(images))
            finally:
                for future in running:
                    future.cancel()
        return kept.whole()
    finally:
        torch.set_num_threads(before)


def _scale(x, size, mean, std, interpolation):
    """Return network input (B, 3, size, size) of images (B, H, W, C)."""
    scale = 255.0 if x.dtype == torch.uint8 else 1.0
    x = x.movedim(-1, 1).float() / scale
    if x.shape[1] == 1:
        x = x.expand(-1, 3, -1, -1)
    if tuple(x.shape[-2:]) != (size, size):
        mode = interpolation if interpolation in ("bilinear", "bicubic") else "bilinear"
        x = F.interpolate(x, (size, size), mode=mode, align_corners=False, antialias=True)
    return ((x - mean) / std).contiguous(memory_format=torch.channels_last)


def _features(module, x, normalize, size):
    try:
        features = module(x).float().flatten(1)
    except AssertionError as error:  # vision transformers accept a single size
        raise InputError(f"this backbone does not accept images of {size} pixels: {error}") from error
    return (F.normalize(features, dim=1) if normalize else features).cpu().numpy()
