"""Files with noise of an audit by mail: each release is charged to the site's budget and stored, so that it is drawn once.

A site agreed to an epsilon for all sums that leave it.  A first file charges both files of a release.  The same command on the
same data writes the same file again, because new noise on the same sums would reveal more.  Other data, another epsilon or
another project in the same folder are a new release, which adds up with the earlier ones or is refused.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.paths import display_path
from fnlkit.audits import private, summaries
from fnlkit.errors import InputError
from fnlkit.kernels.streams import HiddenStream
from fnlkit.sites import labels, leaving
from fnlkit.sites.mail_files import JUDGED, LEDGER, SUMS, Site, digest_of, enter, make_artifact, must_agree, refuse

if TYPE_CHECKING:
    from fnlkit.artifacts.files import Artifact


KIND, RECORD = "fnlkit.sums-releases/1", "released-sums.json"
FIRST, SECOND = "noisy-1.npz", "noisy-2.npz"


def summarize_with_noise(
    site: Site, epsilon: float, delta: float | None, draws: np.random.Generator | None = None
) -> "tuple[Artifact, list[str]]":
    """Return (Artifact, lines of text) of a site's first file with noise, after charging both files to the budget.

    Parameters
    ----------
    site : fnlkit.sites.mail_files.Site
    epsilon, delta : float
        Of both files together.
    draws : numpy.random.Generator, optional
        For tests. Default: secret random numbers of the operating system, which cannot be repeated.

    Raises
    ------
    Refused
        If the release exceeds the budget together with the earlier ones. The refusal is entered in the ledger.
    """
    if site.budget is None:
        raise InputError("`epsilon`: this project agreed on sums without noise; the coordinator writes it with "
                         "`fnlkit flower-app --sums-epsilon`")  # fmt: skip
    limit, at = site.budget
    delta = at if delta is None else delta
    private.sigma_of(epsilon, delta)
    saving.private_folder(site.memory)
    with FileLock(os.path.join(site.memory, f"{RECORD}.lock")):
        releases, terms = read_releases(site.memory), {"epsilon": float(epsilon), "delta": float(delta)}
        facts = {"project": site.about["project"], "data": _data_digest(site.client)} | terms
        if releases and all(releases[-1][name] == value for name, value in facts.items()):
            artifact = _read_stored(site, FIRST, releases[-1]["first"])
            return artifact, list(contents(artifact))
        before = [(one["epsilon"], one["delta"]) for one in releases]
        total = private.total_epsilon([*before, (epsilon, delta)], at)
        if total > limit * (1 + 1e-6):
            spent = private.total_epsilon(before, at)
            refuse(site, f"`epsilon` {epsilon:g}: with earlier releases of epsilon {spent:.3g}, the total is {total:.3g} at "
                         f"delta {at:g}, and this site agreed to {limit:g}")  # fmt: skip
        draws = HiddenStream(secrets.token_bytes(32)) if draws is None else draws
        arrays = private.summarize_with_noise(site.client, site.scale, **terms, draws=draws)
        privacy = {"neighbors": private.NEIGHBORS, "releases": len(releases) + 1, "total": total, "agreed": [limit, at],
                   "sensitivity": private.sensitivity_of(arrays["sums"].shape[1]),
                   "deviation": private.noise_of(**terms, size=arrays["sums"].shape[1])}  # fmt: skip
        artifact = make_artifact(SUMS, arrays, site, "site summarize", **terms, privacy=privacy)
        digest = digest_of(artifact)
        files.write(artifact, os.path.join(site.memory, FIRST))
        # Charged before the file leaves: a crash from here on costs budget, and never privacy.
        _keep(site.memory, [*releases, facts | {"first": digest}])
        told = {"first file": digest, **terms, "total epsilon": total, "agreed epsilon": limit, "neighbors": private.NEIGHBORS}
        leaving.enter(os.path.join(site.memory, LEDGER), run=digest, round=None, said=told)
        enter(site, arrays, digest)
    return artifact, list(contents(artifact))


def contents(artifact: "Artifact") -> Iterator[str]:
    """Yield lines that state the contents and the privacy cost of a first file with noise."""
    arrays, about, privacy = artifact.arrays, artifact.meta, artifact.meta["privacy"]
    most, away, m = privacy["sensitivity"], privacy["deviation"], arrays["sums"].shape[1]
    yield f"First file of {about['site']} for an audit from sums with noise. It contains only:"
    for name, what in (
        ("counts", "numbers of samples by class"),
        ("sums", f"sums of {m} clipped features by class"),
        ("moments", f"second moments of these {m} features over all classes"),
    ):
        yield f"- {what}: one record changes them by at most {most[name]:.3g}, the noise of each number is {away[name]:.3g}"
    yield (f"This file and the second file together are ({about['epsilon']:g}, {about['delta']:g})-differentially private for "
           f"{privacy['neighbors']} (analytic Gaussian mechanism, dp-accounting).")  # fmt: skip
    limit, at = privacy["agreed"]
    yield (f"All {privacy['releases']} releases of this folder together: epsilon {privacy['total']:.3g} at delta {at:g}, "
           f"agreed {limit:g}.")  # fmt: skip
    yield "The columns, classes and scale of the project are taken as public; they must not come from samples of this site."
    yield f"{sum(values.nbytes for values in arrays.values()):,} bytes of numbers, SHA-256 {digest_of(artifact)}"


def describe_second(artifact: "Artifact", size: int) -> Iterator[str]:
    """Yield lines that state the contents of a second file with noise, of a classifier of `size` features."""
    arrays, about = artifact.arrays, artifact.meta
    away = private.noise_of(about["epsilon"], about["delta"], size)
    yield f"Second file of {about['site']} for an audit from sums with noise. It contains only:"
    yield f"- numbers of labels that the classifier predicts, and of others: noise of each number {away['agreement']:.3g}"
    yield f"- numbers of samples by predicted and given class: noise of each number {away['predicted']:.3g}"
    yield "Its privacy cost was charged with the first file. The suspicious samples stay here."
    yield f"{sum(values.nbytes for values in arrays.values()):,} bytes of numbers, SHA-256 {digest_of(artifact)}"


def judge_with_noise(
    site: Site, message: "Artifact", path: str | os.PathLike[str], draws: Any = None
) -> "tuple[Artifact, list[str]]":
    """Return (Artifact, lines of text) of a site's second file with noise; its cost was charged with the first file.

    Parameters
    ----------
    site : fnlkit.sites.mail_files.Site
    message : fnlkit.artifacts.files.Artifact
        The message of the coordinator, and its `path`.
    draws : numpy.random.Generator, optional
        As for `summarize_with_noise`.

    Raises
    ------
    Refused
        If the message is the second one of the release, or was not made with this site's first file, or if the data changed.
    """
    with FileLock(os.path.join(site.memory, f"{RECORD}.lock")):
        releases = read_releases(site.memory)
        last, digest = (releases or [{}])[-1], digest_of(message)
        if last.get("project") != site.about["project"]:
            raise InputError(f"{site.name}: has written no first file with noise; run `fnlkit site summarize --epsilon` first")
        terms = {name: last[name] for name in ("epsilon", "delta")}
        must_agree(message, site.about | terms, path, f"the first file of {site.name}")
        if last["data"] != _data_digest(site.client):
            refuse(site, "the data changed since the first file was written; restore them")
        if last.get("heads", digest) != digest:
            refuse(site, f"{display_path(path)}: this site has answered another message of this release; a site answers one")
        made_of = message.meta.get("firsts")
        if not isinstance(made_of, dict) or made_of.get(site.name) != last["first"]:
            refuse(
                site,
                f"{display_path(path)}: was not made with the first file of {site.name}; send the coordinator this file again",
            )
        if reason := _unusable(message.arrays, site):
            refuse(site, f"{display_path(path)}: {reason}")
        draws = HiddenStream(secrets.token_bytes(32)) if draws is None else draws
        arrays, p = private.judge_with_noise(site.client, message.arrays, site.scale, **terms, draws=draws)
        if "second" in last:
            artifact = _read_stored(site, SECOND, last["second"])
        else:
            artifact = make_artifact(JUDGED, arrays, site, "site judge", **terms, heads=digest, first=last["first"])
            files.write(artifact, os.path.join(site.memory, SECOND))
            _keep(site.memory, [*releases[:-1], last | {"heads": digest, "second": digest_of(artifact)}])
            enter(site, arrays, digest)
    summaries.keep_suspects(site.client, p, seed=site.about["seed"])
    labels.keep_judgment(site.memory, site.federation, site.client)
    return artifact, list(describe_second(artifact, message.arrays["coefficients"].shape[-1]))


def _unusable(arrays, site):
    """Return why the arrays of a message do not fit the project, as a text; "" if they do."""
    classes, (mean, std) = len(site.about["classes"]), site.about["scale"]
    size = private.points_of(site.client, site.scale).shape[1]
    shapes = {"coefficients": (classes, size), "offsets": (classes,), "mean": (len(mean),), "std": (len(std),)}
    if set(arrays) != set(shapes):
        return "has other arrays than `fnlkit sites audit` writes"
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            return f"{name} has the shape {arrays[name].shape} instead of {shape}"
        if np.abs(arrays[name]).max(initial=0) > summaries.LARGEST:
            return f"{name} contains absurd numbers"
    if any(not np.array_equal(arrays[name], values) for name, values in (("mean", mean), ("std", std))):
        return "the scale is not that of the project"
    return ""


def _data_digest(client):
    """Return a SHA-256 of a client's samples and labels; it stays at the site."""
    total = hashlib.sha256()
    for values in (client.x, client.y):
        array = np.ascontiguousarray(values.numpy())
        total.update(f"{array.dtype} {array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def _read_stored(site, name, digest):
    """Return a file that was written before; raise if it is missing, because new noise would be another release."""
    path = os.path.join(site.memory, name)
    if os.path.exists(path):
        artifact = files.read(path)
        if digest_of(artifact) == digest:
            return artifact
    raise InputError(f"{display_path(path)}: is missing or changed, and new noise would be another release; restore the file")


def read_releases(memory: str) -> list[dict[str, Any]]:
    """Return the releases of sums with noise of a site's folder, [] if there are none.

    Raises
    ------
    InputError
        If the record cannot be read.
    """
    path = os.path.join(memory, RECORD)
    if not os.path.exists(path):
        return []
    try:
        found = json.loads(files.read_text(path))
        if found["kind"] == KIND:
            return [one | {"epsilon": float(one["epsilon"]), "delta": float(one["delta"])} for one in found["releases"]]
    except (ValueError, KeyError, TypeError):
        pass
    raise InputError(f"{display_path(path)}: is no record of fnlkit; restore the file")


def _keep(memory, releases):
    saving.write_bytes([json.dumps({"kind": KIND, "releases": releases}).encode()], os.path.join(memory, RECORD))
