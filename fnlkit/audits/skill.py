"""Skill of predictions of labels: agreement beyond chance."""

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.audits.records import Skill
from fnlkit.estimators.intervals import wilson

# A model has skill if its agreement with the labels exceeds chance by this share of the possible excess (Cohen's kappa).
SKILL = 0.3


def skill_of(table: ArrayLike) -> Skill:
    """Compute the skill of predictions from counts by predicted class and given label (C, C)."""
    table = np.asarray(table, np.float64)
    total = max(1.0, table.sum())
    share, chance = table.trace() / total, float(table.sum(1) @ table.sum(0)) / total**2
    chance = min(chance, 1.0)
    low, high = wilson(table.trace(), total)
    kappa, low, high = ((value - chance) / max(1e-9, 1 - chance) for value in (share, low, high))
    return Skill(agreement=float(share), chance=float(chance), kappa=float(kappa), low=float(low), high=float(high))
