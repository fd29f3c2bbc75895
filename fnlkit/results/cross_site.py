"""Test each site's local model on each site's held-out samples, to compare sites."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.artifacts.stored import Chosen
from fnlkit.core.errors import InputError
from fnlkit.experiment import Experiment, Settings
from fnlkit.experiment.evaluation_set import held_out_positions
from fnlkit.experiment.network import encode_as_trained, needs_of

if TYPE_CHECKING:
    from fnlkit.artifacts.run import Run
    from fnlkit.datasets.dataset import Dataset


def cross_site(run: "Run", dataset: "Dataset") -> dict[str, Any]:
    """Measure the shares of each site's held-out labels that each site's local model predicts.

    The local models come from a run of ``local``. For another run, a model is trained on each site alone, for as many rounds as
    the run visited a site on average, with the run's network and training options.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    dataset : fnlkit.datasets.Dataset

    Returns
    -------
    dict
        Plain values: measures ("agreement" with given labels, or "accuracy" if true labels are known), sites (names), samples
        (of each), own (N, N): own[a][b] is site a's model on site b, None if b has no held-out samples; federated (N,), the
        run's model, None for a run of ``local``.

    Raises
    ------
    InputError
        If there is only one site, or no held-out samples.
    """
    federation = run.federation()
    positions = held_out_positions(federation)
    if len(federation) < 2 or not len(positions):
        raise InputError(
            "compares sites on held-out samples; partition over at least two sites with `fnlkit.partition(holdout=0.2)`",
            parameter="cross_site",
        )
    experiment, weights = _own_models(run, federation, dataset)
    owner = federation.extra["holdout_client"][positions]
    labels = (federation.given if federation.true is None else federation.true)[positions]
    x = Chosen(experiment.clients.members.source, positions)

    def shares(vector: torch.Tensor) -> list[float | None]:
        hit = experiment.clients.predict(vector, x).argmax(-1).numpy() == labels
        return [float(hit[owner == k].mean()) if (owner == k).any() else None for k in range(len(federation))]

    return {
        "measures": "agreement" if federation.true is None else "accuracy",
        "sites": federation.names,
        "samples": np.bincount(owner, minlength=len(federation)).tolist(),
        "own": [shares(vector) for vector in weights],
        "federated": None if _alone(run) else shares(run.weights.to(experiment.network.dtype)),
    }


def _alone(run):
    return "own" in needs_of(run)


def _own_models(run, federation, dataset):
    """Rebuild an experiment for predictions, and each site's local weights (N, P + Q)."""
    known = {name: value for name, value in run.settings.items() if name in Settings.__dataclass_fields__}
    settings = Settings(**known)
    visits = max(1, round(settings.rounds * settings.fraction))
    same = {"optimizer": "fedavg", "aggregator": "mean", "selector": "uniform", "fraction": 1.0, "memorization": False}
    same |= {"select": "last", "patience": 0, "measure": "auto"}
    loss = settings.loss if _alone(run) else "ce"
    settings = replace(settings, method="local", rounds=visits, loss=loss, eval_every=10**9, **same)
    bare = replace(federation, extra={}, meta={"dataset_checksum": run.meta["dataset_checksum"]})
    experiment = Experiment(bare, encode_as_trained(run, dataset), settings)
    models = run.memory.get("state/own")
    if _alone(run) and models is not None and len(models) == len(federation):
        return experiment, models[torch.argsort(run.memory["state/own/clients"])]
    experiment.run()
    return experiment, torch.stack([client.state["own"] for client in experiment.clients.members])
