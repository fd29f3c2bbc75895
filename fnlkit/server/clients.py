"""The server's only door to the clients: one verb, `round`."""

import copy
import math
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from fnlkit.artefacts.exchange import Exchange, Traffic
from fnlkit.client.members import Members, in_blocks, sizes_of
from fnlkit.client.network import predict
from fnlkit.errors import InputError, WorkStopped


class Replies(dict):
    """Named replies stacked on the cohort (K, ...), in client order.

    Attributes
    ----------
    ids : int64 (K,)
        The clients whose replies were accepted; rejected ones are missing here and in every entry.
    """

    def __init__(self, values, ids):
        super().__init__(values)
        self.ids = np.asarray(ids, np.int64)


class TooManyLost(WorkStopped):
    """A round lost so many clients that its result means nothing; the run stops, resumable."""


class Clients:
    """Clients and the way to reach them.  An engine is a subclass with `_run`.

    Parameters
    ----------
    clients : Members or list of Client
    network : fnlkit.client.network.Network
    inputs : fnlkit.client.inputs.Inputs
    seed : int
    keep : float in (0, 1]
        The least share of a cohort that must reply usefully for a round to count.

    Attributes
    ----------
    sizes : float64 Tensor (N,)
    classes : int
    on_release : callable(round, epsilon or None) or None
        Called before the clients' labels are told in a round, with its number; it raises where that must not be.
    rounds : int
        Calls of `round` so far; the key of every client's stream.
    traffic : Traffic
    log : list of Exchange
        What was asked and replied, without weights: enough to replay the server's program.
    rejected : list of dict
        client, round, reason of every refused reply.
    notes : list of str
        What the engine has to say to the user, each thing once: what it chose, where it fell back to a slower way.
    """

    def __init__(self, clients, network, inputs, *, seed=0, keep=0.5):
        self.members, self.network, self.inputs, self.seed, self.keep = clients, network, inputs, seed, keep
        self.sizes = torch.from_numpy(sizes_of(clients).astype(np.float64))
        self.classes, self.on_release = (clients[0].classes if len(clients) else 0), None
        self.rounds, self.traffic, self.log, self.rejected = 0, Traffic(), [], []
        self._replay, self._undo, self.notes = [], {}, []
        self.commit()

    def __len__(self):
        return len(self.sizes)

    def note(self, text):
        """Say something to the user, once."""
        if text not in self.notes:
            self.notes.append(text)

    @property
    def replaying(self):
        return bool(self._replay)

    def replay(self, log):
        """Answer the next rounds from a log instead of asking clients."""
        self._replay = list(log)[::-1]

    def releasing_labels(self, epsilon):
        """Say that clients will tell of their labels in the next round; a method's duty before that round.

        Parameters
        ----------
        epsilon : float or None
            Of randomised response; None when labels are told as they are.
        """
        if self.on_release is not None:
            self.on_release(self.rounds, epsilon)

    def round(self, ids, model, *steps, broadcast=None, scatter=None):
        """Run steps on the clients and return what they reply.

        Parameters
        ----------
        ids : sequence of int (K,)
            Distinct clients, without order: they are visited and combined in ascending order.
        model : fnlkit.client.network.Model
            Sent to each of them.
        *steps : Fit or (client, model, received) -> dict or None
            Run in order on each client; what they return is all that leaves it.  A Fit replies ``weights``.
        broadcast, scatter : dict
            Sent to all alike; sent one entry a client, (K, ...) in the order of `ids`.

        Returns
        -------
        Replies
            On replay without ``weights``.

        Raises
        ------
        TooManyLost
            When fewer than the share `keep` of the cohort replied usefully.
        """
        ids = np.asarray(torch.as_tensor(ids).cpu(), np.int64).reshape(-1)
        order = np.argsort(ids, kind="stable")
        if len(np.unique(ids)) != len(ids) or (len(ids) and not 0 <= ids.min() <= ids.max() < len(self)):
            raise InputError(f"`ids` must be distinct clients of 0..{len(self) - 1}, found {ids.tolist()}")
        if self._replay:
            return self._answer_from_log(ids)
        broadcast = {k: torch.as_tensor(v) for k, v in (broadcast or {}).items()}
        scatter = {k: torch.as_tensor(v)[order] for k, v in (scatter or {}).items()}
        ids = ids[order]
        self._remember(ids)
        replies = self._run(ids, model.weights, steps, broadcast, scatter) if len(ids) else []
        for i in ids.tolist():
            self.members[i].keep_reviewed()
        kept = self._accept(ids, replies)
        self._meter(ids, model, broadcast, scatter, replies)
        self.rounds += 1
        names = list(replies[kept[0]]) if kept else []
        values = {name: [torch.as_tensor(replies[j][name]) for j in kept] for name in names}
        logged = {name: [v.cpu().numpy() for v in vs] for name, vs in values.items() if name != "weights"}
        self.log.append(Exchange(ids, ids[kept], logged))
        return Replies({name: gather(vs) for name, vs in values.items()}, ids[kept])

    def _answer_from_log(self, ids):
        entry = self._replay.pop()
        self.rounds += 1
        if not np.array_equal(np.sort(ids), entry.asked):
            raise InputError(
                f"the run cannot be resumed: its round {self.rounds - 1} asked clients {entry.asked.tolist()}, these settings "
                f"ask {np.sort(ids).tolist()}; resume with the settings that the run was made with"
            )
        return Replies({name: gather(values) for name, values in entry.values.items()}, entry.kept)

    def _remember(self, ids):
        """Keep what a client's memory was at the last commit, before a round may change it."""
        for i in ids.tolist():
            if i not in self._undo:
                c = self.members[i]
                self._undo[i] = (c.y.clone(), _copied(c.rows), _copied(c.state), set(c.dropped))

    def commit(self):
        """Make all rounds so far final; `rollback` returns here."""
        self._undo.clear()
        if isinstance(self.members, Members):
            self.members.forget()
        self._point = (
            self.rounds,
            len(self.log),
            len(self.rejected),
            replace(self.traffic, sent=dict(self.traffic.sent)),
        )

    def rollback(self):
        """Undo every round since the last `commit`: client memories, log, traffic, as if never asked."""
        for i, (y, rows, state, dropped) in self._undo.items():
            client = self.members[i]
            client.y.copy_(y)
            client.rows, client.state, client.dropped = rows, state, dropped
        rounds, entries, rejected, traffic = self._point
        self.rounds, self.traffic = rounds, replace(traffic, sent=dict(traffic.sent))
        del self.log[entries:], self.rejected[rejected:]
        self._undo.clear()

    def _run(self, ids, weights, steps, broadcast, scatter):
        """Return one reply (dict of arrays, or an Exception) a client, in the order of ids."""
        raise NotImplementedError("a Clients is one of fnlkit.engines")

    def predict(self, weights, x):
        """Return logits (n, C) of raw samples, on the server's side (the test set).

        Parameters
        ----------
        weights : Tensor (P + Q,)
        x : Tensor or array (n, ...)
            An array of rows that is larger than memory is read in blocks.
        """
        return in_blocks(partial(self._predict, weights), x)

    def _predict(self, weights, x):
        return predict(self.network, weights, x, self.inputs)

    def close(self):
        """Let go of processes and shared memory; an engine without any does nothing."""

    def _accept(self, ids, replies):
        """Return positions of the replies that can be used; record why the others cannot."""
        shapes = [frozenset(r) for r in replies if isinstance(r, dict)]
        expected = max(shapes, key=shapes.count) if shapes else frozenset()
        return self.refuse(self.rounds, ids, [fault(reply, expected, self.network) for reply in replies])

    def refuse(self, round, ids, reasons):
        """Record which clients of a round are left out and why; return the places of the others.

        Parameters
        ----------
        round : int
        ids : int64 (K,)
        reasons : list of (str or None)
            None for a client that stays.

        Raises
        ------
        TooManyLost
            When fewer than the share `keep` stay.
        """
        kept = [j for j, reason in enumerate(reasons) if reason is None]
        for client, reason in zip(ids.tolist(), reasons, strict=True):
            if reason:
                self.rejected.append({"round": round, "client": client, "reason": reason})
        if len(ids) and len(kept) < max(1, math.ceil(self.keep * len(ids))):
            listed = "; ".join(f"client {i}: {r}" for i, r in zip(ids.tolist(), reasons, strict=True) if r)
            raise TooManyLost(
                f"round {round}: {len(ids) - len(kept)} of {len(ids)} replies refused ({listed[:400]})"
                f"{'; did training diverge? lower the learning rate' if 'NaN' in listed or 'infinite' in listed else ''}"
            )
        return kept

    def _meter(self, ids, model, broadcast, scatter, replies):
        down = nbytes(model.weights) + sum(map(nbytes, broadcast.values()))
        self.traffic.bytes_down += down * len(ids) + sum(map(nbytes, scatter.values()))
        self.traffic.client_rounds += len(ids) if any(isinstance(r, dict) and "weights" in r for r in replies) else 0
        for reply in replies:
            if isinstance(reply, dict):
                for name, value in reply.items():
                    self.traffic.bytes_up += nbytes(value)
                    self.traffic.sent[name] = self.traffic.sent.get(name, 0) + nbytes(value)


def _copied(memory):
    # Rows under input/ are given with the samples and never written: no copy, however large.
    return {
        k: v if k.startswith("input/") else v.clone() if isinstance(v, torch.Tensor) else copy.deepcopy(v)
        for k, v in memory.items()
    }


def nbytes(value):
    """Return how many bytes of payload a tensor or number is; 0 for what is neither, which is refused anyway."""
    try:
        value = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return 0
    return value.numel() * value.element_size()


def gather(values):
    """Return replies of equal shape stacked (K, ...), else a tuple of them."""
    values = [torch.as_tensor(v) for v in values]
    return torch.stack(values) if len({v.shape for v in values}) <= 1 and values else tuple(values)


def fault(reply, expected, network):
    """Return why a reply cannot be used, or None.

    A reply is refused when it is no dict of arrays, when it misses a name or has one too many, when an array of floats is
    not finite, or when ``weights`` has another shape or type than the model's vector.

    Parameters
    ----------
    reply : object
    expected : frozenset of str
        The names that most of the cohort sent.
    network : fnlkit.client.network.Network
    """
    if isinstance(reply, Exception):
        return f"failed: {type(reply).__name__}: {reply}"
    if not isinstance(reply, dict):
        return f"replied {type(reply).__name__}, expected named arrays"
    wrong = [f"misses {name!r}" for name in sorted(expected - set(reply))]
    wrong += [f"sent {name!r} unasked" for name in sorted(set(reply) - expected)]
    if wrong:
        return "; ".join(wrong)
    for name, value in reply.items():
        try:
            value = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            return f"{name!r} is {type(value).__name__}, expected an array"
        if name == "weights" and (value.shape != (network.size,) or value.dtype != network.dtype):
            found, wanted = f"{tuple(value.shape)} {value.dtype}", f"({network.size},) {network.dtype}"
            return f"'weights' is {found}, expected {wanted}"
        if value.is_floating_point() and not torch.isfinite(value).all():
            return f"{name!r} has {'NaN' if torch.isnan(value).any() else 'infinite'} entries"
    return None
