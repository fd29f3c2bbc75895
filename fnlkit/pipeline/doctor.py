"""Check this machine: versions, threads, caches, GPU, kernels, files, and short runs on every engine.

The result of each engine is compared with the result of the sequential engine, and that of each kernel with numpy.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from fnlkit import tested_versions
from fnlkit.engines import ENGINES
from fnlkit.errors import InputError
from fnlkit.kernels.threads import core_count
from fnlkit.models import build
from fnlkit.pipeline import agreement

# Largest difference of two weights, relative to the largest weight, that rounding can cause in two short rounds.
ROUNDING = 1e-3
LOW_SPACE = 2**30
_IMPORT_SECONDS = 300
# Extras for development, which fnlkit never imports.
_TOOLS = ("test", "browser", "bench", "docs", "notebook")


def examine(*, test: bool = True) -> dict[str, object]:
    """Return the installed packages, hardware and engines of this machine with their status.

    Parameters
    ----------
    test : bool
        Compare kernels with numpy, read back written files, and train two short rounds on every engine and device and compare
        the results. This needs a few seconds, or up to a minute if kernels must be compiled first.

    Returns
    -------
    dict
        Plain values: packages, tested (ranges of versions), extras, machine, caches, gpu, engines, kernels, files; ``advice``,
        possible improvements as sentences; ``broken``, failures as sentences; ``fit``, True if ``broken`` is empty.
    """
    advice: list[str] = []
    broken: list[str] = []
    out: dict[str, Any] = {
        "packages": packages(broken),
        "tested": {"python": tested_versions.PYTHON, "torch": tested_versions.TORCH},
        "extras": extras(broken, test=test),
        "machine": machine(advice),
        "caches": caches(advice, broken),
        "gpu": gpu(advice),
    }
    if test and not broken:
        out["kernels"], out["files"] = agreement.kernels(broken), agreement.files(broken)
        out["engines"] = engines([device for device in ("cpu", "cuda") if device == "cpu" or out["gpu"]["usable"]], broken)
    else:
        out["kernels"], out["files"], out["engines"] = [], [], []
    missing = [name for name, extra in out["extras"].items() if extra["missing"]]
    if missing:
        advice.append(f"optional libraries are missing, for example pip install 'fnlkit[{missing[0]}]'; -v lists all extras")
    return out | {"advice": advice, "broken": broken, "fit": not broken}


def packages(broken: list[str]) -> dict[str, str]:
    """Return {name: version} of each required library.

    A library that is missing, too old or too new is reported as broken.
    """
    out = {"fnlkit": metadata.version("fnlkit"), "python": platform.python_version()}
    for need in _needs():
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        installed = out[need.name] = _version(need.name)
        if installed is None:
            broken.append(f"{need.name} is not installed; pip install '{need}'")
        elif not need.specifier.contains(installed, prereleases=True):
            broken.append(f"{need.name} is {installed}, fnlkit needs {need.specifier}; pip install '{need}'")
    return out


def extras(broken: list[str], *, test: bool = True) -> dict[str, object]:
    """Return the installed libraries, with versions, and the missing libraries of each extra.

    Parameters
    ----------
    broken : list of str
        Receives a sentence for each library that is installed but cannot be imported.
    test : bool
        Import the libraries that fnlkit itself imports, in a separate process; otherwise only their metadata is read.
    """
    out: dict[str, Any] = {}
    tried: dict[str, str] = {}
    for need in _needs():
        for extra in metadata.metadata("fnlkit").get_all("Provides-Extra") or []:
            if need.marker is not None and need.marker.evaluate({"extra": extra}) and not need.marker.evaluate({"extra": ""}):
                entry, installed = out.setdefault(extra, {"there": {}, "missing": []}), _version(need.name)
                if installed is None:
                    entry["missing"].append(need.name)
                else:
                    entry["there"][need.name] = installed
                    if extra not in _TOOLS:
                        tried[need.name] = f"{need.name} {installed} (extra {extra})"
    for name, why in _not_imported(list(tried)).items() if test else ():
        broken.append(f"{tried[name]} cannot be imported: {why}; install it again")
    return out


# Runs in another interpreter, because an import can change or end its process.
_IMPORT = """
import importlib, json, sys
from fnlkit.models import vision
for name, modules in json.loads(sys.argv[1]).items():
    why = None
    try:
        if name == "timm":  # imports torchvision, which may need repair first
            vision.torchvision()
        for module in modules:
            importlib.import_module(module)
    except BaseException as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
    print("imported:" + json.dumps([name, why]), flush=True)
"""


def _not_imported(names):
    """Return {name: reason} of the libraries that cannot be imported."""
    owned = metadata.packages_distributions().items()
    modules = {name: [m for m, owners in owned if _same(name, owners) and m.isidentifier() and m[0] != "_"] for name in names}
    command = [sys.executable, "-P", "-W", "ignore", "-c", _IMPORT, json.dumps(modules)]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_SECONDS).stdout
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
    reasons = dict(json.loads(line[9:]) for line in output.splitlines() if line.startswith("imported:"))
    ended = next((name for name in names if name not in reasons), None)
    if ended is not None:  # the names after it were not tried
        reasons[ended] = f"its import ended the process, or took more than {_IMPORT_SECONDS} seconds"
    return {name: why for name, why in reasons.items() if why}


def _same(name, owners):
    """Return whether a distribution is among owners, whose names may be spelled with hyphens or underscores."""
    return name.lower().replace("_", "-") in [owner.lower().replace("_", "-") for owner in owners]


def _needs():
    from packaging.requirements import Requirement

    return [Requirement(text) for text in metadata.requires("fnlkit") or []]


def _version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def machine(advice: list[str]) -> dict[str, object]:
    """Return cores, threads, load and processor features."""
    import torch

    from fnlkit.kernels.threads import get_threads

    cores = core_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    out = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": cores,
        "load": load,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch_threads_outside_training": torch.get_num_threads(),
        "training_threads": os.environ.get("FNLKIT_THREADS", "1"),
        "kernel_threads": get_threads(),
        "environment": {
            name: os.environ[name]
            for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "FNLKIT_THREADS", "FNLKIT_CACHE", "CUDA_VISIBLE_DEVICES")
            if name in os.environ
        },
    }
    if load is not None and load > cores + 0.5:
        advice.append(f"{load:.0f} processes share {cores} cores at the moment; times measured now are unreliable")
    if out["cpu_capability"] == "DEFAULT":
        advice.append("torch cannot use AVX2 on this processor; training is several times slower than with AVX2")
    return out


def caches(advice: list[str], broken: list[str]) -> list[dict[str, object]]:
    """Return the folders of downloads and compiled kernels, and whether they are writable."""
    from fnlkit import datasets
    from fnlkit._kernels._compile import cache_folders

    out = []
    for what, folder in (("data and embeddings", datasets.cache_folder()), ("compiled kernels", cache_folders()[0])):
        there = Path(folder)
        while not there.exists():
            there = there.parent
        entry: dict[str, Any] = {"what": what, "folder": str(folder), "writable": os.access(there, os.W_OK)}
        entry["free_bytes"] = shutil.disk_usage(there).free
        out.append(entry)
        if not entry["writable"]:
            advice.append(f"{folder} for {what} cannot be written; select another folder with FNLKIT_CACHE or NUMBA_CACHE_DIR")
        elif entry["free_bytes"] < LOW_SPACE:
            advice.append(f"{folder}: only {entry['free_bytes'] / 1e6:,.0f} MB are free for {what}")
    try:
        datasets.load("digits")
    except (InputError, OSError) as error:
        broken.append(f"the data set that comes with fnlkit cannot be read: {error}; install fnlkit again")
    return out


def gpu(advice: list[str]) -> dict[str, object]:
    """Return the GPUs that torch can use, or the reason why no GPU can be used.

    The first GPU is described by ``name``, ``bytes`` and ``free_bytes``, and all GPUs in ``devices``, where ``at_once`` is the
    number of clients that the engine `stacked` trains at once by default, for two networks with batches of 10 color images.
    """
    import torch

    if torch.cuda.is_available():
        needs, devices = _bytes_of_clients(), []
        for k in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(k)
            at_once = {name: int(free / 2 / need) for name, need in needs.items()}
            about = {"name": torch.cuda.get_device_name(k), "bytes": total, "free_bytes": free}
            devices.append(about | {"at_once": at_once})
        first = {name: devices[0][name] for name in ("name", "bytes", "free_bytes")}
        return {"usable": True, **first, "devices": devices, "why": None}
    driver = os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi") is not None
    if torch.version.cuda is None:
        why = f"torch {torch.__version__} is built for the CPU"
        if driver:
            advice.append(f"there is an NVIDIA driver, but {why}; install the build of pytorch.org for CUDA")
    else:
        why = f"torch is built for CUDA {torch.version.cuda}, but finds no device"
        why += "" if driver else " and no NVIDIA driver"
        if "CUDA_VISIBLE_DEVICES" in os.environ:
            why += f"; CUDA_VISIBLE_DEVICES is {os.environ['CUDA_VISIBLE_DEVICES']!r}"
    return {"usable": False, "name": None, "bytes": None, "free_bytes": None, "devices": [], "why": why}


def _bytes_of_clients():
    """Return {network: bytes that a client needs in local training}, estimated on the CPU."""
    import torch

    from fnlkit.client.inputs import Inputs
    from fnlkit.client.network import Network
    from fnlkit.client.training import Fit
    from fnlkit.engines.stacked import bytes_needed

    inputs, x = Inputs(True, (0.5,) * 3, (0.25,) * 3), torch.zeros(1, 32, 32, 3, dtype=torch.uint8)
    networks = {name: Network(build(name, input_shape=(3, 32, 32), classes=10)) for name in ("lenet5", "resnet18")}
    return {name: bytes_needed(network, inputs, x, Fit()) for name, network in networks.items()}


def engines(devices: Sequence[str], broken: list[str]) -> list[dict[str, object]]:
    """Return status, time and deviation from the sequential engine for each engine and device.

    The time and the deviation are measured over two short rounds. An engine that reports why it cannot run here is not broken.
    An engine that fails or returns different weights is broken.
    """
    from fnlkit.pipeline import labels

    federation = labels.partition("digits", clients=4, say=None)
    expected, out = None, []
    for device in devices:
        for name in ENGINES:
            entry = {"engine": name, "device": device, "runs": False, "why": None, "seconds": None, "difference": None}
            out.append(entry)
            began = time.monotonic()
            try:
                weights = _tiny(federation, name, device)
            except InputError as error:
                entry["why"] = str(error)
                continue
            except Exception as error:  # noqa: BLE001 - reported as the result of this check
                entry["why"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
                broken.append(f"engine {name} on {device} fails: {entry['why']}")
                continue
            expected = weights if expected is None else expected
            entry |= {"runs": True, "seconds": round(time.monotonic() - began, 3)}
            difference = float((weights - expected).abs().max() / expected.abs().max())
            entry["difference"] = difference if math.isfinite(difference) else None
            if not difference <= ROUNDING:
                broken.append(
                    f"engine {name} on {device}: weights differ from those of engine sequential by {difference:.1e} of the "
                    f"largest weight, more than rounding explains ({ROUNDING:g}); write `engine='sequential'` and report it"
                )
    return out


def _tiny(federation, engine, device):
    """Return the weights after two rounds of two clients on the given engine."""
    from fnlkit.pipeline import training

    count = {"workers": 2} if engine in ("workers", "fused") else {}
    options = {"rounds": 2, "fraction": 0.5, "epochs": 1, "batch_size": 60, "model": "mlp(hidden=16)"}
    run = training.train(federation, engine=engine, device=device, ledger="none", say=None, **count, **options)
    return run.weights.detach().cpu().double()
