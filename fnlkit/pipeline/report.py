"""Report of runs: a self-contained HTML page with the numbers of `evaluate`."""

import json
import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment

from fnlkit.artifacts.display import data_set, plain
from fnlkit.artifacts.names import class_names
from fnlkit.artifacts.run import Run
from fnlkit.audits.page import thumbnail
from fnlkit.core.errors import InputError
from fnlkit.datasets.dataset import Dataset
from fnlkit.kernels.scores import client_levels
from fnlkit.pipeline.annotators import OWN_VOTES
from fnlkit.pipeline.judging import Evaluation
from fnlkit.results import evaluation
from fnlkit.results.comparison import list_runs, list_tests, score_name

CLIENTS, SAMPLES, LINES = 12, 24, 8
# If there are more runs than this, only the section of the first run is open.
OPEN = 4
# Parameters that are arguments of a command without an option.
_FILES = ("table", "votes")
_WIDE, _HIGH, _LEFT, _BELOW = 720, 300, 44, 34


def facts(scored: Evaluation, *, datasets: Callable[[Run], Dataset | None] | None = None) -> dict[str, object]:
    """Collect the contents of the page.

    Parameters
    ----------
    scored : fnlkit.pipeline.judging.Evaluation
        Evaluation of a single run or of several runs.
    datasets : callable (Run) -> Dataset or None, optional
        Returns the data set of a run, for thumbnails of suspicious samples. If None, the samples are listed without a picture.

    Returns
    -------
    dict
        title, words, rows, groups (a `Table`, for several runs), tested (for a single run), curve, together (the privacy cost
        of all label releases), and runs. Each run has title, words, choice, clients, suspects, sent, privacy, settings,
        commands and machine.
    """
    runs, rows = scored.runs, scored.rows
    first, several = runs[0], len(runs) > 1
    measured: Any = rows[0].get("measured", {})
    together = {row["label_together_statement"]: None for row in rows if "label_together_statement" in row}
    return {
        "title": f"{len(runs)} runs" if several else f"{bare(rows[0]['method'])} on {data_set(first.meta.get('dataset'))}",
        "words": words(scored),
        "rows": _to_dicts(list_runs(rows, kinds=("best", "last", "late", "chosen"), seconds=True)),
        "groups": scored.table() if several else None,
        "tested": _to_dicts(list_tests(measured)),
        # Curves cannot be compared if the runs were evaluated on different held-out labels.
        "curve": None if scored.notes else curve(runs, short_names(scored)),
        "together": list(together),
        "runs": [_of_run(run, row, datasets, len(runs)) for run, row in zip(runs, rows, strict=True)],
        "open": OPEN,
    }


def _to_dicts(table):
    return [dict(zip(table.columns, map(plain, cells), strict=True)) for cells in table.texts()]


def _of_run(run, row, datasets, count):
    dataset = datasets(run) if datasets else None
    return {
        "title": plain(row["run"]),
        "words": _labels_in_words(row) if count > 1 else "",
        "choice": row.get("choice"),
        "clients": clients(run),
        "suspects": suspects(run, dataset, max(6, SAMPLES // count)),
        "sent": describe_replies(run),
        "privacy": [row[name] for name in ("label_statement",) if name in row],
        "settings": {name: plain(value) for name, value in run.settings.items()},
        "commands": commands(run),
        "machine": {name: plain(v) for name, v in run.meta.get("machine", {}).items() if name != "row_seconds"},
    }


def words(scored: Evaluation) -> list[str]:
    """Write the summary as sentences."""
    rows, sentences = scored.rows, []
    if len(rows) == 1:
        row, name = rows[0], score_name(rows[0])
        state = "ran to its end" if row["finished"] else "was not finished"
        spent = f"{row['rounds']:,} rounds, {row['client_rounds']:,} client-rounds"
        sentences.append(f"{bare(row['method'])} {state} on {data_set(row['dataset'])}: {spent}.")
        if row[f"{name}_last"] is not None:
            measure = "accuracy on the test set" if name == "accuracy" else "agreement with unverified labels"
            sentences.append(
                f"Its {measure} was {_share(row[f'{name}_last'])} at the end, {_share(row[f'{name}_best'])} at its best."
            )
        if "chosen_round" in row:
            score = row[f"{name}_chosen"]
            reached = "" if score is None else f", with {name} {_share(score)}"
            sentences.append(f"It keeps the model of round {row['chosen_round']:,}{reached}, chosen by {row['criterion']}.")
        sentences += filter(None, [_labels_in_words(row)])
    else:
        groups: Any = scored.groups()
        means = [
            (values["mean"], group) for group in groups for key, values in group["measures"].items() if key.endswith("_best")
        ]
        sentences.append(f"{len(rows)} runs in {len(groups)} groups that differ in more than their seeds.")
        sentences += [f"{note[0].upper()}{note[1:]}." for note in scored.notes]
        if means and not scored.notes:
            mean, best = max(means, key=lambda pair: pair[0])
            differ = {
                name: plain(str(value))
                for name, value in best["group"].items()
                if value is not None and (len(groups) == 1 or len({str(group["group"].get(name)) for group in groups}) > 1)
            }
            names = [text if name in ("dataset", "method") else f"{name} {text}" for name, text in differ.items()]
            sentences.append(f"Best on average: {', '.join(names)}, {_share(mean)}.")
    return sentences


def _labels_in_words(row):
    """Write a sentence on the changed labels of a run, or "" if no label changed."""
    if "label_accuracy_given" in row:
        before, after = _share(row["label_accuracy_given"]), _share(row["label_accuracy_corrected"])
        if not row["labels_changed"]:
            return f"Of the labels that clients were given {before} were right; none was changed."
        return (
            f"Of the labels that clients were given {before} were right, of those at the end {after}: "
            f"{row['labels_repaired']:,} were repaired and {row['labels_broken']:,} broken."
        )
    changed = row.get("labels_changed")
    return f"{changed:,} labels were changed; true labels are unknown." if changed else ""


def _share(value):
    return f"{100 * value:.2f} %"


def bare(method: object) -> str:
    """Name of a method without its parameters."""
    return plain(str(method).partition("(")[0])


def short_names(scored: Evaluation) -> list[str]:
    """Choose a short name of each run; repetitions have the same name.

    The name is the method, with the file names of the runs if the method is not sufficient.

    Parameters
    ----------
    scored : fnlkit.pipeline.judging.Evaluation

    Returns
    -------
    list of str
    """
    keys = [json.dumps(group) for group in evaluation.distinct(scored.runs)]
    methods = {key: bare(run.settings["method"]) for key, run in zip(keys, scored.runs, strict=True)}
    files: dict[str, list[str]] = {}
    for key, row in zip(keys, scored.rows, strict=True):
        files.setdefault(key, []).append(plain(os.path.basename(str(row["run"])).removesuffix(".pt")))
    alike = Counter(methods.values())
    more = {key: f" ({names[0]}{f' and {len(names) - 1} more' if names[1:] else ''})" for key, names in files.items()}
    return [methods[key] + (more[key] if alike[methods[key]] > 1 else "") for key in keys]


def curve(runs: Sequence[Run], names: Sequence[str]) -> dict[str, object] | None:
    """Compute the learning curves in drawing coordinates; None if there are no curves.

    The result contains lines with names and points, and the ticks of both axes.

    Parameters
    ----------
    runs : list of Run
    names : list of str
        Name of each run in the legend, from `short_names`.
    """
    lines = []
    for run, label in zip(runs, names, strict=True):
        name = evaluation.score_name(run)
        points = [(row.get("client_rounds", run.traffic.client_rounds), row[name]) for row in run.history if name in row]
        if len(points) > 1:
            lines.append((label, points))
    if not lines:
        return None
    right = max(x for _, points in lines for x, _ in points) or 1
    values = [y for _, points in lines for _, y in points]
    step = next((step for step in (0.01, 0.02, 0.05, 0.1, 0.2) if max(values) - min(values) <= 5 * step), 0.25)
    low, high = step * np.floor(min(values) / step), step * np.ceil(max(values) / step)
    high = high if high > low else low + step

    def place(x: float, y: float) -> tuple[float, float]:
        left = _LEFT + (_WIDE - _LEFT - 8) * x / right
        return round(float(left), 1), round(float((_HIGH - _BELOW) - (_HIGH - _BELOW - 8) * (y - low) / (high - low)), 1)

    stages = evaluation.stage_starts(runs[0]) if len(runs) == 1 else {}
    labels = list(dict.fromkeys(label for label, _ in lines))
    spacing = next(factor * 10**k for k in range(19) for factor in (1, 2, 5) if right <= 5 * factor * 10**k)
    return {
        "width": _WIDE, "height": _HIGH, "left": _LEFT, "bottom": _HIGH - _BELOW,
        "labels": [{"text": label, "kind": i % LINES} for i, label in enumerate(labels)],
        "lines": [{"kind": labels.index(label) % LINES, "points": " ".join("{},{}".format(*place(*p)) for p in points)}
                  for label, points in lines],
        "across": [{"at": place(x, low)[0], "text": f"{x:,.0f}"} for x in range(0, int(right) + 1, spacing)],
        "up": [{"at": place(0, y)[1], "text": f"{100 * y:.0f}"} for y in np.arange(low, high + step / 2, step)],
        "what": " and ".join(sorted({evaluation.score_name(run) for run in runs})),
        "stages": [{"at": place(x, low)[0], "text": plain(stage)} for stage, x in stages.items()],
    }  # fmt: skip


def clients(run: Run) -> list[dict[str, object]]:
    """List name, size and shares of the clients with most wrong labels.

    The clients are sorted by the true labels if these are available, otherwise by the estimate.
    """
    sizes, names = np.diff(run.client_offsets), run.meta.get("client_names") or []
    estimated = run.truth.get("estimate_client_level")
    ends: Any = [run.truth.get(f"estimate_client_level_{end}") for end in ("low", "high")]
    ends = None if estimated is None or any(end is None for end in ends) else ends
    estimated = evaluation.first_levels(run) if estimated is None else estimated
    judged = run.truth.get("estimate_judged", np.ones(len(sizes), bool))
    true = None
    if "true" in run.labels:
        true = client_levels(run.labels["given"], run.labels["true"], run.client_offsets, run.client_indices)
    ranked = estimated if true is None else true
    if ranked is None:
        return []
    order = np.argsort(-np.asarray(ranked), kind="stable")[:CLIENTS]
    return [
        {
            "client": plain(names[k]) if names else str(k),
            "samples": int(sizes[k]),
            "true": None if true is None else float(true[k]),
            "estimated": None if estimated is None or not judged[k] else float(estimated[k]),
            "range": None if ends is None or not judged[k] else [float(end[k]) for end in ends],
        }
        for k in order
    ]


def suspects(run: Run, dataset: Dataset, most: int = SAMPLES) -> dict[str, object]:
    """List samples with probably wrong labels, most certain first.

    These are the samples that training relabeled or that an estimator flagged.
    """
    held, given, labels = run.client_indices, run.labels["given"], run.labels["corrected"]
    score, flagged = run.truth.get("estimate_issue_score"), run.truth.get("estimate_flagged")
    if not (labels[held] != given[held]).any() and flagged is not None:
        labels = np.where(flagged, run.truth["estimate_suggested_label"], given)
    chosen = held[labels[held] != given[held]]
    if score is not None:
        chosen = chosen[np.argsort(-np.asarray(score)[chosen], kind="stable")]
    names = list(map(plain, class_names(run.meta, run.meta["classes"])))
    sure, lines = run.truth.get("estimate_confidence"), []
    for position in chosen[:most].tolist():
        line = {"sample": position, "given": _class(names, given[position]), "suggested": _class(names, labels[position])}
        line["true"] = _class(names, run.labels["true"][position]) if "true" in run.labels else None
        line["right"] = None if "true" not in run.labels else bool(labels[position] == run.labels["true"][position])
        line["confidence"] = None if sure is None else float(sure[position])
        lines.append(line | {"picture": _picture(dataset, position)})
    return {"samples": lines, "all": len(chosen)}


def _class(names, label):
    return names[label] if label >= 0 else "no class"


def _picture(dataset, position):
    if dataset is None or dataset.kind != "image":
        return None

    return thumbnail(np.asarray(dataset.x_train[position]))


def describe_replies(run: Run) -> list[dict[str, object]]:
    """Describe each reply: name, description, total bytes and mean bytes per client."""
    from fnlkit.experiment.bound_method import BoundMethod
    from fnlkit.federated.client.measuring import TRAINING

    declarations = dict(TRAINING)
    try:
        declarations |= BoundMethod.of(run.settings["method"]).sends
    except InputError:  # a report does not import a method from a user's file
        pass
    rows = []
    for name, count in run.traffic.sent.items():
        declared = declarations.get(name)
        rows.append((name, "; ".join(filter(None, (declared.what, declared.when))) if declared else "", count))
    members = len(run.client_offsets) - 1
    return [{"reply": plain(name), "what": what, "bytes": count, "each": count / members} for name, what, count in rows]


def commands(run: Run) -> list[str]:
    """Write the commands that reproduce a run, without settings at their defaults."""
    from fnlkit.experiment import Settings

    defaults = {field.name: field.default for field in fields(Settings)}
    lines = []
    for step in run.meta.get("provenance", []):
        parameters = dict(step.get("parameters") or {})
        if step.get("seed") is not None:
            parameters["seed"] = step["seed"]
        known = defaults | {"engine": "auto", "device": "auto"} if step["command"] in ("train", "flower-app") else {}
        words = ["fnlkit", *str(step["command"]).split()]
        for name, value in parameters.items():
            if value in (None, False, OWN_VOTES) or (name in known and known[name] == value) or name == "samples":
                continue
            option = [] if name in _FILES else [f"--{name.replace('_', '-')}"]
            words += option if value is True else [*option, str(value)]
        lines.append(plain(shlex.join(words)))
    return lines


def page(shown: Mapping[str, object]) -> str:
    """Write facts as a self-contained HTML page. All texts from files are escaped."""
    text = resources.files("fnlkit.data").joinpath("report.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(text)
    return template.render(facts=shown)
