"""Files of an audit by mail: a site with the agreed project, its record and ledger, and the check of received files."""

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.artifacts import files
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.paths import display_path
from fnlkit.artifacts.provenance import provenance, with_record
from fnlkit.audits import private, shifts, summaries
from fnlkit.client.client import Client
from fnlkit.client.inputs import Inputs, intake
from fnlkit.datasets import columns as tables
from fnlkit.errors import InputError
from fnlkit.sites import handover, labels, leaving, scale
from fnlkit.sites.agreement import FREE, config_of, load_for_task
from fnlkit.sites.releases import Withheld
from fnlkit.sites.terms import read_config

if TYPE_CHECKING:
    from typing import NoReturn

    from fnlkit.artifacts.files import Artifact
    from fnlkit.audits.shifts import Change


SUMS, HEADS, JUDGED = "fnlkit.sums/1", "fnlkit.heads/1", "fnlkit.judged/1"
LEDGER = "left.jsonl"
FEATURES = 3  # version of the features in fnlkit.audits.summaries and fnlkit.audits.private
_MAX_BYTES = 2**26
_ABOUT = ("project", "features", "kind", "shape", "classes", "columns", "sites", "most", "scale", "seed")
# Types of the entries that are read before all files agree.
_KINDS = {"site": str, "sites": list, "classes": list, "scale": list, "shape": list, "most": int}
_FIRST = {"counts", "withheld", "observations", "width", "sums", "moments", "columns", "class_columns"}
_SECOND = {f"{name}{end}" for name in summaries.TABLES for end in ("", "_wrong")}
_SECOND |= {"chosen", "supported", "certain", "class_means", "covariances", "low", "high"}
# Arrays of the files with noise.
_NOISY_FIRST, _NOISY_SECOND = {"counts", "sums", "moments"}, {"agreement", "predicted"}


class Refused(Withheld):
    """Error: a site refuses to answer a message."""

    code = "release"


@dataclass
class Site:
    """A site with its samples and the agreed project.

    Attributes
    ----------
    client : fnlkit.client.client.Client
    federation : fnlkit.artifacts.federation.Federation
        The site's samples, see `fnlkit.sites.labels.labels_of`.
    about : dict
        The entries that all files of an audit share.
    name, memory : str
    number : int
        Client number of the project.
    budget : (float, float), optional
        Epsilon and delta of all sums that the site agreed to send. None if it agreed to send sums without noise.
    """

    client: Client
    federation: Federation
    about: dict[str, Any]
    name: str
    memory: str
    number: int
    budget: tuple[float, float] | None = None

    @property
    def scale(self) -> tuple[Any, Any] | None:
        """(mean (d,), std (d,)) of the columns of a table, or None."""
        mean, std = map(np.array, self.about["scale"])
        return (mean, std) if len(mean) else None

    @property
    def changes(self) -> "list[Change]":
        return shifts.possible(self.about["kind"], self.about["shape"])


# ---- at the site
def open_site(text: str, project: str, *, name: str = "", scaled: str | None = None, leave_out: str = "") -> Site:
    """Return the Site of a data set.

    Parameters
    ----------
    text : str
        The data, as for `fnlkit.sites.agreement.samples_like`.
    project : str
        The folder that the coordinator sent, or the project's pyproject.toml.
    name : str
        Name of the site, if `project` is a file.
    scaled : str, optional
        Result of the task scale, if the project takes the scale from the sites.
    leave_out : str
        As for `fnlkit.sites.agreement.load_for_task`.

    Raises
    ------
    InputError
    """
    site = handover.locate_site(project, name)
    name, memory, leave_out = site["name"], site["memory"], leave_out or site["leave_out"]
    config = config_of(site["agreed"])
    _, task = read_config(config | {"scale": _scale_text(scaled)})
    if task.scaling == "sites" and not task.has_scale:
        raise InputError("`scale`: this project takes the scale from the sites; give the scale.json of the coordinator "
                         "(`fnlkit sites run DIR --task scale`)")  # fmt: skip
    data = load_for_task(text, task, leave_out=leave_out, memory=memory)
    federation = labels.labels_of(memory, data, name)
    x, _, _, image = intake(data)
    held = federation.client_indices
    given = torch.from_numpy(np.asarray(federation.given, np.int64)[held])
    number = task.names.index(name)
    x = torch.from_numpy(np.ascontiguousarray(x[held]))
    rows = {} if data.groups is None else {"input/group": torch.from_numpy(data.groups[held])}
    client = Client(number, x, given.clone(), given, len(task.classes), Inputs(image), rows=rows)
    column = task.kind == "vector" and not task.backbone and len(task.mean) > 0
    rounded = summaries.scale_of(task.mean, task.std) if column else (np.zeros(0), np.zeros(0))
    fixed = {key: config[key] for key in sorted(config) if key not in (*FREE, "keys")}
    about = {
        "project": hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest(),
        "features": FEATURES,
        "kind": task.kind,
        "shape": list(map(int, task.shape)),
        "classes": list(task.classes),
        "columns": tables.features(task.columns) if task.columns else None,
        "sites": list(task.names),
        "most": int(task.most),
        "scale": [values.tolist() for values in rounded],
        "seed": int(config.get("seed", 0)),
    }
    return Site(client, federation, about, name, memory, number, _budget_of(config, task, site["agreed"]))


def _budget_of(config, task, path):
    """Return the agreed (epsilon, delta) of a project's sums; None if they have no noise."""
    values = tuple(config.get(name) for name in ("sums_epsilon", "sums_delta"))
    if values == (None, None):
        return None
    try:
        epsilon, delta = map(float, values)
        private.sigma_of(epsilon, delta)
    except (TypeError, ValueError):
        raise InputError(f"agreed {display_path(path)}: sums_epsilon and sums_delta are no pair of numbers; write the project "
                         "again with `fnlkit flower-app --sums-epsilon`") from None  # fmt: skip
    if task.scaling == "sites":
        raise InputError(f"agreed {display_path(path)}: the scale from the sites (task scale) has no noise, and the sums must "
                         "have some; write the project without `scale='sites'`")  # fmt: skip
    return epsilon, delta


def _scale_text(path):
    if path is None:
        return ""
    try:
        found = json.loads(files.read_text(path))
        if found["task"] == scale.TASK and isinstance(found["scale"], str):
            return found["scale"]
    except (ValueError, KeyError, TypeError):
        pass
    raise InputError(f"`scale` {display_path(path)}: is no result of `fnlkit sites run DIR --task scale`")


def make_artifact(kind: str, arrays: dict[str, np.ndarray], site: Site, command: str, **more) -> "Artifact":
    meta = site.about | {"site": site.name} | more
    return files.Artifact(kind, {name: np.asarray(values) for name, values in arrays.items()},
                          with_record(meta, provenance(command)))  # fmt: skip


def find_common_entries(artifact: "Artifact") -> tuple[Any, ...]:
    """Return the names of the entries that all files of an audit share; files with noise have more entries."""
    return (*_ABOUT, *(name for name in ("epsilon", "delta") if name in artifact.meta))


def digest_of(artifact: "Artifact") -> str:
    """Return a SHA-256 over the arrays and the entries that files of an audit share."""
    total = hashlib.sha256(
        json.dumps(
            [artifact.kind, {name: artifact.meta.get(name) for name in (*find_common_entries(artifact), "site")}]
        ).encode()
    )
    for name in sorted(artifact.arrays):
        values = np.ascontiguousarray(artifact.arrays[name])
        total.update(f"{name} {values.dtype} {values.shape}".encode())
        total.update(values.tobytes())
    return total.hexdigest()


def enter(site: Site, arrays: dict[str, np.ndarray], run: str) -> None:
    sent = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
    said = {"replies": [[site.number, sent]]}
    leaving.enter(os.path.join(site.memory, LEDGER), run=run, round=None, said=said)


def refuse(site: Site, reason: str) -> "NoReturn":
    """Enter a refusal in the ledger and raise it."""
    said = {"failure": [Refused.code, Refused.__name__], "refused": reason}
    leaving.enter(os.path.join(site.memory, LEDGER), run="mail", round=None, said=said)
    raise Refused(reason)


# ---- received files
def read_mail_file(path: str | os.PathLike[str], *kinds) -> "Artifact":
    found = files.read(path, kinds=[kind.rpartition("/")[0] for kind in kinds], max_bytes=_MAX_BYTES)
    noisy = "epsilon" in found.meta
    needed = {SUMS: _NOISY_FIRST if noisy else _FIRST, JUDGED: _NOISY_SECOND if noisy else _SECOND}.get(found.kind)
    if needed and set(found.arrays) != needed:
        odd = sorted(set(found.arrays) ^ needed)[0]
        raise InputError(
            f"{display_path(path)}: {'lacks' if odd in needed else 'has an unknown array'} {odd}; write the file again"
        )
    for name, values in found.arrays.items():
        kinds = "i" if name in summaries.COUNTS and not noisy else "bif"
        if values.dtype.kind not in kinds or not np.isfinite(values).all():
            raise InputError(f"{display_path(path)}: {name} contains NaN, infinity or no numbers; write the file again")
    for name in (*find_common_entries(found), *(("delta",) if noisy else ()), *(("site",) if needed else ())):
        if name not in found.meta:
            raise InputError(f"{display_path(path)}: lacks the entry {name}; write the file again")
    for name, kind in _KINDS.items():
        if not isinstance(found.meta.get(name, kind()), kind):
            raise InputError(
                f"{display_path(path)}: the entry {name} is {type(found.meta[name]).__name__}; write the file again"
            )
    if noisy:
        _must_have_budget(found, path)
    return found


def _must_have_budget(found, path):
    values = found.meta["epsilon"], found.meta["delta"]
    try:
        if any(type(value) is not float for value in values):
            raise InputError("no number")
        private.sigma_of(*values)
    except InputError as error:
        raise InputError(f"{display_path(path)}: epsilon and delta are unusable ({error}); write the file again") from None


def must_agree(found: "Artifact", about: dict[str, Any], path: str | os.PathLike[str], other: str) -> None:
    """Raise InputError if an entry that all files share differs from the entry of another file."""
    words = {"project": "another project", "features": "another version of the features", "classes": "other classes",
             "scale": "another scale"}  # fmt: skip
    # The project covers the other entries: name the narrower difference.
    for name in ("epsilon", "delta", *(name for name in _ABOUT if name != "project"), "project"):
        if found.meta.get(name) != about.get(name):
            what = words.get(name, f"another {name}")
            raise InputError(f"{display_path(path)}: has {what} than {other}; all sites need the same project file")


def read_all(paths: Iterable[str]) -> "tuple[dict[str, Artifact], dict[str, Artifact], dict[str, Any]]":
    """Return ({site: first file}, {site: second file}, shared entries) of files of sites, in the order of the project.

    Raises
    ------
    InputError
        If a file does not fit the others, occurs twice, or has sums that no data have.
    """
    found: dict[str, dict[str, Artifact]] = {SUMS: {}, JUDGED: {}}
    about: dict[str, Any] = {}
    first_path = ""
    for path in paths:
        one = read_mail_file(path, SUMS, JUDGED)
        if not about:
            about, first_path = {name: one.meta[name] for name in find_common_entries(one)}, path
        must_agree(one, about, path, display_path(first_path))
        name = one.meta["site"]
        if name not in about["sites"]:
            raise InputError(f"{display_path(path)}: {str(name)[:40]!r} is no site of the project")
        if name in found[one.kind]:
            which = "first" if one.kind == SUMS else "second"
            raise InputError(f"{display_path(path)}: is another {which} file of {name}; name one of both")
        if one.kind == SUMS and (reason := _impossible(one.arrays, about)):
            raise InputError(f"{display_path(path)}: {reason}; {name} has to write the file again")
        found[one.kind][name] = one
    order = [{name: files_of[name] for name in about["sites"] if name in files_of} for files_of in found.values()]
    if len(order[0]) < 3:
        raise InputError(f"an audit from sums needs the first files of at least 3 sites, found {len(order[0])}")
    if "epsilon" in about:
        alike = ("sums",), ()
    else:
        alike = ("width", "columns", "class_columns"), ("class_means", "covariances")
    for parts, names in zip(order, alike, strict=True):
        if len({tuple(one.arrays[name].shape for name in names) for one in parts.values()}) > 1:
            raise InputError(
                f"the files have different shapes of {', '.join(names)}; all sites need the same version of fnlkit"
            )
    return order[0], order[1], about


def _impossible(arrays, about):
    """Return why no data can have the sums of a first file, as a text; "" if some can."""
    if "epsilon" in about:
        terms = {name: about[name] for name in ("epsilon", "delta")}
        return private.impossible(arrays, len(about["classes"]), about["most"], **terms)
    return summaries.impossible(arrays, len(about["classes"]), about["most"])
