"""Test each site's local model on each site's held-out samples, to compare sites."""

from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.datasets.dataset import Dataset
from fnlkit.experiment.evaluation_set import held_out_positions
from fnlkit.experiment.network import encode_as_trained, needs_of
from fnlkit.results.personal import held_out_experiment


def cross_site(run: Run, dataset: Dataset) -> dict[str, Any]:
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
    if len(federation) < 2 or not len(held_out_positions(federation)):
        raise InputError(
            "compares sites on held-out samples; partition over at least two sites with `fnlkit.partition(holdout=0.2)`",
            parameter="cross_site",
        )
    experiment, owner, labels, x = held_out_experiment(run, encode_as_trained(run, dataset), _of_single_sites(run))
    weights = _own_models(run, experiment)

    def shares(vector: torch.Tensor) -> list[float | None]:
        hit = experiment.clients.predict(vector, x).argmax(-1).numpy() == labels
        return [float(hit[owner == k].mean()) if (owner == k).any() else None for k in range(len(federation))]

    return {
        "measures": "agreement" if federation.true is None else "accuracy",
        "sites": federation.names,
        "samples": np.bincount(owner, minlength=len(federation)).tolist(),
        "own": [shares(vector) for vector in weights],
        "federated": None if alone(run) else shares(run.weights.to(experiment.network.dtype)),
    }


def alone(run: Run) -> bool:
    """Whether the sites of a run trained alone, so that the run has no common model."""
    return "own" in needs_of(run)


def _of_single_sites(run):
    """Settings of a training of each site alone, for as many rounds as the run visited a site on average."""
    same = {"optimizer": "fedavg", "aggregator": "mean", "selector": "uniform", "fraction": 1.0, "memorization": False}
    same |= {"select": "last", "patience": 0, "measure": "auto", "method": "local", "eval_every": 10**9}
    visits = max(1, round(run.settings["rounds"] * run.settings["fraction"]))
    return same | {"rounds": visits, "loss": run.settings["loss"] if alone(run) else "ce"}


def _own_models(run, experiment):
    """Collect each site's local weights (N, P + Q), of a run of ``local`` or after a training."""
    models, members = run.memory.get("state/own"), experiment.clients.members
    if alone(run) and models is not None and len(models) == len(members):
        return models[torch.argsort(run.memory["state/own/clients"])]
    experiment.run()
    return torch.stack([client.state["own"] for client in members])
