"""Options of an estimate are declared once: the same names and defaults in Python and on the command line."""

import dataclasses
import inspect

import numpy as np
import pytest

import fnlkit
from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import InputError
from fnlkit.estimators import EstimateOptions, estimate
from fnlkit.estimators.inputs import EstimatorInputs

DEFAULTS = {field.name: field.default for field in dataclasses.fields(EstimateOptions)}


def federation():
    return Federation("toy", 2, np.array([0, 2, 4]), np.arange(4), np.array([0, 1, 0, 1]))


@pytest.mark.parametrize("function", [estimate, fnlkit.estimate_noise])
def test_the_signature_lists_every_option_with_the_declared_default(function):
    shown = inspect.signature(function).parameters
    assert DEFAULTS.keys() <= shown.keys()
    assert all(shown[name].default == default for name, default in DEFAULTS.items() if name != "say")


@pytest.mark.parametrize("call", [lambda **options: EstimatorInputs(federation(), None, **options), EstimateOptions])
def test_unknown_options_and_forms_are_refused(call):
    with pytest.raises(TypeError, match="epoch"):
        call(epoch=3)
    with pytest.raises(InputError, match="`form`"):
        call(form="central")


def test_keywords_that_are_no_options_are_settings_of_the_warm_up():
    """The provenance names the settings of the training; `seed` is an option and no such setting."""
    fed = fnlkit.inject_noise(fnlkit.partition("digits", clients=4), "symmetric(eta=0.4)")
    judged = fnlkit.estimate_noise(fed, "knn(k=10)", say=None, seed=3, rounds=2, warm_up={"lr": 0.5})
    parameters = judged.meta["provenance"][-1]["parameters"]
    assert (parameters["rounds"], parameters["lr"]) == (2, 0.5) and judged.meta["provenance"][-1]["seed"] == 3
    with pytest.raises(InputError, match="`epoch`"):
        fnlkit.estimate_noise(fed, "knn(k=10)", say=None, epoch=3)
