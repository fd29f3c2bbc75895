"""Read decisions from exports of Label Studio (JSON) and CVAT (XML); samples are found by id or path."""

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

from fnlkit.errors import InputError
from fnlkit.review.decisions import Decisions
from fnlkit.review.suspects import find_reviewed

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation
    from fnlkit.datasets.dataset import Dataset


# Label Studio puts this before the names of uploaded files.
_UPLOADED = re.compile(r"^[0-9a-f]{8}-")
# Entries of a Label Studio task that identify the sample; the first one that the task has decides.
KEYS = ("sample_id", "sample_path", "id")
LONGEST = 4096  # characters of a path


def is_export(path: str) -> bool:
    """Return whether a path is an export of an annotation tool and not a table of decisions."""
    return str(path).lower().endswith((".json", ".xml"))


def read_annotations(text: str, federation: "Federation", dataset: "Dataset", source: str) -> list[Decisions]:
    """Return a list of Decisions, one for each client with labeled samples.

    All samples of the export are treated as suspicious samples.  They are not a random sample, so the share of wrong labels
    among the other samples remains unknown.

    Parameters
    ----------
    text : str
        JSON of Label Studio with one choice per task, or XML of CVAT ("CVAT for images") with one tag per image.
    federation : fnlkit.artifacts.federation.Federation
    dataset : fnlkit.datasets.Dataset
    source : str
        Name of the file in messages.

    Raises
    ------
    InputError
        If the format or a class is unknown, if a task or an id names two samples, or if a sample is not in the federation or
        has two different labels.
    """
    rows = _label_studio(text, source) if source.lower().endswith(".json") else _cvat(text, source)
    names = {str(name).strip(): c for c, name in enumerate(dataset.class_names)}
    find = _finder(federation, source)
    labels: dict[Any, Any] = {}
    who: dict[Any, Any] = {}
    for values, label, reviewer in rows:
        found = {position for value in values if (position := find(value)) is not None}
        if len(found) > 1:
            both = " and ".join(repr(each[:40]) for each in federation.ids_of(sorted(found)[:2]))
            raise InputError(f"{source}: a task names the samples {both}; add the entry sample_id to the data of each task")
        position = found.pop() if found else None
        if position is None:
            raise InputError(
                f"{source}: {(values or ['a task'])[0][:80]!r} is not a sample of the federation; expected an id or a path"
            )
        if label not in names:
            raise InputError(f"{source}: label {label!r} is not a class; the classes are {', '.join(list(names)[:12])}")
        if labels.setdefault(position, names[label]) != names[label]:
            sample = federation.ids_of([position])[0]
            raise InputError(f"{source}: sample {sample} has two different labels; combine votes with `fnlkit consensus`")
        who.setdefault(position, set()).add(reviewer)
    digest, seen, out = hashlib.sha256(text.encode()).hexdigest(), find_reviewed(federation), []
    positions = np.array(list(labels), np.int64)
    for client, held in enumerate(federation.whole().clients):
        mine = positions[np.isin(positions, held)]
        if len(mine):
            people = sorted({name for position in mine.tolist() for name in who[position]} - {""})
            others = np.setdiff1d(np.asarray(held)[~seen[np.asarray(held)]], mine)
            chosen = np.array([labels[position] for position in mine.tolist()], np.int64)
            all_of = np.ones(len(mine), bool)
            empty = np.zeros(0, np.int64)
            out.append(Decisions(client, mine, chosen, all_of, people, digest, empty, mine, all_of, (mine, others)))
    if sum(len(one.positions) for one in out) < len(labels):
        raise InputError(f"{source}: a labeled sample belongs to no client of the federation")
    return out


def _finder(federation, source):
    """Return a function from a text to the position of the sample with this id or path, or None.

    The function raises InputError if several samples have this id or path.
    """
    known, short = {}, {}
    texts = [federation.ids_of(np.arange(len(federation.given)))]
    paths = federation.extra.get("sample_path")
    texts += [] if paths is None else [list(map(str, paths))]
    for column in texts:
        for position, text in enumerate(column):
            known.setdefault(text, set()).add(position)
            short.setdefault(text.rsplit("/", 1)[-1], set()).add(position)

    def find(value: str) -> int | None:
        if len(value) > LONGEST:
            return None
        value = unquote(value).replace("\\", "/")
        try:
            parts = urlsplit(value)
        except ValueError:
            return None
        value = parse_qs(parts.query).get("d", [parts.path])[0] if parts.query else value
        pieces = value.split("/")
        for start in range(len(pieces)):
            found = known.get("/".join(pieces[start:]), ())
            if len(found) > 1:
                raise InputError(f"{source}: {value[:80]!r} is the id or path of {len(found)} samples; name one by a unique id")
            if found:
                return next(iter(found))
        for name in (pieces[-1], _UPLOADED.sub("", pieces[-1])):
            if len(short.get(name, ())) == 1:
                return next(iter(short[name]))
        return None

    return find


def _label_studio(text, source):
    """Yield (texts that can name the sample, chosen class, reviewer) of tasks with a choice.

    Without an entry of `KEYS`, all texts of the data are candidates, except numbers: numbers of a column could equal the id of
    another sample.
    """
    try:
        tasks = json.loads(text)
        for task in tasks:
            key = next((key for key in KEYS if key in task["data"]), None)
            values = [task["data"][key]] if key else [v for v in task["data"].values() if not str(v).strip().isdecimal()]
            values = [str(value) for value in values if type(value) in (str, int)]
            for made in task["annotations"]:
                if made.get("was_cancelled"):
                    continue
                by = made.get("completed_by", "")
                by = by.get("email", by.get("id", "")) if isinstance(by, dict) else by
                for result in made["result"]:
                    if result.get("type") == "choices":
                        (label,) = result["value"]["choices"]
                        yield values, str(label).strip(), str(by)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"{source}: expected an export of Label Studio as JSON, tasks with `data` and one choice in `annotations` ({error})"
        ) from None


def _cvat(text, source):
    """Yield (name of the image, tag, reviewer) of images with a tag."""
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
    by = root.findtext("meta/task/assignee/username", root.findtext("meta/task/assignee", "")) or ""
    for image in images:
        for tag in image.findall("tag"):
            yield [image.get("name", "")], tag.get("label", "").strip(), by.strip()
