"""Privacy cost of released labels and protected updates, and audits of mechanisms."""

from fnlkit.privacy.audits import Audit, audit, audit_pair
from fnlkit.privacy.labels import (
    RELEASED,
    debias,
    epsilon_at,
    epsilon_of,
    keep_probability,
    pure_epsilon,
    randomized_response,
    releases,
    statement,
    summed,
    to_simplex,
)
from fnlkit.privacy.updates import (
    Sums,
    known,
    must_account,
    neighbors,
    other_partitions,
    protected,
    spent,
    together,
    updates_epsilon,
)

__all__ = [
    "RELEASED",
    "Audit",
    "Sums",
    "neighbors",
    "other_partitions",
    "audit",
    "audit_pair",
    "debias",
    "epsilon_at",
    "epsilon_of",
    "keep_probability",
    "known",
    "must_account",
    "protected",
    "pure_epsilon",
    "randomized_response",
    "releases",
    "spent",
    "statement",
    "summed",
    "to_simplex",
    "together",
    "updates_epsilon",
]
