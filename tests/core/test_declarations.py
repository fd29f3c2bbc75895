"""Declarations of components: attached once, kept by wrappers, immutable, composed over nested methods, checked by callers."""

import dataclasses
import importlib
import inspect
from functools import partial
from typing import Literal, get_args, get_origin

import pytest
import torch

from fnlkit import models
from fnlkit.core import Sent, declare, method, parameters, registry
from fnlkit.core.declarations import declaration, resolve
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Automatic, Range, check_arguments, passes_on
from fnlkit.core.spec import Spec, bind, find, parse
from fnlkit.encoders import embed
from fnlkit.estimators import ESTIMATORS
from fnlkit.federated.client.training import Fit
from fnlkit.federated.engines import fused
from fnlkit.federated.server.aggregation import smallest_cohort
from fnlkit.methods import akd, fedcorr, fedefc, flr, flr_plus, forward, na_fedavg, nnc, prestopping
from fnlkit.models.head import WithHead
from fnlkit.models.mlp import MLP
from fnlkit.models.parts import fused_form
from tests.commands import fnlkit, refuse, refuse_call


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
    refuse_call(names, lambda: declare(**properties)(inner))


def test_a_function_in_a_declaration_is_called_with_the_parameters_that_it_names():
    assert resolve(lambda share: 2 * share, {"share": 3, "other": 4}) == 6
    assert resolve((1, 3), {"share": 3}) == (1, 3)
    refuse_call("public", declare(needs=lambda: ("publik",))(lambda: None).declaration.find_needs, {})


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
    names = "federated.client.drift", "methods.fedcorr", "federated.client.losses.cross_entropy"
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


# ---- every parameter of every part says what it may be, and anything else is refused by name before work begins
TABLES = {
    "method": registry.METHODS,
    "regularizer": registry.REGULARIZERS,
    "loss": registry.LOSSES,
    "optimizer": registry.OPTIMIZERS,
    "aggregator": registry.AGGREGATORS,
    "selector": registry.SELECTORS,
    "schedule": registry.SCHEDULES,
    "estimator": ESTIMATORS,
    "model": models.NETWORKS,
    "backbone": embed.BACKBONES,
}
PARTS = [(what, name, find(name, table, what)) for what, table in TABLES.items() for name in table]
# What the run supplies, not a spec.
BY_THE_RUN = {*registry._BY_THE_RUN, *registry.AGGREGATED, "fraction", "input_shape", "classes"}


def declared():
    """Yield (what, name of the part, part, parameter, annotation) of all parameters with a number or a word as default."""
    for what, name, part in PARTS:
        for parameter in inspect.signature(part).parameters.values():
            free = parameter.kind is parameter.KEYWORD_ONLY and parameter.name not in BY_THE_RUN
            kind = None if parameter.annotation is parameter.empty else parameter.annotation
            if free and isinstance(parameter.default, (int, float, str)) and not isinstance(parameter.default, bool):
                if kind is not str:  # any text will do: a name, a path
                    yield what, name, part, parameter, kind


def needed(part):
    """A text for each parameter that has no default."""
    free = [p.name for p in inspect.signature(part).parameters.values() if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    return {name: "symmetric" for name in free if name not in BY_THE_RUN}


def wrong(kind):
    """Values just outside of what a parameter may be."""
    if get_origin(kind) is Literal:
        return ["", "Paper", get_args(kind)[0] + "s"]
    number, limits, *marks = get_args(kind)
    spare = [mark.value for mark in marks]
    step = 1 if number is int else 1e-6
    low = limits.low if limits.open_low else limits.low - step
    high = limits.high if limits.open_high else limits.high + step
    found = [value for value in (low, high, -7.5) if value not in spare and value not in limits and value != float("inf")]
    return [number(value) for value in found if number(value) not in spare]


def right(kind, default):
    """The default, and the ends."""
    if get_origin(kind) is Literal:
        return [default, *get_args(kind)]
    number, limits, *marks = get_args(kind)
    low = [] if limits.open_low else [number(limits.low)]
    high = [] if limits.open_high or limits.high == float("inf") else [number(limits.high)]
    return [default, *low, *high, *(number(mark.value) for mark in marks)]


def test_every_number_and_word_has_its_range():
    count = 0
    for what, name, _, parameter, kind in declared():
        assert kind is not None and (get_origin(kind) is Literal or isinstance(get_args(kind)[1], Range)), (
            f"{what} {name}: {parameter.name} does not say what it may be; annotate it, see fnlkit/core/parameters.py"
        )
        assert all(isinstance(mark, Automatic) for mark in get_args(kind)[2:] if get_origin(kind) is not Literal)
        count += 1
    assert count > 80


def test_values_outside_the_range_are_refused_by_name():
    for what, name, part, parameter, kind in declared():
        for value in right(kind, parameter.default):
            bind(Spec(name, {**needed(part), parameter.name: value}), part, what, given=BY_THE_RUN)
        for value in wrong(kind):
            with pytest.raises(InputError, match=rf"{what} '{name}': parameter '{parameter.name}' is .*; write"):
                bind(Spec(name, {parameter.name: value}), part, what, given=BY_THE_RUN)


def test_python_calls_check_parameters_too():
    """Calls that no spec went through; a generator complains as it is called, not as it starts."""
    for what, _, part, parameter, kind in declared():
        if what not in ("selector", "loss"):  # a loss is called in every step: its parameters are checked when they are bound
            supplied = [None] * sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in inspect.signature(part).parameters.values())
            refuse_call(f"parameter '{parameter.name}' is", part, *supplied, **{parameter.name: wrong(kind)[0]})


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "is nan; write a number from 0 to 1"),
        (True, "is True; write a number from 0 to 1"),
        ("half", "is 'half'; write a number from 0 to 1"),
    ],
)
def test_values_that_are_not_numbers_are_refused(value, says):
    @check_arguments
    def part(*, share: parameters.Share = 0.5):
        return share

    assert part(share=0.25) == 0.25
    refuse_call(says, part, share=value)


def test_a_parameter_that_is_passed_on_is_declared_once():
    @check_arguments
    @passes_on(inner_part, "share")
    def outer_part(clients, *, count: parameters.Count = 3, **passed):
        return clients, count, inner_part(**passed)

    taken = inspect.signature(outer_part).parameters
    assert [(name, one.kind.name) for name, one in taken.items()] == [
        ("clients", "POSITIONAL_OR_KEYWORD"), ("count", "KEYWORD_ONLY"), ("share", "KEYWORD_ONLY")
    ]  # fmt: skip
    assert (taken["count"].annotation, taken["count"].default) == (parameters.Count, 3)
    assert (taken["share"].annotation, taken["share"].default) == (parameters.Share, 0.5)
    assert outer_part("them") == ("them", 3, (0.5, "paper"))
    assert bind(Spec("outer", {"share": 1}), outer_part, "part")("them") == ("them", 3, (1.0, "paper"))
    refuse_call("outer-part: parameter 'share' is 2; write a number from 0 to 1", outer_part, "them", share=2)
    refuse_call("no parameter 'rule'; it takes: count, share", bind, Spec("outer", {"rule": "paper"}), outer_part, "part")
    refuse_call("unexpected keyword argument 'rule'", outer_part, "them", rule="paper", error=TypeError)


def inner_part(*, share: parameters.Share = 0.5, rule: Literal["paper", "public"] = "paper"):
    return share, rule


def test_methods_declare_no_parameter_twice():
    """What a method passes on it does not repeat: the same name, range and default in two signatures of one family."""
    for inner, outer in ((flr.local_training, flr.flr), (flr.flr, flr.slr), (prestopping.prestop, fedefc.fedefc),
                         (prestopping.prestop, forward.forward), (fedcorr.fedcorr, flr_plus.flr_plus),
                         (nnc.nnc, akd.akd), (na_fedavg.na_fedavg, akd.akd)):  # fmt: skip
        own = inspect.signature(inspect.unwrap(outer)).parameters
        taken = {name for name, p in inspect.signature(inner).parameters.items() if own.get(name) == p}
        assert taken <= {"clients", "model", "opt", "select", "rounds"}, f"{outer.__name__} repeats {taken}"


@pytest.mark.parametrize("value", ["1e300", "9300000000000000000", "-1e19"])
def test_whole_numbers_beyond_64_bits_are_refused_in_either_form(value):
    def part(*, rounds=1):
        """A component with a whole number."""

    assert bind(parse("part(rounds=2e3)"), part, "method").keywords == {"rounds": 2000}
    refuse_call("'rounds' is too large; write a number below 2", bind, parse(f"part(rounds={value})"), part, "method")
