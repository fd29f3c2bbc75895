"""Default numbers of warm-up rounds: a fifth or a sixth of all rounds."""


def warmup_rounds(warmup: int, rounds: int) -> int:
    """Return the warm-up rounds: `warmup`, or a fifth of all rounds for -1.

    FedCorr's comparison uses 20 of 100.
    """
    return warmup if warmup >= 0 else rounds // 5


def warmup_sixth(warmup: int, rounds: int) -> int:
    """Return the rounds of plain training: `warmup`, or a sixth of all rounds for -1."""
    return min(warmup if warmup >= 0 else round(rounds / 6), rounds)
