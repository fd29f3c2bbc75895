"""Run a network over images, texts or sounds in batches, on all cores of a CPU or on a GPU."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F

from fnlkit.artifacts.stored import Stored
from fnlkit.core.errors import InputError
from fnlkit.encoders.batches import Batches
from fnlkit.kernels.threads import core_count
from fnlkit.models.devices import device_of
from fnlkit.models.encoder import scale_images
from fnlkit.models.exact import exactness


def run_network(
    view: Any,
    module: torch.nn.Module,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    *,
    normalize: bool,
    interpolation: str = "bilinear",
    device: str,
    batch_size: int | None,
    progress: Callable[[int, int], object] | None,
    place: Path | None = None,
) -> np.ndarray | Stored:
    """Run a module over the images (n, H, W, C) of a fnlkit.encoders.embed.View in batches; return float32 (n, d).

    On a CPU, each core runs a single-threaded batch.
    """
    on, images = device_of(device), view.x_train
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
            return _features(module, scale_images(part.to(on), size, center, width, interpolation), normalize, size)

    return _run(batch, len(images), count, core_count() if str(on) == "cpu" else 1, on, progress, place)


def run_texts(
    view: Any,
    encode: Callable[[list[str]], np.ndarray],
    weights: Mapping[str, Any],
    *,
    device: str,
    batch_size: int | None,
    progress: Callable[[int, int], object] | None,
    place: Path | None = None,
) -> np.ndarray | Stored:
    """Run an encoder (list of m str -> (m, d)) over texts in batches; return float32 (n, d). `weights` are not read."""
    texts, count = view.x_train, batch_size or 1024

    def batch(start: int) -> np.ndarray:
        return np.asarray(encode([str(text) for text in texts[start : start + count]]), np.float32)

    return _run(batch, len(texts), count, 1, torch.device("cpu"), progress, place)


def run_waves(
    view: Any,
    module: torch.nn.Module,
    rate: int,
    *,
    device: str,
    batch_size: int | None,
    progress: Callable[[int, int], object] | None,
    place: Path | None = None,
) -> np.ndarray | Stored:
    """Run a module ((B, T) float32 to 1 at a sample rate -> (B, d)) over sounds in batches; return float32 (n, d)."""
    on = device_of(device)
    count = batch_size or 8
    waves = view.x_train
    exactness(on)
    module = module.eval().requires_grad_(False).to(on)
    length = round(waves.shape[1] * rate / view.sample_rate)

    def batch(start: int) -> np.ndarray:
        part = waves[start : start + count]
        x = torch.from_numpy(np.asarray(part, np.float32) / (32768 if part.dtype == np.int16 else 1))
        if rate != view.sample_rate:
            x = F.interpolate(x[:, None], length, mode="linear", align_corners=False)[:, 0]
        with torch.inference_mode():
            return module(x.to(on)).float().cpu().numpy()

    return _run(batch, len(waves), count, core_count() if str(on) == "cpu" else 1, on, progress, place)


def _run(batch, total, count, cores, on, progress, place):
    """Compute the rows (total, d) of all batches of `count` by ``batch(start)``, several at once on a CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if str(on) == "cpu" else before)
    try:
        batches = Batches(place, total, count)
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as threads:
            todo = iter(batches.missing())
            running = {threads.submit(batch, start): start for start in islice(todo, 2 * cores)}
            try:
                while running:
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        batches.put(running.pop(future), future.result())
                        running |= {threads.submit(batch, start): start for start in islice(todo, 1)}
                        if progress:
                            progress(batches.done, total)
            finally:
                for future in running:
                    future.cancel()
        return batches.whole()
    finally:
        torch.set_num_threads(before)


def _features(module, x, normalize, size):
    try:
        features = module(x).float().flatten(1)
    except AssertionError as error:  # vision transformers accept a single size
        raise InputError(f"this backbone does not accept images of {size} pixels: {error}") from error
    return (F.normalize(features, dim=1) if normalize else features).cpu().numpy()
