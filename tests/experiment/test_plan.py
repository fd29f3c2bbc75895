"""A plan binds each component once, and its rules name the option that does not fit."""

from dataclasses import replace

import pytest
from torch import nn

from fnlkit.core.errors import InputError
from fnlkit.experiment.plan import BoundMethod, Plan, RunFacts
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.network import Network

NETWORK = Network(nn.Linear(4, 3))
FACTS = RunFacts(cohort=5, classes=3, network=NETWORK, real_sites=False, evaluated=10, held_out=10)


def test_selectors_and_optimizers_of_a_plan_are_new_objects():
    plan = Plan.of(Settings())
    assert plan.make_selector() is not plan.make_selector() and plan.make_optimizer() is not plan.make_optimizer()


RULES = {
    "`patience` 3 requires a criterion": ({"patience": 3}, {}),
    "`select` nes: local has no global model": ({"method": "local", "select": "nes"}, {}),
    "covers all rounds": ({"method": "elr", "select": "nes", "patience": 2}, {}),
    "`protect` does not cover": ({"protect": "secagg", "select": "nes"}, {}),
    "requires test or held-out samples": ({"select": "label-wave"}, {"evaluated": 0}),
    "requires held-out samples at the clients": ({"select": "nes"}, {"held_out": 0}),
    "local averages no models; omit `optimizer`": ({"method": "local", "optimizer": "feddyn"}, {}),
    "krum needs rounds of": ({"aggregator": "krum"}, {"cohort": 2}),
    "a round has 2 clients": ({"protect": "secagg"}, {"cohort": 2}),
}


@pytest.mark.parametrize("message", RULES)
def test_each_rule_refuses_its_combination_only(message):
    settings, facts = RULES[message]
    with pytest.raises(InputError, match=message):
        Plan.of(Settings(**settings)).check(replace(FACTS, **facts))
    Plan.of(Settings()).check(replace(FACTS, **{"cohort": 1} | facts))


def test_a_loss_that_the_method_ignores_is_refused():
    with pytest.raises(InputError, match="`loss` gce: elr has its own loss; remove `loss`, or use one of fedavg"):
        Plan.of(Settings(method="elr", loss="gce"))


def test_budgets_of_stages():
    assert BoundMethod.of("nnc(usual=fedem(warmup=3))").budget(50) == [None, 3]
