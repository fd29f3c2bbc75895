"""Every parameter of every part says what it may be, and anything else is refused by name before work begins."""

import doctest
import inspect
from typing import Literal, get_args, get_origin

import pytest
from click.testing import CliRunner

from fnlkit import models
from fnlkit.cli import group
from fnlkit.components import parameters, registry
from fnlkit.components.parameters import Automatic, Range, check, check_arguments, passes_on
from fnlkit.components.spec import Spec, bind, find
from fnlkit.datasets import embed, loading
from fnlkit.errors import InputError
from fnlkit.estimators import ESTIMATORS
from fnlkit.methods import akd, fedcorr, fedefc, flr, flr_plus, forward, na_fedavg, nnc, prestopping

TABLES = {
    "method": registry.METHODS,
    "regularizer": registry.REGULARIZERS,
    "loss": registry.LOSSES,
    "optimizer": registry.OPTIMIZERS,
    "aggregator": registry.AGGREGATORS,
    "selector": registry.SELECTORS,
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
            f"{what} {name}: {parameter.name} does not say what it may be; annotate it, see fnlkit/components/parameters.py"
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
        (float("inf"), "is inf; write a number from 0 to 1"),
        (True, "is True; write a number from 0 to 1"),
        ("half", "is 'half'; write a number from 0 to 1"),
        (None, "is None; write a number from 0 to 1"),
    ],
)
def test_values_that_are_not_numbers_are_refused(value, says):
    @check_arguments
    def part(*, share: parameters.Share = 0.5):
        return share

    assert part(share=0.25) == 0.25
    with pytest.raises(InputError, match=says):
        part(share=value)


@pytest.mark.parametrize(
    ("limits", "says", "inside", "outside"),
    [
        (Range(), "at least 0", [0, 1e300], [-1e-300, float("inf")]),
        (Range(open_low=True), "above 0", [1e-300], [0]),
        (Range(0, 0.5, open_high=True), "from 0 to below 0.5", [0, 0.49], [0.5]),
        (Range(0, 1, open_low=True), "above 0 and at most 1", [1], [0, 1.1]),
        (Range(0, 1, True, True), "above 0 and below 1", [0.5], [0, 1]),
    ],
)
def test_the_text_of_a_range(limits, says, inside, outside):
    assert str(limits) == says
    assert all(value in limits for value in inside) and not any(value in limits for value in outside)


def test_methods_prints_the_allowed_values():
    shown = " ".join(CliRunner().invoke(group, ["methods", "fedcorr"]).output.split())
    assert "confidence 0.5 a number from 0" in shown and "usual_lr 0.0 a number at least 0" in shown


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


def test_a_passed_on_parameter_can_be_redeclared():
    @passes_on(inner_part)
    def outer_part(*, share: parameters.Percentile = 97.0, **passed):
        return inner_part(share=share / 100, **passed)

    assert inspect.signature(outer_part).parameters["share"].default == 97.0
    assert outer_part(rule="public") == (0.97, "public")


def test_parameters_of_several_functions_are_passed_on_together():
    def second(*, count: parameters.Count = 1):
        return count

    def third(*, level: parameters.Share = 0.1):
        return level

    @passes_on(inner_part, "share")
    @passes_on(second)
    @passes_on(third)
    def outer_part(**passed):
        return passed

    assert outer_part(share=0.2, count=3, level=0.4) == {"share": 0.2, "count": 3, "level": 0.4}
    with pytest.raises(TypeError, match="unexpected keyword argument 'rule'"):
        outer_part(share=0.2, rule="paper")


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


def test_examples_of_the_docstrings():
    assert doctest.testmod(parameters).failed == 0


def test_parameters_without_annotation_are_not_checked():
    check(lambda *, usual=None: usual, {"usual": object()}, "mine")


def test_annotations_that_are_texts_are_checked():
    """The file of `open_set` has `from __future__ import annotations`, which makes each annotation a text."""
    assert isinstance(inspect.signature(loading.open_set).parameters["size"].annotation, str)
    with pytest.raises(InputError, match="parameter 'size' is -1"):
        check(loading.open_set, {"size": -1}, "open-set")
