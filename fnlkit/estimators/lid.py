"""FedCorr's first stage: predictions of models trained on wrong labels spread in more dimensions.

Xu, Chen, Quek, Chong. FedCorr: Multi-stage federated learning for label noise correction. CVPR 2022.
"""

from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch

from fnlkit.core.declarations import declaration, declare
from fnlkit.core.parameters import Count, NotNegative, Range, check_arguments
from fnlkit.core.spec import Spec
from fnlkit.estimators import federated
from fnlkit.estimators.defaults import WARM_UP
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.judgment import Judgment, owners, sums, transitions
from fnlkit.estimators.loss import FLAGGED, of_counts, split, upper_probability
from fnlkit.federated.client.client import Client, LocalModel, Received
from fnlkit.methods.fedcorr import fedcorr


@declare(sends={**federated.PREDICTED, **federated.RELABELED, **FLAGGED, **(declaration(fedcorr).sends or {})}, cite="Xu 2022")
@check_arguments
def lid(
    evidence: EstimatorInputs,
    *,
    iterations: Annotated[int, Range()] = 0,
    k: Count = 20,
    beta: NotNegative = 5.0,
    mixup: NotNegative = 1.0,
    variant: Literal["paper", "fedcorr"] = "paper",
    copies: Literal["once", "each"] = "once",
) -> Judgment:
    """Judge clients by the LID of their predictions (eq. 2), then the samples of noisy clients by their losses.

    Every iteration visits each client once, in sequence.  Two Gaussians are fitted to the clients' scores, and clients of the
    upper component are noisy. A noisy client's level is the share of its samples in the upper of two Gaussians on their
    losses; a clean client's level is 0.  A mixture always has two components, so that some clients are classified as noisy
    even without noise.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
        Trains a warm-up, from a given run's model if there is one.
    iterations : int >= 0
        T1. 0 uses a fifth of the warm-up's rounds, or rounds x fraction if a fraction is given; at least 1.  More
        iterations do not help: models that have learned the wrong labels separate clients less well.
    k : int
        Neighbors of the LID score.
    beta, mixup : float
        Of local training, as in fnlkit.methods.fedcorr.
    variant : "paper" or "fedcorr"
        As in fnlkit.lid.
    copies : "once" or "each"
        As in fnlkit.lid_score: "once" counts equal predictions of a client once, and a note has the number of predictions
        left out; "each" is the paper's mean.
    """
    from fnlkit.estimators.warmup import settings_of, train_warmup

    reason = "it trains a warm-up; write `run` to start from a model"
    evidence.refuse("lid", embeddings=reason, probabilities=reason)
    settings = settings_of(evidence)
    fraction = (evidence.warm_up or {}).get("fraction", WARM_UP["fraction"])
    iterations = iterations or max(1, round(settings.rounds * fraction))
    parameters = {"k": k, "beta": beta, "mixup": mixup, "copies": copies, "code": ["lid"] if variant == "fedcorr" else []}
    stages = {"iterations": iterations, "finetune_rounds": 0, "usual_rounds": 0, "correct": False}
    method = Spec("fedcorr", parameters | stages)
    count = len(evidence.offsets) - 1
    cohort = settings.cohort_size(count)
    model = train_warmup(evidence, method=method, rounds=-(-iterations * count // cohort))  # cost of visiting all clients
    scores = model.record("cumulative_lid")
    noisy = model.record("noisy_clients")
    _note_left_out(evidence, model.record("left_out") if copies == "once" else np.zeros(count))
    names = ("lid_means", "lid_variances", "lid_shares")
    sure = upper_probability(scores, *(model.record(name) for name in names))
    if evidence.federated:
        session = federated.with_model(evidence, model.experiment)
        judge = partial(judge_at_home, seed=evidence.seed)
        message = {"noisy": noisy, "sure": sure}
        replies = session.ask(federated.keep_predictions, federated.reply_predicted, judge, scatter=message)
        evidence.weigh_counts(replies["predicted"].sum(0), "predictions")
        return of_counts(evidence, session, replies, scores)
    losses = np.concatenate([client.rows["loss"].numpy() for client in model.clients]).astype(np.float64)
    issue, large = split(losses, evidence.offsets, evidence.seed)
    of = owners(evidence.offsets)
    flagged, labels = large & noisy[of], evidence.labels
    guess = model.probabilities(evidence.positions).argmax(1)
    evidence.weigh(guess, "predictions")
    wrong, sizes = sums(flagged, evidence.offsets), np.diff(evidence.offsets)
    T, client_T = transitions(np.where(flagged, guess, labels), labels, evidence.offsets, evidence.classes)
    return Judgment(wrong / sizes, *evidence.interval(wrong), scores, issue * sure[of], flagged, guess, T, client_T)


def _note_left_out(evidence, left_out):
    """Print the number of predictions that the scores leave out."""
    if left_out.any():
        evidence.say(
            f"lid: {int(left_out.sum()):,} predictions of {int((left_out > 0).sum()):,} clients equal another one, or are "
            "equally far from all neighbors, and are left out of the scores"
        )


def judge_at_home(client: Client, model: LocalModel, received: Received, *, seed: int) -> dict[str, Any]:
    """Reply a noisy client's number of flagged labels and the counts of relabeled classes; keep the judgment."""
    losses = client.rows["loss"].numpy().astype(np.float64)
    issue, large = split(losses, np.array([0, len(losses)]), seed)
    flagged = large & bool(received["noisy"])
    guess = federated.predictions(client).argmax(1)
    reply = federated.keep_judgment(client, issue * float(received["sure"]), flagged, guess)
    return reply | {"flagged": torch.tensor(int(flagged.sum()))}
