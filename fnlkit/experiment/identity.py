"""Parts of a run that describe its federation, data set, machine and versions, without torch."""

import hashlib
import platform
import sys
from collections.abc import Sequence
from dataclasses import fields
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts.federation import OF_RUNS, Federation
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.datasets.dataset import Dataset
from fnlkit.experiment.settings import Settings

if TYPE_CHECKING:
    import torch

    from fnlkit.federated.engines.engine import Engine


def digest_of_federation(federation: Federation) -> str:
    """Compute a SHA-256 over the arrays of a federation that affect a run or its evaluation."""
    total = hashlib.sha256(str(federation.classes).encode())
    arrays = {name: getattr(federation, name) for name in ("client_offsets", "client_indices", "given", "true")}
    arrays |= {name: federation.extra.get(name) for name in ("reviewed", "received", "holdout_client", "gold_label", "group")}
    for name, values in arrays.items():
        if values is not None:
            values = np.ascontiguousarray(values).astype(np.int64)
            total.update(f"{name}{values.shape}".encode())
            total.update(values.tobytes())
    return total.hexdigest()


def labels_of(federation: Federation, corrected: np.ndarray) -> dict[str, np.ndarray]:
    """Collect the labels of a run by name, with working labels (n,)."""
    labels = {"given": np.asarray(federation.given), "corrected": corrected}
    if federation.true is not None:
        labels["true"] = np.asarray(federation.true)
    return labels | {name: np.asarray(federation.extra[name]) for name in OF_RUNS if name in federation.extra}


def truth_of(federation: Federation) -> dict[str, np.ndarray]:
    """Collect the known noise and the estimates of a federation."""
    truth = {name: getattr(federation, name) for name in ("noise_client_level", "noise_client_noisy", "noise_transition")}
    truth |= {name: values for name, values in federation.extra.items() if name.startswith("estimate_")}
    return {name: np.asarray(values) for name, values in truth.items() if values is not None}


def describe_data(federation: Federation, dataset: Dataset, mean: Sequence[float], std: Sequence[float]) -> dict[str, Any]:
    """Identify the data of a run by entries of its metadata; `mean` and `std` are those of the inputs."""
    columns = getattr(dataset, "table", None)  # conversion of table columns to vectors
    samples = {
        "kind": dataset.kind,
        "shape": [int(side) for side in dataset.x_train.shape[1:]],
        "mean": list(mean),
        "std": list(std),
        "sample_rate": dataset.sample_rate,
        "class_names": list(dataset.class_names),
        **({"columns": columns} if columns else {}),
        **getattr(dataset, "scale", {}),
    }
    return {
        "dataset": federation.dataset,
        "dataset_checksum": dataset.checksum,
        "federation": digest_of_federation(federation),
        "classes": int(federation.classes),
        "client_names": federation.meta.get("client_names"),
        "features": dataset.features,
        "samples": samples,
    }


def must_have_same_settings(run: Run, settings: Settings) -> None:
    """Raise InputError if a run that is resumed was made with other settings, except `rounds` and `min_replies`."""
    for field in fields(settings):
        name, now = field.name, getattr(settings, field.name)
        before = run.settings.get(name, field.default)  # the option can be newer than the run
        if name == "warmup_lr" and name not in run.settings and run.settings.get("warmup_head"):
            before = run.settings["lr"]  # the head was trained at this rate before it had one of its own
        # `min_replies` only decides when to stop, so a run that lost too many clients can be resumed with a lower value.
        if name not in ("rounds", "min_replies") and before != now:
            raise InputError(f"`resume`: the run was made with `{name}` {before}, not {now}; use the settings of the run")


def must_have_same_data(run: Run, federation: Federation, dataset: Dataset) -> None:
    """Raise InputError if a run that is resumed was made from another data set or federation."""
    same_clients = np.array_equal(run.client_offsets, federation.client_offsets) and np.array_equal(
        run.client_indices, federation.client_indices
    )
    true = 0 if federation.true is None else federation.true
    if run.meta.get("dataset_checksum") != dataset.checksum:
        different = "data set"
    elif federation.classes != run.meta["classes"] or not same_clients:
        different = "partition"
    elif not np.array_equal(run.labels["given"], federation.given):
        different = "set of labels"
    elif not np.array_equal(run.labels.get("true", 0), true):
        different = "set of true labels"
    elif run.meta.get("federation") not in (None, digest_of_federation(federation)):  # the earliest runs have none
        different = "review of labels, hold-out or grouping of samples"
    else:
        return
    raise InputError(f"`resume`: the run was made from another {different}; use the federation of the run")


def machine(engine: "Engine", device: "str | torch.device") -> dict[str, Any]:
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
