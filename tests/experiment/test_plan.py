"""A plan binds each component once, and any combination of components trains, or is refused in one sentence."""

import itertools
import json
import random
import re
import types
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import methods
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.cli.progress import Progress
from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.experiment import Experiment, assembly, cards, identity
from fnlkit.experiment.augmentation import augmentation
from fnlkit.experiment.cards import TABLES, card
from fnlkit.experiment.crossfit import make_experiment
from fnlkit.experiment.output import metrics_file
from fnlkit.experiment.plan import BoundMethod, Plan
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.network import Network
from fnlkit.federated.server import selection
from tests.commands import fnlkit, refuse_call, succeed
from tests.toy import Net, train

# ---- A plan binds each component once, and its rules name the option that does not fit
FACTS = {"cohort": 5, "evaluated": 10, "held_out": 10}


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
    "fedsums averages no models; omit `optimizer`": ({"method": "fedsums", "optimizer": "fedprox"}, {}),
    "lda reads sums of all clients; omit `selector`": ({"method": "lda", "selector": "poisson"}, {}),
    "krum needs rounds of": ({"aggregator": "krum"}, {"cohort": 2}),
    "a round has 2 clients": ({"protect": "secagg"}, {"cohort": 2}),
}


@pytest.mark.parametrize("message", RULES)
def test_each_rule_refuses_its_combination_only(message):
    settings, facts = RULES[message]

    def check(settings, facts):
        plan, vectors = Plan.of(settings), SimpleNamespace(kind="vector", x_train=np.zeros((5, 4)))
        plan.check(**facts)
        data = SimpleNamespace(dataset=vectors, federation=SimpleNamespace(classes=3))
        assembly.optimizer_of(plan, data, plan.make_selector(), Network(nn.Linear(4, 3)), facts["cohort"])

    refuse_call(message, check, Settings(**settings), FACTS | facts)
    check(Settings(), FACTS | {"cohort": 1} | facts)


def test_a_loss_that_the_method_ignores_is_refused():
    refuse_call("elr has its own loss; remove `loss`, or use one of fedavg", Plan.of, Settings(method="elr", loss="gce"))


def test_parameters_of_the_words_auto_none_and_last_are_refused():
    for spec in ("auto(cutout=16)", "none(pad=4)"):
        refuse_call(rf"unknown '{re.escape(spec)}'; write none, auto or augment", augmentation, spec, "image", (32, 32, 3))
    refuse_call(r"`select`: unknown criterion 'last\(window=3\)'", Plan.of, Settings(select="last(window=3)"))


def test_budgets_of_stages():
    assert BoundMethod.of("nnc(usual=fedem(warmup=3))").budget(50) == [None, 3]


# ---- what a run writes while it trains, and what it says of its progress
def test_metrics_start_with_the_rows_of_the_run_that_is_continued(tmp_path):
    path = tmp_path / "m.jsonl"
    with metrics_file(str(path), [{"round": 0}]) as write:
        write({"round": 1})
        assert [json.loads(line) for line in path.read_text().splitlines()] == [{"round": 0}, {"round": 1}]
    # A run that fails before its first row keeps a file of another run, and leaves no file of its own.
    before = path.read_bytes()
    for file in (path, path.with_name("new.jsonl")):
        with pytest.raises(InputError), metrics_file(str(file), [], str(path.with_name("missing.pt"))):
            assert file.read_bytes() == b""  # `fnlkit watch` shows no rows of the other run
            raise InputError("no")
    assert path.read_bytes() == before and not file.exists()
    with metrics_file(None, []) as write:
        write({"round": 0})


def test_progress_counts_from_where_a_run_was_continued(monkeypatch):
    traffic = SimpleNamespace(client_rounds=10)
    clients = SimpleNamespace(traffic=traffic, sizes=np.array([20.0, 40.0]))
    experiment = SimpleNamespace(clients=clients, client_rounds_total=30, settings=SimpleNamespace(epochs=2))
    clock = iter([100.0, 110.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    state = Progress(experiment)
    traffic.client_rounds = 15
    # 5 client-rounds of 30 samples on average and 2 epochs in 10 seconds: 30 samples a second.
    assert state.text({"stage": "training"}) == "training: 30 samples/s"
    assert (state.start, state.done, state.total) == (10, 15, 30)
    monkeypatch.undo()
    assert state.text({"stage": "training", "accuracy": 0.5}).startswith("training: accuracy 0.5000, ")
    assert state.text({"stage": "final"}).startswith("final: accuracy 0.5000, ")


# ---- the example method runs, and cards describe the source, cost and replies of components
ROOT = Path(__file__).parents[2]


def test_the_example_method_computes_its_formula_and_runs_in_a_pipe(tmp_path):
    path = ROOT / "examples/your_method.py"
    fed, model, steps = train(method=f"{path}:by_loss(strength=2)", rounds=3, fraction=0.5)
    replies = steps[0].replies
    # Its formula, by hand, from the first round's replies.
    weights = [fed.sizes[i].item() * np.exp(-2 * fit) for i, fit in zip(replies.ids, replies["fit"].tolist(), strict=True)]
    expected = sum(w * v for w, v in zip(weights, replies["weights"], strict=True)) / sum(weights)
    torch.testing.assert_close(steps[0].model.weights, expected)
    assert steps[0].report["fit"] == pytest.approx(replies["fit"].mean().item())
    federated = "fnlkit partition --clients 4 | fnlkit train --rounds 2 --epochs 1 --fraction 0.5 --model mlp"
    succeed(f"{federated} --engine sequential --method {path}:by_loss -o run.pt", tmp_path)
    assert Run.read(tmp_path / "run.pt").traffic.sent["fit"] == 2 * 2 * 8


def test_every_component_has_a_source():
    free = {"auto", "fedem", "fedsums", "ce", "uniform", "centralized", "local", "oracle"}
    for kind, table in TABLES.items():
        for name in table:
            found = card(kind, name)
            assert bool(found.source) == (name not in free), f"{kind} {name}: {found.source!r}"
            assert found.year is None or 2000 < found.year < 2030
    sources = {("method", "fedcorr"): "Xu 2022", ("method", "elr"): "Liu 2020", ("method", "feddpcont"): "Di 2024"}
    sources |= {("loss", "gce"): "Zhang 2018", ("aggregator", "arfl"): "Fu 2019", ("optimizer", "scaffold"): "Karimireddy 2020"}
    assert {key: card(*key).source for key in sources} == sources
    assert card("method", "oracle").kind == "reference" and card("method", "flr").kind == "method"


def test_costs_equal_the_metered_traffic(tmp_path):
    assert set(cards._costs()) <= set(registry.METHODS), "python -m benchmarks.methods --traffic > data/costs.toml"
    plain = methods.spent("fedavg")
    known = card("method", "coteaching").cost
    assert methods.relative("coteaching", plain) == [known["client_rounds"], known["up"], known["down"]]
    done = fnlkit("fnlkit methods coteaching", tmp_path)
    assert "client-rounds 1, bytes up 2, bytes down 2" in done.stdout


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.25, 0.5, 1.0])
def test_a_plan_and_a_selection_count_the_same_cohort(fraction):
    chosen = Settings(fraction=fraction)
    for clients in range(1, 60):
        assert chosen.cohort_size(clients) == selection.cohort_size(range(clients), fraction)


def test_an_earlier_run_with_a_warm_head_is_continued_with_its_rate():
    now = Settings(warmup_head=5, lr=0.3)
    earlier = SimpleNamespace(settings={**vars(now)})
    del earlier.settings["warmup_lr"]
    refuse_call("`warmup_lr` 0.3, not 0.03", identity.must_have_same_settings, earlier, now)
    identity.must_have_same_settings(earlier, replace(now, warmup_lr=0.3))


# ---- any loss x drift term x selection x aggregator x augmentation in any method: it trains, or is refused in one sentence
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
