"""Communication of the server with clients: everything goes through one method, `Clients.round`."""

import copy
import math
import statistics
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from fnlkit.artifacts.exchange import Exchange, Result, Traffic
from fnlkit.artifacts.shown import plain
from fnlkit.client.client_list import ClientList, in_blocks, sizes_of
from fnlkit.client.failure import Failure
from fnlkit.client.network import UNKNOWN, Model, predict
from fnlkit.client.training import Fit
from fnlkit.errors import InputError, WorkStopped
from fnlkit.server.replies import MAX_REASON, Malformed, admitted, disagreeing, must_be_finite, names_of, quoted

# Number of recent visits that are judged together if a cohort is too small to judge alone; fewer if there are fewer clients.
PATIENCE = 10
# Number of recent updates that new updates are compared with.
_REMEMBERED = 50


class Public(NamedTuple):
    """Samples that belong to no client.

    Attributes
    ----------
    x : Tensor (m, ...)
        Raw samples.
    y : Tensor (m,) int64
        Their given labels.
    """

    x: torch.Tensor
    y: torch.Tensor


class Replies(dict):
    """Named replies of a cohort, stacked (K, ...) in client order.  If no client replied, every name is empty, (0,).

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
                raise InputError(f"--resume: a user component reads the clients' weights {UNKNOWN}")
            raise KeyError(name)
        return torch.zeros(0, dtype=torch.float64)


class TooManyLost(WorkStopped):
    """A round lost so many clients that its result cannot be used; the run stops and can be resumed."""


class Clients:
    """All clients of a federation and the communication with them; an engine is a subclass with `_run`.

    Parameters
    ----------
    clients : ClientList or list of Client
    network : fnlkit.client.network.Network
    inputs : fnlkit.client.inputs.Inputs
    seed : int
    keep : float in [0, 1]
        The smallest share of a cohort whose replies must be accepted.  A cohort of one client is judged together with earlier
        visits, ten in total.  With 0 this applies to every cohort, and one accepted reply is sufficient.
    bound : float >= 0
        An update is rejected if it is this many times as long as the median update, and longer than the model itself.
        0 disables the check.

    Attributes
    ----------
    sizes : float64 Tensor (N,)
    classes : int
    on_release : callable(round, epsilon or None) or None
        Called with the number of a round before clients send information about their labels in this round; raises if that is
        not allowed.
    public : Public or None
        Public samples that a method can send to clients.
    hidden : fnlkit.kernels.streams.HiddenStream or None
        Source of cohorts if privacy depends on them (--protect dp). None: the seed.
    sends : dict of str to fnlkit.components.declarations.Sent, or None
        Declaration of the replies in addition to ``weights``; replies with any other name are rejected.  None allows all
        names.
    protect : str
        Name of the protection of updates (--protect).  If it is not empty, clients can send only ``weights``, in a round that
        is `protected`.
    rounds : int
        Number of calls of `round` so far; the key of each client's stream.
    traffic : Traffic
    log : list of Exchange
        Requests and replies without weights: sufficient to replay the server's program.
    memory : dict of str to Tensor
        State of the server's components between rounds, saved and restored with a run.  It is empty while a resumed run is
        replayed.  Replace an entry instead of changing a tensor in place.
    results : list of Result
        Results of `once`, in order.
    rejected : list of dict
        client, round and reason of each rejected reply.
    notes : list of str
        Messages of the engine to the user, each at most once, for example a choice or a fallback to a slower method.
    """

    numerics = "sequential"  # engines with equal names give equal bytes

    def __init__(self, clients, network, inputs, *, seed=0, keep=0.5, bound=100.0):
        self.members, self.network, self.inputs, self.seed, self.keep = clients, network, inputs, seed, keep
        self.bound = bound
        self.sizes = torch.from_numpy(sizes_of(clients).astype(np.float64))
        self.classes, self.on_release = (clients[0].classes if len(clients) else 0), None
        self.public, self.hidden, self.sends, self.protect = None, None, None, ""
        self.rounds, self.traffic, self.log, self.rejected = 0, Traffic(), [], []
        self.memory, self._saved, self.results = {}, {}, []
        self._undo, self._before, self.notes = {}, {}, []
        self._replay, self._repeat, self._replaying, self._computing = [], [], False, False
        self.commit()

    def __len__(self):
        return len(self.sizes)

    def note(self, text):
        """Add a message to the user, at most once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def replaying(self):
        """True while a resumed run repeats rounds from the log, until `replayed`."""
        return self._replaying

    def replay(self, log, results=()):
        """Answer the next rounds from a log instead of the clients, and `once` from logged results."""
        self._replay, self._repeat, self._replaying = list(log)[::-1], list(results)[::-1], True

    @property
    def unread(self):
        """True if entries of a replayed log are left."""
        return bool(self._replay or self._repeat)

    def replayed(self):
        """End the replay: the next rounds run on the clients again."""
        self._replaying = False

    def once(self, work, *arguments):
        """Compute a result from weights on the server once, without repeating it in a resumed run.

        A resumed run repeats the server's program with the logged replies, which contain no weights.  The result of `work` is
        logged, so that decisions based on it can be repeated.  Changes that `work` makes to `memory` are restored.

        Parameters
        ----------
        work : callable
            Called with `arguments`; must not call `round`.
        *arguments
            For example a Model or replies.

        Returns
        -------
        number, array, Model or None
            The result of `work`, with tensors as arrays.  During a replay, a Model has no weights.

        Raises
        ------
        InputError
            If `work` returns another type, or if a replayed program calls `once` more often than the original run.
        """
        if self._replaying:
            if not self._repeat:
                raise InputError(
                    "the run cannot be resumed: its log has fewer results of `clients.once` than these settings need"
                )
            kind, value = self._repeat.pop()
            return Model(self.network, None) if kind == "model" else _plain(value) if kind == "value" else None
        self._computing = True
        try:
            found = work(*arguments)
        finally:
            self._computing = False
        if found is None or isinstance(found, Model):
            self.results.append(Result("nothing" if found is None else "model"))
            return found
        value = np.array(found.detach().cpu() if isinstance(found, torch.Tensor) else found)
        if value.dtype.kind not in "biuf":
            raise InputError(
                f"clients.once: `work` must return a number, an array, a Model or None, found {type(found).__name__}"
            )
        self.results.append(Result("value", value))
        return _plain(value)

    def releasing_labels(self, epsilon):
        """Declare that clients send information about their labels in the next round; each method must call it.

        Parameters
        ----------
        epsilon : float or None
            Privacy parameter of randomized response; None if labels are sent unchanged.
        """
        if self.on_release is not None:
            self.on_release(self.rounds, epsilon)

    def round(self, ids, model, *steps, expect=None, broadcast=None, scatter=None, secret=None, protected=False):
        """Run steps on clients and return their replies.

        Parameters
        ----------
        ids : sequence of int (K,)
            Distinct clients in any order; they are visited and combined in ascending order.
        model : fnlkit.client.network.Model
            Sent to each client.
        *steps : Fit or (client, model, received) -> dict or None
            Run in order on each client.  Only the returned dicts leave the client.  A Fit replies ``weights``.
        expect : tuple of str or None
            Names that each reply must have in addition to the ``weights`` of a Fit.  A client is rejected if its reply lacks a
            name, or has a name that the other replies lack. None: the names that most clients sent.
        broadcast, scatter : dict
            Values sent to all clients; values (K, ...) of which each client receives one entry, in the order of `ids`.
        secret : (float, float64 Tensor (N,) or None) or None
            The largest allowed entry of an update, and the weight of each client (None: equal weights).  The ``weights`` of
            each reply are then the weighted mean of the cohort, and the server receives no single update.  Only some engines
            support it.
        protected : bool
            True if the caller uses only a protected sum of the ``weights``; implied by `secret`.

        Returns
        -------
        Replies
            During a replay without ``weights``.

        Raises
        ------
        TooManyLost
            If fewer than the share `keep` of the cohort gave an accepted reply.
        InputError
            If all clients failed because of a user error, or if the method requests a reply that it does not declare or that no
            protection covers.
        """
        if self._computing:
            raise InputError("clients.round was called within clients.once, which a resumed run cannot repeat; call it outside")
        ids = np.asarray(torch.as_tensor(ids).cpu(), np.int64).reshape(-1)
        order = np.argsort(ids, kind="stable")
        if len(np.unique(ids)) != len(ids) or (len(ids) and not 0 <= ids.min() <= ids.max() < len(self)):
            raise InputError(f"`ids` must be distinct clients of 0..{len(self) - 1}, found {ids.tolist()}")
        if self._replaying:
            return self._answer_from_log(ids)
        allowed, required = self._may_leave(steps, expect, protected or secret is not None)
        broadcast = {k: torch.as_tensor(v) for k, v in (broadcast or {}).items()}
        scatter = {k: torch.as_tensor(v)[order] for k, v in (scatter or {}).items()}
        ids = ids[order]
        self._remember(ids)
        run = self._run if secret is None else partial(self._run_secretly, secret)
        replies = run(ids, model.weights, steps, broadcast, scatter) if len(ids) else []
        for i in ids.tolist():
            self.members[i].keep_reviewed()
        self._must_be_allowed(ids, replies, allowed)
        names = names_of(replies, allowed, required, exact=expect is not None)
        self._meter(ids, model, broadcast, scatter, replies, names)
        kept, norms = self._accept(ids, model, replies, names)
        self.rounds += 1
        names = list(replies[kept[0]]) if kept else []
        values = {name: [replies[j][name] for j in kept] for name in names if name != "weights"}
        logged = {name: [v.numpy() for v in vs] for name, vs in values.items()}
        self.log.append(Exchange(ids, ids[kept], logged, norms))
        out = {name: gather(values[name]) if name in values else let_go(replies, kept) for name in names}
        return Replies(out, ids[kept])

    def _may_leave(self, steps, expect, protected):
        """Return the allowed and the required names of a round's replies; the first is None if any name is allowed."""
        expect = (expect,) if isinstance(expect, str) else expect or ()
        required = frozenset(expect) | {"weights" for step in steps if isinstance(step, Fit)}
        if self.protect or protected:
            allowed = frozenset({"weights"} if protected else ())
        else:
            allowed = None if self.sends is None else frozenset({"weights", *self.sends})
        if allowed is not None and (extra := sorted(required - allowed)):
            raise InputError(self._refusal(extra[0], allowed))
        return allowed, required

    def _must_be_allowed(self, ids, replies, allowed):
        """Raise InputError if every client sent the same forbidden name: then the method's steps send it."""
        if allowed is None or not replies or not all(isinstance(reply, dict) for reply in replies):
            return
        extra = frozenset.intersection(*(frozenset(reply) - allowed for reply in replies))
        if extra and (len(ids) > 1 or self._few(ids, [])):
            raise InputError(self._refusal(sorted(extra, key=str)[0], allowed))

    def _refusal(self, name, allowed):
        """Return one line with the reason why clients must not send a name."""
        if self.sends is not None and "weights" in allowed and not self.protect:
            return f"the method's clients send {quoted(name)}, which is not declared; add it to @method(sends=...)"
        where = "in addition to the weights of a round" if "weights" in allowed else "outside of a protected round (opt.round)"
        return f"--protect {self.protect or 'dp'}: clients would send {quoted(name)} {where}; remove --protect"

    def _answer_from_log(self, ids):
        if not self._replay:
            raise InputError("the run cannot be resumed: its log has fewer rounds than these settings need")
        entry = self._replay.pop()
        self.rounds += 1
        if not np.array_equal(np.sort(ids), entry.asked):
            raise InputError(
                f"the run cannot be resumed: round {self.rounds - 1} used clients {entry.asked.tolist()}, but these settings "
                f"select {np.sort(ids).tolist()}; resume with the settings of the run"
            )
        return Replies({name: gather(values) for name, values in entry.values.items()}, entry.kept, repeated=True)

    def _remember(self, ids):
        """Save a client's memory as it was before the visit and at the last commit."""
        self._before = {i: _memory(self.members[i]) for i in ids.tolist()}
        for i, memory in self._before.items():
            self._undo.setdefault(i, memory)

    def _forget(self, i):
        """Undo one client's visit: if the reply was rejected, changes of the client's memory are rejected too."""
        if i in self._before:
            client, (y, rows, state, dropped) = self.members[i], self._before[i]
            client.y.copy_(y)  # copies of the rest, because `_undo` can refer to the same memory
            client.rows, client.state, client.dropped = _copied(rows), _copied(state), set(dropped)

    def commit(self):
        """Make all rounds so far final; `rollback` returns to this state.

        Raises
        ------
        InputError
            If a tensor in `memory` was changed in place.
        """
        self._assert_replaced()
        self._saved = {name: (_own(value), _edits(value)) for name, value in self.memory.items()}
        self._undo.clear()
        self._before = {}
        if isinstance(self.members, ClientList):
            self.members.forget()
        self._point = (
            self.rounds,
            len(self.log),
            len(self.rejected),
            len(self.results),
            replace(self.traffic, sent=dict(self.traffic.sent)),
        )

    def _assert_replaced(self):
        """Raise if a tensor that was saved by the last commit has changed since."""
        for name, (value, edits) in self._saved.items():
            if _edits(value) != edits:
                raise InputError(
                    f"clients.memory[{name!r}] was changed in place, so an interrupted round cannot be undone; assign "
                    "a new tensor instead"
                )

    def rollback(self):
        """Undo all rounds since the last `commit`: client memories, log and traffic."""
        self._assert_replaced()
        self.memory.clear()
        self.memory.update((name, value) for name, (value, _) in self._saved.items())
        for i, (y, rows, state, dropped) in self._undo.items():
            client = self.members[i]
            client.y.copy_(y)
            client.rows, client.state, client.dropped = rows, state, dropped
        rounds, entries, rejected, results, traffic = self._point
        self.rounds, self.traffic = rounds, replace(traffic, sent=dict(traffic.sent))
        del self.log[entries:], self.rejected[rejected:], self.results[results:]
        self._undo.clear()
        self._before = {}

    def _run(self, ids, weights, steps, broadcast, scatter):
        """Return one reply per client (dict of arrays, or an Exception), in the order of ids."""
        raise NotImplementedError("use an engine of fnlkit.engines")

    def _run_secretly(self, secret, ids, weights, steps, broadcast, scatter):
        """Do as `_run`, but with the mean of the cohort in place of each client's weights."""
        raise InputError(
            "--protect secagg is only for real sites (fnlkit flower-app), because a simulation runs server and clients in one "
            "place; remove it"
        )

    def predict(self, weights, x):
        """Return the logits (n, C) of raw samples on the server, for example of the test set.

        Parameters
        ----------
        weights : Tensor (P + Q,)
        x : Tensor or array (n, ...)
            An array of rows that does not fit into memory is read in blocks.
        """
        return in_blocks(partial(self._predict, weights), x)

    def _predict(self, weights, x):
        return predict(self.network, weights, x, self.inputs)

    def close(self):
        """Release processes and shared memory; an engine without them does nothing."""

    def _accept(self, ids, model, replies, names):
        """Convert replies to their declared types in place; return the positions of usable replies and the lengths of updates.

        Records the reasons for the other replies.
        """
        reasons, norms, sends, known = [], {}, self.sends or {}, self._known_sides()
        samples = dict(enumerate(self.sizes[ids].long().tolist()))
        for j, reply in enumerate(replies):
            reason = str(reply) if isinstance(reply, Failure) else None
            try:
                if reason is None:
                    replies[j] = admitted(reply, names, sends, self.network, samples=samples[j], **known)
                    if "weights" in names:
                        norms[j] = _norm(replies[j]["weights"], model.weights)
            except Malformed as error:
                reason = str(error)
            reasons.append(reason)
        for name in [name for name in names & sends.keys() - {"weights"} if sends[name].shape is None]:
            values = {j: replies[j][name] for j, reason in enumerate(reasons) if reason is None}
            for j, reason in disagreeing(values, samples).items():
                reasons[j] = f"{quoted(name)} {reason}"
                norms.pop(j, None)
        for j, reason in self._too_long(norms, model).items():
            reasons[j] = reason
        if replies and all(isinstance(r, Failure) and r.code == "input" for r in replies):
            if len(ids) > 1 or self._few(ids, []):  # a user error occurs on every client
                told = sorted({r.sentence for r in replies} - {""})
                told = plain(told[0])[:1000] if told else "a user component rejects its input on every client; see -vv"
                raise InputError(told)
        kept = self.refuse(self.rounds, ids, reasons)
        return kept, np.array([norms[j] for j in kept if j in norms])

    def _known_sides(self):
        """Return the numbers for the letters of a declared shape, except those of a single client."""
        known = {"classes": self.classes, "size": self.network.size}
        known |= {} if self.public is None else {"public": len(self.public.x)}
        return known | ({"width": self.network.module.width} if hasattr(self.network.module, "width") else {})

    def _too_long(self, norms, model):
        """Return {position: reason} of updates that are too long compared with the cohort and recent updates."""
        known = [v for entry in self.log[-_REMEMBERED:] for v in entry.norms.tolist()][-_REMEMBERED:]
        if not self.bound or len(known) + len(norms) < 2:
            return {}
        usual = statistics.median_low([*known, *norms.values()])
        limit = max(self.bound * usual, length(model.weights))
        out = {j: f"its update is {v / usual if usual else math.inf:.3g} times as long as the median update"
               for j, v in norms.items() if v > limit}  # fmt: skip
        if out:
            ratio = f"{self.bound:g} times as long as the median update"
            self.note(f"an update more than {ratio} was rejected (--max-update-ratio)")
        return out

    def _few(self, ids, kept):
        """Return True if too few clients of a round are left to use its result.

        A cohort of one client is judged together with earlier visits, and so is every cohort if `keep` is 0.
        """
        asked, useful, enough = len(ids), len(kept), min(PATIENCE, len(self))
        if useful == asked:
            return False
        if asked == 1 or not self.keep:
            for entry in reversed(self.log):
                if asked >= enough or (self.keep and len(entry.asked) > 1):
                    break
                asked, useful = asked + len(entry.asked), useful + len(entry.kept)
            if asked < enough:
                return False
        return useful < max(1, math.ceil(self.keep * asked))

    def refuse(self, round, ids, reasons):
        """Reject clients of a round: record the reasons, undo their visits, and return the positions of the others.

        Parameters
        ----------
        round : int
        ids : int64 (K,)
        reasons : list of (str or None)
            None for an accepted client.

        Raises
        ------
        TooManyLost
            If fewer than the share `keep` are accepted.
        """
        # A part of the reason can come from a client.
        reasons = [reason and plain(reason[:MAX_REASON])[:MAX_REASON] for reason in reasons]
        kept = [j for j, reason in enumerate(reasons) if reason is None]
        for client, reason in zip(ids.tolist(), reasons, strict=True):
            if reason:
                self.rejected.append({"round": round, "client": client, "reason": reason})
                self._forget(client)
        if self._few(ids, kept):
            listed = "; ".join(f"client {i}: {r}" for i, r in zip(ids.tolist(), reasons, strict=True) if r)
            advice = "; if training diverged, lower the learning rate" if "NaN" in listed or "infinite" in listed else ""
            advice = advice or ("; use -vv to print the clients' messages" if "failed" in listed else "")
            raise TooManyLost(f"round {round}: {len(ids) - len(kept)} of {len(ids)} replies rejected ({listed[:400]}){advice}")
        return kept

    def _meter(self, ids, model, broadcast, scatter, replies, names):
        down = nbytes(model.weights) + sum(map(nbytes, broadcast.values()))
        self.traffic.bytes_down += down * len(ids) + sum(map(nbytes, scatter.values()))
        self.traffic.client_rounds += len(ids) if "weights" in names and any(isinstance(r, dict) for r in replies) else 0
        for reply in replies:
            if isinstance(reply, dict):
                for name, value in reply.items():
                    known, cost = name if name in names else "refused", nbytes(value)
                    self.traffic.bytes_up += cost
                    self.traffic.sent[known] = self.traffic.sent.get(known, 0) + cost


def _edits(value):
    """Return how often a tensor was changed in place."""
    return value._version if isinstance(value, torch.Tensor) else 0


def _own(value):
    """Return a tensor unchanged, and a copy of any other value."""
    return value if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _plain(value):
    """Return an array, or the number in a zero-dimensional array."""
    return value.copy() if value.ndim else value.item()


def _memory(client):
    return client.y.clone(), _copied(client.rows), _copied(client.state), set(client.dropped)


def _norm(weights, start):
    """Return the length of an update in one pass over the weights; it is finite only if the weights are."""
    norm = length(weights, start)
    if not math.isfinite(norm):
        must_be_finite("weights", weights)
    return norm


def length(weights, start=None):
    """Return the Euclidean length of weights, or of their difference from `start`, summed in float64."""
    away = weights.detach()
    return float(torch.linalg.vector_norm(away if start is None else away - start, dtype=torch.float64))


def _copied(memory):
    # Rows under input/ are part of the data and never written, so they are not copied.
    return {
        k: v if k.startswith("input/") else v.clone() if isinstance(v, torch.Tensor) else copy.deepcopy(v)
        for k, v in memory.items()
    }


def nbytes(value):
    """Return the payload in bytes of a tensor or number; 0 for other types, which are rejected anyway."""
    try:
        value = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return 0
    return value.numel() * value.element_size()


def let_go(replies, kept):
    """Return the weights (K, P) of the replies at positions `kept`.

    Each reply is released after it was copied, because the weights are most of a round's memory.
    """
    first = replies[kept[0]]["weights"]
    out = first.new_empty((len(kept), *first.shape))
    for place, j in enumerate(kept):
        out[place] = replies[j]["weights"]
        replies[j] = None
    return out


def gather(values):
    """Return replies of equal shape stacked (K, ...), otherwise a tuple of replies."""
    values = [torch.as_tensor(v) for v in values]
    return torch.stack(values) if len({v.shape for v in values}) <= 1 and values else tuple(values)
