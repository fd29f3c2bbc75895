"""Every parameter of every part says what it may be, and anything else is refused by name before work begins."""

import inspect
from typing import Literal, get_args, get_origin

import pytest

from fnlkit import models
from fnlkit.core import parameters, registry
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Automatic, Range, check_arguments, passes_on
from fnlkit.core.spec import Spec, bind, find
from fnlkit.encoders import embed
from fnlkit.estimators import ESTIMATORS
from fnlkit.methods import akd, fedcorr, fedefc, flr, flr_plus, forward, na_fedavg, nnc, prestopping

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
            with pytest.raises(InputError, match=f"parameter '{parameter.name}' is"):
                part(*supplied, **{parameter.name: wrong(kind)[0]})


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
    with pytest.raises(InputError, match=says):
        part(share=value)


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
    with pytest.raises(InputError, match="outer-part: parameter 'share' is 2; write a number from 0 to 1"):
        outer_part("them", share=2)
    with pytest.raises(InputError, match="part 'outer' has no parameter 'rule'; it takes: count, share"):
        bind(Spec("outer", {"rule": "paper"}), outer_part, "part")
    with pytest.raises(TypeError, match="unexpected keyword argument 'rule'"):
        outer_part("them", rule="paper")


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
