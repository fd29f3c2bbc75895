"""Names of components and their modules, which are imported on first use."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fnlkit.core.declarations import Sent, declaration, resolve
from fnlkit.core.errors import InputError, nearest
from fnlkit.core.parameters import arguments_of
from fnlkit.core.retired import refuse_retired
from fnlkit.core.spec import Spec, bind, find, format_value, parse

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
    "t-revision": "fnlkit.methods.t_revision:t_revision",
    "confident-learning": "fnlkit.methods.forward:confident_learning",
    "fednoro": "fnlkit.methods.fednoro:fednoro",
    "fedelc": "fnlkit.methods.fedelc:fedelc",
    "fedsir": "fnlkit.methods.fedsir:fedsir",
    "maskedoptim": "fnlkit.methods.maskedoptim:maskedoptim",
    "fedem": "fnlkit.methods.fedem:fedem",
    "fedsums": "fnlkit.methods.fedsums:fedsums",
    "ridge": "fnlkit.methods.fedsums:ridge",
    "lda": "fnlkit.methods.fedsums:lda",
    "rofl": "fnlkit.methods.rofl:rofl",
    "fedlsr": "fnlkit.methods.fedlsr:fedlsr",
    "fedelr": "fnlkit.methods.fedelr:fedelr",
    "fedrn": "fnlkit.methods.fedrn:fedrn",
    "feddiv": "fnlkit.methods.feddiv:feddiv",
    "fedgr": "fnlkit.methods.fedgr:fedgr",
    "fedreda": "fnlkit.methods.fedreda:fedreda",
    "fedrg": "fnlkit.methods.fedrg:fedrg",
    "rhfl": "fnlkit.methods.rhfl:rhfl",
    "dividemix": "fnlkit.methods.dividemix:dividemix",
    "jointopt": "fnlkit.methods.jointopt:jointopt",
    "selfie": "fnlkit.methods.selfie:selfie",
    "cufit": "fnlkit.methods.cufit:cufit",
    "coteaching": "fnlkit.methods.coteaching:coteaching",
    "coteaching-plus": "fnlkit.methods.coteaching:coteaching_plus",
    "auto": "fnlkit.methods.auto:auto",
    "centralized": "fnlkit.methods.centralized:centralized",
    "local": "fnlkit.methods.local:local",
    "oracle": "fnlkit.methods.oracle:oracle",
}
# Additions to a method's local training: (r, rounds) -> (keywords of FedOpt.round, report).
REGULARIZERS = {
    "flr": "fnlkit.methods.flr:local_training",
}
LOSSES = {
    "ce": "fnlkit.federated.client.losses.cross_entropy:cross_entropy",
    "smoothing": "fnlkit.federated.client.losses.cross_entropy:smoothed_cross_entropy",
    "gce": "fnlkit.federated.client.losses.robust:generalized_cross_entropy",
    "sce": "fnlkit.federated.client.losses.robust:symmetric_cross_entropy",
    "nce-rce": "fnlkit.federated.client.losses.robust:normalized_and_reverse_cross_entropy",
    "bi-tempered": "fnlkit.federated.client.losses.tempered:bi_tempered",
    "temperature": "fnlkit.federated.client.losses.calibration:temperature_scaled",
    "entropy": "fnlkit.federated.client.losses.calibration:entropy_minimized",
    "er": "fnlkit.federated.client.losses.mixture:entropy_regularized",
    "elr": "fnlkit.federated.client.losses.mixture:early_learning",
    "peer": "fnlkit.federated.client.losses.contrastive:peer",
    "cores": "fnlkit.federated.client.losses.contrastive:cores",
    "forward": "fnlkit.federated.client.losses.correction:forward_given",
    "backward": "fnlkit.federated.client.losses.correction:backward_given",
}
OPTIMIZERS = {
    "fedavg": "fnlkit.federated.server.optimizers.fedavg:fedavg",
    "fedprox": "fnlkit.federated.server.optimizers.fedprox:fedprox",
    "feddecorr": "fnlkit.federated.server.optimizers.feddecorr:feddecorr",
    "feddyn": "fnlkit.federated.server.optimizers.feddyn:feddyn",
    "scaffold": "fnlkit.federated.server.optimizers.scaffold:scaffold",
    "fednova": "fnlkit.federated.server.optimizers.fednova:fednova",
    "fedexp": "fnlkit.federated.server.optimizers.fedexp:fedexp",
    "fedadam": "fnlkit.federated.server.optimizers.adaptive:fedadam",
    "fedyogi": "fnlkit.federated.server.optimizers.adaptive:fedyogi",
    "ditto": "fnlkit.federated.server.optimizers.ditto:ditto",
    "fedbn": "fnlkit.federated.server.optimizers.fedbn:fedbn",
}
AGGREGATORS = {
    "mean": "fnlkit.federated.server.aggregation:mean",
    "median": "fnlkit.federated.server.aggregation:median",
    "trimmed-mean": "fnlkit.federated.server.aggregation:trimmed_mean",
    "krum": "fnlkit.federated.server.robust:krum",
    "multi-krum": "fnlkit.federated.server.robust:multi_krum",
    "rfa": "fnlkit.federated.server.robust:rfa",
    "norm-clipping": "fnlkit.federated.server.robust:norm_clipping",
    "arfl": "fnlkit.federated.server.residuals:arfl",
    "daagg": "fnlkit.federated.server.distance:daagg",
}
SELECTORS = {
    "uniform": "fnlkit.federated.server.selection:Uniform",
    "poisson": "fnlkit.federated.server.selection:Poisson",
    "power-of-choice": "fnlkit.federated.server.selection:PowerOfChoice",
}
SCHEDULES = {
    "constant": "fnlkit.federated.server.schedules:constant",
    "step": "fnlkit.federated.server.schedules:step",
    "cosine": "fnlkit.federated.server.schedules:cosine",
    "exponential": "fnlkit.federated.server.schedules:exponential",
}
PROTECTIONS = {
    "secagg": "fnlkit.federated.server.protection:secagg",
}
# Components that are often taken for methods, by the option of `fnlkit train`.
_TRAIN_OPTIONS = {"loss": LOSSES, "optimizer": OPTIMIZERS, "aggregator": AGGREGATORS, "selector": SELECTORS}
# Arguments that a round passes to an aggregator with these parameters.
AGGREGATED = ("start", "slots", "trainable", "ids", "memory")
# Parameters of a method that are themselves methods: usual=flr(strength=3).
_METHOD_PARAMETERS = ("usual",)
# Parameters of a method that are lists of methods: of=[fedem, rofl].
_METHOD_LISTS = ("of",)
# Parameters of a method that are other components: table, kind, arguments supplied by the method, an example.
_PART_PARAMETERS = {
    "regularizer": (REGULARIZERS, "regularizer", (), "flr(strength=3)"),
    "usual_optimizer": (OPTIMIZERS, "optimizer", (), "feddyn(alpha=0.01)"),
    "usual_aggregator": (AGGREGATORS, "aggregator", AGGREGATED, "median"),
    "usual_selector": (SELECTORS, "selector", ("fraction",), "power-of-choice(d=30)"),
}
_BY_THE_RUN = ("rounds", "among", "stage", "schedule")


def method(spec: str | Spec) -> partial[Any]:
    """Bind the parameters of a method.

    It is called as (clients, model, opt, select, *, rounds) and returns a generator of Round.

    Parameters
    ----------
    spec : str or Spec
        For example ``fedcorr(beta=5, usual=flr(strength=3))``.

    Raises
    ------
    InputError
        For an unknown method or parameter.
    """
    spec = parse(spec, "`method`")
    for kind, table in _TRAIN_OPTIONS.items():
        if spec.name in table and spec.name not in METHODS:
            raise InputError(f"unknown method {spec.name!r}; it is of the kind {kind}: write `{kind}={spec.name!r}`")
    function = find(spec, METHODS, "method")
    nested: dict[str, Any] = {}
    known = inspect.signature(function).parameters
    for key, value in spec.parameters.items():
        if key not in known:
            continue  # `bind` names it
        if key in _METHOD_LISTS:
            nested[key] = [_nested(part) for part in _specs(value, f"method {spec.name!r}: parameter {key!r}")]
            continue
        if key not in (*_METHOD_PARAMETERS, *_PART_PARAMETERS) or (key in _PART_PARAMETERS and value is None):
            continue
        table, what, supplied, example = _PART_PARAMETERS.get(key, (None, "method", (), "flr(strength=3)"))
        if not isinstance(value, Spec):
            where = f"method {spec.name!r}: parameter {key!r}"
            raise InputError(f"{where} is {format_value(value)}; write a {what}, for example {key}={example}")
        nested[key] = bind(value, find(value, table, what), what, given=supplied) if table else _nested(value)
        if not table and "folds" in needs(nested[key]):
            raise InputError(f"method {spec.name!r}: {key}={value.name} trains several methods; use it as `method`")
    plain = Spec(spec.name, {key: value for key, value in spec.parameters.items() if key not in nested})
    bound = bind(plain, function, "method", given=_BY_THE_RUN)
    bound.keywords.update(nested)
    return bound


def _nested(spec):
    """Bind a method that is a parameter of another one; a component of another kind is no option of the run there."""
    find(spec, METHODS, "method")
    return method(spec)


def _specs(value, where):
    """Check that a value is a list of specs."""
    if not isinstance(value, list) or not value or not all(isinstance(entry, Spec) for entry in value):
        raise InputError(f"{where} is {format_value(value)}; write a list of methods, for example [fedem, rofl(forget=0.3)]")
    return value


def walk_stages(spec: str | Spec | Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yield a method with bound parameters, then the methods that it runs (parameters `usual` and `of`).

    Parameters
    ----------
    spec : str, Spec or callable
        Spec of a method, or a method that `method` returned.
    """
    bound = spec if callable(spec) else method(spec)
    while callable(bound):
        yield bound
        arguments = arguments_of(bound)
        for stage in arguments.get("of", ()):
            yield from walk_stages(stage)
        bound = arguments.get("usual")


def needs(spec: str | Spec | Callable[..., Any]) -> set[str]:
    """Collect the inputs that a run must provide for a method, names in `fnlkit.core.declarations.NEEDS`.

    Parameters
    ----------
    spec : str, Spec or callable
        As in `walk_stages`; inputs of nested methods are included.
    """
    return set().union(*(declaration(stage).find_needs(arguments_of(stage)) for stage in walk_stages(spec)))


def of_budget(spec: str | Spec | Callable[..., Any], rounds: int) -> list[Any]:
    """Part of a method's schedule that depends on `rounds`.

    A run can be resumed with another budget only if this part is unchanged.

    Parameters
    ----------
    spec : str, Spec or callable
        As in `walk_stages`; nested methods are included.
    rounds : int
    """
    return [resolve(declaration(stage).schedule, {**arguments_of(stage), "rounds": rounds}) for stage in walk_stages(spec)]


def sends(spec: str | Spec | Callable[..., Any]) -> dict[str, Sent]:
    """Collect {name: Sent} of all replies that a method declares, with nested methods and the components in the parameters.

    If two components declare the same name, the outer declaration takes precedence.

    Parameters
    ----------
    spec : str, Spec or callable
        As in `walk_stages`; a method without a declaration contributes no replies.
    """
    declared: dict[str, Sent] = {}
    for stage in walk_stages(spec):
        parts = [stage, *(part for name, part in arguments_of(stage).items() if name in _PART_PARAMETERS)]
        for part in parts:
            declared = dict(declaration(part).sends or {}) | declared
    return declared


def loss(spec: str | Spec) -> Callable[..., Any]:
    """Bind the loss of a spec such as ``gce(q=0.7)``.

    Local training uses it if the method does not define the loss.

    Parameters
    ----------
    spec : str or Spec

    Raises
    ------
    InputError
        If the loss or a parameter is unknown.
    """
    spec = parse(spec, "`loss`")
    bound = bind(spec, find(spec, LOSSES, "loss"), "loss")
    return bound if bound.keywords else bound.func


def brings_loss(spec: str | Spec | Callable[..., Any]) -> bool:
    """Whether a method, or the nested method that decides about the loss, defines the loss of all local training.

    Parameters
    ----------
    spec : str, Spec or callable
        As in `walk_stages`.
    """
    for stage in walk_stages(spec):
        if (known := declaration(stage)).loss != "usual":
            return known.loss == "own" or arguments_of(stage).get("regularizer") is not None
    return False


def bind_optimizer(spec: str | Spec) -> Callable[..., Any]:
    """Bind the function (fit, **settings) -> FedOpt of a spec such as ``fedprox(mu=0.001)``."""
    spec = parse(spec, "`optimizer`")
    return bind(spec, find(spec, OPTIMIZERS, "optimizer"), "optimizer")


def check_optimizer(made: object, spec: str | Spec) -> object:
    """Check that the result of an optimizer's function is a FedOpt.

    Raises
    ------
    InputError
        If a user's function returned something else.
    """
    if not hasattr(made, "round"):
        raise InputError(f"optimizer {parse(spec).name!r} returned {type(made).__name__}; expected a FedOpt")
    return made


def optimizer(spec: str | Spec, fit: Any, **settings: Any) -> object:
    """Make a FedOpt of a spec such as ``fedprox(mu=0.001)``, with the given Fit."""
    return check_optimizer(bind_optimizer(spec)(fit, **settings), spec)


def aggregator(spec: str | Spec) -> Callable[..., Any]:
    """Bind an aggregator (K, P), (K,) -> (P,) of a spec such as ``trimmed-mean(share=0.1)``."""
    spec = parse(spec, "`aggregator`")
    return bind(spec, find(spec, AGGREGATORS, "aggregator"), "aggregator", given=AGGREGATED)


def protection(spec: str | Spec) -> Any:
    """Make the protection of updates of a spec.

    The result is a Secret for ``secagg``, and None for ``none``.

    Parameters
    ----------
    spec : str or Spec

    Raises
    ------
    InputError
        For any other spec.  Users' functions are not accepted, because their privacy cost would be unknown.
    """
    spec = parse(spec, "`protect`")
    if spec == Spec("none"):
        return None
    if spec.name not in PROTECTIONS:
        refuse_retired("protection", spec.name)
        known = ["none", *PROTECTIONS]
        raise InputError(f"{spec.name}{nearest(spec.name, known)}; write none or secagg", parameter="protect")
    return bind(spec, find(spec, PROTECTIONS, "protection"), "protection")()


def bind_selector(spec: str | Spec) -> Callable[..., Any]:
    """Bind the function (*, fraction) -> selector of a spec such as ``power-of-choice(d=30)``."""
    spec = parse(spec, "`selector`")
    return bind(spec, find(spec, SELECTORS, "selector"), "selector", given=("fraction",))


def check_selector(made: object, spec: str | Spec) -> object:
    """Check that the result of a selector's function is a selector.

    Raises
    ------
    InputError
        If a user's function returned something else.
    """
    if not callable(made) or not hasattr(made, "fraction"):
        raise InputError(
            f"selector {parse(spec).name!r} returned {type(made).__name__}; expected a function (clients, model, "
            "among=None) with an attribute `fraction`"
        )
    return made


def selector(spec: str | Spec, fraction: float) -> object:
    """Make a selector of a spec such as ``power-of-choice(d=30)``."""
    return check_selector(bind_selector(spec)(fraction=fraction), spec)


def schedule(spec: str | Spec) -> Callable[..., Any]:
    """Bind a schedule of the learning rate (done, total) -> factor of a spec such as ``step(every=10, factor=0.1)``."""
    spec = parse(spec, "`schedule`")
    return bind(spec, find(spec, SCHEDULES, "schedule"), "schedule")
