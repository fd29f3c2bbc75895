"""A method with bound parameters and its declarations, without torch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fnlkit.core import registry
from fnlkit.core.declarations import Sent, declaration
from fnlkit.core.errors import InputError
from fnlkit.core.spec import Spec, parse
from fnlkit.experiment.settings import Settings

# Components that methods with a need do not use, and the reason.
_NO_MODELS = dict.fromkeys(("optimizer", "aggregator"), "averages no models")
_IDLE = {"own": _NO_MODELS, "linear": _NO_MODELS | {"selector": "reads sums of all clients"}}


@dataclass(frozen=True)
class BoundMethod:
    """A method with bound parameters, and the declarations of its stages.

    Attributes
    ----------
    spec : str or Spec
    run : callable
        (clients, model, opt, select, *, rounds) -> generator of Round.
    stages : sequence of callable
        The method, then the methods that it runs as a stage (parameter `usual`).
    needs : frozenset of str
        Inputs that a run must provide, names in `fnlkit.core.declarations.NEEDS`.
    sends : dict of str to Sent
        Replies that the method, its stages and the components in its parameters declare.
    """

    spec: str | Spec
    run: Callable[..., Any]
    stages: Sequence[Callable[..., Any]]
    needs: frozenset[str]
    sends: dict[str, Sent]

    @classmethod
    def of(cls, spec: str | Spec) -> "BoundMethod":
        """Bind a spec such as ``fedcorr(beta=5, usual=flr(strength=3))``.

        Raises
        ------
        InputError
            For an unknown method or parameter.
        """
        run = registry.method(spec)
        return cls(spec, run, tuple(registry.walk_stages(run)), frozenset(registry.needs(run)), registry.sends(run))

    @property
    def has_own_loss(self) -> bool:
        """Whether the method defines the loss of all local training."""
        return registry.brings_loss(self.run)

    def list_replies(self) -> Iterator[tuple[str, Mapping[str, Sent] | None]]:
        """Yield (name, {reply: Sent}) of each stage; None instead of a dict if the stage has no declaration."""
        for stage in self.stages:
            yield getattr(stage, "func", stage).__name__.replace("_", "-"), declaration(stage).sends

    @property
    def revealing_reply(self) -> str | None:
        """Description of the first reply that reveals samples unless only the sum over clients is known, or None."""
        all_sent = (sent for _, sends in self.list_replies() for sent in (sends or {}).values())
        return next((sent.what for sent in all_sent if sent.sum_only), None)

    def refuse_idle(self, settings: Settings) -> None:
        """Raise InputError if a setting names a component that the method does not use."""
        for need in self.needs & _IDLE.keys():
            for name, reason in _IDLE[need].items():
                chosen, default = (parse(getattr(of, name)) for of in (settings, type(settings)))
                if chosen != default:
                    raise InputError(f"`{name}` {chosen}: {settings.method} {reason}; omit `{name}`")

    def budget(self, rounds: int) -> list[Any]:
        """Part of the schedule that depends on `rounds`, one entry per stage.

        A run can be resumed with a different `rounds` only if this part is unchanged.
        """
        return registry.of_budget(self.run, rounds)
