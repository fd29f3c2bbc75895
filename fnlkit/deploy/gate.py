"""Gate of a site: the table of all requests that a site answers, and the check of a request before it is computed.

A row permits a step in a task: the replies of the step, the limits of its parameters, and the number of requests per agreement.
The table follows from the site's copy of the project and from constants of this module, never from a message.  A request that
the table does not contain is refused: nothing is computed, stored or sent except the code of the refusal.
"""

import hashlib
import inspect
import json
import math
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from filelock import FileLock

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.paths import display_path, from_home
from fnlkit.client import measuring, testing
from fnlkit.client.inputs import Augment
from fnlkit.client.scaling import FEWEST
from fnlkit.client.training import Fit
from fnlkit.components.declarations import declaration
from fnlkit.components.parameters import arguments_of
from fnlkit.deploy import scale, terms
from fnlkit.deploy.allowed import PACKAGES, functions
from fnlkit.deploy.releases import Withheld
from fnlkit.engines.travel import unpack
from fnlkit.errors import InputError
from fnlkit.estimators import DETECTORS
from fnlkit.experiment.augmentation import augmentation
from fnlkit.experiment.criteria import AGREEMENT, CHANGES
from fnlkit.experiment.plan import BoundMethod
from fnlkit.experiment.settings import Settings
from fnlkit.review import shifts

# Titles of the columns of `Row.cells`.
TITLES = ("task", "step", "replies", "requests at most", "limits")
# Runs of each task for one agreement. A site permits more by deleting the record of requests, or by another agreed file.
RUNS = 20
# Rounds that a run of training can have in addition to the agreed ones, for rounds in which all clients take part.
MORE_ROUNDS = 100
# Largest whole number, length and nesting of a value that a message binds to a parameter; draws (`seed`) are not limited.
MOST_NUMBER, MOST_ENTRIES = 10_000, 64
# Seconds of CPU time of a request, unless the sites agreed to a longer timeout.
MOST_SECONDS = 3600
# Largest size of a request: characters of its text, which has all names, lists and single numbers, and bytes of its arrays.
MOST_TEXT, MOST_ARRAY_BYTES, MOST_MODELS = 2**20, 2**26, 8
# Different requests that a row with `different` answers. Two centers that differ by one value locate this value, and a count
# of predictions is a threshold on the values of a sample, if the server chooses the model.
DIFFERENT = 5
# Different models that a site evaluates: ten comparisons with a value leave a range of a hundredth of a standard deviation.
MODELS = 10
# Largest number of views of a sample in local training.
MOST_VIEWS = 2
# Local training in the table; every other step is "module:function".
TRAINING = "local training"
# Methods that estimators run as a warm-up instead of fedavg.
WARM_UPS = {"lid": "fedcorr", "energy": "na-fedavg"}
KIND = "fnlkit.requests/1"
_MAX_BYTES = 2**20


class NotInTable(Withheld):
    """Error: a request is not in the site's table. The server receives only the code."""

    code = "request"


@dataclass(frozen=True)
class Limit:
    """Limit of a parameter or of a received array of a step.

    Attributes
    ----------
    words : str
        The limit, for the table.
    fits : callable (value) -> bool
    """

    words: str
    fits: Callable = field(compare=False)


@dataclass(frozen=True)
class Row:
    """A step that a site runs in a task.

    Attributes
    ----------
    task : str
    step : str
        `TRAINING` or "module:function".
    replies : tuple of str
        Names of the arrays that a request with this step can return.
    requests : int
        Largest number of requests for one agreement.
    fewest : int
        A statistic of fewer samples is replied as zero. 0: no such limit.
    bound, received : dict of str to Limit
        Limits of parameters that a message binds, and of arrays that it contains.
    different : int
        Largest number of requests that differ in the model, the received arrays, the parameters of the steps or the memory with
        which the site begins. 0: no such limit. An equal request has an equal reply.
    noise : str
        Noise or ranges in the replies; "" for exact numbers.
    """

    task: str
    step: str
    replies: tuple
    requests: int
    fewest: int = 0
    bound: dict = field(default_factory=dict)
    received: dict = field(default_factory=dict)
    different: int = 0
    noise: str = ""

    @property
    def limits(self):
        """The limits as text."""
        texts = [f"{name}: {limit.words}" for name, limit in {**self.bound, **self.received}.items()]
        texts += [f"0 for fewer than {self.fewest} samples"] if self.fewest else []
        texts += [f"at most {self.different} different requests"] if self.different else []
        return "; ".join([*texts, *([self.noise] if self.noise else [])])

    @property
    def cells(self):
        """The row as texts: task, step, replies, requests, limits."""
        return self.task, short(self.step), ", ".join(self.replies), f"{self.requests:,}", self.limits


@dataclass(frozen=True)
class Gate:
    """Table of a task, and the record of the requests that the site answered.

    Attributes
    ----------
    rows : dict of str to Row
        By step.
    path : str
        File of the record.
    agreement : str
        SHA-256 of the site's copy of the project. Requests are counted for each agreement.
    seconds : float
        Largest CPU time of a request.
    """

    rows: dict
    path: str
    agreement: str
    seconds: float = MOST_SECONDS

    @property
    def task(self):
        """Name of the task."""
        return next(iter(self.rows.values())).task

    def may_be_named(self, module, name):
        """Return whether a message can name a function: a step of the table, a loss or a gradient term."""
        return isinstance(module, str) and isinstance(name, str) and f"{module}:{name}" in self.rows

    def admit(self, request, remembered=lambda: ""):
        """Count a request and return the names of its replies, or refuse it before anything is computed.

        Parameters
        ----------
        request : dict
            As returned by fnlkit.engines.flower.visits.check_request.
        remembered : callable returning str
            Digest of the memory with which the visit begins; called for a row with `different`.

        Raises
        ------
        NotInTable
            If a step, a parameter, an array or the number of requests is not in the table.
        """
        task = self.task
        if not request["steps"]:
            raise NotInTable(f"{task}: the request has no step")
        try:
            steps = [unpack(step, self.may_be_named) for step in request["steps"]]
            parts = [(self.rows[name_of(part)], part) for step in steps for part in parts_of(step)]
        except (InputError, ValueError, TypeError, KeyError, AttributeError, RecursionError, IndexError):
            raise NotInTable(f"{task}: the request contains a step that the table of this site does not have") from None
        received = {**request["broadcast"], **request["visits"][0][3]}
        for row, part in parts:
            _must_fit(row, part, received)
        self._count(Counter(map(name_of, steps)), task, partial(_digest, request, received, remembered))
        return frozenset(name for step in steps for name in self.rows[name_of(step)].replies)

    def _count(self, wanted, task, digest):
        saving.private_folder(os.path.dirname(os.path.abspath(self.path)))
        with FileLock(f"{self.path}.lock"):
            known = self.counted()
            counts = known.setdefault(self.agreement, {})
            for name, more in wanted.items():
                key, row = f"{task} {name}", self.rows[name]
                if row.different:
                    self._count_different(counts, key, row, digest())
                if counts.get(key, 0) + more > row.requests:
                    raise NotInTable(
                        f"{task}: {short(name)} was requested {counts.get(key, 0) + more:,} times, and this site agreed to "
                        f"{row.requests:,}; if you permit more, delete {display_path(self.path)}"
                    )
                counts[key] = counts.get(key, 0) + more
            saving.write_bytes([json.dumps({"kind": KIND, "counts": known}).encode()], self.path)

    def _count_different(self, counts, key, row, digest):
        """Count a request by its digest, which is the end of the record's key."""
        known = [each for each in counts if each.startswith(f"{key} ")]
        if f"{key} {digest}" not in known and len(known) >= row.different:
            raise NotInTable(
                f"{row.task}: {short(row.step)} was requested with {len(known)} different models or values, and this site "
                f"agreed to {row.different}; if you permit more, delete {display_path(self.path)}"
            )
        counts[f"{key} {digest}"] = counts.get(f"{key} {digest}", 0) + 1

    def counted(self):
        """Return the recorded requests, {SHA-256 of the agreement: {"task step": number}}.

        For a row with `different`, "task step DIGEST" has the number of equal requests.
        """
        if not os.path.exists(self.path):
            return {}
        try:
            found = json.loads(files.read_text(self.path, max_bytes=_MAX_BYTES))
            if found["kind"] == KIND and all(type(n) is int for each in found["counts"].values() for n in each.values()):
                return found["counts"]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        raise NotInTable(f"{display_path(self.path)}: is not a record of fnlkit; restore the original file, or delete it")


def gate_of(plan, task, *, agreed, memory, timeout):
    """Return the Gate of a site.

    Parameters
    ----------
    plan : fnlkit.experiment.plan.Plan
        Of the site's copy of the project.
    task : fnlkit.deploy.terms.Task
    agreed : path
        The site's copy of the project.
    memory : path
        Folder of the site.
    timeout : float
        Seconds that the server waits for a reply, from the site's copy of the project.
    """
    with open(from_home(agreed), "rb") as file:
        agreement = hashlib.sha256(file.read()).hexdigest()
    path, seconds = os.path.join(memory, "requests.json"), max(MOST_SECONDS, float(timeout))
    return Gate({row.step: row for row in table(plan, task)}, path, agreement, seconds)


def must_be_small(content, network):
    """Raise NotInTable if the records of a request exceed the size that a site reads.

    Parameters
    ----------
    content : flwr.app.RecordDict
    network : fnlkit.client.network.Network
        Network of the site. Arrays of a request can have `MOST_ARRAY_BYTES` bytes in addition to `MOST_MODELS` models.
    """
    texts = (value for record in content.config_records.values() for value in record.values())
    size = sum(len(value) for value in texts if isinstance(value, str))
    count = sum(len(array.data) for record in content.array_records.values() for array in record.values())
    most = MOST_ARRAY_BYTES + MOST_MODELS * network.size * 8
    for found, limit, what in ((size, MOST_TEXT, "characters of text"), (count, most, "bytes of arrays")):
        if found > limit:
            raise NotInTable(f"the request has {found:,} {what}, and this site reads {limit:,}")


def table(plan, task):
    """Return the Rows of a task.

    Parameters
    ----------
    plan : fnlkit.experiment.plan.Plan
        Of the site's copy of the project.
    task : fnlkit.deploy.terms.Task
    """
    return {"train": _of_training, "audit": _of_audit, "estimate": _of_estimate, "evaluate": _of_evaluation,
            scale.TASK: _of_scale}[task.name](plan, task)  # fmt: skip


def name_of(step):
    """Return the name of a step in the table."""
    function = getattr(step, "func", step)
    return TRAINING if isinstance(step, Fit) else f"{function.__module__}:{function.__name__}"


def parts_of(step):
    """Return a step, and for local training also the loss and the gradient terms, which have separate rows."""
    return [step, step.loss, *step.corrections] if isinstance(step, Fit) else [step]


def short(name):
    """Return the name of a step for a person."""
    return name.rpartition(":")[2].replace("_", " ")


# ---- rows
def _of_training(plan, task):
    requests, stages = RUNS * (plan.settings.rounds + MORE_ROUNDS), plan.method.stages
    arguments = [pair for each in stages for pair in arguments_of(each).items()]
    epochs = [plan.settings.epochs, *(n for name, n in arguments if "epochs" in name and type(n) is int)]
    rates = [plan.settings.lr, *_rates(stages)]
    arguments += [*arguments_of(plan.optimizer).items()]
    noise = "randomized labels" if any(declaration(each).label_epsilon for each in stages) else ""
    yield _training(task, ("weights",), requests, max(epochs), plan.settings, max(rates))
    for name in sorted(reachable(*components(plan))):
        bound = _LIMITS.get(name, {}) | _as_agreed(name, arguments)
        yield Row("train", name, ("weights", *plan.sends), requests, bound=bound, noise=noise)


def _of_audit(plan, task):
    def row(name, *sent, **more):
        return Row("audit", f"fnlkit.{name}", sent, RUNS, **more)

    changes = [change.packed for change in shifts.possible(task.kind, task.shape)]
    all_changes = Limit(f"the {len(changes)} changes of this kind of samples", lambda v: [tuple(each) for each in v] == changes)
    tried = Limit(f"{shifts.TRIED} of the changes", lambda v: v.shape == (shifts.TRIED,) and bool((v < len(changes)).all()))
    known = Limit("different names of " + ", ".join(DETECTORS), lambda v: set(v) <= set(DETECTORS) and len(set(v)) == len(v))
    prior = {"prior": Limit("0 to 10", lambda v: isinstance(v, int | float) and 0 <= v <= 10)}
    across = Limit(f"{task.judging.per_sample}, as agreed (--per-sample)", lambda v: v is task.judging.per_sample)
    visits = RUNS * task.judging.folds * task.judging.audit_rounds
    yield _training(task, ("weights",), visits, Settings().epochs, Settings(), Settings().lr)
    yield from (Row("audit", name, (), visits) for name in sorted(_losses()))
    yield row("review.site:describe", "class_counts", "review_counts", "review_terms")
    yield row("review.shifts:describe_columns", "columns", "class_columns", fewest=shifts.LEAST)
    whole = Limit("a whole number from 4", lambda v: type(v) is int and v >= 4)
    yield row("review.shifts:describe_inputs", "class_means", "covariances", fewest=shifts.LEAST, different=DIFFERENT,
              bound={"changes": all_changes, "width": whole})  # fmt: skip
    judging = {"fewest": shifts.LEAST, "different": DIFFERENT}
    yield row("review.site:try_changes", "agreeing", bound={"changes": all_changes}, received={"tried": tried}, **judging)
    yield row("review.site:choose_change", "predicted", **judging)
    yield row("review.site:judge_within", "within", "doubted", "supported", "certain", **judging)
    yield row("review.site:use_own_model")
    yield row("review.site:withhold")
    yield row("review.site:judge_labels", "low", "high", "counts", bound=prior, **judging)
    yield row("review.site:detect", "detected", "agreed", bound={"detectors": known}, **judging)
    single = ("fingerprints",) if task.judging.per_sample else ()
    copied = "copies", "near_copies", "far", "near_distance", "typical_distance", *single
    yield row("review.copies:find_copies", *copied, bound={"across": across})
    if task.judging.per_sample:
        yield row("review.cells:reply_cells", "cells")


def _of_estimate(plan, task):
    part, sends = terms.estimator_of(task.judging.estimator)
    function = getattr(part, "func", part)
    before = WARM_UPS.get(function.__name__)
    visits = RUNS * (task.judging.audit_rounds + MORE_ROUNDS)
    parts = [function, *(BoundMethod.of(before).stages if before else ())]
    yield _training(task, ("weights", *sends), visits, Settings().epochs, Settings(), max(Settings().lr, *_rates(parts)))
    for name in sorted(_losses() | reachable(*parts)):
        different = DIFFERENT if name.startswith("fnlkit.estimators.") else 0
        yield Row("estimate", name, ("weights", *sends), visits, bound=_LIMITS.get(name, {}), different=different)


def _of_evaluation(plan, task):
    rounded = f"ranges of {testing.RANGE} or more numbers"
    yield Row(
        "evaluate", "fnlkit.client.testing:reply_tested", tuple(testing.SENDS), RUNS, fewest=testing.FEWEST, different=MODELS,
        noise=rounded,
    )  # fmt: skip


def _of_scale(plan, task):
    yield Row(scale.TASK, "fnlkit.client.scaling:reply_moments", ("known", "total", "squares"), RUNS, fewest=FEWEST)


def _rates(parts):
    """Return the learning rates among the arguments of components, and 0."""
    named = [pair for part in parts for pair in arguments_of(part).items()]
    return [0.0, *(rate for name, rate in named if name.endswith("lr") and isinstance(rate, int | float))]


def _training(task, sent, requests, epochs, settings, rate):
    same = {"batch_size": settings.batch_size, "momentum": settings.momentum, "weight_decay": settings.weight_decay,
            "optimizer": settings.client_optimizer, "clip": settings.clip}  # fmt: skip
    bound = {name: _equal(value) for name, value in same.items()}
    augments = Augment(), augmentation(settings.augment, task.kind, task.shape)
    bound |= {
        "lr": Limit(f"at most {rate:g}", lambda v: isinstance(v, int | float) and 0 < v <= rate),
        "epochs": Limit(f"at most {epochs}", lambda v: type(v) is int and 0 < v <= epochs),
        "augment": Limit(f"{' or '.join(dict.fromkeys(('none', str(settings.augment))))}, as agreed", lambda v: v in augments),
        "views": Limit(f"at most {MOST_VIEWS}", lambda v: type(v) is int and 0 < v <= MOST_VIEWS),
    }
    return Row(task.name, TRAINING, sent, requests, bound=bound)


# ---- steps of components
def components(plan):
    """Yield the agreed components that run code at a site."""
    for each in plan.method.stages:
        yield each
        yield from (part for part in arguments_of(each).values() if callable(part))
    yield from (plan.loss, plan.optimizer, plan.make_optimizer(), plan.make_selector())
    measured = {AGREEMENT: measuring.reply_held_out_agreement, CHANGES: measuring.reply_prediction_changes}
    if plan.criterion is not None:
        yield measured[plan.criterion.func.column]


def _losses():
    return reachable(Fit.loss)


def reachable(*parts):
    """Return the set of steps, losses and gradient terms, "module:function", that the code of components names.

    Functions of `fnlkit.deploy.allowed.PACKAGES` are followed through the names in their code.

    Parameters
    ----------
    *parts : function, class or object of a class
    """
    known, found, seen, stack = functions(), set(), set(), list(parts)
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
            found.add(f"{part.__module__}:{part.__name__}")
        stack += _referenced_values(part)
    return found


def _referenced_values(function):
    """Return the values that the code of a function names, and the steps before a loss."""
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


# ---- limits
# Parameters of steps that equal the argument of the agreed method or optimizer with the same name.
AGREED = {
    "fnlkit.methods.fedcorr:find_and_relabel": ("confidence", "ratio"),
    "fnlkit.methods.fedcorr:relabel_confident": ("confidence",),
    "fnlkit.methods.fedcorr:score_locally": ("k",),
    "fnlkit.methods.na_fedavg:keep_scores": ("score",),
    "fnlkit.methods.na_fedavg:estimate_own_level": ("percentile", "side", "score"),
    "fnlkit.methods.na_fedavg:score_samples": ("score",),
    "fnlkit.methods.fedrn:select_clean": ("threshold",),
    "fnlkit.methods.fedelc:merge_prediction": ("scale",),
    "fnlkit.methods.crowd_layer:learn_layer": ("rate",),
    "fnlkit.methods.crowd_layer:learn_matrix": ("rate", "strength"),
    "fnlkit.client.losses.mixture:label_mixture": ("strength", "floor", "clamp"),
    "fnlkit.client.losses.mixture:remember_predictions": ("start",),
    "fnlkit.server.optimizers.feddyn:update_dual": ("alpha",),
    "fnlkit.client.drift:proximal": ("mu",),
    "fnlkit.client.drift:dynamic": ("alpha",),
    "fnlkit.client.drift:towards_global": ("strength",),
    "fnlkit.methods.feddiv:filter_samples": ("level", "relabel_level", "confidence", "losses"),
    "fnlkit.methods.feddiv:fit_filter": ("losses",),
    "fnlkit.methods.feddiv:update_bias": ("momentum", "debias", "sure"),
    "fnlkit.methods.forward:keep_anchor_transition": ("percentile", "limit"),
    "fnlkit.methods.nnc:vote": ("include_self", "ties", "least"),
    "fnlkit.methods.rhfl:align": ("steps", "lr", "batch_size"),
    "fnlkit.methods.rhfl:reply_knowledge": ("alpha", "beta", "log_zero"),
    "fnlkit.methods.t_revision:revise": ("correction", "lr"),
    "fnlkit.client.losses.adjusted:adjusted_distilled": ("temperature",),
    "fnlkit.client.losses.centroids:near_centroids": ("entropy",),
    "fnlkit.client.losses.consistency:self_regularized": ("entropy", "power", "variant"),
    "fnlkit.client.losses.contrastive:contrastive": ("expected", "floor"),
    "fnlkit.client.losses.filtered:consistent": ("prior", "debias"),
    "fnlkit.client.losses.mixmatch:mixmatch": ("temperature", "threshold", "views"),
    "fnlkit.client.losses.robust:symmetric_cross_entropy": ("alpha", "beta", "log_zero"),
}
# Parameters that change by round, from 0 to the argument of the agreed method with this name.
SCHEDULED = {
    "fnlkit.client.losses.centroids:near_centroids": {"forget": "forget", "pull": "strength"},
    "fnlkit.client.losses.consistency:self_regularized": {"consistency": "consistency"},
    "fnlkit.client.losses.contrastive:contrastive": {"strength": "strength"},
    "fnlkit.client.losses.exchange:exchanged": {"forget": "forget"},
    "fnlkit.client.losses.mixmatch:mixmatch": {"unlabeled": "unlabeled"},
    "fnlkit.methods.rofl:move_centroids": {"forget": "forget"},
}


def _as_agreed(step, arguments):
    """Return the Limits of the parameters of a step that the site agreed to, {name: Limit}.

    Parameters
    ----------
    step : str
    arguments : list of (name, value)
        Of the agreed method and optimizer.
    """
    agreed = {name: [value for each, value in arguments if each == name] for name in AGREED.get(step, ())}
    # An argument without a value, or of -1, is derived by the method.
    limits = {name: _equal(*values) for name, values in agreed.items() if values and all(v not in (None, -1) for v in values)}
    for name, argument in SCHEDULED.get(step, {}).items():
        values = [value for each, value in arguments if each == argument]
        if values and all(type(value) in (int, float) and value >= 0 for value in values):
            limits[name] = _up_to(max(values))
    return limits


def _up_to(most):
    """Return the Limit of a number that increases or decreases by round, from 0 to the agreed one."""
    return Limit(f"0 to {most:g}, as agreed", lambda v: isinstance(v, int | float) and 0 <= v <= most * (1 + 1e-9))


def _equal(*values):
    words = " or ".join(dict.fromkeys(f"{value:g}" if isinstance(value, float) else str(value) for value in values))
    return Limit(
        f"{words}, as agreed", lambda v: any(isinstance(v, str) == isinstance(each, str) and v == each for each in values)
    )


_LIMITS = {
    "fnlkit.methods.na_fedavg:score_samples": {
        "name": Limit("scores_global or scores_local", lambda v: v in ("scores_global", "scores_local"))
    }
}


def _must_fit(row, step, received):
    """Raise NotInTable if a parameter or an array of a step exceeds the limits of the row."""
    values = vars(step) if isinstance(step, Fit) else getattr(step, "keywords", {})
    if getattr(step, "args", ()):
        raise NotInTable(f"{row.task}: {short(row.step)} has parameters without a name")
    if not isinstance(step, Fit):
        known = inspect.signature(getattr(step, "func", step)).parameters
        if unknown := sorted(set(values) - {name for name, each in known.items() if each.kind is each.KEYWORD_ONLY}):
            raise NotInTable(f"{row.task}: {short(row.step)} has no parameter {unknown[0][:40]!r}")
    wrong = [name for name, value in values.items() if name != "seed" and name not in row.bound and not _small(value)]
    for limits, given in ((row.bound, values), (row.received, received)):
        wrong += [name for name, limit in limits.items() if name in given and not _fits(limit, given[name])]
    if wrong:
        words = next((each.words for each in (row.bound.get(wrong[0]), row.received.get(wrong[0])) if each), "")
        agreed = words or f"numbers up to {MOST_NUMBER:,} and lists of up to {MOST_ENTRIES}"
        raise NotInTable(f"{row.task}: {wrong[0]} of {short(row.step)} is beyond the limit of this site ({agreed})")


def _digest(request, received, remembered):
    """Return 16 hexadecimal digits of the SHA-256 of all values of a request and of the memory, without names of runs."""
    found = hashlib.sha256(f"{json.dumps(request['steps'], default=_text)} {remembered()}".encode())
    for name, values in sorted({**received, "": request["weights"]}.items()):
        found.update(repr((name, str(values.dtype), tuple(values.shape))).encode())
        found.update(values.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def _text(value):
    """Return a bound value that JSON does not have as a text; that of an array has all entries."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{value.dtype} {tuple(value.shape)} {np.asarray(value).tobytes().hex()}"
    return repr(value)


def _fits(limit, value):
    try:
        return bool(limit.fits(value))
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return False


def _small(value):
    """Return whether a bound value cannot make a step compute without end."""
    if isinstance(value, np.generic | np.ndarray | torch.Tensor):
        return math.prod(value.shape) != 1 or _small(value.item())
    if isinstance(value, bool | type(None) | float | bytes):
        return True
    if isinstance(value, int):
        return abs(value) <= MOST_NUMBER
    if isinstance(value, str):
        return len(value) <= MOST_NUMBER
    if isinstance(value, dict):
        return _small(list(value.values()))
    if isinstance(value, list | tuple):
        return len(value) <= MOST_ENTRIES and all(map(_small, value))
    if isinstance(value, partial):
        return not value.args and _small(value.keywords)
    return inspect.isfunction(value)
