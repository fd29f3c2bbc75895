"""FLR+: FLR's regulariser in all three stages of FedCorr.

Kim, Kim, Yun. Revisiting early-learning regularization: When federated learning meets noisy labels. arXiv:2402.05353,
2024.
"""

from functools import partial

from fnlkit.methods.fedcorr import SENDS, fedcorr
from fnlkit.methods.flr import local_training
from fnlkit.parameters import NotNegative, Rounds, Share, checked

__all__ = ["SENDS", "flr_plus"]


@checked
def flr_plus(
    clients,
    model,
    opt,
    select,
    *,
    rounds,
    strength: NotNegative = 3.0,
    alpha: Share = 0.9,
    beta: Share = 0.7,
    gamma: Share = 0.5,
    warmup: Rounds = -1,
    iterations: Rounds = -1,
    finetune_rounds: Rounds = -1,
    usual_rounds: Rounds = -1,
    proximal: NotNegative = 5.0,
    ratio: Share = 0.5,
    confidence: Share = 0.5,
    clean_level: Share = 0.1,
    mixup: NotNegative = 1.0,
):
    """Run FedCorr with FLR's loss in every round; the clock of FLR's rates runs over the whole budget.

    With FLR in the last stage alone write fedcorr(usual=flr(strength=3)).

    Parameters
    ----------
    rounds : int
        Budget in rounds of FedAvg.
    strength : float >= 0
        lambda: 3 on CIFAR-10 and Clothing1M, 5 on CIFAR-100.
    alpha, beta, gamma, warmup : float, int
        As in `flr`.
    iterations, finetune_rounds, usual_rounds, ratio, confidence, clean_level, mixup : int, float
        As in `fedcorr`; the paper takes 300 and 300 rounds on CIFAR-10, 300 and 400 on CIFAR-100, 50 and 50 on
        Clothing1M.
    proximal : float >= 0
        FedCorr's beta.

    Reports
    -------
    What FedCorr reports, and alpha, beta, gamma of FLR each round.
    """
    loss = partial(local_training, strength=strength, alpha=alpha, beta=beta, gamma=gamma, warmup=warmup)
    return (
        yield from fedcorr(
            clients,
            model,
            opt,
            select,
            rounds=rounds,
            iterations=iterations,
            finetune_rounds=finetune_rounds,
            usual_rounds=usual_rounds,
            beta=proximal,
            ratio=ratio,
            confidence=confidence,
            clean_level=clean_level,
            mixup=mixup,
            regulariser=loss,
        )
    )
