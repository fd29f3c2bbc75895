"""Session of the server with clients: everything goes through one method, `Clients.round`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from fnlkit.core.declarations import only_sums
from fnlkit.core.errors import InputError
from fnlkit.federated.client.network import UNKNOWN, Model, Network
from fnlkit.federated.server import admission
from fnlkit.federated.server.admission import TooManyLost as TooManyLost
from fnlkit.federated.server.protection import MaskedSums
from fnlkit.federated.server.records import Records


class Public(NamedTuple):
    """Samples that belong to no client.

    Attributes
    ----------
    x : Tensor (m, ...)
        Raw samples.
    y : Tensor (m,) int64
        Their given labels.
    """

    x: "torch.Tensor"
    y: "torch.Tensor"


@dataclass(frozen=True)
class Ask:
    """What the server asks of a cohort in a round: a model, steps, and the replies that it accepts.

    Attributes
    ----------
    ids : sequence of int (K,)
        Distinct clients in any order; they are visited and combined in ascending order.
    model : fnlkit.federated.client.network.Model
        Sent to each client.
    steps : sequence of Fit or (client, model, received) -> dict or None
        Run in order on each client.  Only the returned dicts leave the client.  A Fit replies ``weights``.
    expect : tuple of str or None
        Names that each reply must have in addition to the ``weights`` of a Fit.  A client is rejected if its reply lacks a
        name, or has a name that the other replies lack. None: the names that most clients sent.
    broadcast, scatter : dict
        Values sent to all clients; values (K, ...) of which each client receives one entry, in the order of `ids`.
    protection : (float, float64 Tensor (N,) or None), MaskedSums or None
        The largest allowed entry of an update, and the weight of each client (None: equal weights).  The ``weights`` of each
        reply are then the weighted mean of the cohort, and the server receives no single update.  With MaskedSums, which the
        session sets, all replies are the mean of the cohort.  Only some engines support it.
    sides : dict of str to int
        Numbers of open sides of declared replies (`fnlkit.core.declarations.Sent`).
    optional : bool
        True if the caller can do without any reply: failed clients do not stop the run, however many they are.
    round : int
        Number of the round, part of the key of each client's random streams; set by the session.
    session : Clients or None
        The session with its records of earlier rounds, set by the session.
    """

    ids: Any
    model: Model
    steps: Sequence[Any]
    expect: Sequence[str] | str | None = None
    broadcast: dict[str, Any] = field(default_factory=dict)
    scatter: dict[str, Any] = field(default_factory=dict)
    protection: Any = None
    sides: dict[str, int] = field(default_factory=dict)
    optional: bool = False
    round: int = 0
    session: Any = None

    @property
    def weights(self) -> "torch.Tensor":
        """The vector (P + Q,) that each client receives."""
        return self.model.weights

    def part(self, places: Sequence[int]) -> "Ask":
        """The same for the clients at some positions of the cohort."""
        scatter = {name: values[places] for name, values in self.scatter.items()}
        return replace(self, ids=self.ids[places], scatter=scatter)

    def received(self, place: int) -> "dict[str, torch.Tensor]":
        """Values that the client at a position of the cohort receives in addition to the weights."""
        return {**self.broadcast, **{name: values[place] for name, values in self.scatter.items()}}


class Replies(dict[str, Any]):
    """Named replies of a cohort, stacked (K, ...) in client order.  If no client replied, every name is empty, (0,).

    A reply that is declared with `sum_only` is the sum over the cohort, (1, ...).

    Attributes
    ----------
    ids : int64 (K,)
        The clients whose replies were accepted.  Rejected clients are missing here and in all entries.
    repeated : bool
        True if the replies come from the log of a resumed run, which stores no weights.
    """

    def __init__(self, values, ids, *, repeated=False):
        super().__init__(values)
        self.ids, self.repeated = np.asarray(ids, np.int64), repeated

    def __missing__(self, name):
        if len(self.ids):
            if self.repeated and name == "weights":
                raise InputError(f": a user component reads the clients' weights {UNKNOWN}", parameter="resume")
            if self.repeated:
                raise InputError(f": the run's log lacks {name!r}; another version made it, train again", parameter="resume")
            raise KeyError(name)
        return torch.zeros(0, dtype=torch.float64)


class Clients(Records):
    """Session with all clients of a federation: an engine runs the steps, and the session does everything else.

    It meters the traffic, checks replies (`fnlkit.federated.server.admission`), and records, commits, undoes and replays rounds
    (`fnlkit.federated.server.records`).

    Parameters
    ----------
    engine : fnlkit.federated.engines.engine.Engine
        The session uses the members, network, inputs and seed of the engine.
    min_replies : float in [0, 1]
        The smallest share of a cohort whose replies must be accepted.  A cohort of one client is judged together with earlier
        visits, ten in total.  With 0 this applies to every cohort, and one accepted reply is sufficient.
    max_update_ratio : float >= 0
        Limit on the length of an update, as a multiple of the median update.  A longer update is rejected if it is also longer
        than the model.  Trainable entries and buffers are compared separately.  0 disables the check.

    Attributes
    ----------
    sizes : float64 Tensor (N,)
    classes : int
    notes : list of str
        Messages to the user.
    on_release : callable(round, epsilon or None) or None
        Called with the number of a round before clients send information about their labels in this round; raises if that is
        not allowed.
    public : Public or None
        Public samples that a method can send to clients.
    shared : int
        Number of distinct samples if the method needs their numbers, rows["input/sample"]; otherwise 0.
    sends : dict of str to fnlkit.core.declarations.Sent, or None
        Declaration of the replies in addition to ``weights``; replies with any other name are rejected.  None allows all
        names.
    protect : str
        Name of the protection of updates (--protect).  If it is not empty, clients can send only ``weights``, in a round that
        is `protected`, or only sums (`fnlkit.core.declarations.only_sums`).
    rounds, traffic, log, memory, results, rejected
        As in `fnlkit.federated.server.records.Records`.
    """

    def __init__(self, engine, *, min_replies=0.5, max_update_ratio=100.0):
        super().__init__(engine.members, engine.network)
        self.engine = engine
        self.inputs, self.seed, self.notes = engine.inputs, engine.seed, engine.notes
        self.min_replies, self.max_update_ratio = min_replies, max_update_ratio
        self.sizes = torch.from_numpy(np.asarray(engine.sizes, np.float64))
        self.classes, self.on_release = (self.members[0].classes if len(self.members) else 0), None
        self.public = None
        self.sends = None
        self.protect = ""
        self.shared = 0

    def __len__(self):
        return len(self.sizes)

    def note(self, text: str) -> None:
        """Add a message to the user, at most once."""
        self.engine.note(text)

    def use_network(self, network: "Network") -> None:
        """Continue with another network, for example of a later step of an estimate."""
        self.network = self.engine.network = network

    def releasing_labels(self, epsilon: float | None) -> None:
        """Declare that clients send information about their labels in the next round; each method must call it.

        Parameters
        ----------
        epsilon : float or None
            Privacy parameter of randomized response; None if labels are sent unchanged.
        """
        if self.on_release is not None:
            self.on_release(self.rounds, epsilon)

    def round(self, ask: "Ask | Sequence[int] | np.ndarray", model: Any = None, *steps, **fields: Any) -> Replies:
        """Run steps on clients and return their replies.

        Parameters
        ----------
        ask : Ask, or sequence of int (K,)
            Or the fields of an Ask: ``clients.round(ids, model, step, expect=("losses",))``.
        model, *steps, **fields
            The other fields, if `ask` is a sequence of clients.

        Returns
        -------
        Replies
            Without ``weights`` during a replay.

        Raises
        ------
        TooManyLost
            If fewer than the share `min_replies` of the cohort gave an accepted reply, unless the round is `optional`.
        InputError
            If all clients failed because of a user error, unless the round is `optional`; or if the method requests a reply
            that it does not declare or that no protection covers.
        """
        if self._in_once:
            raise InputError("clients.round was called within clients.once, which a resumed run cannot repeat; call it outside")
        ask = ask if isinstance(ask, Ask) else Ask(ask, model, steps, **fields)
        if self.replaying:
            entry = self._next_logged(self._distinct(ask.ids))
            return Replies({name: gather(values) for name, values in entry.values.items()}, entry.kept, repeated=True)
        ask = self._protected(self._sorted(ask))
        admission.names_in_round(ask)  # raises before clients send what they must not
        self._begin_visits(ask.ids)
        replies = self._run(ask) if len(ask.ids) else []
        for i in ask.ids.tolist():
            self.members[i].keep_reviewed()
        admitted = admission.admit(ask, replies)
        self._meter(ask, replies, admitted.names)
        del replies  # most of a round's memory
        if admitted.long:
            self.note(f"an update more than {self.max_update_ratio:g} times as long as usual was rejected (`max_update_ratio`)")
        # Masks of sums cancel only among sites with equal memory, and a site that misses a round has an earlier one.
        least = 1.0 if isinstance(ask.protection, MaskedSums) else None
        accepted = self.refuse(ask.round, ask.ids, admitted.reasons, optional=ask.optional, least=least)
        names = list(admitted.replies[accepted[0]]) if accepted else []
        values = {name: [admitted.replies[j][name] for j in accepted] for name in names if name != "weights"}
        values |= {name: [sum_of(parts)] for name, parts in values.items() if self._sum_only(name)}
        self._log_round(ask, ask.ids[accepted], values, [admitted.norms[j] for j in accepted if j in admitted.norms])
        values_by_name = {
            name: gather(values[name]) if name in values else stack_weights(admitted.replies, accepted) for name in names
        }
        return Replies(values_by_name, ask.ids[accepted])

    def _distinct(self, ids):
        """Check that the clients of a round are distinct; return them as int64 (K,) in the given order."""
        ids = np.asarray(torch.as_tensor(ids).cpu(), np.int64).reshape(-1)
        if len(np.unique(ids)) != len(ids) or (len(ids) and not 0 <= ids.min() <= ids.max() < len(self)):
            raise InputError(f"`ids` must be distinct clients of 0..{len(self) - 1}, found {ids.tolist()}")
        return ids

    def _sorted(self, ask):
        """Sort the clients of an Ask, convert the values to send to Tensors, and set round and session."""
        ids = self._distinct(ask.ids)
        order = np.argsort(ids, kind="stable")
        broadcast = {name: torch.as_tensor(value) for name, value in (ask.broadcast or {}).items()}
        scatter = {name: torch.as_tensor(value)[order] for name, value in (ask.scatter or {}).items()}
        return replace(ask, ids=ids[order], broadcast=broadcast, scatter=scatter, round=self.rounds, session=self)

    def _protected(self, ask):
        """Mask the replies of a protected method that sends nothing but sums."""
        if not self.protect or ask.protection is not None or not only_sums(self.sends):
            return ask
        sides = admission.sides_of(self) | ask.sides
        names = [ask.expect] if isinstance(ask.expect, str) else sorted(ask.expect or ())
        shapes = {name: self.sends[name].sides(**sides) for name in names if name in self.sends}
        return replace(ask, protection=MaskedSums(shapes))

    def survey(
        self, model: Model, step: Callable[..., Any], name: str, *, broadcast: dict[str, Any] | None = None
    ) -> list[Any]:
        """Ask all clients for numbers about a model, outside the rounds: the training is the same as without this call.

        Nothing is logged, so a resumed run does not repeat the call.

        Parameters
        ----------
        model : fnlkit.federated.client.network.Model
        step : (client, model, received) -> dict
            Must neither change the client's memory nor draw random numbers.
        name : str
            The declared reply of `step`.
        broadcast : dict
            As for `round`.

        Returns
        -------
        list of Tensor
            Accepted replies.  Missing replies are noted.
        """
        ask, names = self._sorted(Ask(np.arange(len(self)), model, (step,), broadcast=broadcast or {})), frozenset({name})
        replies = self.engine.run(ask)
        self._meter(ask, replies, names)
        replies, reasons, _ = admission.examine(ask, replies, names)
        for i, reason in enumerate(reasons):
            if reason:
                self.note(f"the counts {name} of client {i} are missing in some rounds: {admission.printable(reason)}")
        return [reply[name] for reply, reason in zip(replies, reasons, strict=True) if reason is None]

    def _run(self, ask):
        if ask.protection is None:
            return self.engine.run(ask)
        replies, sent = self.engine.run_secretly(ask, ask.protection)
        self.count_traffic("secagg", up=sent)
        return replies

    def _sum_only(self, name):
        sent = (self.sends or {}).get(name)
        return sent is not None and sent.sum_only

    def refuse(
        self, round: int, ids: np.ndarray, reasons: list[str | None], *, optional: bool = False, least: float | None = None
    ) -> list[int]:
        """Reject clients of a round: record the reasons, undo their visits, and return the positions of the others.

        Parameters
        ----------
        round : int
        ids : int64 (K,)
        reasons : list of (str or None)
            None for an accepted client.
        optional : bool
            As for `round`.
        least : float, optional
            In place of `min_replies`.

        Raises
        ------
        TooManyLost
            If fewer than the share `min_replies` are accepted, unless the round is `optional`.
        """
        reasons = [admission.printable(reason) for reason in reasons]
        accepted = [j for j, reason in enumerate(reasons) if reason is None]
        for client, reason in zip(ids.tolist(), reasons, strict=True):
            if reason:
                self._reject(round, client, reason)
        # A weight is refused after the reply was logged.
        counts = len(ids), len(accepted), self.log[:round]
        least = self.min_replies if least is None else least
        if not optional and admission.too_few(*counts, least, len(self), self.rejected):
            raise admission.to_error(round, ids.tolist(), reasons)
        return accepted

    def predict(self, weights: "torch.Tensor", x: "np.ndarray | torch.Tensor") -> "torch.Tensor":
        """Compute the logits (n, C) of raw samples on the server; see `fnlkit.federated.engines.engine.Engine.predict`."""
        return self.engine.predict(weights, x)

    def close(self) -> None:
        """Release the processes and the shared memory of the engine."""
        self.engine.close()


def sum_of(values: "list[torch.Tensor]") -> "torch.Tensor":
    """Add tensors of equal shape; floats are added and returned in float64."""
    values = torch.stack(values)
    return values.sum(0, dtype=torch.float64 if values.is_floating_point() else None)


def stack_weights(replies: list[Any], kept: list[int]) -> "torch.Tensor":
    """Stack the weights (K, P) of the replies at positions `kept`.

    Each reply is released after it was copied, because the weights are most of a round's memory.
    """
    first = replies[kept[0]]["weights"]
    stacked = first.new_empty((len(kept), *first.shape))
    for place, j in enumerate(kept):
        stacked[place] = replies[j]["weights"]
        replies[j] = None
    return stacked


def gather(values: list[Any]) -> "torch.Tensor | tuple[torch.Tensor, ...]":
    """Stack replies of equal shape (K, ...); other replies become a tuple."""
    values = [torch.as_tensor(v) for v in values]
    return torch.stack(values) if len({v.shape for v in values}) <= 1 and values else tuple(values)
