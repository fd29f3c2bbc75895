"""Audit by two files per site: `fnlkit site summarize`, `fnlkit sites audit`, `fnlkit site judge`, `fnlkit sites audit`.

A site reads the message of the coordinator as one of somebody else: it answers one message per project, and only if the message
was made with the site's own first file.  Both files and each refusal are entered in the site's ledger.
"""

import hashlib
import json
import os
from dataclasses import dataclass

import numpy as np
import torch

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.names import REAL_SITES
from fnlkit.artifacts.paths import shown
from fnlkit.artifacts.provenance import provenance, with_record
from fnlkit.client.client import Client
from fnlkit.client.inputs import Inputs, intake
from fnlkit.datasets import columns as tables
from fnlkit.deploy import handover, labels, leaving, scale
from fnlkit.deploy.agreement import FREE, config_of, conformed
from fnlkit.deploy.releases import Withheld
from fnlkit.deploy.terms import read_config
from fnlkit.errors import InputError
from fnlkit.review import quick, report, shifts, summaries
from fnlkit.review.shifts import LEAST

SUMS, HEADS, JUDGED = "fnlkit.sums/1", "fnlkit.heads/1", "fnlkit.judged/1"
RECORD, LEDGER = "mail.json", "left.jsonl"
FEATURES = 1  # version of fnlkit.review.summaries.features
_MAX_BYTES = 2**26
_ABOUT = ("project", "features", "kind", "shape", "classes", "columns", "sites", "most", "scale", "seed")
_FIRST = {"counts", "withheld", "width", "sums", "moments", "columns", "class_columns"}
_SECOND = {f"{name}{end}" for name in ("predicted", "within", "expected", "doubted") for end in ("", "_rest")}
_SECOND |= {"chosen", "supported", "certain", "class_means", "covariances", "level", "low", "high", "deviation"}


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
        The site's samples, see `fnlkit.deploy.labels.labels_of`.
    about : dict
        The entries that all files of an audit share.
    name, memory : str
    number : int
        Client number of the project.
    """

    client: Client
    federation: object
    about: dict
    name: str
    memory: str
    number: int

    @property
    def scale(self):
        """(mean (d,), std (d,)) of the columns of a table, or None."""
        mean, std = map(np.array, self.about["scale"])
        return (mean, std) if len(mean) else None

    @property
    def changes(self):
        return shifts.possible(self.about["kind"], self.about["shape"])


# ---- at the site
def open_site(text, project, *, name="", scaled=None, leave_out=""):
    """Return the Site of a data set.

    Parameters
    ----------
    text : str
        The data, as for `fnlkit.deploy.agreement.samples_like`.
    project : str
        The folder that the coordinator sent, or the project's pyproject.toml.
    name : str
        Name of the site, if `project` is a file.
    scaled : str, optional
        Result of the task scale, if the project takes the scale from the sites.
    leave_out : str
        As for `fnlkit.deploy.agreement.conformed`.

    Raises
    ------
    InputError
    """
    site = handover.locate_site(project, name)
    name, memory, leave_out = site["name"], site["memory"], leave_out or site["leave_out"]
    config = config_of(site["agreed"])
    _, task = read_config(config | {"scale": _scale_text(scaled)})
    if task.scaling == "sites" and not task.has_scale:
        raise InputError("--scale: this project takes the scale from the sites; give the scale.json of the coordinator "
                         "(`fnlkit sites run DIR --task scale`)")  # fmt: skip
    data = conformed(text, task, leave_out=leave_out, memory=memory)
    federation = labels.labels_of(memory, data, name)
    x, _, _, image = intake(data)
    held = federation.client_indices
    given = torch.from_numpy(np.asarray(federation.given, np.int64)[held])
    number = task.names.index(name)
    x = torch.from_numpy(np.ascontiguousarray(x[held]))
    client = Client(number, x, given.clone(), given, len(task.classes), Inputs(image))
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
    return Site(client, federation, about, name, memory, number)


def _scale_text(path):
    if path is None:
        return ""
    try:
        found = json.loads(files.read_text(path))
        if found["task"] == scale.TASK and isinstance(found["scale"], str):
            return found["scale"]
    except (ValueError, KeyError, TypeError):
        pass
    raise InputError(f"--scale {shown(path)}: is no result of `fnlkit sites run DIR --task scale`")


def summarize(site):
    """Return (Artifact, lines of text) of a site's first file, and enter it in the ledger.

    Raises
    ------
    InputError
        If a first file of other data was written before: the difference of two files reveals the changed samples.
    """
    try:
        arrays = summaries.summarize(site.client, site.scale)
    except InputError as error:
        raise InputError(f"{site.name}: {error}") from None
    artifact = _artifact(SUMS, arrays, site, "site summarize")
    known, digest = _record(site), _digest(artifact)
    if known.get("first", digest) != digest:
        _refuse(
            site,
            "a first file of other data was written before, and the difference of both can reveal samples; restore the data, "
            "or agree on a new project",
        )
    if "first" not in known:
        _enter(site, arrays, digest)
        _keep(site, {"first": digest})
    return artifact, list(contents(artifact))


def contents(artifact):
    """Yield lines that state the contents of a first file."""
    arrays, about = artifact.arrays, artifact.meta
    counts, size = arrays["counts"], arrays["sums"].shape[1]
    yield f"First file of {about['site']} for an audit from sums. It contains only:"
    held = ", ".join(f"{name} {count}" for name, count in zip(about["classes"], counts.tolist(), strict=True) if count)
    yield f"- numbers of samples: {held}"
    left = [name for name, out in zip(about["classes"], arrays["withheld"].tolist(), strict=True) if out]
    if left:
        yield f"- names of classes with fewer than {LEAST} samples: {', '.join(left)}; they enter no number of the file"
    if size:
        yield f"- for each of these classes the sum of {size} features (projections of the clipped samples)"
        most = f"{counts.sum()} samples allow {size} of {arrays['width']}"
        yield f"- second moments of these {size} features over all classes; {most}"
    else:
        yield f"- no class sums and no second moments, which need {summaries.PER_FEATURE * summaries.SIZES[0]} samples"
    described = "all pixels" if about["kind"] == "image" else f"each of {arrays['columns'].shape[1]} columns"
    yield f"- mean, standard deviation, 10, 50 and 90 % quantile of {described}"
    if arrays["class_columns"].size:
        yield "- mean and standard deviation of each column for each of these classes"
    yield "It contains no sample, no label of a sample, and no path. Whoever knows all samples but one can compute this one."
    yield f"{sum(values.nbytes for values in arrays.values()):,} bytes of numbers, SHA-256 {_digest(artifact)}"


def judge(site, path):
    """Return the Artifact of a site's second file, after a check of the message; enter it in the ledger.

    The scores of the samples stay in the site's folder `memory`, for `fnlkit site review`.

    Raises
    ------
    Refused
        If the message is the second one of the project, or if it was not made with this site's first file. The refusal is
        entered in the ledger.
    InputError
        If the message does not fit the project.
    """
    heads = _read(path, HEADS)
    _must_agree(heads, site.about, path, f"the project of {site.name}")
    known, digest = _record(site), _digest(heads)
    if "first" not in known:
        raise InputError(f"{site.name}: has written no first file yet; run `fnlkit site summarize` first")
    if known.get("heads", digest) != digest:
        _refuse(site, f"{shown(path)}: this site has answered another message of this project; a site answers one")
    made_of = heads.meta.get("firsts")
    if not isinstance(made_of, dict) or made_of.get(site.name) != known["first"]:
        _refuse(site, f"{shown(path)}: was not made with the first file of {site.name}; send the coordinator this file again")
    place = list(made_of).index(site.name)
    if reason := _unusable(heads.arrays, site, len(made_of)):
        _refuse(site, f"{shown(path)}: {reason}")
    arrays = summaries.judge(site.client, heads.arrays, place, changes=site.changes, seed=site.about["seed"])
    artifact = _artifact(JUDGED, arrays, site, "site judge", heads=digest, first=known["first"])
    second = _digest(artifact)
    if known.get("second", second) != second:
        _refuse(site, "the data changed since the second file was written, and the difference of both can reveal samples")
    if "second" not in known:
        _enter(site, arrays, digest)
        _keep(site, known | {"heads": digest, "second": second})
    labels.keep_judgment(site.memory, site.federation, site.client)
    return artifact


def _unusable(arrays, site, sites):
    """Return why the arrays of a message do not fit the project, as a text; "" if they do."""
    classes, width = len(site.about["classes"]), summaries.SIZES[-1]
    column = site.about["shape"][0]
    column = 1 if site.about["kind"] == "image" or column > shifts.MOST_COLUMNS else column
    size = arrays["coefficients"].shape[-1] if "coefficients" in arrays else 0
    shapes = {
        "coefficients": (sites, classes, size), "sizes": (sites,), "offsets": (sites, classes), "known": (sites, classes),
        "shares": (sites, classes), "differ": (sites,), "center": (2, column), "tone": (2,), "fits": (sites, 2, column),
        "suspects": (shifts.MOST_SUSPECTS,), "compared": (), "mean": (len(site.about["scale"][0]),),
        "std": (len(site.about["scale"][1]) or 0,),
    }  # fmt: skip
    if set(arrays) != set(shapes):
        return "has other arrays than `fnlkit sites audit` writes"
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            return f"{name} has the shape {arrays[name].shape} instead of {shape}"
        if arrays[name].dtype.kind not in "bif" or not np.isfinite(arrays[name]).all():
            return f"{name} contains NaN or infinity"
        if arrays[name].dtype.kind == "f" and np.abs(arrays[name]).max(initial=0) > shifts.LIMIT["high"]:
            return f"{name} contains absurd numbers"
    if np.abs(arrays["coefficients"]).max(initial=0) > summaries.LARGEST or size > width:
        return "the classifier is larger than one from sums can be"
    if arrays["known"].dtype != bool or arrays["differ"].dtype != bool or not (arrays["center"][1] > 0).all():
        return "the description of the inputs is none of `fnlkit sites audit`"
    if not ((0 <= arrays["sizes"]) & (arrays["sizes"] <= size)).all() or (arrays["suspects"] >= column).any():
        return "a number of features or columns is too large"
    if (arrays["shares"] < 0).any() or not 4 <= int(arrays["compared"]) <= shifts.MOST_COLUMNS:
        return "a share or a number of features is out of range"
    if any(not np.array_equal(arrays[name], values) for name, values in zip(("mean", "std"), site.about["scale"], strict=True)):
        return "the scale is not that of the project"
    return ""


def _artifact(kind, arrays, site, command, **more):
    meta = site.about | {"site": site.name} | more
    return files.Artifact(kind, {name: np.asarray(values) for name, values in arrays.items()},
                          with_record(meta, provenance(command)))  # fmt: skip


def _digest(artifact):
    """Return a SHA-256 over the arrays and the entries that files of an audit share."""
    total = hashlib.sha256(json.dumps([artifact.kind, {name: artifact.meta.get(name) for name in (*_ABOUT, "site")}]).encode())
    for name in sorted(artifact.arrays):
        values = np.ascontiguousarray(artifact.arrays[name])
        total.update(f"{name} {values.dtype} {values.shape}".encode())
        total.update(values.tobytes())
    return total.hexdigest()


def _record(site):
    path = os.path.join(site.memory, RECORD)
    if not os.path.exists(path):
        return {}
    try:
        known = json.loads(files.read_text(path))
        if known["project"] == site.about["project"]:
            return known
        return {}
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{shown(path)}: is no record of fnlkit; restore the file") from None


def _keep(site, known):
    saving.private_folder(site.memory)
    body = json.dumps(known | {"project": site.about["project"]}).encode()
    saving.write_bytes([body], os.path.join(site.memory, RECORD))


def _enter(site, arrays, run):
    sent = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
    said = {"replies": [[site.number, sent]]}
    leaving.enter(os.path.join(site.memory, LEDGER), run=run, round=None, said=said)


def _refuse(site, reason):
    """Enter a refusal in the ledger and raise it."""
    said = {"failure": [Refused.code, Refused.__name__], "refused": reason}
    leaving.enter(os.path.join(site.memory, LEDGER), run="mail", round=None, said=said)
    raise Refused(reason)


# ---- the coordinator
def _read(path, *kinds):
    found = files.read(path, kinds=[kind.rpartition("/")[0] for kind in kinds], max_bytes=_MAX_BYTES)
    needed = {SUMS: _FIRST, JUDGED: _SECOND}.get(found.kind)
    if needed and set(found.arrays) != needed:
        odd = sorted(set(found.arrays) ^ needed)[0]
        raise InputError(f"{shown(path)}: {'lacks' if odd in needed else 'has an unknown array'} {odd}; write the file again")
    for name, values in found.arrays.items():
        kinds = "i" if name in summaries.COUNTS else "bif"
        if values.dtype.kind not in kinds or not np.isfinite(values).all():
            raise InputError(f"{shown(path)}: {name} contains NaN, infinity or no numbers; write the file again")
    for name in (*_ABOUT, "site") if needed else _ABOUT:
        if name not in found.meta:
            raise InputError(f"{shown(path)}: lacks the entry {name}; write the file again")
    return found


def _must_agree(found, about, path, other):
    """Raise InputError if an entry that all files share differs from those of another file."""
    words = {"project": "another project", "features": "another version of the features", "classes": "other classes",
             "scale": "another scale"}  # fmt: skip
    # The project covers the other entries: name the narrower difference.
    for name in (*(name for name in _ABOUT if name != "project"), "project"):
        if found.meta[name] != about[name]:
            what = words.get(name, f"another {name}")
            raise InputError(f"{shown(path)}: has {what} than {other}; all sites need the same project file")


def read_all(paths):
    """Return ({site: first file}, {site: second file}, shared entries) of files of sites, in the order of the project.

    Raises
    ------
    InputError
        If a file does not fit the others, occurs twice, or has sums that no data have.
    """
    found, about, first_path = {SUMS: {}, JUDGED: {}}, None, None
    for path in paths:
        one = _read(path, SUMS, JUDGED)
        if about is None:
            about, first_path = {name: one.meta[name] for name in _ABOUT}, path
        _must_agree(one, about, path, shown(first_path))
        name = one.meta["site"]
        if name not in about["sites"]:
            raise InputError(f"{shown(path)}: {str(name)[:40]!r} is no site of the project")
        if name in found[one.kind]:
            which = "first" if one.kind == SUMS else "second"
            raise InputError(f"{shown(path)}: is another {which} file of {name}; name one of both")
        if one.kind == SUMS and (reason := summaries.impossible(one.arrays, len(about["classes"]), about["most"])):
            raise InputError(f"{shown(path)}: {reason}; {name} has to write the file again")
        found[one.kind][name] = one
    order = [{name: files_of[name] for name in about["sites"] if name in files_of} for files_of in found.values()]
    if len(order[0]) < 3:
        raise InputError(f"an audit from sums needs the first files of at least 3 sites, found {len(order[0])}")
    for parts, names in zip(order, (("width", "columns", "class_columns"), ("class_means", "covariances")), strict=True):
        if len({tuple(one.arrays[name].shape for name in names) for one in parts.values()}) > 1:
            raise InputError(
                f"the files have different shapes of {', '.join(names)}; all sites need the same version of fnlkit"
            )
    return *order, about


def heads(firsts, about):
    """Return the Artifact of the message to the sites."""
    scaled = tuple(map(np.array, about["scale"])) if about["scale"][0] else None
    arrays = summaries.make_heads([one.arrays for one in firsts.values()], scaled)
    if scaled is None:
        arrays |= {"mean": np.zeros(0), "std": np.zeros(0)}
    made_of = {name: _digest(one) for name, one in firsts.items()}
    return files.Artifact(HEADS, arrays, with_record(about | {"firsts": made_of}, provenance("sites audit")))


def result(firsts, seconds, about):
    """Return the results of an audit from the files of all sites, as plain values for JSON.

    Raises
    ------
    InputError
        If a second file is missing, was made with another message, or contradicts the first file.
    """
    if missing := [name for name in firsts if name not in seconds]:
        raise InputError(f"the second file of {', '.join(missing)} is missing; run `fnlkit site judge` there, or leave out the "
                         f"first file and send the sites new heads")  # fmt: skip
    if extra := [name for name in seconds if name not in firsts]:
        raise InputError(f"the first file of {', '.join(extra)} is missing; name it as well")
    message = heads(firsts, about)
    for name, second in seconds.items():
        if second.meta.get("heads") != _digest(message):
            raise InputError(f"the second file of {name} was made with other heads than those of these first files; name the "
                             "first files from which its heads were made")  # fmt: skip
        if reason := summaries.implausible(second.arrays, firsts[name].arrays):
            raise InputError(f"the second file of {name}: {reason}; {name} has to write the file again")
    changes, names = shifts.possible(about["kind"], about["shape"]), list(firsts)
    parts = [one.arrays for one in firsts.values()], [seconds[name].arrays for name in names]
    how = {"changes": changes, "classes": about["classes"], "names": names, "columns": about["columns"]}
    rows, T = summaries.conclude(parts[0], message.arrays, parts[1], **how)
    facts = report.facts_of(rows, REAL_SITES, about["classes"], quick.traffic_of(*parts), quick.SENDS)
    lost = {name: "sent no first file" for name in about["sites"] if name not in firsts}
    kind = {"kind": "fnlkit.sites/1", "task": "audit", "covers": names, "lost": lost, "steps": []}
    end = {"order": [row["site"] for row in rows], "transition": T.tolist(), "features": None, "probabilities": None}
    return kind | facts | {"mode": quick.MODE, "digest": quick.digest(rows)} | end
