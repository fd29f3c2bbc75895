"""Energy: training on wrong labels leaves a local model unsure where the global one is sure.

Tsouvalas, Saeed, Ozcelebi, Meratnia. Labeling chaos to learning harmony: Federated learning with noisy labels. ACM
TIST 2024, Section 4.2 (NA-FedAvg).
"""

from typing import Literal

import numpy as np

from fnlkit.estimators.intervals import wilson
from fnlkit.estimators.judgement import Judgement, owners, transitions
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.na_fedavg import estimation_round
from fnlkit.parameters import Percentile, checked


@checked
def energy(
    evidence,
    *,
    percentile: Percentile = 75.0,
    side: Literal["below", "above"] = "below",
    score: Literal["energy", "softmax"] = "energy",
):
    """Judge clients by how sure their local models have become of their samples after one round of training.

    A sample's energy is logsumexp(logits).  The threshold is a percentile of all energies under the global model before
    that round; the level is the share of a client's energies below it (the paper's prose).  It measures how far training
    moved the client, not single labels: its issue scores say little about which sample is wrong.

    Parameters
    ----------
    evidence : fnlkit.estimators.evidence.Evidence
        Trains a warm-up and one round of all clients; with a given run, that round alone on its model.
    percentile : float in [0, 100]
        v.
    side : "below" or "above"
        Which energies count as noisy; ``above`` is the formula's Heaviside function and the public code.
    score : "energy" or "softmax"
        softmax: the largest probability in the energy's place (FedLN, Table 2).
    """
    from fnlkit.estimators.warmup import trained

    reason = "it trains a warm-up; write --run to start from a model"
    evidence.refuse("energy", embeddings=reason, probs=reason)
    before = 0 if evidence.run is not None else -1
    method = f"fnlkit.estimators.energy:warm_up_and_score(percentile={percentile}, side={side}, score={score}, before={before})"
    model = trained(evidence, method=method)
    offsets, labels = evidence.offsets, evidence.labels
    level, tau = model.record("noise_level"), model.record("energy_threshold").item()
    # A client whose reply was refused has no energies: it stands at the threshold, on the side that is not flagged.
    scores = np.full(len(labels), tau if side == "below" else np.nextafter(tau, -np.inf))
    scores[np.isin(owners(offsets), model.record("energy_clients"))] = model.record("energy_local")
    beyond = scores < tau if side == "below" else scores >= tau
    rank = ranks(scores, model.record("energy_global"))
    guess = model.probabilities(evidence.positions).argmax(1)
    evidence.weigh(guess, "predictions")
    evidence.say(
        f"energy: levels rank clients and are no shares of wrong labels: they count energies {side} the {percentile:g}th "
        "percentile of all, and clean labels have such too"
    )
    sizes = np.diff(offsets)
    T, client_T = transitions(np.where(beyond, guess, labels), labels, offsets, evidence.classes)
    return Judgement(
        level,
        *wilson(np.rint(level * sizes), sizes),
        score=level,
        issue=1 - rank if side == "below" else rank,
        flagged=beyond,
        guess=guess,
        transition=T,
        client_transition=client_T,
    )


def ranks(values, among):
    """Return the share (m,) of `among` that lies below each value."""
    return np.searchsorted(np.sort(among), values) / max(1, len(among))


def warm_up_and_score(clients, model, opt, select, *, rounds, percentile=75.0, side="below", score="energy", before=-1):
    """Train `rounds` rounds of FedAvg (`before` when that is not negative), then one of all clients, scoring energies.

    Reports
    -------
    noise_level (N,), energy_threshold (1,), energy_clients (K,), energy_local, energy_global (m,).
    """
    if before:
        model = yield from fedavg(clients, model, opt, select, rounds=rounds if before < 0 else before, stage="warm-up")
    model, said, levels, tau = estimation_round(
        clients, model, opt, percentile=percentile, side=side, threshold="pooled", score=score
    )
    report = {
        "noise_level": levels,
        "energy_threshold": np.array([tau]),
        "energy_clients": said.ids,
        "energy_local": np.concatenate([np.asarray(s) for s in said["scores_local"]]),
        "energy_global": np.concatenate([np.asarray(s) for s in said["scores_global"]]),
    }
    yield Round(model, "estimation", said, report)
    return model
