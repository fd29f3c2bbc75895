"""Audit by two files per site: `fnlkit site summarize`, `fnlkit sites audit`, `fnlkit site judge`, `fnlkit sites audit`.

A site reads the message of the coordinator as one of somebody else: it answers one message per project, and only if the message
was made with the site's own first file.  Both files and each refusal are entered in the site's ledger.
"""

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.names import REAL_SITES
from fnlkit.artifacts.paths import display_path
from fnlkit.artifacts.provenance import provenance, with_record
from fnlkit.audits import audit, private, report, shifts, summaries
from fnlkit.audits.results import Names
from fnlkit.audits.rounding import AWAY, STEP
from fnlkit.audits.samples import LEAST
from fnlkit.errors import InputError
from fnlkit.sites import labels, mail_noise
from fnlkit.sites.mail_files import (
    HEADS,
    JUDGED,
    SUMS,
    Site,
    digest_of,
    enter,
    make_artifact,
    must_agree,
    read_mail_file,
    refuse,
)

if TYPE_CHECKING:
    from fnlkit.artifacts.files import Artifact


RECORD = "mail.json"


# ---- at the site
def summarize(site: Site, epsilon: float | None = None, delta: float | None = None) -> "tuple[Artifact, list[str]]":
    """Return (Artifact, lines of text) of a site's first file, and enter it in the ledger.

    Parameters
    ----------
    site : fnlkit.sites.mail_files.Site
    epsilon, delta : float, optional
        Add noise, see `fnlkit.sites.mail_noise.summarize_with_noise`. Default: no noise.

    Raises
    ------
    InputError
        If a first file of other data was written before: the difference of two files reveals the changed samples.
    """
    if epsilon is not None:
        if os.path.exists(os.path.join(site.memory, RECORD)):
            refuse(site, "`epsilon`: a first file without noise was written before, and noise hides nothing any more; name a "
                         "project in another folder only if no sample is in both data sets")  # fmt: skip
        return mail_noise.summarize_with_noise(site, epsilon, delta)
    if site.budget is not None:
        raise InputError(f"`epsilon`: this project agreed on sums with noise; add `epsilon={site.budget[0]:g}`")
    if mail_noise.read_releases(site.memory):
        refuse(site, "sums of this folder were released with noise, which a file without noise would undo; write the project "
                     "with `sums_epsilon`")  # fmt: skip
    arrays = summaries.summarize(site.client, site.scale)
    if not arrays["counts"].any():
        raise InputError(f"{site.name}: no class has {LEAST} samples or more, so that no sum may leave; leave this site out")
    artifact = make_artifact(SUMS, arrays, site, "site summarize")
    known, digest = _record(site), digest_of(artifact)
    if known.get("first", digest) != digest:
        refuse(
            site,
            "a first file of other data was written before, and the difference of both can reveal samples; restore the data, "
            "or agree on a new project",
        )
    if "first" not in known:
        enter(site, arrays, digest)
        _keep(site, {"first": digest})
    return artifact, list(contents(artifact))


def contents(artifact: "Artifact") -> Iterator[str]:
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
    yield f"- mean, standard deviation, 10, 50 and 90 % quantile (means of {LEAST} values) of {described}"
    if arrays["class_columns"].size:
        yield "- mean and standard deviation of each column for each of these classes"
    yield "It contains no sample, no label of a sample, and no path. Whoever knows all samples but one can compute this one."
    yield f"{sum(values.nbytes for values in arrays.values()):,} bytes of numbers, SHA-256 {digest_of(artifact)}"


def describe_second(artifact: "Artifact") -> Iterator[str]:
    """Yield lines that state the contents of a second file."""
    arrays, about = artifact.arrays, artifact.meta
    yield f"Second file of {about['site']} for an audit from sums. It contains only:"
    yield f"- counts by given class, each a multiple of {STEP}, so that a number states a count within {AWAY} of it:"
    yield "  by the class that the classifier of the other sites predicts, that a model of this site predicts, and that is"
    yield "  expected to be true; of labels for which both models predict the same other class; and of all contradicted labels"
    low, high = arrays["low"], arrays["high"]
    yield f"- the range of the number of wrong labels: {low} to {high}, rounded outward to multiples of {STEP}"
    yield "- two counts of labels that a model of this site predicts, and which change of the inputs fits best"
    changes, _, m = arrays["class_means"].shape
    if arrays["covariances"].any():
        kinds = f", under {changes} changes of the inputs" if changes > 1 else ""
        yield f"- means by class and second moments of {m} features that describe the inputs coarsely{kinds}"
    else:
        yield "- no description of the inputs, which needs more samples"
    yield "It contains no sample, no label of a sample, no score, and no path. The suspicious samples stay here."
    yield f"{sum(values.nbytes for values in arrays.values()):,} bytes of numbers, SHA-256 {digest_of(artifact)}"


def judge(site: Site, path: str | os.PathLike[str]) -> "tuple[Artifact, list[str]]":
    """Return (Artifact, lines of text) of a site's second file, after a check of the message; enter it in the ledger.

    The scores of the samples stay in the site's folder `memory`, for `fnlkit site review`.

    Raises
    ------
    Refused
        If the message is the second one of the project, or if it was not made with this site's first file. The refusal is
        entered in the ledger.
    InputError
        If the message does not fit the project.
    """
    heads = read_mail_file(path, HEADS)
    if "epsilon" in heads.meta:
        return mail_noise.judge_with_noise(site, heads, path)
    must_agree(heads, site.about, path, f"the project of {site.name}")
    known, digest = _record(site), digest_of(heads)
    if "first" not in known:
        raise InputError(f"{site.name}: has written no first file yet; run `fnlkit site summarize` first")
    if known.get("heads", digest) != digest:
        refuse(site, f"{display_path(path)}: this site has answered another message of this project; a site answers one")
    made_of = heads.meta.get("firsts")
    if not isinstance(made_of, dict) or made_of.get(site.name) != known["first"]:
        refuse(
            site, f"{display_path(path)}: was not made with the first file of {site.name}; send the coordinator this file again"
        )
    place = list(made_of).index(site.name)
    reason = _unusable(heads.arrays, site, len(made_of))
    if not reason and site.scale and site.client.x.shape[1] == heads.arrays["center"].shape[1]:
        reason = summaries.narrow(heads.arrays, place, site.client, site.scale)
    if reason:
        refuse(site, f"{display_path(path)}: {reason}")
    arrays = summaries.judge(site.client, heads.arrays, place, changes=site.changes, seed=site.about["seed"])
    artifact = make_artifact(JUDGED, arrays, site, "site judge", heads=digest, first=known["first"])
    second = digest_of(artifact)
    if known.get("second", second) != second:
        refuse(site, "the data changed since the second file was written, and the difference of both can reveal samples")
    if "second" not in known:
        enter(site, arrays, digest)
        _keep(site, known | {"heads": digest, "second": second})
    labels.keep_judgment(site.memory, site.federation, site.client)
    return artifact, list(describe_second(artifact))


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


def _record(site):
    """Return {first, heads, second: digest} of the files that the site wrote or answered for its project."""
    return _records(site.memory).get(site.about["project"], {})


def _records(memory):
    """Return {project: record} of all projects of a site's folder: a site answers one message of each."""
    path = os.path.join(memory, RECORD)
    if not os.path.exists(path):
        return {}
    try:
        found = json.loads(files.read_text(path))
        if "projects" not in found:  # written by an earlier version, which kept the last project only
            return {found["project"]: found}
        return {project: dict(record) for project, record in found["projects"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{display_path(path)}: is no record of fnlkit; restore the file") from None


def _keep(site, known):
    saving.private_folder(site.memory)
    projects = _records(site.memory) | {site.about["project"]: known}
    saving.write_bytes([json.dumps({"projects": projects}).encode()], os.path.join(site.memory, RECORD))


# ---- the coordinator
def heads(firsts: "dict[str, Artifact]", about: dict[str, Any]) -> "Artifact":
    """Return the Artifact of the message to the sites."""
    scaled = (np.array(about["scale"][0]), np.array(about["scale"][1])) if about["scale"][0] else None
    parts = [one.arrays for one in firsts.values()]
    if noise := _noise_of(about):
        arrays = private.make_head(parts, **noise, scale=scaled)
    else:
        arrays = summaries.make_heads(parts, scaled)
    if scaled is None:
        arrays |= {"mean": np.zeros(0), "std": np.zeros(0)}
    made_of = {name: digest_of(one) for name, one in firsts.items()}
    return files.Artifact(HEADS, arrays, with_record(about | {"firsts": made_of}, provenance("sites audit")))


def _noise_of(about):
    """Return epsilon and delta of files with noise as keyword arguments; {} of files without noise."""
    return {name: about[name] for name in ("epsilon", "delta") if name in about}


def result(firsts: "dict[str, Artifact]", seconds: "dict[str, Artifact]", about: dict[str, Any]) -> dict[str, Any]:
    """Return the results of an audit from the files of all sites, as plain values for JSON.

    Raises
    ------
    InputError
        If a second file is missing, was made with another message, or contradicts the first file.
    """
    if missing := [name for name in firsts if name not in seconds]:
        raise InputError(f"the second file of {', '.join(missing)} is missing; run `fnlkit site judge` there. A site answers "
                         "one message: without this file, all sites need another project")  # fmt: skip
    if extra := [name for name in seconds if name not in firsts]:
        raise InputError(f"the first file of {', '.join(extra)} is missing; name it as well")
    message, noise = heads(firsts, about), _noise_of(about)
    size = message.arrays["coefficients"].shape[-1]
    for name, second in seconds.items():
        if second.meta.get("heads") != digest_of(message):
            raise InputError(f"the second file of {name} was made with other heads than those of these first files; name the "
                             "first files from which its heads were made")  # fmt: skip
        if noise:
            reason = private.implausible(second.arrays, len(about["classes"]), about["most"], size, **noise)
        else:
            reason = summaries.implausible(second.arrays, firsts[name].arrays)
        if reason:
            raise InputError(f"the second file of {name}: {reason}; {name} has to write the file again")
    changes, names = shifts.possible(about["kind"], about["shape"]), list(firsts)
    parts = [one.arrays for one in firsts.values()], [seconds[name].arrays for name in names]
    how: dict[str, Any] = {"changes": changes, "named": Names(names, about["classes"], about["columns"])}
    if noise:
        rows, T, _ = private.conclude(parts[0], parts[1], **noise, **how)
    else:
        rows, T = summaries.conclude(parts[0], message.arrays, parts[1], **how)
    sends = private.SENDS if noise else audit.SENDS
    facts = report.facts_of(rows, REAL_SITES, about["classes"], audit.traffic_of(*parts), sends)
    if noise:
        facts |= {"range": private.RANGE, "privacy": noise}
    lost = {name: "sent no first file" for name in about["sites"] if name not in firsts}
    kind = {"kind": "fnlkit.sites/1", "task": "audit", "covers": names, "lost": lost, "steps": []}
    end = {"order": [row.site for row in rows], "transition": T.tolist(), "features": None, "probabilities": None}
    facts |= {"mode": private.describe_mode(**noise, size=size)} if noise else {}
    return kind | facts | {"digest": audit.digest(rows)} | end
