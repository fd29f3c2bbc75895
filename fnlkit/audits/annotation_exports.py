"""Read exports of Label Studio (JSON, JSON-MIN) and CVAT (XML): the labels that people gave to samples.

Label Studio: https://labelstud.io/guide/task_format.html; JSON-MIN and CSV are written by its converter
(https://github.com/HumanSignal/label-studio-converter), which leaves out canceled annotations.  CVAT: the format `CVAT for
images 1.1`, https://docs.cvat.ai/docs/manual/advanced/xml_format/, whose `meta` holds a task, a job or a project.
"""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.names import class_names
from fnlkit.artifacts.paths import display_path
from fnlkit.audits.answers import Answers, answers_of, labels_of
from fnlkit.audits.decisions import Decisions
from fnlkit.audits.suspects import find_reviewed
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.labels import class_finder
from fnlkit.datasets.table import Table

EXPORTS = (".json", ".xml")
# CVAT adds a number to the name of an image that another task of the project has, too.
_RENAMED = re.compile(r"^(.*)_\d+(\.[^.]*)$")


def is_export(path: str) -> bool:
    """Whether a path is an export of an annotation tool and not a table."""
    return str(path).lower().endswith(EXPORTS)


def read_answers(text: str, federation: Federation, source: str) -> Answers:
    """Read the Answers in the text of an export; predictions of models are left out.

    Parameters
    ----------
    text : str
        JSON or JSON-MIN of Label Studio with choices, or XML of CVAT ("CVAT for images") with tags.
    federation : fnlkit.artifacts.federation.Federation
    source : str
        Name of the file in messages.

    Raises
    ------
    InputError
        If the format is unknown.
    """
    shown = display_path(source)
    return _label_studio(text, shown) if source.lower().endswith(".json") else _cvat(text, shown, federation)


def read_annotations(
    text: str,
    federation: Federation,
    source: str,
    *,
    control: str | None = None,
    sample_column: str | None = None,
    say: Callable[[str], object] | None = None,
) -> list[Decisions]:
    """Read a list of Decisions, one for each client with labeled samples.

    All samples of the export are treated as suspicious samples.  They are not a random sample, so the share of wrong labels
    among the other samples remains unknown.

    Parameters
    ----------
    text, source
        As for `read_answers`.
    federation : fnlkit.artifacts.federation.Federation
    control, sample_column : str, optional
        As for fnlkit.audits.answers.labels_of.
    say : callable(str), optional
        Receives notes on what was left out.

    Raises
    ------
    InputError
        If the format or a class is unknown, or if a sample is not in the federation or has two different labels.
    """
    answers = read_answers(text, federation, source)
    for note in answers.notes:
        if say is not None:
            say(note)
    newest = labels_of(answers, federation, control=control, sample_column=sample_column)
    labels: dict[int, int] = {}
    who: dict[int, set[str]] = {}
    for position, label, reviewer in zip(newest.positions.tolist(), newest.labels.tolist(), newest.annotators, strict=True):
        if labels.setdefault(position, label) != label:
            sample = federation.ids_of([position])[0]
            raise InputError(f"{source}: sample {sample} has two different labels; combine votes with `fnlkit consensus`")
        who.setdefault(position, set()).add(reviewer)
    digest, seen = hashlib.sha256(text.encode()).hexdigest(), find_reviewed(federation)
    decisions = []
    positions = np.array(list(labels), np.int64)
    for client, held in enumerate(federation.whole().clients):
        mine = positions[np.isin(positions, held)]
        if len(mine):
            people = sorted({name for position in mine.tolist() for name in who[position]} - {""})
            others = np.setdiff1d(np.asarray(held)[~seen[np.asarray(held)]], mine)
            chosen = np.array([labels[position] for position in mine.tolist()], np.int64)
            all_of = np.ones(len(mine), bool)
            empty = np.zeros(0, np.int64)
            decisions.append(Decisions(client, mine, chosen, all_of, people, digest, empty, mine, all_of, (mine, others)))
    if sum(len(table.positions) for table in decisions) < len(labels):
        raise InputError(f"{source}: a labeled sample belongs to no client of the federation")
    return decisions


def _label_studio(text, source):
    try:
        tasks = json.loads(text)
        if isinstance(tasks, list) and tasks and all("annotations" not in task and "annotator" in task for task in tasks):
            return _label_studio_min(tasks, source)
        return _label_studio_tasks(tasks, source)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{source}: expected an export of Label Studio as JSON, tasks with `data` and choices in `annotations`, or as "
            f"JSON-MIN ({error})"
        ) from None


def _label_studio_tasks(tasks, source):
    """Read the Answers of tasks with `data` and `annotations`; canceled annotations are left out."""
    rows: list[tuple[int, dict[str, str], dict[str, str], str, str]] = []
    canceled = predicted = unlabeled = 0
    for number, task in enumerate(tasks, 1):
        data = {str(name): str(value) for name, value in task["data"].items() if type(value) in (str, int, float)}
        made = task["annotations"]
        predicted += bool(task.get("predictions"))
        unlabeled += not made
        for annotation in made:
            if annotation.get("was_cancelled"):
                canceled += 1
                continue
            by = annotation.get("completed_by", "")
            by = by.get("email", by.get("id", "")) if isinstance(by, dict) else by
            answers: dict[str, str] = {}
            for result in annotation["result"]:
                if result.get("type") == "choices":
                    name, choices = str(result["from_name"]), list(map(str, result["value"]["choices"]))
                    before = [answers[name]] if name in answers else []
                    answers[name] = _one([*before, *choices])
            rows.append((number, data, answers, "" if by is None else str(by), str(annotation.get("updated_at") or "")))
    columns = list(dict.fromkeys(name for row in rows for name in row[1]))
    controls = list(dict.fromkeys(name for row in rows for name in row[2]))
    notes = [
        (canceled, "canceled annotations"),
        (unlabeled, "unlabeled tasks"),
        (predicted, "tasks with predictions of models"),
    ]

    def fail(some, message):
        raise InputError(f"{source}, task {rows[some[0]][0]}: {message}")

    return Answers(
        source=source,
        columns={name: [row[1].get(name, "") for row in rows] for name in columns},
        controls={name: [row[2].get(name, "").strip() for row in rows] for name in controls} or {"choice": [""] * len(rows)},
        annotators=[row[3] for row in rows],
        updated=[row[4] for row in rows],
        fail=fail,
        notes=[f"{count:,} {kind} are no votes" for count, kind in notes if count],
    )


def _one(choices):
    """Read the only choice, or several choices as JSON, which is no class."""
    return choices[0] if len(choices) == 1 else json.dumps({"choices": choices}) if choices else ""


def _label_studio_min(tasks, source):
    """Read the Answers of JSON-MIN, a record per annotation; its `id` is always the number of the task in Label Studio."""
    names = list(dict.fromkeys(name for task in tasks for name in task if name != "id"))

    def cell(value):
        if isinstance(value, (dict, list)):
            return json.dumps(value)
        return "" if value is None else str(value)

    columns = {name: [cell(task.get(name)) for task in tasks] for name in names}
    answers = answers_of(Table(source, columns, list(range(1, len(tasks) + 1))))
    answers.columns["id"], answers.tools = [cell(task.get("id")) for task in tasks], ("id",)
    return answers


def _cvat(text, source, federation):
    """Read the Answers of images with tags: the question `label`, and a question for each attribute of tags."""
    from xml.etree import ElementTree

    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InputError(f"{source}: contains a document type, which CVAT does not write")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise InputError(f"{source}: is not XML ({error})") from None
    images = root.findall("image")
    if root.tag != "annotations" or not images:
        raise InputError(f"{source}: expected an export `CVAT for images`: <annotations> with <image>")
    by, of_task = _assignees(root)
    _refuse_renamed(images, source)
    class_of = class_finder(class_names(federation.meta, federation.classes))
    rows: list[tuple[str, str, dict[str, list[str]]]] = []
    automatic = 0
    for image in images:
        answers: dict[str, list[str]] = {}
        for tag in image.findall("tag"):
            if tag.get("source") == "auto":
                automatic += 1
                continue
            answers.setdefault("label", []).append(tag.get("label", "").strip())
            for attribute in tag.findall("attribute"):
                answers.setdefault(attribute.get("name", ""), []).append((attribute.text or "").strip())
        rows.append((image.get("name", ""), of_task.get(image.get("task_id", ""), by), answers))
    # Labels beside a class, such as "sure", answer another question.
    beside = {
        word
        for _, _, answers in rows
        if any(class_of(word) is not None for word in answers.get("label", ()))
        for word in answers["label"]
        if class_of(word) is None
    }
    for _, _, answers in rows:
        if "label" in answers:
            answers["label"] = [word for word in answers["label"] if word not in beside]

    def fail(some, message):
        raise InputError(f"{source}, image {rows[some[0]][0][:80]!r}: {message}")

    controls = list(dict.fromkeys(["label", *(name for row in rows for name in row[2])]))
    notes = [f"{automatic:,} tags of models are no votes"] if automatic else []
    notes += [f"labels that are no classes were left out: {list_names(sorted(beside), quote=True)}"] if beside else []
    return Answers(
        source=source,
        columns={"name": [name for name, _, _ in rows]},
        controls={name: [_one(sorted(set(row[2].get(name, ())))) for row in rows] for name in controls},
        annotators=[who for _, who, _ in rows],
        updated=[""] * len(rows),
        fail=fail,
        notes=notes,
    )


def _assignees(root):
    """Read (assignee of the export, {task: assignee} of a project)."""

    def name(element: Any) -> str:
        return (element.findtext("assignee/username", element.findtext("assignee", "")) or "").strip()

    names = [name(element) for place in ("meta/job", "meta/task", "meta/project") for element in root.findall(place)]
    tasks = {element.findtext("id", ""): name(element) for element in root.findall("meta/project/tasks/task")}
    return next((each for each in names if each), ""), {task: who for task, who in tasks.items() if who}


def _refuse_renamed(images, source):
    """Raise InputError if CVAT may have renamed an image: in a project, ``a_1.png`` can be the ``a.png`` of another task."""
    task_of = {(image.get("subset"), image.get("name", "")): image.get("task_id") for image in images}
    for (subset, name), task in task_of.items():
        same = _RENAMED.match(name)
        first = task_of.get((subset, "".join(same.groups()))) if same else None
        if first is not None and first != task:
            raise InputError(
                f"{source}: {name[:80]!r} can be {''.join(same.groups())[:80]!r} of another task, because CVAT renames images "
                "of a project; export each task on its own"
            )
