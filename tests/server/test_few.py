"""A round of one or two clients: robust aggregation outvotes nobody, and it is said."""

from functools import partial

import pytest

from fnlkit.components import registry
from fnlkit.server.aggregation import mean, median, outvotes_nobody, trimmed_mean


@pytest.mark.parametrize(
    ("aggregate", "first"),
    [(median, 3), (registry.aggregator("median"), 3), (partial(trimmed_mean, share=0.1), 10), (trimmed_mean, 10)],
)
def test_number_of_clients_that_outvote_a_bad_client(aggregate, first):
    silent = [count for count in range(1, 30) if outvotes_nobody(aggregate, count) is None]
    assert silent == list(range(first, 30))
    assert f"in a round of {first - 1}" in outvotes_nobody(aggregate, first - 1)


def test_the_mean_promises_nothing():
    assert all(outvotes_nobody(part, 1) is None for part in (mean, registry.aggregator("mean")))
