"""The federated form of an estimator: client steps with declared and metered replies.

The pooled form needs all samples in one place, which is possible only in a simulation.  Both forms give the same numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts.exchange import Traffic
from fnlkit.artifacts.stored import Chosen
from fnlkit.core.declarations import Sent
from fnlkit.estimators.folds import heads_predict, solve_heads, without
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.evidence.gaussian import softmax
from fnlkit.evidence.linear import Head, Scaling
from fnlkit.federated import engines
from fnlkit.federated.client.measuring import TRAINING
from fnlkit.methods.fedsums import SENDS

if TYPE_CHECKING:
    import torch

    from fnlkit.experiment.experiment import Experiment
    from fnlkit.federated.types import Client, Inputs, LocalModel, Received, Replies


PREDICTED = {"predicted": Sent.counts("numbers of samples by predicted class and given label", "once", ("C", "C"), total="n")}
# Of estimators that predict folds, by networks or by heads from sums (fnlkit.estimators.folds).
HELD_OUT = PREDICTED | {f"head_{name}": sent for name, sent in SENDS.items()}
RELABELED = {"relabeled": Sent.counts("numbers of samples by label after and before correction", "once", ("C", "C"), total="n")}


class ClientSession:
    """The clients of an estimate and the model that they receive.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
        Its `traffic` counts the exchanged data.
    members : ClientList
    model : Model, optional
        Without a model, clients receive only the broadcast of a step.
    """

    def __init__(self, evidence, members, model=None):
        from fnlkit.federated.client.network import nothing

        self.model = model or nothing()
        # All clients must reply: a missing reply would leave a client without a level.
        settings, self._evidence = {"seed": evidence.seed, "min_replies": 1.0}, evidence
        # Steps are not worth a process of `workers`, but the engine `flower` sends them as messages.
        engine = evidence.engine if evidence.engine == "flower" else "sequential"
        self.clients = engines.make(engine, members, self.model.network, members.inputs, **settings)
        self.clients.sends = evidence.sends

    def ask(self, *steps: Any, ids: Sequence[int] | np.ndarray | None = None, **more: Any) -> "Replies":
        """Run steps at all clients, or at some, and collect the Replies; `more` are fields of Ask."""
        from fnlkit.federated.server.clients import Ask

        ids = np.arange(len(self.clients)) if ids is None else ids
        self.clients.use_network(self.model.network)
        before = self.clients.traffic.copy()
        ask = Ask(ids, self.model, steps, **more)
        replies = self.clients.round(ask)
        self._evidence.add_traffic(self.clients.traffic.since(before))
        self._evidence.replies.append({name: replies[name] for name in replies})
        return replies

    def kept(self, name: str) -> np.ndarray:
        """Collect a row (m,) of the clients' samples, client by client."""
        import torch

        return torch.cat([client.rows[f"estimate/{name}"] for client in self.clients.members]).numpy()


def with_rows(evidence: EstimatorInputs, **rows: Any) -> ClientSession:
    """Open a session with clients that hold rows (m, ...) of their samples as ``input/NAME``, and no samples."""
    from fnlkit.federated.client.inputs import Inputs

    count = len(evidence.labels)
    held = {f"input/{name}": values for name, values in rows.items()}
    return ClientSession(evidence, _members(evidence, np.empty((count, 0), np.float32), Inputs(False), held))


def with_model(evidence: EstimatorInputs, experiment: "Experiment") -> ClientSession:
    """Open a session with clients that trained a model, with their state from this training."""
    from fnlkit.federated.client.network import Model

    model = Model(experiment.network, experiment.model.weights)
    return ClientSession(evidence, experiment.clients.members, model)


def with_predictions(evidence: EstimatorInputs, folds: np.ndarray | None = None) -> ClientSession:
    """Open a session with clients that hold probabilities of their samples.

    The probabilities are given, or predicted by a run's model or a warm-up.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
    folds : int (m,), optional
        Predict each sample with a model trained without its fold instead of a model trained on all samples.
    """
    if evidence.given_probabilities:
        return with_rows(evidence, probabilities=evidence.predicted())
    if folds is not None and heads_predict(evidence):
        return _with_heads(evidence, folds)
    from fnlkit.estimators.warmup import of_run, train_warmup
    from fnlkit.federated.client.network import Model, nothing

    if evidence.run is not None:
        predicted = of_run(evidence.run, evidence.dataset, evidence.classes, evidence.device)
        evidence.say_of_run()
        samples = Chosen(predicted.x_train, evidence.positions)
        session: Any = ClientSession(
            evidence, _members(evidence, samples, predicted.inputs), Model(predicted.network, predicted.network.flat.clone())
        )
        session.ask(keep_predictions)
        return session
    if folds is None:
        session = with_model(evidence, train_warmup(evidence).experiment)
        session.ask(keep_predictions)
        return session
    count, session = folds.max() + 1, None
    for fold in range(count):
        left_out = folds == fold
        part = without(evidence.federation, left_out | evidence.apart)
        made = train_warmup(evidence, federation=part, title=f"model {fold + 1} of {count}")
        if session is None:
            samples = Chosen(made.x, evidence.positions)
            session = ClientSession(evidence, _members(evidence, samples, made.experiment.inputs, {"input/fold": folds}))
        session.model = Model(made.experiment.network, made.experiment.model.weights)
        ids = _holders(evidence, left_out)
        session.ask(keep_predictions, ids=ids, broadcast={"fold": fold, **scale_of(made.experiment.inputs)})
    session.model = nothing()
    return session


def _with_heads(evidence, folds):
    """Open a session in which heads that were solved without a fold predict its samples at their clients."""
    from fnlkit.federated.client.inputs import Inputs

    samples, image = Chosen(evidence.dataset.x_train, evidence.positions), evidence.dataset.kind == "image"
    session = ClientSession(evidence, _members(evidence, samples, Inputs(image), {"input/fold": folds}))
    for left_out, head, inputs in solve_heads(evidence, folds):
        sent = {"fold": folds[left_out][0], **scale_of(inputs)} | {f"layer{i}": layer for i, layer in enumerate(head.layers)}
        session.ask(keep_head_predictions, ids=_holders(evidence, left_out), broadcast=sent)
    return session


def _holders(evidence, chosen):
    """Clients with a sample of the mask (m,)."""
    return [k for k, mask in enumerate(np.split(chosen, evidence.offsets[1:-1])) if mask.any()]


def _members(evidence, samples, inputs, rows=None):
    from fnlkit.federated.client.client import ClientList

    places = np.arange(len(evidence.labels))
    rows = (rows or {}) | ({} if evidence.groups is None else {"input/group": evidence.groups})
    return ClientList(samples, evidence.offsets, places, evidence.labels, evidence.classes, inputs, rows=rows)


def scale_of(inputs: "Inputs") -> "dict[str, torch.Tensor]":
    """Convert the scale of a model's inputs to the arrays that are sent with the model."""
    import torch

    return {name: torch.tensor(getattr(inputs, name), dtype=torch.float64) for name in ("mean", "std")}


def describe_traffic(traffic: Traffic, sends: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Describe the data that left the clients, {name: {"bytes", "what"}}; assert that every name is declared.

    Parameters
    ----------
    traffic : fnlkit.artifacts.exchange.Traffic
    sends : mapping of str to fnlkit.core.declarations.Sent
        Declared replies in addition to `fnlkit.federated.client.measuring.TRAINING`.
    """
    known = {**TRAINING, **sends}
    undeclared = sorted(set(traffic.sent) - set(known))
    assert not undeclared, f"clients replied {undeclared}, which is not declared"
    return {
        name: {"bytes": int(count), "what": f"{known[name].revealing}; {known[name].when}"}
        for name, count in traffic.sent.items()
    }


# ---- on the client
def keep_predictions(client: "Client", model: "LocalModel", received: "Received") -> None:
    """Keep the received model's probabilities (n, C) of all samples or of one fold.

    Inputs are scaled as in the model's training.
    """
    import torch

    from fnlkit.federated.client.network import predict

    scale = {name: tuple(received[name].tolist()) for name in ("mean", "std") if name in received}
    mask = torch.ones(len(client), dtype=torch.bool)
    if "fold" in received and "input/fold" in client.rows:  # a site is asked only for the fold that leaves it out as a whole
        mask = client.rows["input/fold"] == received["fold"]
    logits = predict(model.network, model.weights, client.x[mask], replace(client.inputs, **scale))
    known = client.rows.setdefault("estimate/probabilities", torch.zeros(len(client), client.classes, dtype=torch.float64))
    known[mask] = torch.softmax(logits.double(), -1).cpu()


def keep_head_predictions(client: "Client", model: "LocalModel", received: "Received") -> None:
    """Keep the probabilities (n, C) of a fold's samples by the received layers of a head."""
    import torch

    inputs = Scaling(client.inputs.image, *(tuple(received[name].tolist()) for name in ("mean", "std")))
    layers = tuple(np.asarray(received[name]) for name in sorted(received) if name.startswith("layer"))
    mask = client.rows["input/fold"] == received["fold"]
    logits = Head(len(layers[0]) if len(layers) > 2 else 0, layers).of_samples(client.x[mask], inputs)
    known = client.rows.setdefault("estimate/probabilities", torch.zeros(len(client), client.classes, dtype=torch.float64))
    known[mask] = torch.from_numpy(softmax(logits))


def groups_of(client: "Client") -> np.ndarray | None:
    """Group (n,) of each sample of a client, or None."""
    return client.rows["input/group"].numpy() if "input/group" in client.rows else None


def predictions(client: "Client") -> np.ndarray:
    """Probabilities (n, C) float64 that a client holds for its samples."""
    stored = client.rows.get("input/probabilities")
    return (client.rows["estimate/probabilities"] if stored is None else stored).numpy().astype(np.float64)


def reply_predicted(client: "Client", model: "LocalModel", received: "Received") -> dict[str, Any]:
    """Reply the counts (C, C) of samples by predicted class and given label."""
    return {"predicted": table_of(predictions(client).argmax(1), client.y, client.classes)}


def keep_judgment(
    client: "Client", issue: np.ndarray, flagged: np.ndarray, guess: np.ndarray, confidence: np.ndarray | None = None
) -> dict[str, Any]:
    """Keep issue scores, flags and guessed labels (n,) of the client's samples; return the reply of `RELABELED`.

    `confidence` (n,) is the probability of the guess, if the estimator has one.
    """
    import torch

    for name, values in (("issue", issue), ("flagged", flagged), ("guess", guess), ("confidence", confidence)):
        if values is not None:
            client.rows[f"estimate/{name}"] = torch.from_numpy(np.array(values))
    labels = client.y.numpy()
    return {"relabeled": table_of(np.where(flagged, guess, labels), labels, client.classes)}


def table_of(guess: "np.ndarray | torch.Tensor", labels: "np.ndarray | torch.Tensor", classes: int) -> "torch.Tensor":
    """Count guessed by given labels: (C, C) int64, as a Tensor."""
    import torch

    cells = torch.as_tensor(guess) * classes + torch.as_tensor(labels)
    return torch.bincount(cells, minlength=classes**2).reshape(classes, classes)
