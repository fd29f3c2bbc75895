"""Default number of warm-up rounds: a fifth of all rounds."""


def warmup_rounds(warmup: int, rounds: int) -> int:
    """Return the warm-up rounds: `warmup`, or a fifth of all rounds for -1.

    FedCorr's comparison uses 20 of 100.
    """
    return warmup if warmup >= 0 else rounds // 5
