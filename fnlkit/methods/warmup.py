"""How long plain training comes first in methods that name no number of rounds: a fifth of all rounds."""


def warmup_rounds(warmup, rounds):
    """Return the rounds before a method begins: `warmup`, or for -1 a fifth of all (FedCorr's comparison: 20 of 100)."""
    return warmup if warmup >= 0 else rounds // 5


def of_budget(rounds, *, warmup, **parameters):
    """Return what of the schedule follows from the budget: a run can be continued with another one where it is equal."""
    return warmup_rounds(warmup, rounds)
