"""Compare runs: one row of numbers per run."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fnlkit.artifacts import ledger
from fnlkit.artifacts.federation import Federation
from fnlkit.estimators.compare import compare
from fnlkit.federated.privacy import labels as privacy
from fnlkit.results import evaluation

if TYPE_CHECKING:
    from fnlkit.artifacts.run import Run


def row(run: "Run", *, target: float | None = None) -> dict[str, Any]:
    """Collect the numbers of a run without its data set.

    They cover accuracy, labels, estimates, traffic, privacy and a digest.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    target : float or None
        As in `fnlkit.results.evaluation.summary`.
    """
    out = evaluation.summary(run, target=target) | privacy.statement(run) | estimates(run)
    return out | {"weights_sha256": evaluation.weights_digest(run)}


def estimates(run: "Run") -> dict[str, Any]:
    """Measure the quality of the noise estimates in a run's federation; {} without true labels."""
    return {f"estimate_{name}": value for name, value in compare(run.federation()).items()}


def federation(thing: "Run | Federation") -> Federation:
    """Rebuild the federation of a run from the run's arrays; a federation is returned unchanged."""
    return thing if isinstance(thing, Federation) else thing.federation()


def cost_of_releases(runs: "list[Run]", ledger_of: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Sum for each run the cost of all known releases of its data set's labels.

    The entry is {} if no other release is known.

    Parameters
    ----------
    runs : list of Run
    ledger_of : callable (data set's name) -> path or None
    """
    groups: dict[str, list[int]] = {}
    out: list[dict[str, Any]] = [{} for _ in runs]
    for i, run in enumerate(runs):
        if privacy.releases(run):
            groups.setdefault(run.meta["dataset_checksum"], []).append(i)
    for members in groups.values():
        path = ledger_of(runs[members[0]].meta["dataset"])
        statement = privacy.statement([runs[i] for i in members], known=ledger.read_ledger(path) if path else ())
        for i in members:
            if statement["label_releases"] > privacy.statement(runs[i])["label_releases"]:
                out[i] = {name.replace("label_", "label_together_", 1): value for name, value in statement.items()}
    return out


def score_name(row: dict[str, Any]) -> str:
    """Name of a row's scores: ``agreement`` with unverified labels, or ``accuracy``."""
    return "agreement" if any(name.startswith("agreement_") for name in row) else "accuracy"


def score_kinds(rows: list[dict[str, Any]]) -> list[str]:
    """Choose the scores that a table of rows shows.

    They are the best and the last score and the score of the chosen round.
    """
    kinds = ("best", "last", "chosen")
    return [kind for kind in kinds if any(f"{score_name(row)}_{kind}" in row for row in rows)]
