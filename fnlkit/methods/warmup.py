"""Numbers that follow from the round: default warm-up rounds, and the share of forgotten samples."""


def warmup_rounds(warmup: int, rounds: int) -> int:
    """Number of warm-up rounds: `warmup`, or a fifth of all rounds for -1.

    FedCorr's comparison uses 20 of 100.
    """
    return warmup if warmup >= 0 else rounds // 5


def warmup_sixth(warmup: int, rounds: int) -> int:
    """Number of rounds of plain training: `warmup`, or a sixth of all rounds for -1."""
    return min(warmup if warmup >= 0 else round(rounds / 6), rounds)


def forgotten(r: int, *, forget: float, ramp: int) -> float:
    """Compute R(T), T = r + 1: a linear rise to `forget` over `ramp` rounds."""
    return forget * min(1.0, (r + 1) / ramp)
