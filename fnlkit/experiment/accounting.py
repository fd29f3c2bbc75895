"""Privacy accounting of a run: releases of labels and protected updates, recorded in a ledger before they happen."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fnlkit import privacy
from fnlkit.artifacts import ledger
from fnlkit.components import own
from fnlkit.experiment.assembly import digest_of_federation, labels_of_clients
from fnlkit.experiment.conditions import machine
from fnlkit.kernels.streams import HiddenStream

if TYPE_CHECKING:
    from fnlkit.artifacts.run import Run
    from fnlkit.privacy.updates import Sums
    from fnlkit.server.protection import Protection


class Accounting:
    """Privacy cost of an experiment.

    Parameters
    ----------
    path : str, os.PathLike or None
        File of the ledger; None records nothing.
    experiment : fnlkit.experiment.Experiment
        With settings, data and clients.
    key : fnlkit.experiment.assembly.PrivacyKey

    Attributes
    ----------
    sums : fnlkit.privacy.Sums or None
        Protected sums of updates before the first round; None without protection.
    release : str or None
        Name of the protected updates of this run. Noise and cohorts depend on the name and on the key.
    """

    def __init__(self, path, experiment, key):
        self.path, self.experiment, self.key = path, experiment, key
        self.sums, self.release = None, None
        self._lost, self._entry = None, None  # lost clients in the recorded entry; id of an entry that only this run wrote
        experiment.clients.on_release = self.record_labels

    def protect(self, protection: Protection, sums: Sums, resumed: Run | None = None) -> Protection:
        """Return the Protection with noise from the privacy key, and note the cost of all rounds.

        Parameters
        ----------
        protection : Protection
        sums : fnlkit.privacy.Sums
        resumed : Run or None
            A resumed run continues the release of the earlier run.
        """
        clients, settings = self.experiment.clients, self.experiment.settings
        self.sums = sums
        self.release = self._name_updates() if resumed is None else (resumed.meta.get("protection") or {}).get("release", "")
        # The draws of a simulation depend on nothing but the seed: the name of the release also depends on the machine.
        clients.hidden = HiddenStream(self.key.secret, "updates", self.release if self.key.fingerprint else "simulation")
        cost = privacy.updates_epsilon(self._plan_sums())
        clients.note(f"{settings.rounds} rounds under `protect` will cost ({cost:.4g}, {sums.delta:g})-DP of a client")
        return replace(protection, hidden=clients.hidden)

    def record_labels(self, round: int, epsilon: float | None) -> None:
        """Record a release of labels before it is made, and note the total cost."""
        data, sends = self.experiment.dataset.checksum, self.experiment.clients.sends
        entry = ledger.release(round=round, epsilon=epsilon, **self._facts())
        made = [entry] if self.path is None else ledger.commit(self.path, entry)
        total = privacy.sum_costs(made, data, beside=set(sends) - privacy.RELEASED)
        known = "" if self.path is None else f" (total of the ledger {self.path})"
        self.experiment.clients.note(f"{total['label_statement']}{known}")

    def record_updates(self) -> None:
        """Record the planned rounds of protected updates, and note the total cost.

        The entry depends on the clients that were lost so far, so it is replaced when another client is lost.
        """
        if self.path is None or self.sums is None:
            return
        lost = ledger.find_missing_replies(self.experiment.clients.log)
        if lost == self._lost:
            return
        self._lost = lost
        entry = ledger.training(self._plan_sums()._asdict(), name=self.release, lost=lost, **self._facts())
        known = any(release.id == entry.id for release in ledger.read_ledger(self.path))
        releases = ledger.commit(self.path, entry, replacing=self._entry)
        self._entry = None if known else entry.id
        self.experiment.clients.note(privacy.describe_total_cost(releases, entry, self.path))

    def cost(self) -> dict[str, Any] | None:
        """Return the cost of protected updates so far: sums, epsilon, delta and release; None without protection."""
        if self.sums is None:
            return None
        # Count rounds in which models were sent, and rounds in which all replies were lost, because models could have been
        # sent.
        log = self.experiment.clients.log
        sums = self.sums._replace(rounds=sum(bool(len(entry.norms)) or not len(entry.kept) for entry in log))
        epsilon = privacy.updates_epsilon(sums)
        return {"sums": sums._asdict(), "epsilon": epsilon, "delta": sums.delta, "release": self.release}

    def _plan_sums(self):
        return self.sums._replace(rounds=self.experiment.settings.rounds)

    def _facts(self):
        """Return the facts of an entry that do not change during a run."""
        e = self.experiment
        facts = {"classes": e.federation.classes, "key": self.key.fingerprint, "data": e.dataset.checksum}
        return facts | {"seed": e.settings.seed, **labels_of_clients(e.federation)}

    def _name_updates(self):
        """Return the name of the protected updates, which depends on everything that determines them."""
        e = self.experiment
        settings = {name: value for name, value in asdict(e.settings).items() if name not in ("rounds", "min_replies")}
        facts = {
            "settings": settings,
            "budget": e.plan.method.budget(e.settings.rounds),
            "key": self.key.fingerprint,
            "data": [e.dataset.checksum, digest_of_federation(e.federation), e.dataset.features, e.embedding],
            "scale": [list(e.inputs.mean), list(e.inputs.std)],
            "start": hashlib.sha256(e.network.flat.cpu().numpy()).hexdigest(),
            "files": sorted(hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in own.files()),
            "machine": machine(e.clients.engine, e.device) | {"engine": e.clients.engine.numerics},
        }
        facts = json.loads(json.dumps(facts, sort_keys=True, default=str))
        return ledger.training_name(facts, **labels_of_clients(e.federation))
