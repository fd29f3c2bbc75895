"""FedCorr: find noisy clients by LID scores and noisy samples by losses, then relabel.

Xu, Chen, Quek, Chong. FedCorr: Multi-stage federated learning for label noise correction. CVPR 2022.
"""

import math
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from fnlkit.core.declarations import Sent, declare, method
from fnlkit.core.errors import InputError, nearest
from fnlkit.core.parameters import Count, NotNegative, Rounds, Share, check_arguments, passes_on, select_accepted
from fnlkit.core.retired import refuse_retired
from fnlkit.federated.client.scoring import double_softmax_losses, sample_losses, softmax_numpy
from fnlkit.federated.server.schedules import stretch
from fnlkit.federated.server.selection import average_for, cohort_size
from fnlkit.federated.types import Batch, Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.kernels.dimensionality import lid, lid_scores
from fnlkit.kernels.mixture import two_components
from fnlkit.kernels.streams import stream
from fnlkit.methods.fedavg import Round, fedavg, follows_schedule
from fnlkit.methods.missed import ask_again

# Choices in which the public code differs from the paper.
CODE = ("proximal", "ranking", "lid", "losses", "relabeled", "strict")
# Parameters of a single stage, which the stage declares.
SCORES, CLEAN = ("beta", "k", "ratio", "copies"), ("clean_level",)
USUAL = ("usual", "usual_optimizer", "usual_aggregator", "usual_selector", "usual_lr", "usual_decay")


# ---- on the client
@declare(fused_kernel="adaptive")
def adaptive_proximal(w: torch.Tensor, w_start: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Gradient of beta mu_k ||w - w_global||^2 (eq. 5).

    `proximal` (...,) is beta mu_k.
    """
    return 2 * batch.received["proximal"][..., None].to(w.dtype) * (w - w_start)


@declare(fused_kernel="adaptive_norm")
def adaptive_proximal_norm(w: torch.Tensor, w_start: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Gradient of beta mu_k ||w - w_global|| (public code).

    It is 0 in the first batch of an epoch.
    """
    away = w - w_start
    norm = away.norm(dim=-1, keepdim=True)
    strength = batch.received["proximal"] * ~batch.first
    return strength[..., None].to(w.dtype) * torch.where(norm > 0, away / norm.clamp_min(1e-30), torch.zeros_like(away))


LOSSES = {"cross-entropy": sample_losses, "double-softmax": double_softmax_losses}


def score_locally(
    client: Client,
    model: LocalModel,
    received: Received,
    *,
    k: int,
    variant: Literal["paper", "fedcorr"],
    losses: str = "cross-entropy",
    copies: Literal["once", "each"] = "each",
) -> dict[str, torch.Tensor]:
    """Reply the mean LID of the local predictions (eq. 2); store the losses.

    With ``copies="once"``, also reply the number of predictions that the mean leaves out.
    """
    logits = model(client.x)
    client.rows["loss"] = LOSSES[losses](logits, client.y.to(logits.device)).cpu()
    predictions = softmax_numpy(logits)
    if copies == "each":
        return {"lid": torch.tensor(lid(predictions, k=k, variant=variant).mean(), dtype=torch.float64)}
    scores = lid_scores(predictions, k=k, variant=variant)
    left_out = int(scores.copies[0] + scores.equidistant[0])
    return {"lid": torch.tensor(scores.score[0], dtype=torch.float64), "left_out": torch.tensor(left_out)}


def find_and_relabel(
    client: Client,
    model: LocalModel,
    received: Received,
    *,
    ratio: float,
    confidence: float,
    ranking: str,
    strict: bool,
    seed: int,
    losses: str = "cross-entropy",
) -> dict[str, torch.Tensor]:
    """Reply the noise level from a split of the losses, and relabel noisy samples.

    Of the noisy samples, the share pi with the largest losses is selected (eq. 6).  A selected sample gets the class
    predicted by the global model if the probability of this class reaches theta (eq. 7).
    """
    noisy = two_components(client.rows["loss"].numpy(), seed=seed).upper
    logits = model(client.x)
    if ranking == "global":
        ranks = LOSSES[losses](logits, client.y.to(logits.device)).cpu().numpy()
        candidates = np.flatnonzero(noisy)
    else:
        ranks, candidates = client.rows["loss"].numpy(), np.arange(len(client))
    worst = candidates[np.argsort(-ranks[candidates], kind="stable")[: int(noisy.sum() * ratio)]]
    relabel(client, torch.from_numpy(worst), logits.softmax(-1).cpu(), confidence, strict)
    return {"noise_level": torch.tensor(noisy.mean(), dtype=torch.float64)}


def relabel_confident(client: Client, model: LocalModel, received: Received, *, confidence: float, strict: bool) -> None:
    """After fine-tuning, relabel every sample that has a confident global prediction."""
    relabel(client, torch.arange(len(client)), model(client.x).softmax(-1).cpu(), confidence, strict)


def relabel(client: Client, index: torch.Tensor, probabilities: torch.Tensor, confidence: float, strict: bool = False) -> None:
    """Replace labels of samples in `index` by the most probable class, if confident.

    Parameters
    ----------
    client : Client
    index : int64 Tensor (m,)
    probabilities : Tensor (n, C)
    confidence : float in [0, 1]
    strict : bool
        Whether the probability must exceed `confidence`, not only reach it.
    """
    top, label = probabilities[index].max(-1)
    sure = top > confidence if strict else top >= confidence
    client.y[index[sure]] = label[sure]


# ---- the server
def share_of_a_round(clients: Clients, select: Callable[..., Any]) -> float:
    """Share of the clients in a round, after rounding to whole clients."""
    return cohort_size(clients, getattr(select, "fraction", 0.1)) / len(clients)


def choices_of(code: tuple[Any, ...] | list[Any] | str) -> frozenset[str]:
    """Parse the choices that follow the public code: a list of words, or ``all``."""
    chosen = frozenset(map(str, code if isinstance(code, (list, tuple)) else [code]))
    if chosen == {"all"}:
        return frozenset(CODE)
    for name in chosen - {*CODE}:
        refuse_retired("parameter", f"fedcorr(code=[{name}])")
        raise InputError(f"fedcorr: `code` contains {name!r}{nearest(name, CODE)}; write all, or a list of: {', '.join(CODE)}")
    return chosen


def budget(rounds: int, fraction: float, iterations: int, finetune_rounds: int, usual_rounds: int) -> tuple[int, int, int]:
    """Divide `rounds` rounds into iterations, fine-tuning rounds and usual rounds.

    Their total cost is that of `rounds` rounds of FedAvg.

    An iteration visits every client once and therefore costs 1 / fraction rounds.  The published 1000 rounds with fraction
    0.1 give (5, 500, 450); smaller budgets give fewer iterations, at most two fifths of the budget.  If a stage is left out
    (0, as in the paper's ablations), the other stages are not extended, and the run ends earlier (appendix C.6).
    """
    if iterations == finetune_rounds == usual_rounds == 0:
        raise InputError("fedcorr: all three stages are left out; write iterations, finetune_rounds or usual_rounds above 0")
    default = min(5, max(1, round(0.4 * rounds * fraction)))
    # Without stage 1, the default lengths of the other stages are those of a run with it.
    counted = default if iterations < 0 or (iterations == 0 and min(finetune_rounds, usual_rounds) < 0) else iterations
    left = rounds - math.ceil(counted / fraction - 1e-9)
    finetune = round(left * 500 / 950)
    if iterations < 0:
        iterations = default
    cost = math.ceil(iterations / fraction - 1e-9)
    if finetune_rounds < 0:
        finetune_rounds = finetune if usual_rounds <= 0 else left - usual_rounds
        usual_rounds = usual_rounds if usual_rounds >= 0 else left - finetune
    elif usual_rounds < 0:
        usual_rounds = left - (finetune_rounds or finetune)
    if min(finetune_rounds, usual_rounds) < 0 or finetune_rounds + usual_rounds > left:
        raise InputError(
            f"fedcorr: {iterations} iterations cost {cost} of {rounds} rounds at fraction "
            f"{fraction:g}, too many with {max(0, finetune_rounds)} fine-tuning and {max(0, usual_rounds)} usual rounds; "
            "raise `rounds` or lower iterations, finetune_rounds, usual_rounds"
        )
    return iterations, finetune_rounds, usual_rounds


class Relabeling(NamedTuple):
    """Parameters of `fedcorr` that stages 1 and 2 share; `code` contains the choices of `choices_of`."""

    confidence: float
    correct: bool
    code: frozenset[str]


class Findings(NamedTuple):
    """Noise levels and noisy clients of stage 1.

    Attributes
    ----------
    level : float (N,)
        Estimated noise levels, 0 for clean clients.
    noisy : bool (N,)
        Noisy clients of the last iteration.
    silent : bool (N,)
        Clients without a known level, because their visits failed.
    """

    level: np.ndarray
    noisy: np.ndarray
    silent: np.ndarray


def pre_processing(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    *,
    iterations: int,
    group: int,
    mixup: float,
    relabeling: Relabeling,
    schedule: Callable[..., Any],
    beta: NotNegative = 5.0,
    k: Count = 20,
    ratio: Share = 0.5,
    copies: Literal["once", "each"] = "each",
) -> Generator[Round, None, tuple[Model, Findings]]:
    """Yield the rounds of stage 1 (Algorithm 1, lines 1 to 13); return (model, Findings).

    `schedule` is that of `fedavg`.  Other parameters as in `fedcorr`.
    """
    confidence, correct, code = relabeling
    losses = "double-softmax" if "losses" in code else "cross-entropy"
    score = partial(score_locally, k=k, variant="fedcorr" if "lid" in code else "paper", losses=losses, copies=copies)
    seek = partial(
        find_and_relabel,
        ratio=ratio if correct else 0.0,
        confidence=confidence,
        ranking="local" if "ranking" in code else "global",
        strict="strict" in code,
        seed=clients.seed,
        losses=losses,
    )
    term = adaptive_proximal_norm if "proximal" in code else adaptive_proximal
    count, rounds_done = len(clients), 0
    level, cumulative, visited = np.zeros(count), np.zeros(count), np.zeros(count)
    noisy, silent = np.zeros(count, bool), np.zeros(count, bool)
    left_out = np.zeros(count, np.int64)
    for iteration in range(iterations):
        order = stream(clients.seed, "fedcorr-visits", iteration).permutation(count)
        cohorts = [np.sort(order[i : i + group]) for i in range(0, count, group)]
        for i, ids in enumerate(cohorts):
            step, scheduled = schedule(rounds_done)
            model, replies = opt.round(
                clients,
                ids,
                model,
                after=(score,),
                corrections=(term,) if beta else (),
                expect=("lid",),
                scatter={"proximal": beta * level[ids]},
                mixup=mixup,
                **step,
            )
            rounds_done += 1
            cumulative[replies.ids] += replies["lid"].numpy()
            if copies == "once":
                left_out[replies.ids] = replies["left_out"].numpy()
            visited[replies.ids] += 1
            if i < len(cohorts) - 1:
                yield Round(model, "pre-processing", replies, scheduled)
        # Lines 9 to 13. A failed visit counts as the mean of the client's other visits; the next iteration repeats it.
        known = visited > 0
        scores = np.where(visited == iteration + 1, cumulative, cumulative * (iteration + 1) / np.maximum(visited, 1))
        noisy = np.zeros(count, bool)
        noisy[known], means, variances, shares = two_components(scores[known], seed=clients.seed)
        level = np.zeros(count)
        estimates = clients.round(np.flatnonzero(noisy), model, seek, expect=("noise_level",))
        level[estimates.ids] = estimates["noise_level"].numpy()
        silent = ~known | noisy
        silent[estimates.ids] = False
        report = {
            "cumulative_lid": scores,
            "lid_means": means,
            "lid_variances": variances,
            "lid_shares": shares,
            "noise_level": level,
            "noisy_clients": noisy,
        }
        report |= {"left_out": left_out.copy()} if copies == "once" else {}
        yield Round(model, "pre-processing", replies, report | scheduled)
    return model, Findings(level, noisy, silent)


def fine_tuning(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    findings: Findings,
    relabeling: Relabeling,
    schedule: Callable[..., Any],
    clean_level: Share = 0.1,
    **later: Any,
) -> Generator[Round, None, Model]:
    """Yield the rounds of stage 2 on clean clients, and relabel the others (Algorithm 1, lines 14 to 18).

    `findings` is the result of `pre_processing`; `select`, `schedule` and `later` (keywords of local training) are those of
    `fedavg`.  Other parameters as in `fedcorr`.
    """
    level, noisy, silent = findings
    confidence, correct, code = relabeling
    clean = (level <= clean_level) & ~silent
    if not rounds:
        return model
    stage: dict[str, Any] = {"among": clean, "stage": "fine-tuning", "schedule": schedule, **later}
    model = yield from fedavg(clients, model, opt, select, rounds=rounds, **stage)
    rest = noisy if "relabeled" in code else ~clean
    if correct and rest.any():
        step = partial(relabel_confident, confidence=confidence, strict="strict" in code)
        replies = clients.round(np.flatnonzero(rest), model, step, expect=())
        ask_again(clients, np.flatnonzero(rest), replies, model, step)
    return model


def usual_training(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    schedule: Callable[..., Any],
    usual: Callable[..., Any] = fedavg,
    usual_optimizer: Callable[..., Any] | None = None,
    usual_aggregator: Callable[..., Any] | None = None,
    usual_selector: Callable[..., Any] | None = None,
    usual_lr: NotNegative = 0.0,
    usual_decay: NotNegative = 1.0,
    **later: Any,
) -> Generator[Round, None, Model]:
    """Yield the rounds of stage 3 on all clients (Algorithm 1, lines 19 and 20), by any method and components.

    `select`, `schedule` and `later` (keywords of local training) are those of `fedavg`.  Other parameters as in `fedcorr`.
    """
    if not rounds:
        return model
    if usual_aggregator is not None:
        opt = replace(opt, aggregate=usual_aggregator)
    if usual_lr or usual_decay != 1:
        fit, before = opt.fit.changed(lr=usual_lr) if usual_lr else opt.fit, opt.rounds
        opt = replace(opt, fit=fit, schedule=lambda done: usual_decay ** (done - before))
    if usual_optimizer is not None:
        opt = replace(usual_optimizer(opt.fit, aggregate=opt.aggregate, schedule=opt.schedule), rounds=opt.rounds)
    if usual_selector is not None:
        select = usual_selector(fraction=share_of_a_round(clients, select))
    average_for(select, opt)
    stage: dict[str, Any] = {"stage": "usual training", "schedule": schedule, **later} if follows_schedule(usual) else {}
    return (yield from usual(clients, model, opt, select, rounds=rounds, **stage))


@method(
    sends={
        "lid": Sent("mean LID of the local model's predictions (eq. 2)", "each visit of stage 1", (), low=0),
        "left_out": Sent(
            "number of predictions that the mean leaves out", "each visit of stage 1, with copies=once", (), low=0, high="n"
        ),
        "noise_level": Sent.share(
            "share of samples in the upper component of the losses", "noisy clients, after each iteration"
        ),
    },
    schedule=lambda rounds: rounds,  # all stages share the budget
    cite="Xu 2022",
)
@check_arguments
@passes_on(usual_training, *USUAL)
@passes_on(fine_tuning, *CLEAN)
@passes_on(pre_processing, *SCORES)
def fedcorr(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    iterations: Rounds = -1,
    finetune_rounds: Rounds = -1,
    usual_rounds: Rounds = -1,
    group: Count = 1,
    mixup: NotNegative = 1.0,
    mixup_in: Literal["all", "first"] = "all",
    confidence: Share = 0.5,
    correct: bool = True,
    regularizer: Callable[..., Any] | None = None,
    code: tuple[Any, ...] | list[Any] = (),
    **of_stages: Any,
) -> Generator[Round, None, Model]:
    """Find noisy clients and samples, relabel, fine-tune on clean clients, then train.

    The three stages are `pre_processing`, `fine_tuning` and `usual_training`, which declare their own parameters.

    Parameters
    ----------
    rounds : int
        Budget in rounds of FedAvg; the three stages share it (see `budget`).
    iterations, finetune_rounds, usual_rounds : int >= 0, or -1
        T1, T2, T3.  Default: -1, derived from the budget.  0 leaves a stage out (the paper's ablations) and does not extend
        the other stages.
    group : int >= 1
        Clients per round in stage 1; above 1 is the ablation without fraction scheduling.
    beta : float >= 0
        Strength of the adaptive proximal term in stage 1 (eq. 5); 0 disables it.
    mixup : float >= 0
        Beta parameter of mixup; 0 disables mixup.
    mixup_in : "all" or "first"
        Stages with mixup. "first" is stage 1 only, as in the paper's text.  A `usual` with a separate loss trains without.
    k : int >= 1
        Neighbors of the LID score.
    copies : "each" or "once"
        "each" is the paper's mean over all predictions.  "once" counts equal predictions of a client once (`fnlkit.lid_score`):
        a few equal samples otherwise hide or invent noise.
    ratio, confidence : float in [0, 1]
        pi and theta of relabeling (eqs. 6, 7); 0.5 and 0.5, on Clothing1M 0.8 and 0.9.
    correct : bool
        False does not change labels (ablation).
    clean_level : float in [0, 1]
        kappa: clients with an estimated noise level of at most this value take part in fine-tuning (Section 3.3 and public
        code; Algorithm 1 prints <).
    usual : method
        Method that runs stage 3, for example flr().
    usual_optimizer, usual_aggregator, usual_selector : optimizer, aggregator, selector or None
        Replace the run's components in stage 3 only, for example feddyn(alpha=0.01), median, power-of-choice(d=30) (Figure 4).
    usual_lr, usual_decay : float >= 0
        Learning rate of stage 3 (0: the run's learning rate), and its decay per round from the start of stage 3.  With FedDyn
        the paper uses 0.1 and 0.998.
    regularizer : regularizer or None
        A loss for local training in all stages, for example flr(strength=3): FLR+.  It counts communication rounds; in stage
        1, each visit of a client is a round.
    code : list of words, or all
        Choices that follow the public code instead of the paper.  ``proximal``: the norm instead of its square, without the
        first batch of each epoch.  ``ranking``: losses of the local model rank all samples; in the paper, losses of the global
        model rank the noisy samples (eq. 6).  ``lid``: the variant "fedcorr" of fnlkit.lid.  ``losses``: the cross entropy of
        a softmax of the softmax.  ``relabeled``: after fine-tuning, the clients that the last mixture classified as noisy are
        relabeled; in the paper, all clients that did not take part in fine-tuning (Algorithm 1).  ``strict``: relabel if the
        probability exceeds `confidence`; in the paper, if it reaches `confidence` (eq. 7).

    Notes
    -----
    `code=all` reproduces the public code.  It uses losses of the local model through a second softmax, and relabels the
    clients that the last mixture classified as noisy.

    The paper describes mixup as a part of stage 1, and the public code applies it in all stages.  The default follows the code,
    because a published row with much noise (Table 10) is reached only with mixup in all stages: fine-tuning repeats the few
    clean clients for hundreds of rounds and overfits without it (docs/results.md).  Short runs do not overfit, and
    `mixup_in=first` can be better there.

    If only one of `finetune_rounds` and `usual_rounds` is given, the other stage gets the remaining rounds.  If a stage has 0
    rounds, the run ends earlier (appendix C.6: without fine-tuning at 5,000 of 10,000 client-rounds).

    Noise: in the paper, an exact share mu_k of a noisy client's samples is corrupted, `clients(exact_samples=true)`.  In the
    public code, each sample is corrupted with probability mu_k, as by `clients`.  The experiments of FLR also fix the number of
    noisy clients, `clients(exact=true)`.

    The run's optimizer, aggregator and selector act in all three stages.

    Reports
    -------
    cumulative_lid (N,), lid_means, lid_variances, noise_level (N,), noisy_clients (N,) after each iteration; with
    ``copies="once"``, left_out (N,) of the last visits.
    """
    if mixup_in == "all" and follows_schedule(of_stages.get("usual", fedavg)):
        opt.fit.refuse_mixup("fedcorr", "mixup")
    fraction = share_of_a_round(clients, select)
    iterations, finetune_rounds, usual_rounds = budget(rounds, fraction, iterations, finetune_rounds, usual_rounds)
    code = choices_of(code)
    if usual_rounds and regularizer and not follows_schedule(of_stages.get("usual", fedavg)):
        raise InputError("fedcorr: a regularizer has no effect on the last stage with another loss; remove `usual`")
    visits = iterations * -(-len(clients) // group)
    planned = visits + finetune_rounds + usual_rounds

    def regularize(r: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Regularize communication round r of all stages: keywords and report of the round."""
        return regularizer(r, planned) if regularizer else ({}, {})

    relabeling = Relabeling(confidence, correct, code)
    later: dict[str, Any] = {"mixup": mixup} if mixup_in == "all" else {}
    scores, clean, usual = (select_accepted(stage, of_stages) for stage in (pre_processing, fine_tuning, usual_training))
    # An iteration costs as much as 1 / fraction rounds, and advances a schedule of the learning rate as far.
    cost = math.ceil(iterations / fraction - 1e-9)
    model, findings = yield from pre_processing(
        clients,
        model,
        stretch(opt, cost / max(1, visits)),
        relabeling=relabeling,
        iterations=iterations,
        group=group,
        mixup=mixup,
        schedule=regularize,
        **scores,
    )
    opt = replace(opt, rounds=cost)
    after = visits + finetune_rounds
    start: dict[str, Any] = {"rounds": finetune_rounds, "findings": findings, "schedule": lambda r: regularize(visits + r)}
    model = yield from fine_tuning(clients, model, opt, select, relabeling=relabeling, **start, **later, **clean)
    start = {"rounds": usual_rounds, "schedule": lambda r: regularize(after + r)}
    return (yield from usual_training(clients, model, opt, select, **start, **later, **usual))
