"""Evaluate a run: accuracy, corrected labels, estimated noise, traffic.

True labels are used only to evaluate, never to train.
"""

import hashlib
import json
from typing import Any

import numpy as np

from fnlkit.artifacts.names import REAL_SITES
from fnlkit.artifacts.run import Run
from fnlkit.datasets.dataset import Dataset, must_be
from fnlkit.kernels.scores import auc, client_levels, confusion, transition_errors

# Kinds of samples on which models are tested.
SAMPLES = {
    "test": "test samples",
    "held_out": "held-out samples",
    "held_out_true": "held-out samples, true labels",
    "gold": "verified samples",
    "reviewed": "held-out samples, by random reviews",
    "estimated": "held-out samples, labels corrected by the models of the other sites",
}


def summary(run: Run, *, target: float | None = None) -> dict[str, Any]:
    """Collect the numbers and texts in a run's records as a flat dict; no model is run.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    target : float or None
        Also return the client-rounds, bytes and seconds of training at the first evaluation that reached this score. They are
        None if no evaluation reached it; seconds are also None if the run is too old to record them.
    """
    name = score_name(run)
    scored = [row for row in run.history if name in row]
    trained = [row for row in run.history if row["stage"] != "final"]
    facts = {
        "method": run.settings["method"],
        **run.meta.get("row", {}),
        "dataset": run.meta.get("dataset"),
        "seed": run.settings["seed"],
        "finished": run.finished,
        f"{name}_best": max((row[name] for row in scored), default=None),
        f"{name}_last": scored[-1][name] if scored else None,
        f"{name}_late": late_score(run.history, name),
        "rounds": len(trained),
        "client_rounds": run.traffic.client_rounds,
        "bytes_up": run.traffic.bytes_up,
        "bytes_down": run.traffic.bytes_down,
        "rejected": len(run.rejected),
        "engine": run.meta["machine"]["engine"],
        "seconds": run.meta["machine"]["seconds"],
        "peak_bytes": run.meta["machine"]["peak_bytes"],
    }
    if facts["dataset"] != REAL_SITES:  # there, labels stay at the sites
        labels = run.labels.get("true", run.labels["given"])[run.client_indices]
        facts["chance"] = float(np.bincount(labels).max() / len(labels))  # of a model that always predicts one class
    facts |= describe_choice(run, name)
    measure = str(run.settings.get("measure", "auto")).partition("(")[0].rpartition(":")[2]
    if scored and measure in scored[-1]:  # a measure of the user
        facts[f"{measure}_last"] = scored[-1][measure]
    if run.finished and "folds" in (run.meta.get("needs") or ()):
        from fnlkit.methods.auto import explain_choice  # imports torch

        facts["choice"] = explain_choice(run.history[-1])
    if target is not None:
        hit = next((row for row in scored if row[name] >= target), None)
        facts["target"] = target
        for name in ("client_rounds", "bytes_up", "bytes_down"):
            # The final row has no traffic; it follows the last round.
            facts[f"target_{name}"] = hit and hit.get(name, facts[name])
        times = run.meta["machine"].get("row_seconds")
        facts["target_seconds"] = times[hit["round"]] if hit and times else None
    if "true" in run.labels:
        return facts | _against_truth(run)
    if facts["dataset"] == REAL_SITES:
        return facts
    given, corrected = (run.labels[name][run.client_indices] for name in ("given", "corrected"))
    return facts | {"labels_changed": int((given != corrected).sum())}


def describe_choice(run: Run, name: str) -> dict[str, Any]:
    """Describe the round that `--select` chose, the criterion and the score of that round; {} without a chosen round.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    name : str
        ``accuracy`` or ``agreement``.
    """
    about = run.meta.get("selection")
    if not about or about["round"] is None:
        return {}
    score = run.history[about["round"]].get(name)
    return {f"{name}_chosen": score, "chosen_round": about["round"] + 1, "criterion": about["criterion"]}


# Settings of a run that are digests of a user's files, before the name.
FILES = ("code of ", "file ")


def distinct(runs: list[Run]) -> list[dict[str, Any]]:
    """Find the distinguishing settings of runs, one dict per run.

    Each dict has ``dataset``, ``method`` and every other setting that differs among the runs. Runs with equal dicts are
    repetitions that differ only by seeds.  The comparison covers all training settings, the data set's checksum, the
    embeddings, and the parameters of the commands that created the labels and the partition.

    Parameters
    ----------
    runs : list of fnlkit.artifacts.run.Run

    Returns
    -------
    list of dict of str to plain values
        The same keys in each, data set and method first.
    """
    described = [deciding_settings(run) for run in runs]
    names = dict.fromkeys(name for facts in described for name in facts)
    for name in [name for name in names if name not in ("dataset", "method")]:
        # A method without a user's file is compared with one that has it: code differs only if there are two versions.
        compared = [facts for facts in described if name in facts] if name.startswith(FILES) else described
        if len({json.dumps(facts.get(name)) for facts in compared}) == 1:
            del names[name]
    return [{name: facts.get(name) for name in names} for facts in described]


def deciding_settings(run: Run) -> dict[str, Any]:
    """Collect all settings that affect a run's result, except seeds; of a recipe's run also the regime and the name."""
    deciding = {"dataset": run.meta.get("dataset"), "method": run.settings["method"], **run.meta.get("row", {})}
    deciding |= {name: value for name, value in run.settings.items() if name not in ("method", "seed")}
    for step in run.meta.get("provenance", []):
        command = step.get("command") if isinstance(step, dict) else None
        if command not in (None, "train", "evaluate", "flower-app"):  # the settings of a run contain those of its training
            for name, value in dict(step.get("parameters") or {}).items():
                if name != "dataset":
                    name = f"{command} --{name.replace('_', '-')}"
                    deciding[name] = value if name not in deciding else f"{deciding[name]} + {value}"
    for name, digest in dict(run.meta.get("own") or {}).items():
        deciding[(FILES[0] if ":" in name else FILES[1]) + name] = str(digest)[:12]
    for name in ("dataset_checksum", "embedding"):
        deciding[name.replace("_", " ")] = str(run.meta.get(name) or "none")[:12]
    return deciding


def score_name(run: Run) -> str:
    """Name of the run's scores: ``agreement`` with unverified labels, or ``accuracy``."""
    truer = any("accuracy" in row for row in run.history)
    return "agreement" if not truer and any("agreement" in row for row in run.history) else "accuracy"


def is_scored(run: Run) -> bool:
    """Whether a run has an evaluation."""
    return any("accuracy" in row or "agreement" in row for row in run.history)


def late_score(history: list[dict[str, Any]], name: str = "accuracy") -> float | None:
    """Mean score of the evaluations in the last fifth of a run's client-rounds.

    If a round's score depends on the clients that took part, the best and the last score depend largely on chance.
    The share is counted in client-rounds, because stages of some methods train cohorts of other sizes.

    Parameters
    ----------
    history : list of dict
        All rows of a run.  A row without ``client_rounds``, as of the last model, belongs to the end of the row before it.
    name : str
        The score, in rows of evaluated rounds.

    Returns
    -------
    float or None
        None without any evaluation.  If the last fifth has no evaluation, the last evaluation.
    """
    spent, scored = 0, []
    for row in history:
        spent = row.get("client_rounds", spent)
        if name in row:
            scored.append((spent, row[name]))
    late = [score for at, score in scored if 5 * at > 4 * spent] or [score for _, score in scored[-1:]]
    return float(np.mean(late)) if late else None


def _against_truth(run):
    held = run.client_indices
    given, true, corrected = (run.labels[name][held] for name in ("given", "true", "corrected"))
    wrong, changed, right = given != true, corrected != given, corrected == true
    errors = {
        "label_accuracy_given": float(np.mean(~wrong)),
        "label_accuracy_corrected": float(np.mean(right)),
        "labels_changed": int(changed.sum()),
        "labels_repaired": int((wrong & right).sum()),
        "labels_broken": int((~wrong & ~right).sum()),
    }
    levels = client_levels(run.labels["given"], run.labels["true"], run.client_offsets, held)
    estimated = first_levels(run)
    if estimated is not None:
        errors["noise_level_error"] = float(np.mean(np.abs(estimated - levels)))
    if "cumulative_lid" in run.records:
        errors["client_auc"] = auc(run.records["cumulative_lid"][1][-1], levels > 0)
    similarity = transition_similarity(run)
    if similarity is not None:
        errors["transition_cosine_first"], errors["transition_cosine_last"] = similarity[0], similarity[-1]
    return errors


def first_levels(run: Run) -> np.ndarray | None:
    """Noise levels (N,) that a method estimated first, or None.

    Later estimates refer to labels that were already corrected.
    """
    return run.records["noise_level"][1][0] if "noise_level" in run.records else None


def transition_similarity(run: Run) -> np.ndarray | None:
    """Cosine (R,) of each recorded estimate of T and the T of the run's given labels, or None.

    FedEFC, its baselines and other methods with ``transition`` report the mean of the cohort's estimates; the truth
    here is T over all clients' samples.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    """
    if "transition" not in run.records or "true" not in run.labels:
        return None
    held = run.client_indices
    counts = confusion(run.labels["true"][held], run.labels["given"][held], run.meta["classes"])
    return np.array([transition_errors(T, counts)["transition_cosine"] for T in run.records["transition"][1]])


def test_predictions(run: Run, dataset: Dataset) -> np.ndarray:
    """Predict the classes (n_test,) of a data set's test samples with a run.

    Raises
    ------
    InputError
        If the data set differs from the training data set of the run.
    """
    from fnlkit.experiment.network import load_trained

    must_be(dataset, run.meta, len(run.labels["given"]), what="the run")
    trained = load_trained(run, dataset)
    return trained.logits(trained.x_test).argmax(-1).numpy()


test_predictions.__test__ = False  # type: ignore[attr-defined]  # keeps pytest from collecting this function as a test


def arrays(run: Run, measured: dict[str, Any] | None = None) -> dict[str, np.ndarray]:
    """Collect the arrays of an evaluation by name: confusion matrices, shares per class, noise levels, records.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    measured : dict or None
        Result of `fnlkit.results.scores.measure_run` for the run; without it, arrays that need samples are missing.
    """
    classes, named_arrays = run.meta["classes"], {}
    for name, part in (measured or {}).items():
        if "confusion" in part:
            named_arrays[f"{name}_confusion"] = part["confusion"]
    if measured:
        first = next(iter(measured.values()))
        named_arrays[f"class_{first['measures']}"] = np.array([np.nan if v is None else v for v in first["per_class"]])
    if "true" in run.labels:
        held, true = run.client_indices, run.labels["true"]
        named_arrays["label_confusion_given"] = confusion(true[held], run.labels["given"][held], classes)
        named_arrays["label_confusion_corrected"] = confusion(true[held], run.labels["corrected"][held], classes)
        for name in ("given", "corrected"):
            named_arrays[f"client_level_{name}"] = client_levels(run.labels[name], true, run.client_offsets, held)
    for name, (rounds, values) in run.records.items():
        named_arrays[f"record_{name}"], named_arrays[f"record_{name}_rounds"] = values, rounds
    measured = transition_similarity(run)
    if measured is not None:
        named_arrays["record_transition_cosine"] = measured
        named_arrays["record_transition_cosine_rounds"] = run.records["transition"][0]
    for name, values in run.truth.items():
        named_arrays[name] = values
    return named_arrays


def stage_starts(run: Run) -> dict[str, int]:
    """Find {stage: client-rounds at the start} of all stages but the first."""
    starts: dict[str, int] = {}
    steps = [row for row in run.history if row["stage"] != "final"]
    for before, row in zip(steps, steps[1:], strict=False):
        if row["stage"] != before["stage"]:
            starts.setdefault(row["stage"], before["client_rounds"])
    return starts


def stage_confusions(run: Run) -> list[tuple[str, np.ndarray]]:
    """List [(stage, counts (C, C))] of true against working labels at the start of each stage."""
    if "label_confusion" not in run.records:
        return []
    rounds, values = run.records["label_confusion"]
    return [(run.history[r]["stage"], v) for r, v in zip(rounds.tolist(), values, strict=True)]


def weights_digest(run: Run) -> str:
    """Compute the SHA-256 of the model's bytes, to compare runs."""
    return hashlib.sha256(run.weights_bytes()).hexdigest()
