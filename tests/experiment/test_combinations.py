"""Any loss x drift term x selection x aggregator x augmentation in any method: it trains, or is refused in one sentence."""

import itertools
import random
import re
import types
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from fnlkit.artifacts.federation import Federation
from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.experiment import Experiment, Settings
from fnlkit.experiment.crossfit import make_experiment
from tests.toy import Net


class Normed(Net):
    """A network with everything that a part may ask of one: batch norm, features, their width."""

    width = 6

    def __init__(self, classes):
        nn.Module.__init__(self)
        self.hidden, self.norm, self.output = nn.Linear(108, 6), nn.BatchNorm1d(6), nn.Linear(6, classes)

    def features(self, x):
        return self.norm(self.hidden(x.flatten(1))).relu()


def normed(*, input_shape, classes):
    return Normed(classes)


SPECS = {
    "forward": "forward(transition=symmetric(eta=0.3))",
    "backward": "backward(transition=pairflip(eta=0.2))",
    "daagg": "daagg(clean=[0, 3])",
}
MORE = ["fedcorr(iterations=1, usual=flr)", "fedcorr(iterations=1, regularizer=flr)", "nnc(usual=fedcorr)", "oracle(usual=flr)"]
METHODS = [*(name for name in registry.METHODS if "linear" not in registry.needs(name)), *MORE]
OWN = [method for method in METHODS if registry.brings_loss(method)]
FACTORS = {
    "method": [method for method in METHODS if method not in OWN],
    "loss": [SPECS.get(name, name) for name in registry.LOSSES],
    "optimizer": list(registry.OPTIMIZERS),
    "aggregator": [SPECS.get(name, name) for name in registry.AGGREGATORS],
    "selector": ["uniform", "power-of-choice(d=6)"],
    "augment": ["none", "augment(pad=1, flip=true, cutout=2)"],
    "mixup": [0.0, 1.0],
    "client_optimizer": ["sgd", "adam"],
}
# What is refused, and nothing else.
REFUSALS = [r"`(optimizer|aggregator)` .*: local averages no models; omit `(optimizer|aggregator)`"]
REFUSALS += [r"`aggregator` (multi-)?krum needs rounds of 4 clients or more, found 1; raise `fraction`"]
REFUSALS += [r"`optimizer` feddecorr regularizes one network, and this method trains two; omit it"]
REFUSALS += [r"`mixup` [\d.]+: [\w-]+ has labels or weights of single samples, which cannot be mixed; remove `mixup`"]
REFUSALS += [r"`mixup` [\d.]+: \w+ mixes samples by its (\w+); write \1=[\d.]+ in the parentheses of the method instead"]
EACH = 2  # combinations of a method that brings its own loss


@cache
def covering():
    """Return settings in which every pair of values of two factors occurs; methods with a loss of their own in a few each."""
    draw, out = random.Random(0), []
    uncovered = {
        ((a, x), (b, y)) for a, b in itertools.combinations(FACTORS, 2) for x, y in itertools.product(FACTORS[a], FACTORS[b])
    }
    while uncovered:
        pair = dict(min(uncovered))
        drawn = [{name: draw.choice(values) for name, values in FACTORS.items()} | pair for _ in range(40)]
        for chosen in drawn:
            if chosen["method"] == "local" and not {"optimizer", "aggregator"} & {*pair}:
                chosen |= {"optimizer": "fedavg", "aggregator": "mean"}  # so that some are trained
        out.append(max(drawn, key=lambda chosen: len(pairs(chosen) & uncovered)))
        uncovered -= pairs(out[-1])
    own = [draw.choice(out) | {"method": method, "loss": "ce"} for method in OWN for _ in range(EACH)]
    return out + own


def quick():
    """Return combinations in which every value of each factor occurs."""
    seen, out = set(), []
    for chosen in covering():
        if not chosen.items() <= seen:
            out.append(chosen)
            seen |= chosen.items()
    return out


def pairs(chosen):
    return set(itertools.combinations(((name, chosen[name]) for name in FACTORS), 2))


@pytest.fixture(scope="module")
def images():
    """Return (federation, data set): 8 clients of 12 tiny images in 3 classes, a third of the labels wrong; 12 are public."""
    rng = np.random.default_rng(0)
    y, y_test = rng.integers(0, 3, 108), rng.integers(0, 3, 10)
    x, x_test = (rng.integers(0, 120, (len(c), 6, 6, 3)) + 40 * c[:, None, None, None] for c in (y, y_test))
    dataset = types.SimpleNamespace(
        name="dots", kind="image", x_train=x.astype(np.uint8), y_train=y, x_test=x_test.astype(np.uint8), y_test=y_test,
        statistics=((0.5,) * 3, (0.3,) * 3), mean=(0.5,) * 3, std=(0.3,) * 3, checksum="1" * 64, features=None, table=None,
        sample_rate=0, class_names=list("abc"),
    )  # fmt: skip
    given = np.where(rng.random(108) < 0.3, rng.integers(0, 3, 108), y)
    return Federation("dots", 3, np.arange(0, 97, 12), rng.permutation(108)[:96], given, true=y), dataset


@pytest.mark.parametrize("combinations", [quick, pytest.param(covering, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
def test_every_combination_trains_or_is_refused_in_a_sentence(method, combinations, images):
    """The product of all parts, which no other test has: every value, and with --slow every pair of values."""
    federation, dataset = images
    for chosen in combinations():
        if chosen["method"] != method:
            continue
        settings = Settings(**chosen, model=f"{__name__}:normed", rounds=3, fraction=0.5, epochs=1, batch_size=12, lr=0.01)
        experiment = None
        try:
            experiment = make_experiment(federation, dataset, settings, engine="sequential")
            run = experiment.run()
        except InputError as refusal:
            assert experiment is None or not experiment.clients.rounds, f"{chosen}: refused after it trained"
            assert any(re.fullmatch(pattern, str(refusal)) for pattern in REFUSALS), f"{chosen}: {refusal}"
            continue
        assert run.finished and torch.isfinite(run.weights).all() and not run.rejected, chosen


def test_fedbn_without_batch_norm_is_refused_before_training(images):
    with pytest.raises(InputError, match="fedbn keeps batch norm, and this network has none"):
        Experiment(*images, Settings(optimizer="fedbn", model="mlp(hidden=[4])", fraction=0.5))
