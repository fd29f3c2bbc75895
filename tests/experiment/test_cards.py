"""The example method runs, and cards describe the source, cost and replies of components."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import methods
from fnlkit.artifacts.run import Run
from fnlkit.core import registry
from fnlkit.experiment import cards
from fnlkit.experiment.cards import TABLES, card
from tests.commands import fnlkit, succeed
from tests.toy import train

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
