"""Check the components of a recipe before its first command: names, parameters and values, of fnlkit or of user files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any

from fnlkit.components import registry
from fnlkit.components.spec import bind, find, own_names, parse
from fnlkit.errors import InputError
from fnlkit.experiment import Settings
from fnlkit.experiment.criteria import criterion
from fnlkit.experiment.plan import BoundMethod

# Kind of component: its registry, and the parameters that the caller supplies.
_TABLES = {
    "loss": ("fnlkit.components.registry:LOSSES", ()),
    "optimizer": ("fnlkit.components.registry:OPTIMIZERS", ("aggregate", "decay")),
    "aggregator": ("fnlkit.components.registry:AGGREGATORS", registry.AGGREGATED),
    "selector": ("fnlkit.components.registry:SELECTORS", ("fraction",)),
    "model": ("fnlkit.models:NETWORKS", ("input_shape", "classes")),
    "noise": ("fnlkit.noise.injection:MODELS", ()),
    "scheme": ("fnlkit.datasets.partitioning:SCHEMES", ("fields",)),
    "estimator": ("fnlkit.estimators:ESTIMATORS", ()),
    "backbone": ("fnlkit.datasets.embed:BACKBONES", ()),
}


def must_run(method: str, options: Mapping[str, Any]) -> None:
    """Raise InputError unless `train` accepts the values of these options and the parameters of a method.

    Parameters
    ----------
    method : str
    options : dict
        Options of `train`; names that are not settings are ignored.
    """
    settings = {field.name: options[field.name] for field in fields(Settings) if field.name in options}
    criterion(Settings(**settings, method=method).select)
    BoundMethod.of(method)


def must_be_stored(dataset: str, option: str) -> None:
    """Raise InputError if a data set is a user's function: the commands of a recipe read data sets by name or from files.

    Parameters
    ----------
    dataset : str
    option : str
        For the message.
    """
    if own_names(dataset) and not os.path.exists(dataset):
        raise InputError(
            f"{option} {dataset}: a recipe reads no function; write its arrays with np.savez and name the npz file"
        )


def must_be_components(named: Mapping[str, str]) -> None:
    """Raise InputError unless every named component exists and accepts its parameters.

    A user's component is imported.

    Parameters
    ----------
    named : dict of str to object
        Specs by option, such as ``loss`` or ``noise``; other options are ignored, and so is ``auto``.
    """
    for kind, text in named.items():
        if kind in _TABLES and text != "auto":
            place, supplied = _TABLES[kind]
            module, _, table = place.partition(":")
            spec = parse(text, f"`{kind}`")
            bind(spec, find(spec, getattr(import_module(module), table), kind), kind, given=supplied)
