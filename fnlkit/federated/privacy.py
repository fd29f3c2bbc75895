"""Label privacy: randomized response and its privacy cost."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit import kernels
from fnlkit.artifacts import ledger
from fnlkit.artifacts.ledger import Release
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.kernels.streams import HiddenStream

# Replies that release labels; their privacy cost is part of the statement.
RELEASED = frozenset({"private_counts", "exact_counts", "epsilon"})


def keep_probability(epsilon: float, classes: int) -> float:
    """Probability that k-ary randomized response keeps a label.

    It is e^eps / (e^eps + K - 1).

    Parameters
    ----------
    epsilon : float > 0
    classes : int >= 2

    Examples
    --------
    >>> from fnlkit.federated.privacy import keep_probability
    >>> round(keep_probability(0.81, 10), 3)
    0.2
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise InputError(f"`epsilon` is {epsilon}; write a positive number")
    if classes < 2:
        raise InputError(f"`classes` is {classes}; randomized response needs at least 2")
    return 1 / (1 + (classes - 1) * math.exp(-epsilon))


def randomized_response(labels: np.ndarray, classes: int, epsilon: float, rng: HiddenStream) -> NDArray[np.integer[Any]]:
    """Keep each label (n,) or replace it by a uniformly drawn OTHER class.

    Parameters
    ----------
    labels : int (n,) in 0..classes-1
    classes : int
    epsilon : float > 0
        Of pure label differential privacy, for one release.
    rng : numpy.random.Generator or fnlkit.kernels.streams.HiddenStream
        If the draws can be repeated, the labels can be recovered.  A Generator with a known seed only simulates protection.
    """
    labels = np.asarray(labels, np.int64)
    draws = rng.random((len(labels), 2))
    return kernels.randomized_response(labels, keep_probability(epsilon, classes), draws, classes)


def debias(counts: ArrayLike, epsilon: float) -> np.ndarray:
    """Estimate the label distribution (K,) from counts of randomized responses.

    The estimate is (T_DP^T)^-1 p in closed form: q_j = ((e^eps + K - 1) p_j - 1) / (e^eps - 1).  It sums to 1 and is unbiased,
    but entries can be negative if there are few labels; see `to_simplex`.

    Parameters
    ----------
    counts : (K,) >= 0, not all 0
    epsilon : float > 0

    Notes
    -----
    Source: FedDPCont (Di 2024), Algorithm 1, line 9.
    """
    numbers = np.asarray(counts, np.float64)
    if not numbers.sum() > 0:
        raise InputError("no label was released, so that the distribution cannot be estimated")
    p = numbers / numbers.sum()
    # Equivalent form with e^-eps, which does not overflow for large epsilon.
    return p + (len(numbers) * p - 1) * math.exp(-epsilon) / -math.expm1(-epsilon)


def to_simplex(values: ArrayLike, *, how: str = "project") -> NDArray[np.floating[Any]]:
    """Project values (K,) that sum to 1 and can be negative to a distribution (K,).

    Parameters
    ----------
    how : "project" or "clip"
        The exact Euclidean projection; or negative entries set to 0 and the rest scaled to sum to 1.
    """
    numbers = np.asarray(values, np.float64)
    if how == "clip":
        clipped = numbers.clip(0)
        return clipped / clipped.sum()
    if how != "project":
        raise InputError(f"simplex is {how!r}; write project or clip")
    return kernels.project_to_simplex(numbers)


# ---- what releases cost
def pure_epsilon(epsilons: Sequence[float]) -> float:
    """Add up the epsilon of several releases of the same labels.

    It is the sum (basic composition of pure DP).
    """
    return math.fsum(epsilons)


def epsilon_at(delta: float, epsilons: Sequence[float], classes: int) -> float | None:
    """Epsilon of several k-ary randomized responses at a delta.

    The privacy loss distributions are composed, which is tight.  At delta 0, the result is `pure_epsilon`.  It is None if the
    extra ``privacy`` is not installed.

    Parameters
    ----------
    delta : float in [0, 1)
    epsilons : sequence of float
        One epsilon for each release of the same labels.
    classes : int
    """
    if delta == 0 or not len(epsilons):
        return pure_epsilon(epsilons)
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld
    except ImportError:
        return None
    total: Any = None
    for epsilon in epsilons:
        # Google's library draws from ALL classes with probability `noise_parameter`, which therefore is (1 - p) K / (K - 1).
        noise = (1 - keep_probability(epsilon, classes)) * classes / (classes - 1)
        release = pld.from_randomized_response(noise_parameter=noise, num_buckets=classes)
        total = release if total is None else total.compose(release)
    # The library rounds losses up to its grid; therefore, the sum can be the smaller upper bound.
    return min(total.get_epsilon_for_delta(delta), pure_epsilon(epsilons))


def releases(run: Run) -> list[Release]:
    """Read the Releases of a run from its log; [] if no labels were released.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    """
    collected = []
    for round, entry in enumerate(run.log):
        counts = entry.values.get("private_counts") or entry.values.get("exact_counts")
        if counts:
            spent = entry.values.get("epsilon")
            made = ledger.release(
                seed=run.settings["seed"],
                round=round,
                epsilon=float(np.median(spent)) if spent else None,  # the reply of a single client does not decide
                classes=len(counts[0]),
                data=run.meta["dataset_checksum"],
                given=run.labels["given"],
                offsets=run.client_offsets,
                indices=run.client_indices,
                key=run.meta.get("privacy_key", ""),
            )
            collected.append(made)
    return collected


def statement(runs: Run | Sequence[Run], *, known: Sequence[Release] = (), delta: float = 1e-5) -> dict[str, Any]:
    """State the privacy of runs on one data set; {} if no labels were sent.

    Releases add up per sample over runs, seeds and partitions.  The statement applies to the sample with the highest total
    epsilon.

    Parameters
    ----------
    runs : Run or sequence of Run
    known : sequence of fnlkit.artifacts.ledger.Release
        Other releases, from a ledger.  A release that is also in a run counts once.
    delta : float
        Delta of the tighter composition, which requires the extra ``privacy``.

    Returns
    -------
    dict
        label_releases, label_epsilon (pure, delta 0; None if there is no bound, or if clients sent replies other than weights
        without randomized response), label_epsilon_at_delta and label_delta if known, label_keep (the probability of a true
        answer in the first release), label_statement (a sentence).

    Raises
    ------
    InputError
        If the runs belong to different data sets, because their labels do not add up.
    """
    several: list[Run] = list(runs) if isinstance(runs, (list, tuple)) else [runs]  # type: ignore[list-item]
    data = {run.meta["dataset_checksum"] for run in several}
    if len(data) > 1:
        raise InputError("the runs belong to different data sets; select the runs of one data set")
    made = [release for run in several for release in releases(run)]
    beside = {name for run in several for entry in run.log for name in entry.values} - RELEASED
    return sum_costs([*known, *made], data.pop(), beside=beside, delta=delta) if made else {}


def sum_costs(made: Sequence[Release], data: str, *, beside: Iterable[str] = (), delta: float = 1e-5) -> dict[str, Any]:
    """Sum the cost of Releases in the same form as `statement`.

    Parameters
    ----------
    made : sequence of fnlkit.artifacts.ledger.Release
    data : str
        Checksum of the data set.
    beside : iterable of str
        Other replies of clients, which depend on labels or on models and are not covered.  If there are any, no label-DP is
        stated and they are named.
    delta : float
    """
    worst = ledger.together(made, data)
    if not worst:
        return {}
    times = "once" if len(worst) == 1 else f"{len(worst)} times"
    if any(release.epsilon is None for release in worst):
        sentence = (
            f"Labels were released {times}, at least once without noise (release=exact): they have no differential privacy."
        )
        return {"label_releases": len(worst), "label_epsilon": None, "label_statement": sentence}
    epsilons, classes = [release.epsilon for release in worst if release.epsilon is not None], worst[0].classes
    total = pure_epsilon(epsilons)
    if beside := sorted(beside):
        sentence = (
            f"Labels were released {times} by randomized response (epsilon {total:.4g} in sum), but clients also send "
            f"{', '.join(beside)} without it: no differential privacy holds for the labels."
        )
        return {"label_releases": len(worst), "label_epsilon": None, "label_statement": sentence}
    total_costs: dict[str, Any] = {
        "label_releases": len(worst),
        "label_epsilon": total,
        "label_keep": keep_probability(epsilons[0], classes),
    }
    tighter = epsilon_at(delta, epsilons, classes) if len(epsilons) > 1 else None
    also = ""
    if tighter is not None and tighter < total:
        total_costs["label_epsilon_at_delta"], total_costs["label_delta"] = tighter, delta
        also = f", or ({tighter:.4g}, {delta:g})"
    seeds = sum(not release.key for release in worst)
    source = "The draws depend on a secret key that is not part of the run: a reader of the key file can repeat them."
    if seeds:
        source = (
            f"The draws of {seeds} of them depend on the run's seed and can be repeated with it: these only simulate a "
            "private release."
        )
    whose = "Each label was released" if len(worst) == 1 else "The most often released labels were released"
    total_costs["label_statement"] = (
        f"{whose} {times} by randomized response: ({total:.4g}, 0)-label-DP{also} for these releases. The model updates "
        f"that clients send depend on the labels and are not covered. {source}"
    )
    return total_costs
