"""Conditions of a run: machine, versions and peak memory."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from fnlkit.federated.engines.engine import Engine


def machine(engine: Engine, device: str | torch.device) -> dict[str, Any]:
    """Describe engine, threads, CPU and versions, which must be equal for equal results."""
    import torch

    return {
        "engine": engine.name or type(engine).__name__.lower(),
        "device": str(device) if str(device) == "cpu" else torch.cuda.get_device_name(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        **versions(),
    }


def versions() -> dict[str, str]:
    """List the versions of Python and of libraries on which every result depends."""
    return {"python": platform.python_version(), "numpy": np.__version__, "sklearn": version("scikit-learn")}


def peak_bytes() -> int:
    """Peak memory of this process; 0 if the system does not report it (Windows)."""
    try:
        import resource
    except ImportError:
        return 0
    # macOS counts bytes, other systems count units of 1,024 bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
