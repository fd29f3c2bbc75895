"""Parts of a run that describe its federation and its data set, without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts.federation import OF_RUNS

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation
    from fnlkit.datasets.dataset import Dataset


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
