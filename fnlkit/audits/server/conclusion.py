"""Conclude an audit: the results of each site from both messages."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fnlkit.audits import rounding
from fnlkit.audits.changes import Change
from fnlkit.audits.messages import TABLES
from fnlkit.audits.records import SiteAudit
from fnlkit.audits.server import column_differences, input_differences, verdict
from fnlkit.audits.server.heads import compare_columns, compare_features
from fnlkit.audits.server.input_differences import DIFFERENT, Compared, Encoded
from fnlkit.audits.server.results import Names, describe_sites
from fnlkit.estimators import likelihood
from fnlkit.kernels.neighbors import on_one_blas_thread
from fnlkit.kernels.scores import transition


def compare_inputs(
    firsts: list[dict[str, np.ndarray]], seconds: list[dict[str, np.ndarray]], changes: Sequence[Change], embedded: bool = False
) -> Compared:
    """Compare the inputs of the sites; `embedded`: labels are judged by embeddings."""
    counts = np.stack([first["counts"] for first in firsts])
    differences = compare_columns(firsts)[1]
    replies = {name: np.stack([second[name] for second in seconds]) for name in ("class_means", "covariances")}
    silent = np.array([not second["covariances"].any() for second in seconds])
    held = np.where(silent[:, None], 0, counts)
    auc = input_differences.compare_inputs(replies, held, [[0, int(second["chosen"])] for second in seconds])
    differences = column_differences.seen(differences, auc[:, 0])
    if not embedded:
        return Compared(changes, auc, differences)
    every = [range(len(changes)) if value >= DIFFERENT else [0] for value in auc[:, 0]]
    auc = input_differences.compare_inputs(replies, held, every)
    return Encoded(changes, auc, differences, compare_features(firsts))


def range_of(seconds: list[dict[str, np.ndarray]], expected: np.ndarray) -> dict[str, np.ndarray]:
    """Estimate (fnlkit.estimators.likelihood.estimates_of) from second files of `judge` and restored counts by class."""
    low, high = (np.array([int(second[name]) for second in seconds]) for name in ("low", "high"))
    return likelihood.estimates_of(low, high, expected)


@on_one_blas_thread
def conclude(
    firsts: list[dict[str, Any]],
    heads: dict[str, np.ndarray],
    seconds: list[dict[str, Any]],
    *,
    changes: Sequence[Change],
    named: Names,
    embedded: bool = False,
    shared: bool = False,
    searched: Sequence[dict[str, Any]] = (),
) -> tuple[list[SiteAudit], np.ndarray]:
    """Conclude an audit: (rows of the sites, T[true, given]).

    Parameters
    ----------
    firsts, seconds : list of dict
        From `fnlkit.audits.site`, in the order of the sites.
    heads : dict of arrays
        From `fnlkit.audits.server.heads.make_heads`.
    changes : list of fnlkit.audits.changes.Change
    named : fnlkit.audits.server.results.Names
    embedded : bool
        Labels are judged by embeddings.
    shared : bool
        Sites share samples (fnlkit.audits.server.verdict.assess): their inputs have one origin and are not compared.
    searched : list of dict, optional
        Results by sample, which only a simulation has.
    """
    counts = np.stack([first["counts"] for first in firsts])
    restored = {
        name: np.stack([
            rounding.restore_table(s[name], s[f"{name}_wrong"], c) for s, c in zip(seconds, counts, strict=True)
        ])
        for name in TABLES
    }  # fmt: skip
    predicted, expected = restored["predicted"], restored["expected"]
    doubted = np.minimum(restored["doubted"], predicted) * ~np.eye(counts.shape[1], dtype=bool)
    supported = np.array([int(s["supported"]) for s in seconds])
    certain = np.array([[min(s["certain"]), s["certain"][1]] for s in seconds])
    inputs = compare_inputs(firsts, seconds, changes, embedded)
    if shared:
        inputs = Compared(inputs.changes, np.full_like(inputs.auc, 0.5), [[] for _ in firsts])
    # A difference of columns that no classifier recognizes counts as none.
    chosen = [int(s["chosen"]) for s in seconds]
    chosen = np.array([n if changes[n].tone != "columns" or inputs.columns[k] else 0 for k, n in enumerate(chosen)])
    predictions = verdict.Predictions(
        chosen, heads["known"], heads["differ"], predicted, restored["within"], doubted, supported, certain
    )
    # Tests need independent samples.
    share = np.minimum(1, np.array([int(first["observations"]) for first in firsts]) / np.maximum(1, counts.sum(1)))
    fewer = predictions.scaled(share)
    judges = verdict.judges(inputs.after(chosen), fewer)
    estimates = range_of(seconds, expected)
    tested = estimates | {"counts": estimates["counts"] * share[:, None, None]}
    assessed = verdict.assess(judges, tested, counts, fewer, shared=shared, away=rounding.ALLOWANCE)
    rows = []
    for row in describe_sites(named, counts, inputs, predictions, estimates["counts"], assessed, searched):
        withheld = [named.classes[c] for c in np.flatnonzero(firsts[row.client]["withheld"])]
        rows.append(replace(row, withheld=withheld, missing=[name for name in row.missing if name not in withheld]))
    return rows, transition(estimates["counts"].sum(0))
