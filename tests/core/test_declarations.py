"""Declarations of components: attached once, kept by wrappers, immutable, composed over nested methods, checked by callers."""

import dataclasses
import importlib
from functools import partial

import pytest
import torch

from fnlkit.core import Sent, declare, method, registry
from fnlkit.core.declarations import declaration, resolve
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import check_arguments, passes_on
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines import fused
from fnlkit.federated.server.aggregation import smallest_cohort
from fnlkit.methods import fedcorr
from fnlkit.models.head import WithHead
from fnlkit.models.mlp import MLP
from fnlkit.models.parts import fused_form
from tests.commands import fnlkit, refuse


def inner(clients, *, share=0.5):
    yield share


@method(sends={"fit": "mean loss"}, needs=("public",), cite="Doe 2026")
@check_arguments
@passes_on(inner, "share")
def declared_method(clients, **passed):
    yield passed


def test_a_declaration_survives_wrappers_and_bound_parameters_and_cannot_change():
    for part in (declared_method, partial(declared_method, share=0.1), check_arguments(declared_method)):
        found = declaration(part)
        assert found.cite == "Doe 2026" and found.year == 2026 and found.needs == ("public",)
        assert found.sends["fit"] == Sent("mean loss")
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.cite = "Roe 2026"
    with pytest.raises(TypeError):
        found.sends["more"] = Sent("more")


@pytest.mark.parametrize(
    ("properties", "names"),
    [
        ({"loss": "mine"}, "mine"),
        ({"needs": ("embeding",)}, "embedding"),
        ({"needs": "public"}, "tuple"),
        ({"send": ()}, "sends"),
    ],
)
def test_a_mistake_in_a_declaration_is_named(properties, names):
    with pytest.raises(InputError, match=names):
        declare(**properties)(inner)


def test_a_function_in_a_declaration_is_called_with_the_parameters_that_it_names():
    assert resolve(lambda share: 2 * share, {"share": 3, "other": 4}) == 6
    assert resolve((1, 3), {"share": 3}) == (1, 3)
    with pytest.raises(InputError, match="public"):
        declare(needs=lambda: ("publik",))(lambda: None).declaration.find_needs({})


def test_nested_methods_and_components_in_parameters_compose():
    assert [declaration(each).cite for each in registry.walk_stages("fedcorr(usual=nnc(usual=flr()))")] == [
        "Xu 2022",
        "Tsouvalas 2024",
        "Kim 2024",
    ]
    assert registry.needs("fedcorr(usual=nnc(usual=feddpcont))") == {"embedding", "secret"}
    assert set(registry.sends("oracle(usual=fedcorr(usual_selector=power-of-choice(d=9)))")) == {
        "lid", "left_out", "noise_level", "local_loss",
    }  # fmt: skip
    outer, nested = (registry.method(name).func.declaration.sends["noise_level"] for name in ("nnc", "fedcorr"))
    assert registry.sends("nnc(usual=fedcorr)")["noise_level"] == outer != nested
    assert registry.of_budget("nnc(usual=fedem(warmup=3))", 50) == [None, 3]


UNDECLARED = """
import torch
from fnlkit.methods.fedavg import fedavg

def reply(client, model, received):
    return {"fit": torch.tensor(1.0)}

def plain(clients, model, opt, select, *, rounds):
    return (yield from fedavg(clients, model, opt, select, rounds=rounds))

def talks(clients, model, opt, select, *, rounds):
    return (yield from fedavg(clients, model, opt, select, rounds=rounds, after=(reply,)))
"""


def test_a_users_method_without_a_declaration_sends_weights_only(tmp_path):
    (tmp_path / "own.py").write_text(UNDECLARED)
    train = "fnlkit partition --clients 3 | fnlkit train --rounds 1 --epochs 1 --fraction 1 --model mlp --engine sequential"
    assert fnlkit(f"{train} --method own.py:plain -o run.pt", tmp_path).returncode == 0
    refuse(f"{train} --method own.py:talks -o other.pt", tmp_path, "'fit'")
    assert not (tmp_path / "other.pt").exists()
    refuse(f"{train} --method own.py:plain --protect secagg -o other.pt", tmp_path, "plain", "--protect")


# ---- capabilities
def test_each_compiled_form_is_declared_by_one_function():
    names = "federated.client.drift", "methods.fedcorr"
    names += "federated.client.losses.cross_entropy", "federated.client.losses.soft"
    modules = [importlib.import_module(f"fnlkit.{name}") for name in names]
    functions = [each for m in modules for each in vars(m).values() if getattr(each, "__module__", "") == m.__name__]
    found = [name for each in functions if (name := declaration(each).fused_kernel)]
    assert sorted(found) == sorted([*fused.CORRECTIONS, *fused.LOSSES])


def test_a_function_with_the_name_of_a_compiled_loss_is_not_compiled():
    def cross_entropy(logits, batch):
        return logits[..., 0]

    assert fused.find_targets(Fit()) is not None
    assert fused.find_targets(Fit(loss=cross_entropy)) is None


def test_a_network_describes_itself_and_a_subclass_does_not_inherit_that():
    class Other(MLP):
        def forward(self, x):
            return -super().forward(x)

    shape = (10, 6)
    assert fused_form(MLP(6, [5], 3), shape, False) == ("mlp", (6, 5, 3))
    assert fused_form(WithHead(MLP(6, [5], 3), 2), shape, False) == ("mlp", (6, 5, 3))
    assert fused_form(Other(6, [5], 3), shape, False) is None
    frozen = MLP(6, [5], 3)
    frozen.fc1.weight.requires_grad_(False)
    assert fused_form(frozen, shape, False) is None and fused_form(torch.nn.Linear(6, 3), shape, False) is None


def test_an_aggregator_declares_the_cohorts_that_it_withstands():
    def plain(stacked, weights, *, f=2):
        return stacked[0]

    assert smallest_cohort(plain) == (1, 1)
    counted = declare(cohort=lambda f: (f, 2 * f))(plain)
    assert smallest_cohort(counted) == (2, 4) and smallest_cohort(partial(counted, f=5)) == (5, 10)
    assert smallest_cohort(registry.aggregator("krum(f=2)")) == (5, 7)
    assert smallest_cohort(registry.aggregator("trimmed-mean(share=0.2)")) == (1, 5)


# ---- FedCorr's public code
@pytest.mark.parametrize(("code", "chosen"), [((), set()), (["lid", "strict"], {"lid", "strict"}), ("all", {*fedcorr.CODE})])
def test_choices_of_the_public_code(code, chosen):
    assert fedcorr.choices_of(code) == chosen
