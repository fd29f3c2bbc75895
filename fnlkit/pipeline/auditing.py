"""Audits of the sites of a federation."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.artifacts import display, saving
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.provenance import provenance
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.core.options import keywords_of, option, pick
from fnlkit.core.retired import refuse_retired
from fnlkit.datasets.dataset import Dataset
from fnlkit.estimators.judgment import add_judgment
from fnlkit.pipeline.inputs import FilePath, Labels, Progress, Samples, Say, name_source, print_note, read_inputs

if TYPE_CHECKING:
    import pandas


# Suggested labels with at least this confidence are counted.
CONFIDENT = 0.8
# Pairs of sites with copies of each other's samples that are named.
MOST_PAIRS = 5
_AUDIT = ("samples", "finding", "level", "low", "high", "p", "noisier", "copies", "near_copies", "far", "unlabeled")


@dataclass
class Audited:
    """Result of an audit.

    Attributes
    ----------
    federation : fnlkit.artifacts.federation.Federation
        Federation with the issue score of every sample, for `suspects`, `correct` and `export_review`.
    facts : dict
        Object printed by `fnlkit audit --json`.
    dataset : fnlkit.datasets.Dataset or None
        None if the samples are at real sites.
    """

    federation: Federation
    facts: dict[str, Any]
    dataset: Dataset | None = None

    def to_pandas(self) -> "pandas.DataFrame":
        """Convert to a row per site, noisiest first.

        The columns contain the samples, the estimated share of wrong labels with its range, and the copies.
        """
        return display.frame([{"site": row["site"], **{name: row.get(name) for name in _AUDIT}} for row in self.facts["sites"]])

    def write_html(
        self, path: str | os.PathLike[str], judged: str | os.PathLike[str] = "judged.npz", *, pictures: int = 6
    ) -> None:
        """Write the page of `fnlkit audit --html`.

        Parameters
        ----------
        path : path
        judged : path
            File that the command shown as the next step reads.
        pictures : int
            Number of suspicious images or sounds of each noisy site on the page. Samples at real sites are not shown.
        """
        from fnlkit.audits import report

        suspects = {}
        if self.dataset is not None:
            suspects = report.first_suspects(self.federation, self.dataset, report.sites_of(self.facts), pictures)
        page = report.page(self.facts, os.fspath(judged), suspects)
        saving.write_bytes([page.encode()], os.fspath(path))

    def __repr__(self):
        return f"Audit: {self.facts['words']}"


@dataclass(frozen=True, kw_only=True)
class Auditing:
    """Keywords of `audit`; `fnlkit audit --help` describes those with a help text.

    Attributes
    ----------
    dataset : str, path or Dataset, optional
        Location of the samples. Default: the location recorded in the federation.
    seed : int
    say : callable(str) or None
        Receives notes, the choice of features and the estimated time.
    progress : callable(done, total, what) or None
    """

    embeddings: FilePath | ArrayLike | None = option(
        None, "A file of vectors by your own program; labels are judged by these features.", metavar="FILE"
    )
    backbone: str = option(
        "auto",
        "Pretrained network whose features judge the labels: a spec, none, or auto: an installed one for photographs of 32 "
        "pixels or more, texts and sounds.",
        metavar="SPEC",
    )
    probabilities: FilePath | ArrayLike | None = option(
        None,
        "Class probabilities (npz, npy, csv) by your own model, which was not trained on these samples; replaces the "
        "classifiers of the other sites.",
        metavar="FILE",
        flag="--probs",
    )
    detectors: Sequence[str] = option(
        ("confident", "knn"),
        "Detectors that flag samples in addition to `em`, separated by commas: confident, knn, aum; none: only `em`.",
        metavar="LIST",
    )
    device: str = option("auto", "Device of the backbone; auto uses a GPU if there is one.")
    dataset: Samples | None = None
    seed: int = 0
    say: Say = print_note
    progress: Progress = None


@keywords_of(Auditing)
def audit(federation: Labels, **options: Any) -> Audited:
    """Estimate the wrong labels and the confused classes of each site, without true labels.

    Each site is judged by a classifier from sums of the other sites; no model is trained over rounds.

    Parameters
    ----------
    federation : Federation, or path
    **options
        Fields of `Auditing`: features, probabilities, detectors, ``say`` and ``progress``.  `detectors` is a sequence of str.
        `embeddings` (n, d) and `probabilities` (n, C) can be paths or arrays; the columns of a DataFrame of probabilities are
        named after the classes.

    Returns
    -------
    Audited

    Raises
    ------
    InputError

    Examples
    --------
    >>> import fnlkit
    >>> fed = fnlkit.partition("digits", clients=3, labels="observed")
    >>> found = fnlkit.audit(fed, say=None)
    >>> len(found.facts["sites"])
    3
    """
    from fnlkit.audits import report
    from fnlkit.audits.audit import audit, digest

    chosen = Auditing(**pick(Auditing, options))
    for name in options:
        refuse_retired("option", f"audit --{name}")
        names = [entry.name for entry in fields(Auditing)]
        raise InputError(f"audit has no option `{name}`{nearest(name, names)}; its options are: {', '.join(names)}")
    inputs = read_inputs(federation, chosen)
    if chosen.embeddings is not None and chosen.backbone not in ("auto", "none"):
        raise InputError(f"{chosen.backbone}: `embeddings` are given; omit one of both", parameter="backbone")
    probabilities, probs = inputs.probabilities, name_source(chosen.probabilities)
    federation, data = inputs.federation, inputs.checked
    vectors, source = inputs.embeddings, name_source(chosen.embeddings)
    if vectors is None and (encoded := inputs.encoded).features is not None:
        source = encoded.features["backbone"]
        # Features are compared beside the samples; columns of text are encoded with the other columns of the table.
        data, vectors = (encoded, None) if encoded.table else (data, encoded.x_train)
    rows: dict[str, Any] = {"embeddings": vectors, "probabilities": probabilities, "detectors": tuple(chosen.detectors)}
    audited = audit(federation, data, **rows, seed=chosen.seed, progress=chosen.progress)
    facts = report.facts(audited, federation, data) | {"features": source, "probabilities": probs}
    facts |= {"digest": digest(audited.sites), "shared": note_shared_samples(federation, data)}
    flagged, sure = audited.judgment.flagged, audited.judgment.confidence
    confident = 0 if sure is None else int((flagged & (sure >= CONFIDENT)).sum())
    facts["suggestions"] = {"all": int(flagged.sum()), "confident": confident}
    record = {
        "dataset": name_source(chosen.dataset),
        "embeddings": source,
        "probs": probs,
        "detectors": ",".join(chosen.detectors),
    }
    made = {"estimator": "audit", "form": "federated", "sent": facts["sent"], "bytes_down": audited.traffic.bytes_down}
    judged = add_judgment(
        federation, audited.arrays(federation), provenance=provenance("audit", chosen.seed, **record), facts=made
    )
    return Audited(judged, facts, data)


def note_shared_samples(federation: Federation, data: Dataset) -> list[str]:
    """Note in a sentence that sites of a user's data have copies of each other's samples; [] otherwise.

    Parameters
    ----------
    federation : Federation
    data : fnlkit.datasets.Dataset
    """
    from fnlkit.datasets import copies

    whole = federation.whole()
    held = np.asarray(whole.client_indices)
    if copies.is_published(data.name) or len(np.unique(held)) < len(held):
        return []
    owner = np.repeat(np.array(whole.names, object), np.diff(whole.client_offsets)).astype(str)
    pairs = copies.shared_by_sites(copies.find_copies(data).train[held], owner)
    if not pairs:
        return []
    named = list_names([f"{a} and {b} {count:,}" for a, b, count in pairs[:MOST_PAIRS]])
    more = f", and {len(pairs) - MOST_PAIRS:,} more pairs" if len(pairs) > MOST_PAIRS else ""
    return [f"Copies: sites have samples of each other: {named}{more}. They do not judge each other independently."]
