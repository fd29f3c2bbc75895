"""Compare runs: one row of numbers per run."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fnlkit import privacy
from fnlkit.artifacts import ledger
from fnlkit.artifacts.federation import Federation
from fnlkit.estimators.compare import compare
from fnlkit.results import evaluation

if TYPE_CHECKING:
    from fnlkit.artifacts.run import Run


def row(run: "Run", *, target: float | None = None) -> dict[str, Any]:
    """Return the numbers of a run without its data set.

    They cover accuracy, labels, estimates, traffic, privacy and a digest.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    target : float or None
        As in `fnlkit.results.evaluation.summary`.
    """
    out = evaluation.summary(run, target=target) | privacy.statement(run) | privacy.cost_of_run(run) | estimates(run)
    return out | {"weights_sha256": evaluation.weights_digest(run)}


def estimates(run: "Run") -> dict[str, Any]:
    """Return the quality of the noise estimates in a run's federation; {} without true labels."""
    return {f"estimate_{name}": value for name, value in compare(run.federation()).items()}


def federation(thing: "Run | Federation") -> Federation:
    """Return the federation of a run, rebuilt from the run's arrays; a federation is returned unchanged."""
    return thing if isinstance(thing, Federation) else thing.federation()


def cost_of_releases(runs: "list[Run]", ledger_of: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Return for each run the total cost of all known releases of its data set's labels.

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


def cost_of_updates(runs: "list[Run]", ledger_of: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Return for each run the total cost of all known protected updates of its clients.

    The entry is {} if no other protected run is known.

    Parameters
    ----------
    runs : list of Run
    ledger_of : callable (data set's name) -> path or None
    """
    groups: dict[str, list[int]] = {}
    out: list[dict[str, Any]] = [{} for _ in runs]
    for i, run in enumerate(runs):
        if run.meta.get("protection"):
            groups.setdefault(run.meta["dataset_checksum"], []).append(i)
    for data, members in groups.items():
        path, made = ledger_of(runs[members[0]].meta["dataset"]), {}
        for run in (runs[i] for i in members):
            entry = _training(run, data)
            made[entry.id] = entry
        made |= {
            entry.id: entry for entry in (ledger.read_ledger(path) if path else ())
        }  # the ledger records the planned rounds
        sums_of = privacy.find_sums(made.values(), data)
        for i in members:
            ours = made[_training(runs[i], data).id].clients
            out[i] = _cost_of(sums_of[ours])
            if others := privacy.other_partitions([sums for clients, sums in sums_of.items() if clients != ours]):
                out[i]["update_apart_statement"] = others
    return out


def _training(run, data):
    """Return the Release of a run's protected updates for the rounds trained so far."""
    about, arrays = run.meta["protection"], {"given": run.labels["given"]}
    arrays |= {"offsets": run.client_offsets, "indices": run.client_indices}
    facts = {"seed": run.settings["seed"], "classes": run.meta["classes"], "key": run.meta.get("privacy_key", "")}
    missing = ledger.find_missing_replies(run.log)
    return ledger.training(about["sums"], name=about["release"], lost=missing, data=data, **facts, **arrays)


def _cost_of(found):
    """Return the total cost of several runs over the same clients; {} for one run."""
    if len(found) < 2:
        return {}
    epsilon, delta = privacy.together(found)
    cost = {"epsilon": epsilon, "delta": delta, "neighbors": privacy.neighbors(found)}
    return {"update_together_runs": len(found), **{f"update_together_{name}": value for name, value in cost.items()}}


def score_name(row: dict[str, Any]) -> str:
    """Return the name of a row's scores: ``agreement`` with unverified labels, or ``accuracy``."""
    return "agreement" if any(name.startswith("agreement_") for name in row) else "accuracy"


def score_kinds(rows: list[dict[str, Any]]) -> list[str]:
    """Return the scores that a table of rows shows.

    They are the best and the last score and the score of the chosen round.
    """
    kinds = ("best", "last", "chosen")
    return [kind for kind in kinds if any(f"{score_name(row)}_{kind}" in row for row in rows)]
