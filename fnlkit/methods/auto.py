"""Auto: measure the noise after a warm-up, let treatments compete on held-back noisy labels, and keep the best.

A method of this project (docs/auto.md).  Each client holds back a tenth of its samples, which never train the network.
"""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from fnlkit.client.losses import kept_cross_entropy, soft_cross_entropy
from fnlkit.client.scoring import softmax_numpy
from fnlkit.components.declarations import Sent, method
from fnlkit.components.parameters import NotNegative, Rounds, Share, check_arguments
from fnlkit.kernels import count_matrix
from fnlkit.kernels.annotator import fit_annotator
from fnlkit.kernels.mixture import two_groups
from fnlkit.kernels.scores import transition
from fnlkit.methods.fedavg import Round, refuse_mixup
from fnlkit.methods.fedem import SENDS as OF_PASSES
from fnlkit.methods.fedem import infer_all, keep_given
from fnlkit.methods.forward import confident_issues

if TYPE_CHECKING:
    from fnlkit.client.client import Client, LocalModel
    from fnlkit.client.network import Model
    from fnlkit.server.clients import Clients, Replies
    from fnlkit.server.optimizers.optimizer import FedOpt


TREATMENTS = ("plain", "prune", "infer")
ONCE = "twice, in the middle and at the end of the warm-up"
EXAMINED = ("held_back", "fitted", "trained", "changed", "expected", "confident")
SENDS = {
    "held_back": Sent.counts("held-back samples by predicted and given class", "at each comparison", ("C", "C")),
    "fitted": Sent.counts("training samples whose given label is predicted", ONCE),
    "trained": Sent.counts("number of training samples", ONCE),
    "memorized": Sent.counts(
        "training and held-back samples whose label the received model contradicts, and how many the local model predicts",
        "each round of the second half of the warm-up",
        (2, 2),
    ),
    "changed": Sent.counts("samples with another predicted class than before", ONCE),
    "expected": Sent("expected numbers of samples by true and given class (EM)", ONCE, ("C", "C"), low=0, high="n"),
    "confident": Sent.counts("samples by confidently predicted and given class", ONCE, ("C", "C")),
    **{name: sent._replace(when="all clients, each pass of `infer`") for name, sent in OF_PASSES.items()},
}


# ---- on the client
def hold_back(client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]", *, share: float) -> None:
    """Choose the held-back samples at the first visit."""
    if "held_back" not in client.rows:
        held = torch.zeros(len(client), dtype=torch.bool)
        count = min(max(1, round(share * len(client))), len(client) - 1)
        held[torch.from_numpy(client.rng.permutation(len(client))[:count])] = True
        client.rows["held_back"] = held


def leave_out(client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]") -> None:
    """Do not train on the held-back samples."""
    keep_only(client, model, ~client.rows["held_back"])


def keep_only(client: "Client", model: "LocalModel", kept: "torch.Tensor") -> None:
    """Write rows["keep"]: 0 for samples that do not train the network, n / kept for the others."""
    client.rows["keep"] = kept.to(model.weights.dtype).cpu() * (len(client) / max(1, int(kept.sum())))


def note_doubts(client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]") -> None:
    """Write which labels the received model contradicts."""
    client.rows["doubted"] = model(client.x).argmax(-1).cpu() != client.y.cpu()


def reply_memorized(client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Reply how many of these labels the local model predicts after local training (`SENDS`)."""
    fits, doubted, held = model(client.x).argmax(-1).cpu() == client.y.cpu(), client.rows["doubted"], client.rows["held_back"]
    rows = [[(doubted & part).sum(), (doubted & part & fits).sum()] for part in (~held, held)]
    return {"memorized": torch.tensor(rows)}


def prune(client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]") -> None:
    """Also leave out the samples whose label confident learning contradicts."""
    flagged = confident_issues(softmax_numpy(model(client.x)), client.y.cpu().numpy())
    kept = ~client.rows["held_back"] & ~torch.from_numpy(flagged)
    keep_only(client, model, kept if kept.any() else ~client.rows["held_back"])


def compare(client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Reply the held-back samples by predicted and given class; all samples if the client was not in the trials."""
    held = client.rows["held_back"] | (received["outside"].cpu() > 0)
    return {"held_back": count_pairs(model(client.x).argmax(-1).cpu()[held], client.y.cpu()[held], client.classes)}


def count_pairs(rows: "torch.Tensor", columns: "torch.Tensor", classes: int) -> "torch.Tensor":
    """Return counts (C, C) of pairs of classes."""
    return torch.bincount(rows * classes + columns, minlength=classes**2).reshape(classes, classes)


def examine(client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]") -> dict[str, Any]:
    """Reply the counts of `SENDS`: fit, changes of predictions, and two estimates of the labels' transition."""
    logits, y, classes = model(client.x).double().cpu(), client.y.cpu(), client.classes
    guess, train = logits.argmax(-1), ~client.rows["held_back"]
    before = client.rows.get("guess", guess)
    client.rows["guess"] = guess
    # As in `fedem`, starting from a matrix with 60 % right labels.
    common = 0.6 * np.eye(classes) + 0.4 / classes
    p = softmax_numpy(logits)
    expected = fit_annotator(p**2 / (p**2).sum(1, keepdims=True), y, common, strength=10.0 / classes, steps=2).counts
    confident = count_matrix(p, y.numpy(), least_diagonal=0)
    return {
        "held_back": count_pairs(guess[~train], y[~train], classes),
        "fitted": (guess == y)[train].sum(),
        "trained": train.sum(),
        "changed": (guess != before).sum(),
        "expected": torch.from_numpy(expected).clamp(0, len(y)),
        "confident": torch.from_numpy(np.asarray(confident, np.int64)),
    }


# ---- the server: evidence
class Evidence(NamedTuple):
    """Evidence after the warm-up; shares are fractions.

    Attributes
    ----------
    memorized : float
        Share of training labels that the received model contradicts and that a local model predicts after local training, minus
        the same share of held-back labels: 0 for a network that does not memorize.
    gap : float
        Agreement of the global model with training labels minus agreement with held-back labels.
    changes : float
        Share of predictions that changed in the second half of the warm-up.
    level : float
        Estimated share of wrong labels, and `levels` (N,) of each client.
    groups : float
        BIC of one group of levels minus BIC of two; clients differ if it is positive.
    apart : float
        Mean total variation between the rows of two estimates of T.
    margin : float
        Smallest T[c, c] - max T[c, other]; labels of a class are mostly wrong if it is negative.
    skew : float
        Mean total variation between a client's labels and all labels.
    missing : float
        Share of pairs of a client and a class without a sample.
    """

    memorized: float
    gap: float
    changes: float
    level: float
    groups: float
    apart: float
    margin: float
    skew: float
    missing: float
    levels: np.ndarray
    common: np.ndarray


def evidence_of(replies: "Replies", counts: np.ndarray, clients: int) -> Evidence | None:
    """Return the Evidence in the replies of `examine` from some of `clients` clients, or None without a reply.

    Parameters
    ----------
    replies : fnlkit.server.clients.Replies
    counts : (2, 2)
        Sum of the replies ``memorized``.
    clients : int
    """
    if not len(replies.ids):
        return None
    expected, confident = (replies[name].double().numpy() for name in ("expected", "confident"))
    held, trained = replies["held_back"].double().numpy(), replies["trained"].double().numpy()
    total = np.maximum(expected.sum((1, 2)), 1)
    replied = 1 - np.trace(expected, axis1=1, axis2=2) / total
    levels = np.full(clients, np.average(replied, weights=total))
    levels[replies.ids] = replied
    first, second = transition(expected.sum(0)), transition(confident.sum(0))
    off = first * (1 - np.eye(len(first)))
    labels = expected.sum(1)
    shares = labels / np.maximum(labels.sum(1, keepdims=True), 1)
    everywhere = labels.sum(0) / max(1, labels.sum())
    agreement = np.trace(held.sum(0)) / max(1, held.sum())
    rates = counts[:, 1] / np.maximum(counts[:, 0], 1)
    return Evidence(
        memorized=float(rates[0] - rates[1]),
        gap=replies["fitted"].double().sum().item() / max(1, trained.sum()) - agreement,
        changes=replies["changed"].double().sum().item() / max(1, total.sum()),
        level=float(np.average(replied, weights=total)),
        groups=two_groups(replied),
        apart=float(0.5 * np.abs(first - second).sum(1).mean()),
        margin=float((np.diag(first) - off.max(1)).min()),
        skew=float(0.5 * np.abs(shares - everywhere).sum(1).mean()),
        missing=float((labels < 0.5).mean()),
        levels=levels,
        common=first,
    )


def candidates(found: Evidence, *, level: float) -> tuple[str, str, str]:
    """Return the treatments that compete, the favorite first.

    Parameters
    ----------
    found : Evidence
    level : float
        Smallest share of wrong labels plus fit gap from which the labels are inferred instead of used as they are.
    """
    noisy = found.level + max(0.0, found.gap) >= level  # memorized labels look right, and widen the gap
    return ("infer", "prune", "plain") if noisy else ("plain", "infer", "prune")


# ---- the server: comparison
def agreements(tables: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Return (N,) sums over held-back samples: agreement, or accuracy corrected by the inverse of T (C, C).

    E[inverse[given, predicted]] over the given label is 1 for the true class and 0 for every other class.
    """
    return (tables * inverse.T).sum((1, 2))


def measure_lead(ours: np.ndarray, theirs: np.ndarray, inverse: np.ndarray) -> tuple[float, float]:
    """Return (difference, standard error over clients) of two candidates' shares on the held-back samples of common clients."""
    both = np.minimum(ours.sum((1, 2)), theirs.sum((1, 2))) > 0
    each = agreements(ours[both], inverse) - agreements(theirs[both], inverse)
    count = ours[both].sum()
    if len(each) < 2:
        return 0.0, np.inf
    deviation = np.sqrt(((each - each.mean()) ** 2).sum() * len(each) / (len(each) - 1))
    return float(each.sum() / count), float(deviation / count)


def inverse_of(found: Evidence) -> np.ndarray:
    """Return the inverse of T, or the identity if the estimates of T disagree or a class has mostly wrong labels."""
    usable = found.margin > 0.1 and found.apart < 0.2
    return np.linalg.inv(found.common) if usable else np.eye(len(found.common))


def collect_tables(clients: "Clients", model: "Model", hold: Callable[..., Any], inside: np.ndarray) -> np.ndarray:
    """Return the held-back tables (N, C, C) of a model, 0 for clients without a reply.

    Clients outside the trials, not `inside` (N,), count all samples.
    """
    told = {"outside": torch.from_numpy(~inside).double()}
    replies = clients.round(np.arange(len(clients)), model, hold, compare, expect=("held_back",), scatter=told)
    tables = np.zeros((len(clients), clients.classes, clients.classes))
    if len(replies.ids):
        tables[replies.ids] = replies["held_back"].double().numpy()
    return tables


def examine_all(clients: "Clients", model: "Model", hold: Callable[..., Any]) -> "Replies":
    """Return the replies of `examine` from all clients."""
    return clients.round(np.arange(len(clients)), model, hold, examine, expect=EXAMINED)


def in_trials(levels: np.ndarray) -> np.ndarray:
    """Return the half of the clients (N,) bool that trains in the trials: every second one by noise level."""
    if len(levels) < 4:
        return np.ones(len(levels), bool)
    return np.argsort(np.argsort(levels, kind="stable")) % 2 == 0


def finalists(names: Sequence[str], tables: dict[str, np.ndarray], inverse: np.ndarray) -> tuple[str, str]:
    """Return the favorite and the best of the other candidates."""
    best = max(names[1:], key=lambda name: measure_lead(tables[name], tables[names[0]], inverse)[0])
    return names[0], best


# ---- the server: training
def plan(rounds: int, warmup: int, trial: int) -> tuple[int, int]:
    """Return (rounds of the warm-up, rounds of a candidate's first trial). Default: a sixth and a thirtieth."""
    return min(rounds, warmup if warmup >= 0 else rounds // 6), trial if trial >= 0 else rounds // 30


def local_training(name: str, hold: Callable[..., Any]) -> dict[str, Any]:
    """Return the keywords of FedOpt.round for a treatment."""
    if name == "prune":
        return {"before": (hold, prune), "loss": kept_cross_entropy}
    if name == "infer":
        return {"before": (hold, leave_out, keep_given), "loss": partial(soft_cross_entropy, kept=True)}
    return {"before": (hold, leave_out), "loss": kept_cross_entropy}


def remember(clients: "Clients", name: str, model: "Model") -> None:
    """Store a model with the run, because a resumed run knows only the last model."""
    if not clients.replaying:
        clients.memory[f"auto/{name}"] = model.weights.clone()


def recall_model(clients: "Clients", name: str, model: "Model") -> "Model":
    """Return the stored model; without weights during a replay."""
    return model.with_weights(clients.memory.get(f"auto/{name}"))


@method(sends=SENDS, loss="own", schedule=lambda rounds, warmup, trial: (rounds, *plan(rounds, warmup, trial)))
@check_arguments
def auto(
    clients: "Clients",
    model: "Model",
    opt: "FedOpt",
    select: Callable[..., Any],
    *,
    rounds: int,
    treatment: Literal["compete", "plain", "prune", "infer"] = "compete",
    warmup: Rounds = -1,
    trial: Rounds = -1,
    share: Share = 0.1,
    level: Share = 0.1,
    errors: NotNegative = 2.0,
) -> "Generator[Round, None, Model]":
    """Measure the noise, let treatments compete on held-back noisy labels, and train with the best.

    After a plain warm-up, all clients reply counts that show memorization, noise levels and transitions.  This evidence names
    the favorite of three treatments.  Each trains from the model of the warm-up; all clients compare the models on their
    held-back labels, the favorite and the best other train further, and the other wins if it is ahead by more than `errors`
    standard errors.  If the agreement later falls by two standard errors, plain training continues from the best model.

    Parameters
    ----------
    rounds : int
        Budget of warm-up, trials and training together.
    treatment : str
        ``compete``, or a fixed treatment without trials, for comparisons: ``plain``; ``prune`` leaves out samples by confident
        learning; ``infer`` trains on labels that a Gaussian classifier and a matrix for each client infer, as `fedem` does.
    warmup, trial : int >= 0, or -1
        Rounds of plain training, and of a candidate's first trial; the second trial is twice as long.  Default: -1, a sixth and
        a thirtieth of the rounds.  Without a warm-up, training is plain; without a trial, the favorite is chosen.
    share : float in [0, 1]
        Held-back share of each client's samples, at least one sample of clients with two or more.
    level : float in [0, 1]
        Estimated share of wrong labels plus fit gap from which `infer` is the favorite instead of plain training.
    errors : float >= 0
        Standard errors by which a candidate must be ahead of the favorite.

    Notes
    -----
    Evidence, comparisons and inference cost bytes of all clients and no client-rounds.  Counts reveal numbers of labels by
    class.  **The sums of the passes of `infer` reveal samples** of a client (see `fedem`): real sites refuse the method.

    Reports
    -------
    The numbers of `Evidence`, treatment and runner_up (positions in `TREATMENTS`), ahead and ahead_error, with the first round
    of the chosen treatment; noise_level (N,), transition (C, C); returned, 1 if plain training continued.
    """
    refuse_mixup(opt, "auto")
    warmup, trial = plan(rounds, warmup, trial)
    hold, found, counts = partial(hold_back, share=share), None, np.zeros((2, 2))
    for r in range(warmup):
        if r == warmup // 2:
            examine_all(clients, model, hold)
        ids, step = select(clients, model), local_training("plain", hold)
        if r >= warmup // 2:
            step |= {"before": (*step["before"], note_doubts), "after": (reply_memorized,), "expect": ("memorized",)}
        model, replies = opt.round(clients, ids, model, **step)
        counts += replies["memorized"].double().sum(0).numpy() if "expect" in step and len(replies.ids) else 0
        remember(clients, "start", model)
        yield Round(model, "warm-up", replies)
    names: tuple[str, ...] = ("plain",)
    tables: dict[str, np.ndarray] = {}
    at: dict[str, str] = {}
    left, difference = rounds - warmup, (0.0, 0.0)
    if warmup and left:
        found = evidence_of(examine_all(clients, model, hold), counts, len(clients))
    if found is not None:
        names = candidates(found, level=level) if treatment == "compete" else (treatment,)
        inverse, inside = inverse_of(found), in_trials(found.levels)
    others = names[1:]
    for steps in (trial, 2 * trial):
        if len(names) == 1 or not 0 < steps * len(names) < left:
            break
        cohorts: list[Any] = []  # the same for all candidates
        for name in names:
            current = recall_model(clients, at.get(name, "start"), model)
            if name == "infer":
                infer_all(clients, current, hold)
            for j in range(steps):
                cohorts += [select(clients, current, inside)] if j == len(cohorts) else []
                current, replies = opt.round(clients, cohorts[j], current, **local_training(name, hold))
                remember(clients, name, current)
                yield Round(current, f"trial of {name}", replies)
            tables[name], at[name], left = collect_tables(clients, current, hold, inside), name, left - steps
        names = finalists(names, tables, inverse)
        difference = measure_lead(tables[names[1]], tables[names[0]], inverse)
    if tables and difference[0] > errors * difference[1]:
        names = names[::-1]
    elif tables:
        difference = 0.0 - difference[0], difference[1]
    name, report = names[0], {}
    if found is not None:
        runner = (*names[1:], *others, name)[0]
        report = report_of(found, name, runner, difference)
        model = recall_model(clients, at.get(name, "start"), model)
        if name == "infer" and left:
            infer_all(clients, model, hold)
    best, period, everyone = None, max(1, left // 3), np.ones(len(clients), bool)
    for r in range(left):
        if tables and name != "plain" and r % period == 0:
            now = collect_tables(clients, model, hold, everyone)
            change, error = (0.0, 0.0) if best is None else measure_lead(now, best, inverse)
            if change < -2 * error:
                name, model, report = "plain", recall_model(clients, "best", model), {"returned": 1.0}
            elif best is None or change > 0:
                best = now
                remember(clients, "best", model)
        ids = select(clients, model)
        model, replies = opt.round(clients, ids, model, **local_training(name, hold))
        yield Round(model, name if found is not None else "training", replies, report)
        report = {}
    return model


def report_of(found: Evidence, name: str, runner: str, difference: tuple[float, float]) -> dict[str, Any]:
    """Return the report of a choice."""
    numbers = {field: value for field, value in found._asdict().items() if field not in ("levels", "common")}
    choice = {"treatment": TREATMENTS.index(name), "runner_up": TREATMENTS.index(runner)}
    numbers |= choice | {"ahead": difference[0], "ahead_error": difference[1]}
    return numbers | {"noise_level": found.levels, "transition": found.common}


def explain_choice(history: list[dict[str, Any]]) -> str | None:
    """Return the choice of a run as sentences, or None if its history has none.

    Parameters
    ----------
    history : list of dict
        Rows of a run.
    """
    row = next((row for row in history if "runner_up" in row and "treatment" in row), None)
    if row is None:
        return None
    chosen, other = TREATMENTS[int(row["treatment"])], TREATMENTS[int(row["runner_up"])]
    text = f"auto chose {chosen} in round {row['round'] + 1}" + (f"; runner-up {other}" if other != chosen else "")
    if row["ahead_error"]:
        points = f"{100 * row['ahead']:+.1f} ± {100 * row['ahead_error']:.1f}"
        text += f", difference on held-back labels {points} points (standard error)"
    differ = "clients differ" if row["groups"] > 0 else "clients do not differ"
    text += (
        f". Evidence after the warm-up: {100 * row['level']:.0f} % wrong labels; local training "
        f"memorizes {100 * row['memorized']:.0f} % of contradicted labels; fit gap {100 * row['gap']:.0f} %, "
        f"{100 * row['changes']:.0f} % of predictions changed; {differ} (BIC {row['groups']:+.0f}); estimates of T differ by "
        f"{100 * row['apart']:.0f} %, smallest margin {row['margin']:.2f}; label skew {100 * row['skew']:.0f} %, "
        f"{100 * row['missing']:.0f} % of classes missing at a client."
    )
    back = next((row["round"] + 1 for row in history if row.get("returned")), None)
    return text if back is None else f"{text} In round {back} plain training continued, because the agreement had fallen."
