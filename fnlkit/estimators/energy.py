"""Energy: after training on wrong labels, a local model is less certain than the global model.

Tsouvalas, Saeed, Ozcelebi, Meratnia. Labeling chaos to learning harmony: Federated learning with noisy labels. ACM
TIST 2024, Section 4.2 (NA-FedAvg).
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from fnlkit.core.declarations import declare, method
from fnlkit.core.parameters import Percentile, check_arguments
from fnlkit.core.spec import Spec
from fnlkit.estimators import federated
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.judgment import Judgment, owners, transitions
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.kernels.scores import transition
from fnlkit.methods import energy_levels
from fnlkit.methods.energy_levels import estimation_round
from fnlkit.methods.fedavg import Round, fedavg


@declare(sends=federated.PREDICTED | federated.RELABELED | energy_levels.SCORED, cite="Tsouvalas 2024")
@check_arguments
def energy(
    evidence: EstimatorInputs,
    *,
    percentile: Percentile = 75.0,
    side: Literal["below", "above"] = "below",
    score: Literal["energy", "softmax"] = "energy",
) -> Judgment:
    """Judge clients by the certainty of their local models after one round of training.

    A sample's energy is logsumexp(logits).  The threshold is a percentile of all energies under the global model before that
    round. The level is the share of a client's energies below the threshold (the paper's prose).  Energies depend on how far
    training moved the client's model, and hardly on single labels.  The issue scores are therefore weak evidence about a
    sample.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
        Trains a warm-up and one round of all clients; with a given run, only that round, from the run's model.
    percentile : float in [0, 100]
        v.
    side : "below" or "above"
        Which energies count as noisy; ``above`` is the formula's Heaviside function and the public code.
    score : "energy" or "softmax"
        "softmax" uses the largest probability instead of the energy (FedLN, Table 2).
    """
    from fnlkit.estimators.warmup import train_warmup

    reason = "it trains a warm-up; write `run` to start from a model"
    evidence.refuse("energy", embeddings=reason, probabilities=reason)
    parameters = {"percentile": percentile, "side": side, "score": score, "before": 0 if evidence.run is not None else -1}
    program = Spec("fnlkit.estimators.energy:warm_up_and_score", parameters | {"keep": evidence.federated})
    model = train_warmup(evidence, method=program)
    offsets, labels = evidence.offsets, evidence.labels
    level, tau = model.record("noise_level"), model.record("energy_threshold").item()
    # A client whose reply was refused has no energies. It gets the threshold as energy, on the side that is not flagged.
    absent = tau if side == "below" else np.nextafter(tau, -np.inf)
    evidence.say(
        f"energy: levels rank clients but are not shares of wrong labels: they count energies {side} the {percentile:g}th "
        "percentile of all energies, and clean labels have such energies too"
    )
    sizes, among = np.diff(offsets), np.sort(model.record("energy_global"))
    interval = evidence.interval(np.rint(level * sizes))
    if evidence.federated:
        session = federated.with_model(evidence, model.experiment)
        message = {"among": torch.from_numpy(among), "tau": torch.tensor(tau, dtype=torch.float64)}
        message["absent"] = torch.tensor(absent, dtype=torch.float64)
        judge = partial(judge_at_home, side=side)
        replies = session.ask(federated.keep_predictions, federated.reply_predicted, judge, broadcast=message)
        evidence.weigh_counts(replies["predicted"].sum(0), "predictions")
        issue, flagged, guess = (session.kept(name) for name in ("issue", "flagged", "guess"))
        counts = replies["relabeled"].numpy()
        return Judgment(level, *interval, level, issue, flagged, guess, transition(counts.sum(0)), transition(counts))
    scores = np.full(len(labels), absent)
    scores[np.isin(owners(offsets), model.record("energy_clients"))] = model.record("energy_local")
    issue, beyond = judge_scores(scores, among, tau, side)
    guess = model.probabilities(evidence.positions).argmax(1)
    evidence.weigh(guess, "predictions")
    T, client_T = transitions(np.where(beyond, guess, labels), labels, offsets, evidence.classes)
    return Judgment(level, *interval, level, issue, beyond, guess, T, client_T)


def judge_scores(scores: np.ndarray, among: np.ndarray, tau: float, side: str) -> tuple[Any, np.ndarray]:
    """Score and flag energies (m,), given the threshold and all clients' sorted energies."""
    rank = np.searchsorted(among, scores) / max(1, len(among))
    return (1 - rank, scores < tau) if side == "below" else (rank, scores >= tau)


def judge_at_home(client: Client, model: LocalModel, received: Received, *, side: str) -> dict[str, Any]:
    """Reply the counts of relabeled classes; keep the judgment of the energies in the client's state."""
    tau, absent = float(received["tau"]), float(received["absent"])
    scores = client.rows.pop("scores_local", torch.full((len(client),), absent, dtype=torch.float64)).numpy()
    issue, beyond = judge_scores(scores, received["among"].numpy(), tau, side)
    return federated.keep_judgment(client, issue, beyond, federated.predictions(client).argmax(1))


@method(sends=energy_levels.SCORED)
def warm_up_and_score(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    percentile: float = 75.0,
    side: str = "below",
    score: str = "energy",
    before: int = -1,
    keep: bool = False,
) -> Generator[Round, None, Model]:
    """Train `rounds` rounds of FedAvg (`before` if it is not negative), then score energies in one round of all clients.

    Reports
    -------
    noise_level (N,), energy_threshold (1,), energy_clients (K,), energy_local, energy_global (m,).
    """
    if before:
        model = yield from fedavg(clients, model, opt, select, rounds=rounds if before < 0 else before, stage="warm-up")
    model, replies, levels, tau = estimation_round(
        clients, model, opt, percentile=percentile, side=side, threshold="pooled", score=score, keep=keep
    )
    report = {
        "noise_level": levels,
        "energy_threshold": np.array([tau]),
        "energy_clients": replies.ids,
        "energy_local": np.concatenate([np.asarray(s) for s in replies["scores_local"]]),
        "energy_global": np.concatenate([np.asarray(s) for s in replies["scores_global"]]),
    }
    yield Round(model, "estimation", replies, report)
    return model
