"""Table of a site: which steps it runs in each task, their replies, limits, budgets and numbers of requests.

A row permits a step in a task.  The door (`fnlkit.sites.site.door`) refuses a request that no row permits.
"""

import inspect
from collections.abc import Iterator
from functools import partial
from typing import Any

from fnlkit.core.declarations import declaration
from fnlkit.core.parameters import arguments_of
from fnlkit.experiment.augmentation import augmentation
from fnlkit.experiment.criteria import AGREEMENT, CHANGES
from fnlkit.experiment.plan import Plan
from fnlkit.federated.client import measuring, private_counts, scaling
from fnlkit.federated.client.inputs import Augment
from fnlkit.federated.client.training import Fit
from fnlkit.sites import scale
from fnlkit.sites.project import Task
from fnlkit.sites.site import audit
from fnlkit.sites.site.allowed import PACKAGES, functions
from fnlkit.sites.site.limits import RUNS, TRAINING, Limit, Row, as_agreed, equal_to, name_of

# Titles of the columns of `Row.cells`.
TITLES = ("task", "step", "replies", "requests at most", "limits")
# Rounds that a run of training can have in addition to the agreed ones, for rounds in which all clients take part.
MORE_ROUNDS = 100
# Different requests that a row with `different` answers. Two centers that differ by one value locate this value, and a count
# of predictions is a threshold on the values of a sample, if the server chooses the model.
DIFFERENT = 5
# Different models that a site evaluates: ten comparisons with a value leave a range of a hundredth of a standard deviation.
MODELS = 10
# Largest number of views of a sample in local training.
MOST_VIEWS = 2


def table(task: Task) -> Iterator[Row]:
    """Make the Rows of a task.

    Parameters
    ----------
    task : fnlkit.sites.project.Task
        Of the site's copy of the project.
    """
    return {"train": _of_training, "audit": audit.rows, "evaluate": _of_evaluation,
            scale.TASK: _of_scale}[task.name](task)  # fmt: skip


def parts_of(step: Any) -> list[Any]:
    """List a step, and for local training also the loss, the gradient terms and the penalty, which have separate rows."""
    if not isinstance(step, Fit):
        return [step]
    return [step, step.loss, *step.corrections, *([] if step.penalty is None else [step.penalty])]


# ---- rows
def _of_training(task):
    plan, stages = task.plan, task.plan.method.stages
    requests = RUNS * (plan.settings.rounds + MORE_ROUNDS)
    arguments = [pair for stage in stages for pair in arguments_of(stage).items()]
    epochs = [plan.settings.epochs, *(n for name, n in arguments if "epochs" in name and type(n) is int)]
    rates = [plan.settings.lr, *_rates(stages)]
    arguments += [*arguments_of(plan.optimizer).items()]
    noise = "randomized labels" if any(declaration(stage).label_epsilon for stage in stages) else ""
    decays = [value for name, value in arguments if name.endswith("weight_decay")]
    if not plan.sends_sums:
        yield _training(task, ("weights",), requests, max(epochs), plan.settings, max(rates), decays)
    replies = (*([] if plan.sends_sums else ["weights"]), *plan.sends)
    for name in sorted(reachable(*(stages if plan.sends_sums else components(plan)))):
        yield Row("train", name, replies, requests, bound=as_agreed(name, arguments), noise=noise)


def _of_evaluation(task):
    rounded = f"ranges of {private_counts.RANGE} or more numbers"
    yield Row(
        "evaluate", name_of(private_counts.reply_tested), tuple(private_counts.SENDS), RUNS,
        fewest=private_counts.FEWEST, different=MODELS, noise=rounded,
    )  # fmt: skip


def _of_scale(task):
    yield Row(scale.TASK, name_of(scaling.reply_moments), ("known", "total", "squares"), RUNS, fewest=scaling.FEWEST)


def _rates(parts):
    """Find the learning rates among the arguments of components, and 0."""
    named = [pair for part in parts for pair in arguments_of(part).items()]
    return [0.0, *(rate for name, rate in named if name.endswith("lr") and isinstance(rate, int | float))]


def _training(task, sent, requests, epochs, settings, rate, decays=()):
    same = {"batch_size": settings.batch_size, "momentum": settings.momentum, "weight_decay": settings.weight_decay,
            "optimizer": settings.client_optimizer, "clip": settings.clip}  # fmt: skip
    bound = {name: equal_to(value) for name, value in same.items()}
    bound["weight_decay"] = equal_to(settings.weight_decay, *decays)
    augments = Augment(), augmentation(settings.augment, task.project.kind, tuple(task.project.shape))
    bound |= {
        "lr": Limit(f"at most {rate:g}", lambda v: isinstance(v, int | float) and 0 < v <= rate),
        "epochs": Limit(f"at most {epochs}", lambda v: type(v) is int and 0 < v <= epochs),
        "augment": Limit(f"{' or '.join(dict.fromkeys(('none', str(settings.augment))))}, as agreed", lambda v: v in augments),
        "views": Limit(f"at most {MOST_VIEWS}", lambda v: type(v) is int and 0 < v <= MOST_VIEWS),
    }
    return Row(task.name, TRAINING, sent, requests, bound=bound)


# ---- steps of components
def components(plan: Plan) -> Iterator[Any]:
    """Yield the agreed components that run code at a site."""
    for stage in plan.method.stages:
        yield stage
        yield from (part for part in arguments_of(stage).values() if callable(part))
    yield from (plan.loss, plan.optimizer, plan.make_optimizer(), plan.make_selector())
    measured = {AGREEMENT: measuring.reply_held_out_agreement, CHANGES: measuring.reply_prediction_changes}
    if plan.criterion is not None:
        yield measured[plan.criterion.func.column]


def reachable(*parts) -> set[Any]:
    """Find the steps, losses and gradient terms, "module:function", that the code of components names.

    Functions of `fnlkit.sites.site.allowed.PACKAGES` are followed through the names in their code.

    Parameters
    ----------
    *parts : function, class or object of a class
    """
    known, names, seen, stack = functions(), set(), set(), list(parts)
    while stack:
        part = stack.pop()
        if isinstance(part, partial):
            stack += [part.func, *part.keywords.values()]
            continue
        if isinstance(part, dict | list | tuple):
            stack += part.values() if isinstance(part, dict) else part
            continue
        if not inspect.isfunction(part) and not inspect.isclass(part):
            part = type(part)
        if id(part) in seen or not str(part.__module__).startswith(PACKAGES):
            continue
        seen.add(id(part))
        if inspect.isclass(part):
            members = (each for kind in part.__mro__ for each in vars(kind).values() if callable(each))
            stack += [getattr(each, "__func__", each) for each in members]
            continue
        if (part.__module__, part.__name__) in known:
            names.add(f"{part.__module__}:{part.__name__}")
        stack += _referenced_values(part)
    return names


def _referenced_values(function):
    """Find the values that the code of a function names, and the steps before a loss."""
    words, codes = set(), [function.__code__]
    while codes:
        code = codes.pop()
        words |= set(code.co_names)
        codes += [each for each in code.co_consts if inspect.iscode(each)]
    values = [function.__globals__[word] for word in words if word in function.__globals__]
    modules = [value for value in values if inspect.ismodule(value) and value.__name__.startswith(PACKAGES)]
    values += [getattr(module, word) for module in modules for word in words if hasattr(module, word)]
    values += [cell.cell_contents for cell in function.__closure__ or ()]
    values += [each for each in (getattr(function, "__wrapped__", None), declaration(function).before) if each]
    return [value for value in values if not inspect.ismodule(value)]
