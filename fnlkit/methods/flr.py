"""FLR: early-learning regularization with global and local average predictions.

Kim, Kim, Yun. Revisiting early-learning regularization: When federated learning meets noisy labels. arXiv:2402.05353,
2024.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Annotated, Any, Literal

from fnlkit.core.declarations import declare, method
from fnlkit.core.parameters import NotNegative, Range, Rounds, Share, check_arguments, passes_on
from fnlkit.federated.client.losses.mixture import label_mixture, remember_predictions
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.fedavg import Round


def rates_at(
    r: int, rounds: int, *, alpha: float, beta: float, gamma: float, warmup: int, rates: str
) -> tuple[float, float, float]:
    """Compute (alpha(r), beta(r), gamma(r)) of round r (appendix E.5).

    alpha(r) = alpha r / R; beta(r) = 0 before R/2, then beta; gamma(r) = 0 before R_w, then gamma.  ``alpha-constant``
    disables the schedule of alpha, which E.5 calls an option; ``constant`` disables all three schedules.
    """
    if rates == "constant":
        return alpha, beta, gamma
    share = alpha if rates == "alpha-constant" else alpha * r / rounds
    return share, beta if 2 * r >= rounds else 0.0, gamma if r >= warmup else 0.0


def warmup_rounds(warmup: int, rounds: int) -> int:
    """Choose R_w: `warmup`, or the published 50 if `warmup` is -1 (appendix E.5).

    The default is at most a quarter of the rounds.
    """
    return warmup if warmup >= 0 else min(50, rounds // 4)


def schedule(rounds: int, warmup: int, rates: str = "constant") -> tuple[int, bool | int]:
    """Warm-up rounds and, if rates follow a schedule, all rounds."""
    return warmup_rounds(warmup, rounds), rates == "constant" or rounds


@declare(cite="Kim 2024")
@check_arguments
def local_training(
    r: int,
    rounds: int,
    *,
    strength: NotNegative = 2.0,
    alpha: Share = 0.9,
    beta: Share = 0.7,
    gamma: Share = 0.5,
    warmup: Rounds = -1,
    warm: Literal["plain", "server", "schedule"] = "plain",
    rates: Literal["published", "alpha-constant", "constant"] = "published",
    start: Literal["prediction", "zero"] = "prediction",
    floor: Annotated[float, Range(0, 1, open_low=True)] = 1e-4,
    clamp: Annotated[float, Range(0, 0.5, open_high=True)] = 0.0,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keep each prediction close to its running averages, as in FLR.

    Return the changes of local training in round r of `rounds`: keywords for FedOpt.round, and numbers to report.

    This is FLR as a regularizer for the rounds of another method; parameters as in `flr`.
    """
    warmup = warmup_rounds(warmup, rounds)
    if r < warmup and warm == "plain":  # Section 3.1, Algorithm 1, phase 1: FedAvg with cross entropy
        return {}, {}
    a, b, c = rates_at(r, rounds, alpha=alpha, beta=beta, gamma=gamma, warmup=warmup, rates=rates)
    if r < warmup and warm == "server":  # Section 3.2: first only the server's prediction
        a, b = 1.0, 0.0
    server = alpha > 0 or warm == "server"  # with alpha = 0 (ELR) no global average is stored
    step = {
        "loss": partial(label_mixture, strength=strength, alpha=a, beta=b, gamma=c, floor=floor, clamp=clamp),
        "before": (partial(remember_predictions, server=server, start=start),),
        "teacher": server,
        "unmixed": True,
    }
    return step, {"alpha": a, "beta": b, "gamma": c}


@method(loss="own", schedule=schedule, cite="Kim 2024")  # both averages stay on the client
@check_arguments
@passes_on(local_training)
def flr(
    clients: Clients, model: Model, opt: FedOpt, select: Callable[..., Any], *, rounds: int, **regularizer: Any
) -> Generator[Round, None, Model]:
    """Keep a network from memorizing wrong labels with averages of past predictions.

    Regularize with log(1 - <p, t>), where t is a mixture of each sample's global and local average prediction (eq. 1).

    The regularizer is at most 0, so the training loss can become negative.

    Parameters
    ----------
    rounds : int
        R.
    strength : float >= 0
        lambda: CIFAR-10 2 (asymmetric noise 3), CIFAR-100 2.5 (5), Clothing1M 2; inside FedCorr 3, 5, 3.
    alpha, beta, gamma : float in [0, 1]
        alpha: final share of the global average in the mixture. beta, gamma: rates of the global and the local average.
    warmup : int >= 0, or -1
        R_w.  Default: -1, which is 50 (appendix E.5), or a quarter of the rounds in runs of fewer than 200.
    warm : "plain", "server" or "schedule"
        Loss in the warm-up; the paper describes three.  ``plain``: cross entropy (Section 3.1, Algorithm 1; appendix E.4).
        ``server``: the regularizer towards the server's prediction (Section 3.2).  ``schedule``: the regularizer as in E.5,
        with the local prediction.
    rates : "published", "alpha-constant" or "constant"
        Rates that follow the schedule of `rates_at`: all three, only beta and gamma, or none.
    start : "prediction" or "zero"
        Initial value of the averages: the first prediction, or zero as in ELR's public code.
    floor : float in (0, 1]
        Smallest 1 - <p, t> inside the logarithm.
    clamp : float in [0, 1/2)
        Clamp predictions to [clamp, 1 - clamp] and rescale them to sum to 1 before averaging, as ELR's public code does
        with 1e-4.  0, as in the paper, disables this.

    Notes
    -----
    Mixup is not defined in the paper.  As in ELR+, a mixed sample has the target lambda t_i + (1 - lambda) t_j.  The averages
    use predictions for the unmixed samples in evaluation mode, which costs an additional pass.

    The clients of the paper have equal numbers of every class (Section 2): `iid(balanced=true)`, as in the presets.

    LeNet-5 with crops and flips memorizes almost no labels, and FLR then equals FedAvg.  Without augmentation (rho 0.8, tau 0,
    200 rounds, one seed) local models repeat 86 % of the wrong labels under FedAvg and 31 % under FLR, the global model 21 %
    and 13 % (published for ResNet-18: 100 and 16 %, 72 and 11 %).  Clean samples are then learned less well, and accuracy is
    not higher.

    Reports
    -------
    alpha, beta, gamma of each round with the regularizer.
    """
    for r in range(rounds):
        step, report = local_training(r, rounds, **regularizer)
        model, replies = opt.round(clients, select(clients, model), model, **step)
        yield Round(model, "training" if step else "warm-up", replies, report)
    return model


@method(loss="own", schedule=schedule, cite="Liu 2020")
@check_arguments
def elr(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    strength: NotNegative = 3.0,
    momentum: Share = 0.7,
    warmup: Rounds = 0,
    start: Literal["prediction", "zero"] = "zero",
    clamp: Annotated[float, Range(0, 0.5, open_high=True)] = 1e-4,
) -> Generator[Round, None, Model]:
    """Keep a network from memorizing wrong labels with local average predictions.

    Early-learning regularization (Liu 2020): FLR with the local average only, alpha = 0 (FLR, appendix G).

    Targets start at zero.  Predictions are clamped and rescaled to sum to 1 before averaging, as in ELR's public code, which
    FLR's comparison follows (appendix E.5).

    Parameters
    ----------
    strength, momentum : float >= 0, float in [0, 1]
        lambda and beta.  Public code: 3 and 0.7 (the default) for CIFAR-10 with symmetric noise, 1 and 0.9 with asymmetric
        noise.  FLR's comparison: 4 and 0.5, asymmetric 4 and 0.9.
    warmup : int >= 0, or -1
        Rounds of plain cross entropy first.
    start, clamp
        As in `flr`; ``start=prediction, clamp=0`` is FLR with alpha = 0.

    Notes
    -----
    If prediction and target are certain, the gradient at a logit is strength / 2 for the regularizer and 1 for the cross
    entropy, so that a strength above 2 can keep a network at its first guesses.  With momentum 0.5 the target follows after
    one pass: with 4 and 0.5 LeNet-5 collapsed to one class on 5,400 CIFAR-10 images (20 clients, 32 rounds, learning rate
    0.01: 11 %; 3 and 0.7: 32 %, 1 and 0.9: 34 %, FedAvg: 35 %).
    """
    fixed = {"alpha": 0.0, "beta": 0.0, "gamma": momentum, "rates": "constant"}
    local_average = {"strength": strength, "warmup": warmup, "start": start, "clamp": clamp, **fixed}
    return (yield from flr(clients, model, opt, select, rounds=rounds, **local_average))


@method(loss="own", schedule=schedule, cite="Kim 2024")
@check_arguments
@passes_on(flr, "strength", "warmup")
def slr(
    clients: Clients, model: Model, opt: FedOpt, select: Callable[..., Any], *, rounds: int, **regularizer: Any
) -> Generator[Round, None, Model]:
    """Keep a network from memorizing wrong labels with the current global predictions.

    Server-label regularization: FLR with only this round's global prediction, alpha = 1 and beta = 0 (appendix G).

    Notes
    -----
    At `slr(strength=3)` LeNet-5 on CIFAR-10 collapsed to a single class after 100 rounds.  The target is the prediction of the
    same round.  If model and target are certain, the gradient at a logit is strength / 2 for the regularizer and 1 for the
    cross entropy.  With the default strength 2, the network did not collapse.
    """
    fixed = {"alpha": 1.0, "beta": 0.0, "gamma": 0.0, "rates": "constant"}
    return (yield from flr(clients, model, opt, select, rounds=rounds, **fixed, **regularizer))


@method(loss="own", schedule=schedule, cite="Kim 2024")
@check_arguments
@passes_on(flr, "strength", "warmup")
def er(
    clients: Clients, model: Model, opt: FedOpt, select: Callable[..., Any], *, rounds: int, **regularizer: Any
) -> Generator[Round, None, Model]:
    """Make predictions more confident by entropy regularization; FLR's simplest variant.

    Entropy regularization (FLR, appendix E.6): the current prediction is the target, all rates are 0.
    """
    fixed = {"alpha": 0.0, "beta": 0.0, "gamma": 0.0, "rates": "constant"}
    return (yield from flr(clients, model, opt, select, rounds=rounds, **fixed, **regularizer))
