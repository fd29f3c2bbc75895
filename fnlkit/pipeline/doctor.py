"""Check this machine: versions, caches, GPU, and two short rounds on every engine."""

import os
import platform
import shutil
import time
from importlib import metadata
from math import isfinite
from pathlib import Path
from typing import Any

from fnlkit.core.errors import InputError, how_to_install
from fnlkit.federated.engines import ENGINES

# Largest difference of two weights, relative to the largest weight, that rounding can cause in two short rounds.
ROUNDING = 1e-3


def examine(*, test: bool = True) -> dict[str, Any]:
    """Examine packages, machine, caches and GPUs, and with `test` the engines, as plain values.

    ``broken`` contains a sentence for each failure.
    """
    from fnlkit._kernels._compile import cache_folders
    from fnlkit.datasets import cache_folder

    broken: list[str] = []
    devices, why, capability = _look_at_torch()
    findings: dict[str, Any] = {
        "packages": packages(broken),
        "machine": {"system": platform.platform(), "cores": os.cpu_count(), "cpu_capability": capability},
        "caches": [_space("data and embeddings", cache_folder()), _space("compiled kernels", cache_folders()[0])],
        "gpu": {"devices": devices, "why": why},
        "engines": [],
    }
    if test and not broken and capability:
        findings["engines"] = engines(["cpu", "cuda"] if devices else ["cpu"], broken)
    return findings | {"broken": broken, "fit": not broken}


def _look_at_torch():
    """Find the names of GPUs, the reason if there is none, and the instructions that torch uses, None without torch."""
    try:
        import torch
    except ModuleNotFoundError as error:
        return [], how_to_install(str(error.name)), None
    devices = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    why = "" if devices else f"torch {torch.__version__} finds no CUDA device"
    return devices, why, torch.backends.cpu.get_cpu_capability()


def packages(broken: list[str]) -> dict[str, str | None]:
    """List {name: version} of each library of the core and of the extra train.

    A library of the core that is missing, and any that is too old or too new, is reported as broken.
    """
    from packaging.requirements import Requirement

    versions: dict[str, str | None] = {"fnlkit": metadata.version("fnlkit"), "python": platform.python_version()}
    for need in map(Requirement, metadata.requires("fnlkit") or []):
        core, train = (need.marker is None or need.marker.evaluate({"extra": extra}) for extra in ("", "train"))
        if not train:
            continue
        versions[need.name] = installed = _version(need.name)
        if installed is None and not core:
            continue
        if installed is None or not need.specifier.contains(installed, prereleases=True):
            state = f"is {installed}, fnlkit needs {need.specifier}" if installed else "is not installed"
            broken.append(f"{need.name} {state}; pip install '{need}'")
    return versions


def _version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _space(what, folder):
    there = next(parent for parent in (Path(folder), *Path(folder).parents) if parent.exists())
    facts = {"writable": os.access(there, os.W_OK), "free_bytes": shutil.disk_usage(there).free}
    return {"what": what, "folder": str(folder), **facts}


def engines(devices: list[str], broken: list[str]) -> list[dict[str, Any]]:
    """Test each engine and device over two short rounds: status, time and difference from the sequential engine.

    An engine that states why it cannot run here is not broken. An engine that fails or returns other weights is.
    """
    from fnlkit.pipeline import labels

    federation, expected, entries = labels.partition("digits", clients=4, say=None), None, []
    for device, name in [(device, name) for device in devices for name in ENGINES]:
        entry: dict[str, Any] = {"engine": name, "device": device, "runs": False, "why": None, "difference": None}
        entries.append(entry)
        began = time.monotonic()
        try:
            weights = _tiny(federation, name, device)
        except Exception as error:  # noqa: BLE001 - reported as the result of this check
            entry["why"] = " ".join(str(error).split())[:300]
            if not isinstance(error, InputError):
                broken.append(f"engine {name} on {device} fails: {type(error).__name__}: {entry['why']}")
            continue
        expected = weights if expected is None else expected
        off = float((weights - expected).abs().max() / expected.abs().max())
        seconds = round(time.monotonic() - began, 3)
        entry |= {"runs": True, "seconds": seconds, "difference": off if isfinite(off) else None}
        if not off <= ROUNDING:
            broken.append(f"engine {name} on {device}: its weights differ from those of sequential by {off:.1e}; report it")
    return entries


def _tiny(federation, engine, device):
    """Train two rounds of two clients on the given engine: the weights."""
    from fnlkit.pipeline import training

    count = {"workers": 2} if engine in ("workers", "fused") else {}
    options = {"rounds": 2, "fraction": 0.5, "epochs": 1, "batch_size": 60, "model": "mlp(hidden=16)"}
    run = training.train(federation, engine=engine, device=device, ledger="none", say=None, **count, **options)
    return run.weights.detach().cpu().double()
