"""Privacy accounting of a run: releases of labels, recorded in a ledger before they happen."""

from typing import Any

from fnlkit.artifacts import ledger
from fnlkit.experiment.assembly import labels_of_clients
from fnlkit.federated import privacy


def record_labels(path: Any, experiment: Any, key: str, round: int, epsilon: float | None) -> None:
    """Record a release of labels before it is made, and note the total cost.

    Parameters
    ----------
    path : str, os.PathLike or None
        File of the ledger; None records nothing.
    experiment : fnlkit.experiment.Experiment
    key : str
        Fingerprint of the privacy key, of fnlkit.experiment.assembly.share_key.
    round : int
    epsilon : float or None
    """
    federation, clients, data = experiment.federation, experiment.clients, experiment.dataset.checksum
    facts = {"classes": federation.classes, "key": key, "data": data, "seed": experiment.settings.seed}
    entry = ledger.release(round=round, epsilon=epsilon, **facts, **labels_of_clients(federation))
    made = [entry] if path is None else ledger.commit(path, entry)
    total = privacy.sum_costs(made, data, beside=set(clients.sends) - privacy.RELEASED)
    clients.note(f"{total['label_statement']}{'' if path is None else f' (total of the ledger {path})'}")
