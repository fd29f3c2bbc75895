"""A round of one or two clients: robust aggregation outvotes nobody, and it is said."""

from functools import partial

import pytest

from fnlkit import datasets
from fnlkit.components import registry
from fnlkit.datasets import partitioning
from fnlkit.experiment import Experiment, Settings
from fnlkit.server.aggregation import mean, median, outvotes_nobody, trimmed_mean
from tests.toy import train


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


@pytest.mark.parametrize(("fraction", "said"), [(1 / 12, True), (0.5, False)])
def test_the_note_on_few_clients_is_printed_once(fraction, said):
    fed, _, _ = train(rounds=3, fraction=fraction, aggregator="median")
    assert sum("`aggregator` median" in note for note in fed.notes) == said


@pytest.mark.parametrize(("clients", "fraction", "said"), [(5, 0.2, True), (5, 0.4, False), (1, 1.0, False), (20, 0.1, False)])
def test_a_note_is_printed_for_a_single_client_per_round(clients, fraction, said):
    digits = datasets.load("digits")
    experiment = Experiment(partitioning.federation(digits, clients=clients), digits, Settings(rounds=1, fraction=fraction))
    assert sum("one client per round" in note for note in experiment.clients.notes) == said
