"""Privacy accounting of a run: releases of labels, recorded in a ledger before they happen."""

from __future__ import annotations

from fnlkit.artifacts import ledger
from fnlkit.experiment.assembly import labels_of_clients
from fnlkit.federated import privacy


class Accounting:
    """Privacy cost of an experiment.

    Parameters
    ----------
    path : str, os.PathLike or None
        File of the ledger; None records nothing.
    experiment : fnlkit.experiment.Experiment
        With settings, data and clients.
    key : str
        Fingerprint of the privacy key, of fnlkit.experiment.assembly.share_key.
    """

    def __init__(self, path, experiment, key):
        self.path, self.experiment, self.key = path, experiment, key
        experiment.clients.on_release = self.record_labels

    def record_labels(self, round: int, epsilon: float | None) -> None:
        """Record a release of labels before it is made, and note the total cost."""
        data, sends = self.experiment.dataset.checksum, self.experiment.clients.sends
        entry = ledger.release(round=round, epsilon=epsilon, **self._facts())
        made = [entry] if self.path is None else ledger.commit(self.path, entry)
        total = privacy.sum_costs(made, data, beside=set(sends) - privacy.RELEASED)
        known = "" if self.path is None else f" (total of the ledger {self.path})"
        self.experiment.clients.note(f"{total['label_statement']}{known}")

    def _facts(self):
        """Facts of an entry that do not change during a run."""
        e = self.experiment
        facts = {"classes": e.federation.classes, "key": self.key, "data": e.dataset.checksum}
        return facts | {"seed": e.settings.seed, **labels_of_clients(e.federation)}
