"""The plan of a run: the components of its settings, read from the registry and bound once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from fnlkit.core import registry
from fnlkit.core.declarations import Sent, declaration, only_sums
from fnlkit.core.errors import InputError, list_names
from fnlkit.core.spec import Spec, must_exist, parse
from fnlkit.experiment.bound_method import BoundMethod as BoundMethod
from fnlkit.experiment.criteria import AGREEMENT, Criterion, criterion
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client import measuring
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers.optimizer import unchanged
from fnlkit.federated.server.protection import Secret
from fnlkit.federated.server.schedules import constant, factor_of
from fnlkit.models import NETWORKS


@dataclass(frozen=True)
class Plan:
    """All components of a run with bound parameters. `fnlkit.experiment` reads settings from the registry only here.

    Attributes
    ----------
    settings : Settings
    method : BoundMethod
    loss : callable
        Loss of local training, if the method does not define it.
    optimizer : callable
        (fit, **settings of the server) -> FedOpt; call it with `make_optimizer`.
    aggregator : callable
        (K, P), (K,) -> (P,).
    schedule : callable
        (done, total) -> factor on the learning rate; call it with `schedule_over`.
    selector : callable
        (*, fraction) -> selector; call it with `make_selector`.
    protection : Secret or None
        Protection of updates.
    criterion : callable or None
        Criterion of `--select`; None selects the model of the last round.
    """

    settings: Settings
    method: BoundMethod
    loss: Callable[..., Any]
    optimizer: Callable[..., Any]
    aggregator: Callable[..., Any]
    schedule: Callable[..., Any]
    selector: Callable[..., Any]
    protection: Secret | None
    criterion: Criterion | None

    @classmethod
    def of(cls, settings: Settings) -> "Plan":
        """Bind all components of settings; users' components are imported.

        Raises
        ------
        InputError
            For an unknown component or parameter, and for a loss that the method would ignore.
        """
        method = BoundMethod.of(settings.method)
        rule = criterion(settings.select)
        loss = registry.loss(settings.loss)
        if parse(settings.loss) != Spec("ce") and method.has_own_loss:
            free = list_names(name for name in registry.METHODS if not registry.brings_loss(name))
            raise InputError(
                f"{parse(settings.loss)}: {parse(method.spec)} has its own loss; remove `loss`, or use one of {free}",
                parameter="loss",
            )
        return cls(
            settings,
            method,
            loss,
            optimizer=registry.bind_optimizer(settings.optimizer),
            aggregator=registry.aggregator(settings.aggregator),
            schedule=registry.schedule(_schedule_of(settings)),
            selector=registry.bind_selector(settings.selector),
            protection=registry.protection(settings.protect),
            criterion=rule,
        )

    @property
    def needs(self) -> frozenset[str]:
        """Inputs that a run must provide for the method."""
        return self.method.needs

    @cached_property
    def sends(self) -> dict[str, Sent]:
        """Replies {name: Sent} that clients can send beyond ``weights``.

        A method without a declaration contributes no replies.  If two components declare the same name, the method's
        declaration takes precedence, then the optimizer's, then the selector's.
        """
        counts = {} if self.criterion is None else {self.criterion.func.column: measuring.SENDS[self.criterion.func.column]}
        of_selector = declaration(self.make_selector()).sends or {}
        return {**counts, **of_selector, **(declaration(self.optimizer).sends or {}), **self.method.sends}

    @property
    def reads_held_out(self) -> bool:
        """Whether `--select` needs held-out samples of every client."""
        return self.criterion is not None and self.criterion.func.column == AGREEMENT

    def make_optimizer(self, fit: Fit | None = None, **server: Any) -> Any:
        """Make a new FedOpt.

        Parameters
        ----------
        fit : Fit
            Local training. Default: `Fit()`, to read the properties of the optimizer.
        **server
            Settings of the server side: aggregate, schedule, protect.
        """
        return registry.check_optimizer(self.optimizer(Fit() if fit is None else fit, **server), self.settings.optimizer)

    def schedule_over(self, rounds: int) -> Callable[[float], float]:
        """Make the function (finished rounds) -> factor on the learning rate in a run of `rounds` rounds."""
        if getattr(self.schedule, "func", self.schedule) is constant and not self.settings.warmup_rounds:
            return unchanged
        return partial(factor_of, schedule=self.schedule, rounds=rounds, warmup_rounds=self.settings.warmup_rounds)

    def make_selector(self) -> Any:
        """Make a new selector with the fraction of the settings."""
        return registry.check_selector(self.selector(fraction=self.settings.fraction), self.settings.selector)

    # ---- rules
    def check(self, cohort: int, evaluated: int | None, held_out: int) -> None:
        """Raise InputError if settings do not fit together, or the clients and samples of a run.

        Requirements on the network's structure are checked when the network is built, those of loss, optimizer and aggregator
        when the optimizer is made.

        Parameters
        ----------
        cohort : int
            Clients of a round.
        evaluated : int or None
            Number of samples on which models are tested during training; None if samples are at real sites, unknown here.
        held_out : int
            Number of held-out samples of the clients.
        """
        self._check_selection(evaluated, held_out)
        self.check_protection(cohort)
        self.method.refuse_idle(self.settings)
        if "probe" in self.needs and parse(self.settings.model).name == "pretrained" and not self.settings.warmup_head:
            raise InputError(
                f"0: {self.settings.method} selects samples by the head, which is not trained; write for example 20",
                parameter="warmup_head",
            )

    def check_protection(self, cohort: int) -> None:
        """Raise InputError if updates should be protected and the server needs more than the sum of weights.

        Parameters
        ----------
        cohort : int
            Clients of a round.
        """
        if self.protection is None:
            return
        if reason := self.unprotected_reason:
            raise InputError(f"{self.settings.protect}: {reason}; omit `protect`", parameter="protect")
        if self.criterion is not None:
            raise InputError(
                f"{self.settings.select}: the clients would send counts that `protect` does not cover; omit `select`",
                parameter="select",
            )
        if cohort < 3:
            remedy = "at least three are required" if self.sends_sums else "raise `fraction` so that a round has at least three"
            raise InputError(
                f"{self.settings.protect}: a round has {cohort} clients, and each of two clients can compute the "
                f"other's reply from the sum; {remedy}",
                parameter="protect",
            )

    @property
    def single_replies_reason(self) -> str | None:
        """Sentence that states why the server must read single replies, or None if sums suffice.

        If sums suffice, replies can be added under secure aggregation, and updates can be protected.
        """
        for name, sends in self.method.list_replies():
            if sends is None:
                return f"`method` {name} does not declare its replies; add @method(sends=...) (fnlkit.core)"
            single = next((sent for sent in sends.values() if not sent.summed), None)
            if single:
                return f"`method` {name} reads each client's reply: {single.what} ({single.when})"
        if {"own", "pooled"} & self.needs:
            return f"`method` {parse(self.method.spec).name} is a reference without a round of several clients"
        if not declaration(self.aggregator).sums:
            name = parse(self.settings.aggregator).name
            return f"`aggregator` {name} compares the clients' models, which a sum does not contain"
        if self.make_optimizer().reads_each():
            name = parse(self.settings.optimizer).name
            return f"`optimizer` {name} reads each client's model, which a sum does not contain"
        if getattr(self.make_selector(), "sampling", None) is None:
            return f"`selector` {parse(self.settings.selector).name} selects by the reply of each client"
        return None

    @property
    def sends_sums(self) -> bool:
        """Whether the method sends sums and no update, so that `protect` masks its sums."""
        return "linear" in self.needs and only_sums(self.method.sends)

    def cohort_of(self, clients: int) -> int:
        """Number of clients in a round."""
        return clients if self.sends_sums else self.settings.cohort_size(clients)

    @property
    def unprotected_reason(self) -> str | None:
        """Sentence that states why updates or sums cannot be protected (--protect), or None if they can."""
        if reason := self.single_replies_reason:
            return reason
        if self.sends_sums:
            return None
        for name, sends in self.method.list_replies():
            for sent in (sends or {}).values():
                return (
                    f"`method` {name} sends more than weights: {sent.what} ({sent.when}), which the masks of updates do not "
                    "cover"
                )
        return None

    def _check_selection(self, evaluated: int | None, held_out: int) -> None:
        """Raise InputError if the run lacks the rounds, the model or the samples that `--select` and `--patience` need."""
        settings, rule = self.settings, self.criterion
        if settings.patience and rule is None:
            raise InputError(
                f"{settings.patience} requires a criterion; add `select='best-holdout'`, nes or label-wave",
                parameter="patience",
            )
        if rule is not None and "own" in self.needs:
            raise InputError(f"{settings.select}: {settings.method} has no global model; omit `select`", parameter="select")
        if settings.patience and any(part is not None for part in self.method.budget(settings.rounds)):
            raise InputError(
                f"{settings.patience}: the schedule of {settings.method} covers all rounds, so the run cannot end "
                "early; omit `patience`, and `select` chooses among all rounds",
                parameter="patience",
            )
        if rule is None:
            return
        if evaluated is None:  # a site without held-out samples refuses the run
            return
        if not evaluated:
            raise InputError(
                f"{settings.select} requires test or held-out samples; make the federation with "
                "`fnlkit.partition(holdout=0.1)`",
                parameter="select",
            )
        if self.reads_held_out and not held_out:
            raise InputError(
                f"{settings.select} requires held-out samples at the clients; make the federation with "
                "`fnlkit.partition(holdout=0.1)`",
                parameter="select",
            )


def _schedule_of(settings):
    """Choose the spec of the schedule; `decay` is short for one of them."""
    if settings.decay == 1:
        return settings.schedule
    if parse(settings.schedule) != Spec("constant"):
        raise InputError(f"{settings.decay:g} and `schedule` both change the learning rate; remove one", parameter="decay")
    return Spec("exponential", {"factor": settings.decay})


def check_components(settings: Settings) -> None:
    """Raise InputError if a setting names an unknown component, a wrong parameter or a missing package; no data is read.

    Parameters
    ----------
    settings : Settings
    """
    Plan.of(settings)
    model = parse(settings.model)
    if model != Spec("auto"):
        must_exist(model, NETWORKS, "model")
