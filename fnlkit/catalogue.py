"""Names of parts: what a spec may say, and where each lives.  Nothing is imported before it is asked for."""

from fnlkit.spec import Spec, bind, find, parse

METHODS = {
    "fedavg": "fnlkit.methods.fedavg:fedavg",
    "fedcorr": "fnlkit.methods.fedcorr:fedcorr",
}
OPTIMIZERS = {
    "fedavg": "fnlkit.optimisers:fedavg",
    "fedprox": "fnlkit.optimisers:fedprox",
    "feddyn": "fnlkit.optimisers:feddyn",
}
AGGREGATORS = {
    "mean": "fnlkit.aggregation:mean",
    "median": "fnlkit.aggregation:median",
    "trimmed-mean": "fnlkit.aggregation:trimmed_mean",
}
SELECTORS = {
    "uniform": "fnlkit.selection:Uniform",
    "power-of-choice": "fnlkit.selection:PowerOfChoice",
}
# Parameters of a method that are themselves methods: usual=flr(strength=3).
_METHOD_PARAMETERS = ("usual",)
_BY_THE_RUN = ("rounds", "among", "stage")


def method(spec):
    """Return a method with its parameters bound: (fed, model, opt, select, *, rounds) -> generator of Round.

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
    nested = {key: method(spec.parameters[key]) for key in _METHOD_PARAMETERS if isinstance(spec.parameters.get(key), Spec)}
    rest = Spec(spec.name, {key: value for key, value in spec.parameters.items() if key not in nested})
    bound = bind(rest, function, "method", given=_BY_THE_RUN)
    bound.keywords.update(nested)
    return bound


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
