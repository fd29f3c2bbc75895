"""Privacy cost of released labels."""

from fnlkit.federated.privacy.labels import (
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

__all__ = [
    "RELEASED",
    "debias",
    "epsilon_at",
    "epsilon_of",
    "keep_probability",
    "pure_epsilon",
    "randomized_response",
    "releases",
    "statement",
    "sum_costs",
    "to_simplex",
]
