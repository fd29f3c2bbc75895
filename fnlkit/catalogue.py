"""Names of parts: what a spec may say, and where each lives.  Nothing is imported before it is asked for."""

import inspect
from functools import partial

from fnlkit.spec import Spec, bind, find, parse

METHODS = {
    "fedavg": "fnlkit.methods.fedavg:fedavg",
    "fedcorr": "fnlkit.methods.fedcorr:fedcorr",
    "fedefc": "fnlkit.methods.fedefc:fedefc",
    "feddpcont": "fnlkit.methods.feddpcont:feddpcont",
    "flr": "fnlkit.methods.flr:flr",
    "flr-plus": "fnlkit.methods.flr_plus:flr_plus",
    "elr": "fnlkit.methods.flr:elr",
    "slr": "fnlkit.methods.flr:slr",
    "er": "fnlkit.methods.flr:er",
    "nnc": "fnlkit.methods.nnc:nnc",
    "akd": "fnlkit.methods.akd:akd",
    "na-fedavg": "fnlkit.methods.na_fedavg:na_fedavg",
    "forward": "fnlkit.methods.forward:forward",
    "confident-learning": "fnlkit.methods.forward:confident_learning",
}
# What a method may take into its own local training: (r, rounds) -> (keywords of FedOpt.round, report).
REGULARISERS = {
    "flr": "fnlkit.methods.flr:local_training",
}
OPTIMIZERS = {
    "fedavg": "fnlkit.server.optimizers.fedavg:fedavg",
    "fedprox": "fnlkit.server.optimizers.fedprox:fedprox",
    "feddyn": "fnlkit.server.optimizers.feddyn:feddyn",
}
AGGREGATORS = {
    "mean": "fnlkit.server.aggregation:mean",
    "median": "fnlkit.server.aggregation:median",
    "trimmed-mean": "fnlkit.server.aggregation:trimmed_mean",
}
SELECTORS = {
    "uniform": "fnlkit.server.selection:Uniform",
    "power-of-choice": "fnlkit.server.selection:PowerOfChoice",
}
# Parameters of a method that are themselves methods: usual=flr(strength=3).
_METHOD_PARAMETERS = ("usual",)
_BY_THE_RUN = ("rounds", "among", "stage", "schedule")


def method(spec):
    """Return a method with its parameters bound: (clients, model, opt, select, *, rounds) -> generator of Round.

    Parameters
    ----------
    spec : str or Spec
        For example ``fedcorr(beta=5, usual=flr(strength=3))``.

    Raises
    ------
    InputError
        For an unknown method or parameter.
    """
    spec = parse(spec, "--method")
    function = find(spec.name, METHODS, "method")
    inner = {key: spec.parameters.get(key) for key in _METHOD_PARAMETERS}
    nested = {key: method(value) for key, value in inner.items() if isinstance(value, Spec)}
    if isinstance(spec.parameters.get("regulariser"), Spec):
        part = spec.parameters["regulariser"]
        nested["regulariser"] = bind(part, find(part.name, REGULARISERS, "regulariser"), "regulariser")
    rest = Spec(spec.name, {key: value for key, value in spec.parameters.items() if key not in nested})
    bound = bind(rest, function, "method", given=_BY_THE_RUN)
    bound.keywords.update(nested)
    return bound


def needs(spec):
    """Return the names of what a run must have for a method: ``embedding`` at the clients, ``head`` on the network.

    Parameters
    ----------
    spec : str or Spec
        Of a method; methods within it are asked too.
    """
    found, bound = set(), method(spec)
    while isinstance(bound, partial):
        ask = getattr(inspect.getmodule(bound.func), "needs", None)
        found |= set(ask(**bound.keywords)) if ask else set()
        bound = bound.keywords.get("usual")
    return found


def optimizer(spec, fit, **settings):
    """Return a FedOpt for a spec such as ``fedprox(mu=0.001)``, around the given Fit."""
    spec = parse(spec, "--optimizer")
    return bind(spec, find(spec.name, OPTIMIZERS, "optimizer"), "optimizer")(fit, **settings)


def aggregator(spec):
    """Return an aggregator (K, P), (K,) -> (P,) for a spec such as ``trimmed-mean(share=0.1)``."""
    spec = parse(spec, "--aggregator")
    return bind(spec, find(spec.name, AGGREGATORS, "aggregator"), "aggregator")


def selector(spec, fraction):
    """Return a selector for a spec such as ``power-of-choice(d=30)``."""
    spec = parse(spec, "--selector")
    return bind(spec, find(spec.name, SELECTORS, "selector"), "selector", given=("fraction",))(fraction=fraction)
