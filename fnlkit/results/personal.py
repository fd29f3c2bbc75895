"""Test the own model of each client on the client's held-out samples: personalized accuracy."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.run import Run
from fnlkit.artifacts.stored import Chosen
from fnlkit.core.errors import InputError
from fnlkit.datasets.dataset import Dataset
from fnlkit.experiment import Experiment, Settings
from fnlkit.experiment.evaluation_set import held_out_positions
from fnlkit.federated.server.optimizers.fedbn import normalizers

# Entry of a client's memory -> weights of the client's model, from the common model and the entry.
_MODELS = {
    "own": lambda network, common, entry: entry,
    "personal": lambda network, common, entry: entry,
    "normalizers": lambda network, common, entry: common.masked_scatter(normalizers(network), entry),
}


def personal(run: Run, dataset: Dataset) -> dict[str, Any]:
    """Measure the shares of each client's held-out labels that its own model and the common model predict.

    ``local``, Ditto and FedBN train own models.  A client that was never visited has the common model.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    dataset : fnlkit.datasets.Dataset

    Returns
    -------
    dict
        Plain values: measures ("accuracy" if true labels are known, else "agreement" with given labels), clients (names),
        samples (held-out samples of each), own and common (share of each, None without samples), own_share and common_share
        (of all held-out samples).  A run of ``local`` has no common model.

    Raises
    ------
    InputError
        If the run has no own models, or if there are no held-out samples.
    """
    entry = next((name for name in _MODELS if f"state/{name}" in run.memory), None)
    if entry is None:
        raise InputError(
            "needs a run whose clients keep models; train with `fnlkit.train(method='local')`, "
            "`fnlkit.train(optimizer='ditto')` or `fnlkit.train(optimizer='fedbn')`",
            parameter="personal",
        )
    federation = run.federation()
    if not len(held_out_positions(federation)):
        raise InputError(
            "tests on held-out samples; make the federation with `fnlkit.partition(holdout=0.2)`", parameter="personal"
        )
    plain = {"memorization": False, "select": "last", "patience": 0, "protect": "none", "measure": "auto"}
    experiment, owner, labels, x = held_out_experiment(run, dataset, plain)
    right: dict[str, Any] = {}
    network = experiment.network
    common = run.weights.to(device=network.device, dtype=network.dtype)
    entries = dict(zip(run.memory[f"state/{entry}/clients"].tolist(), run.memory[f"state/{entry}"], strict=True))
    right["common"] = _predict(experiment, common, x) == labels
    right["own"] = right["common"].copy()
    for client, values in entries.items():
        part = np.flatnonzero(owner == client)
        if len(part):
            weights = _MODELS[entry](network, common, torch.as_tensor(values).to(common))
            right["own"][part] = _predict(experiment, weights, Chosen(x, part)) == labels[part]
    shares_by_client: dict[str, Any] = {
        "measures": "agreement" if federation.true is None else "accuracy",
        "clients": federation.names,
    }
    shares_by_client["samples"] = np.bincount(owner, minlength=len(federation)).tolist()
    for name in ("own",) if entry == "own" else ("own", "common"):
        shares = [
            float(right[name][owner == i].mean()) if count else None for i, count in enumerate(shares_by_client["samples"])
        ]
        shares_by_client |= {name: shares, f"{name}_share": float(right[name].mean())}
    return shares_by_client


def held_out_experiment(run: Run, dataset: Dataset, changes: dict[str, Any]) -> tuple[Any, np.ndarray, np.ndarray, Chosen]:
    """Make an Experiment with a run's settings for predictions; also sites, labels and samples that are held out.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    dataset : fnlkit.datasets.Dataset
        As the network reads it.
    changes : dict
        Settings that differ from the run's.
    """
    federation = run.federation()
    positions = held_out_positions(federation)
    known = {name: value for name, value in run.settings.items() if name in Settings.__dataclass_fields__}
    bare = replace(federation, extra={}, meta={"dataset_checksum": run.meta["dataset_checksum"]})
    experiment = Experiment(bare, dataset, replace(Settings(**known), **changes))
    labels = (federation.given if federation.true is None else federation.true)[positions]
    x = Chosen(experiment.clients.members.source, positions)
    return experiment, federation.extra["holdout_client"][positions], labels, x


def _predict(experiment, weights, x):
    return experiment.clients.predict(weights, x).argmax(-1).cpu().numpy()
