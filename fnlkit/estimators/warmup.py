"""A short federated training for estimators that need a model: on all clients, or by folds for held-out predictions."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.artifacts.stored import Chosen
from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.core.spec import Spec
from fnlkit.datasets.dataset import Dataset
from fnlkit.estimators.defaults import warm_up_of
from fnlkit.estimators.folds import without
from fnlkit.experiment import Experiment, Settings
from fnlkit.experiment.network import Trained as TrainedNetwork
from fnlkit.experiment.network import load_trained, without_head
from fnlkit.experiment.output import torch_threads
from fnlkit.federated.client.client import ClientList, in_blocks
from fnlkit.federated.client.network import predict

_NEVER = 10**9


@dataclass
class Trained:
    """A model after its warm-up.

    Attributes
    ----------
    experiment : Experiment
    x : array (n, ...)
        All training samples.
    """

    experiment: Experiment
    x: object

    @property
    def clients(self) -> ClientList:
        return self.experiment.clients.members

    def record(self, name: str) -> np.ndarray:
        """Last array that the method reported under a name."""
        return self.experiment.records[name][-1][1]

    def probabilities(self, positions: np.ndarray) -> np.ndarray:
        """Predict probabilities (m, C) float64 of training samples, selected by position."""
        e = self.experiment
        return _probabilities(e.network, e.model.weights, self.x, positions, e.clients.inputs)


def settings_of(evidence: Any) -> Settings:
    """Choose the warm-up's Settings; a given run determines the model and its number type."""
    chosen = warm_up_of(len(evidence.federation), evidence.warm_up, evidence.name)
    settings = Settings(**chosen | {"seed": evidence.seed, "eval_every": _NEVER})
    if evidence.run is not None:
        settings = replace(settings, model=evidence.run.settings["model"], precision=evidence.run.settings["precision"])
    return settings


def train_warmup(
    evidence: Any,
    *,
    method: Spec = Spec("fedavg"),  # noqa: B008
    federation: Federation | None = None,
    rounds: int | None = None,
    title: str = "warm-up",
) -> Trained:
    """Train the model of a warm-up.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
    method : Spec
        The estimator reads further results from the method's reports and the clients' rows.
    federation : Federation, optional
        A part of the evidence's federation.
    rounds : int, optional
        A budget that replaces the warm-up's.
    title : str
        Name of the training in calls of the evidence's `progress`.

    Raises
    ------
    InputError
        If training diverged, because a diverged model gives no estimate, or if a given run has several networks.
    """
    settings = replace(settings_of(evidence), method=str(method))
    evidence.training = warm_up_of(len(evidence.federation), evidence.warm_up, evidence.name)
    if rounds is not None:
        settings = replace(settings, rounds=rounds)
        evidence.training["rounds"] = rounds
    federation = federation or evidence.federation
    options = {"engine": evidence.engine, "device": evidence.device, "scale": evidence.image_scale()}
    experiment = Experiment(federation, evidence.dataset, settings, **options)
    if evidence.run is not None:
        network = experiment.network
        weights = without_head(load_trained(evidence.run, evidence.dataset, device=network.device).network)
        if len(weights) != network.size:
            raise InputError(
                f"is of {evidence.run.settings['method']}, which trains several networks, but {evidence.name} continues a "
                "single one; name a run of another method, or omit `run`",
                parameter="run",
            )
        experiment.model.weights = weights
    total = experiment.client_rounds_total
    done = lambda row: evidence.progress(min(experiment.clients.traffic.client_rounds, total), total, title)  # noqa: E731
    with torch_threads():
        experiment.run(on_round=done)
    evidence.add_traffic(experiment.clients.traffic)
    if not torch.isfinite(experiment.model.weights).all():
        raise WorkStopped("the warm-up diverged; lower `lr`")
    return Trained(experiment, experiment.clients.members.source)


def model_probabilities(run: Run, dataset: Dataset, positions: np.ndarray, classes: int, device: str = "auto") -> np.ndarray:
    """Predict probabilities (m, C) of training samples, selected by position, with the model of a run.

    Raises
    ------
    InputError
        If the run was trained on other samples or classes.
    """
    predicted = of_run(run, dataset, classes, device)
    return _probabilities(predicted.network, None, predicted.x_train, positions, predicted.inputs)


def of_run(run: Run, dataset: Dataset, classes: int, device: str = "auto") -> TrainedNetwork:
    """Load a run's model for a data set's samples, as fnlkit.experiment.network.Trained.

    Raises
    ------
    InputError
        If the run was trained on other samples or classes.
    """
    if int(run.meta["classes"]) != classes:
        raise InputError(f"was trained on {run.meta['classes']} classes; {dataset.name} has {classes}", parameter="run")
    return load_trained(run, dataset, device=device)


def predict_by_networks(evidence: Any, fold: np.ndarray) -> np.ndarray:
    """Predict probabilities (m, C), each by a network that was trained without the sample's fold."""
    predictions = np.empty((len(fold), evidence.classes))
    for number in range(fold.max() + 1):
        left_out = fold == number
        title = f"model {number + 1} of {fold.max() + 1}"
        model = train_warmup(evidence, federation=without(evidence.federation, left_out | evidence.apart), title=title)
        predictions[left_out] = model.probabilities(evidence.positions[left_out])
    return predictions


def _probabilities(network, weights, x, positions, inputs):
    with torch_threads():
        logits = in_blocks(lambda part: predict(network, weights, part, inputs), Chosen(x, positions))
    if not logits.isfinite().all():
        raise InputError("the model's predictions are not finite: training diverged, or the weights are damaged")
    return torch.softmax(logits.double(), -1).cpu().numpy()
