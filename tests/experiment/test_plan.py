"""A plan binds each component once, and its rules name the option that does not fit."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import methods
from fnlkit.artifacts.run import Run
from fnlkit.cli.progress import Progress
from fnlkit.core import registry
from fnlkit.core.errors import InputError
from fnlkit.experiment import cards, identity
from fnlkit.experiment.augmentation import augmentation
from fnlkit.experiment.cards import TABLES, card
from fnlkit.experiment.output import metrics_file
from fnlkit.experiment.plan import BoundMethod, Plan, RunFacts
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.network import Network
from fnlkit.federated.server import selection
from tests.commands import fnlkit, refuse_call, succeed
from tests.toy import train

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
    "fedsums averages no models; omit `optimizer`": ({"method": "fedsums", "optimizer": "fedprox"}, {}),
    "lda reads sums of all clients; omit `selector`": ({"method": "lda", "selector": "poisson"}, {}),
    "krum needs rounds of": ({"aggregator": "krum"}, {"cohort": 2}),
    "a round has 2 clients": ({"protect": "secagg"}, {"cohort": 2}),
}


@pytest.mark.parametrize("message", RULES)
def test_each_rule_refuses_its_combination_only(message):
    settings, facts = RULES[message]
    plan, plain = Plan.of(Settings(**settings)), Plan.of(Settings())
    refuse_call(message, plan.check, replace(FACTS, **facts), plan.make_optimizer())
    plain.check(replace(FACTS, **{"cohort": 1} | facts), plain.make_optimizer())


def test_a_loss_that_the_method_ignores_is_refused():
    refuse_call("elr has its own loss; remove `loss`", Plan.of, Settings(method="elr", loss="gce"))


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
