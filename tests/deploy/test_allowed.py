"""The table of functions that a server may name: complete, and nothing in it that is not there."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fnlkit[flower]'")

from fnlkit.client import drift, losses  # noqa: E402
from fnlkit.components import registry  # noqa: E402
from fnlkit.deploy.allowed import COMPONENTS, may_be_named  # noqa: E402

ROOT = Path(__file__).parents[2]
STEP = ["client", "model", "received"]  # what every step is called with


def steps():
    """Return (module, name) of all functions of methods, losses and optimizers that are called as steps."""
    for folder in ("methods", "client", "server"):
        for path in (ROOT / "fnlkit" / folder).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and [a.arg for a in node.args.args[:3]] == STEP:
                    yield module, node.name


def named(function):
    return function.__module__, function.__name__


def test_every_function_that_runs_on_clients_is_in_the_table():
    of_losses = [getattr(losses, name) for name in losses.__all__ if inspect.signature(getattr(losses, name)).parameters]
    wanted = {named(loss) for loss in of_losses if [*inspect.signature(loss).parameters][:2] == ["logits", "batch"]}
    wanted |= {tuple(target.split(":")) for target in registry.LOSSES.values()}
    wanted |= {named(f) for f in vars(drift).values() if inspect.isfunction(f) and f.__module__ == drift.__name__}
    wanted |= set(steps())
    assert len(wanted) > 70 and not wanted - COMPONENTS


@pytest.mark.parametrize(("module", "name"), sorted(COMPONENTS))
def test_every_entry_of_the_table_is_a_function_of_that_module(module, name):
    found = getattr(importlib.import_module(module), name)
    assert found.__module__ == module and found.__name__ == name and may_be_named(module, name)


@pytest.mark.parametrize("method", ["fedcorr", "t-revision", "na-fedavg", "coteaching", "fedelc"])
def test_a_method_sends_nothing_that_a_site_would_refuse(method, monkeypatch):
    from fnlkit.engines.travel import pack, unpack
    from fnlkit.server.clients import Clients
    from tests import toy

    plain, asked = Clients.round, []

    def round(self, ids, model, *given, **more):
        asked.extend(unpack(pack(step), may_be_named) for step in given)
        return plain(self, ids, model, *given, **more)

    monkeypatch.setattr(Clients, "round", round)
    toy.train(method=method, rounds=6)
    assert asked


@pytest.mark.parametrize(
    "name", [("os", "system"), ("fnlkit.components.own", "load"), (["fnlkit.client.drift"], "proximal"), (None, 3)]
)
def test_nothing_else_may_be_named(name):
    assert not may_be_named(*name)
