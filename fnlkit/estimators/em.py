"""Estimate each client's transition matrix by expectation maximization, with a model not trained on the labels.

Bekker, Goldberger. Training deep neural-networks based on unreliable labels. ICASSP 2016, with the classifier kept fixed
and its softmax tempered by the same likelihood.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np

from fnlkit.core.declarations import Sent, declare
from fnlkit.core.parameters import NotNegative, Range, check_arguments
from fnlkit.estimators import federated
from fnlkit.estimators.federated import ClientSession
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.intervals import widen
from fnlkit.estimators.judgment import Judgment
from fnlkit.estimators.likelihood import allowing_for_mistakes, confidence_of, estimates_of, fit, in_whole_numbers, scores_of
from fnlkit.kernels.scores import transition
from fnlkit.kernels.streams import stream

if TYPE_CHECKING:
    import torch

    from fnlkit.federated.types import Client, LocalModel, Received, Replies


# A client replies whole numbers only: the digits of a likelihood, or of an expected number, would state those of a sample.
JUDGED = {
    "low": Sent.counts("lower end of the interval of the number of wrong labels, rounded down", "once"),
    "high": Sent.counts("upper end of the interval of the number of wrong labels, rounded up", "once"),
    "counts": Sent.counts("expected numbers of samples by true and given class, rounded", "once", ("C", "C"), total="n"),
}


@declare(sends=federated.HELD_OUT | JUDGED, cite="Bekker 2016")
@check_arguments
def em(
    evidence: EstimatorInputs,
    *,
    folds: Annotated[int, Range(2)] = 5,
    by: Literal["client", "sample"] = "client",
    prior: NotNegative = 1.0,
) -> Judgment:
    """Judge labels by a model's predictions and the transition matrix that fits the labels best.

    The model of a given label g of sample x is: draw t ~ p(. | x), then draw g from T_k[t]. The likelihood is sum_t p(t | x)
    T_k[t, g].  Each client maximizes the likelihood of its labels over T_k, and over the factor on the logits that tempers p.
    The level is the expected share of labels that differ from the true class.  p comes from a model trained without the
    client, from a file or from a run.  Expected counts are rounded to whole numbers with the sums of the given classes.

    The level counts confident mistakes of the model as noise.  The upper end of the cleanest client's interval bounds these
    mistakes, and is subtracted from the lower end of each interval (at least 0).  The interval is a bootstrap over the
    client's samples or groups.  The method assumes that noise depends on the class and not on the sample, and that at least
    one client is nearly clean.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
        Uses given probabilities or a given run; otherwise predicts each fold by a model of the others: a head of `fedsums`,
        or a network if an option of a training is given or samples are large images (fnlkit.estimators.folds).
    folds : int >= 2
        At most the number of clients.
    by : "client" or "sample"
        Unit that a fold leaves out, as in `confident`.
    prior : float >= 0
        Number of right labels per class that is added to every client's counts. Without this prior, a class with three
        samples could be estimated as entirely wrong.
    """
    evidence.refuse("em", embeddings="write `probabilities`, or omit both for a warm-up")
    if evidence.federated:
        session = federated.with_predictions(evidence, evidence.folds(folds, by))
        evidence.weigh_counts(session.ask(federated.reply_predicted)["predicted"].sum(0), "predictions")
        return by_clients(session, prior=prior, seed=evidence.seed)[0]
    probabilities = evidence.predicted_out_of_sample(folds, by)
    evidence.weigh(probabilities.argmax(1), "predictions")
    bounds = evidence.offsets[1:-1]
    logits, labels = np.split(scores_of(probabilities), bounds), np.split(evidence.labels, bounds)
    groups = [None] * len(labels) if evidence.groups is None else np.split(evidence.groups, bounds)
    fits = [
        fit(z, y, prior=prior, rng=stream(evidence.seed, "em", client=k), groups=of)
        for k, (z, y, of) in enumerate(zip(logits, labels, groups, strict=True))
    ]
    posterior = np.concatenate([fitted["posterior"] for fitted in fits])
    replies = [in_whole_numbers(fitted, y, logits[0].shape[1]) for fitted, y in zip(fits, labels, strict=True)]
    estimates = estimates_of(*(np.array([reply[name] for reply in replies]) for name in ("low", "high", "counts")))
    guess = posterior.argmax(1)
    issue = 1 - posterior[np.arange(len(guess)), evidence.labels]
    return _judgment(estimates, issue, guess != evidence.labels, guess, confidence_of(posterior))


def _judgment(estimates, issue, flagged, guess, confidence):
    level, high, counts = estimates["level"], estimates["high"], estimates["counts"]
    low, high = widen(estimates["low"], high, level, counts.sum((1, 2)))
    return Judgment(
        level,
        allowing_for_mistakes(low, high),
        high,
        score=level,
        issue=issue,
        flagged=flagged,
        guess=guess,
        transition=transition(counts.sum(0)),
        client_transition=transition(counts),
        confidence=confidence,
    )


def by_clients(session: ClientSession, *, prior: float, seed: int) -> "tuple[Judgment, Replies]":
    """Judge labels in the federated form: (Judgment, Replies).

    The clients that `session.ask` reaches must have the predictions for their samples.
    """
    replies = session.ask(partial(judge_at_home, prior=prior, seed=seed))
    estimates = estimates_of(*(replies[name].numpy() for name in ("low", "high", "counts")))
    return _judgment(estimates, *map(session.kept, ("issue", "flagged", "guess", "confidence"))), replies


def judge_at_home(
    client: "Client", model: "LocalModel", received: "Received", *, prior: float, seed: int
) -> "dict[str, torch.Tensor]":
    """Reply the range of the number of wrong labels and the expected counts in whole numbers; keep the judgment of samples."""
    import torch

    scores, labels = scores_of(federated.predictions(client)), client.y.numpy()
    fitted = fit(scores, labels, prior=prior, rng=stream(seed, "em", client=client.id), groups=federated.groups_of(client))
    posterior = fitted["posterior"]
    guess = posterior.argmax(1)
    issue = 1 - posterior[np.arange(len(labels)), labels]
    federated.keep_judgment(client, issue, guess != labels, guess, confidence_of(posterior))
    return {name: torch.as_tensor(value) for name, value in in_whole_numbers(fitted, labels, client.classes).items()}
