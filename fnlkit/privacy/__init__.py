"""Privacy cost of released labels and protected updates."""

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
    sum_costs,
    to_simplex,
)
from fnlkit.privacy.updates import (
    Sums,
    cost_of_run,
    describe_total_cost,
    find_sums,
    must_account,
    neighbors,
    other_partitions,
    together,
    updates_epsilon,
)

__all__ = [
    "RELEASED",
    "Sums",
    "neighbors",
    "other_partitions",
    "debias",
    "epsilon_at",
    "epsilon_of",
    "keep_probability",
    "find_sums",
    "must_account",
    "cost_of_run",
    "pure_epsilon",
    "randomized_response",
    "releases",
    "describe_total_cost",
    "statement",
    "sum_costs",
    "to_simplex",
    "together",
    "updates_epsilon",
]
