"""Consensus labels of several annotators."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fnlkit.artifacts import display
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.provenance import provenance
from fnlkit.artifacts.sheets import Sheet
from fnlkit.core.errors import InputError
from fnlkit.pipeline.inputs import ArrayLike, FilePath, Labels, Say, is_path, name_source, print_note, read_inputs

if TYPE_CHECKING:
    import pandas


# The source of votes that `partition` saved in the federation, in the provenance.
OWN_VOTES = "of the federation"


@dataclass
class Agreed:
    """Result of `consensus`.

    Attributes
    ----------
    federation : fnlkit.artifacts.federation.Federation
        Federation with the consensus labels as given labels.
    method : str
    annotators : list of str
    sites : list of dict
        An entry per site: site, samples, voted, shared, alpha, kappa, changed, votes, accuracies; see
        `fnlkit.audits.consensus.consensus`.
    """

    federation: Federation
    method: str
    annotators: list[str]
    sites: list[dict[str, Any]]

    def to_pandas(self) -> "pandas.DataFrame":
        """Convert to a row per site."""
        return display.frame([{k: v for k, v in row.items() if k not in ("votes", "accuracies")} for row in self.sites])

    def labels(self) -> Sheet:
        """Tabulate sample, class, name and probability: the consensus label of each voted sample.

        The probability is the posterior of the label.  A sample whose rows are votes has one row.
        """
        given, extra = np.asarray(self.federation.given), self.federation.extra
        probability = extra["consensus_confidence"]
        ids = extra.get("sample_id", np.arange(len(given)))
        voter = extra.get("annotator", ids)
        first = np.unique(extra.get("sample_of", np.arange(len(given))), return_index=True)[1]
        names, shown = self.federation.meta["class_names"], first[probability[first] > 0].tolist()
        samples = [str(ids[i]).removesuffix(f" by {voter[i]}") for i in shown]
        rows = [[sample, int(given[i]), str(names[given[i]]), float(probability[i])]
                for sample, i in zip(samples, shown, strict=True)]  # fmt: skip
        return Sheet(["sample", "class", "name", "probability"], rows)

    def quality(self) -> list[dict[str, object]]:
        """List a dict per site and annotator: site, annotator, votes, and accuracy (None without an estimate)."""
        return [
            {"site": row["site"], "annotator": name, "votes": number, "accuracy": row.get("accuracies", {}).get(name)}
            for row in self.sites
            for name, number in row.get("votes", {}).items()
        ]


def consensus(
    federation: Labels,
    votes: FilePath | ArrayLike | None = None,
    method: Literal["majority", "dawid-skene", "crowdlab"] = "dawid-skene",
    *,
    annotators: Sequence[str] | None = None,
    probabilities: FilePath | ArrayLike | None = None,
    control: str | None = None,
    sample_column: str | None = None,
    say: Say = print_note,
) -> Agreed:
    """Combine the votes of several annotators to given labels.

    The consensus is computed separately for each site.

    Parameters
    ----------
    federation : Federation, or path
    votes : path, array (n, A) or pandas.DataFrame, optional
        A table, npz or export (Label Studio, CVAT) as for `fnlkit consensus`, or arrays and columns. -1 or NaN means that the
        annotator did not vote. Default: the votes that `partition` saved in the federation, or the rows of a federation with a
        row per vote.
    method : "majority", "dawid-skene" or "crowdlab"
    annotators : list of A str, optional
        Names of the columns of an array.
    probabilities : path or array (n, C), optional
        Class probabilities of a model that was not trained on the samples, for crowdlab.
    control : str, optional
        Column or control with the labels, of a table with a row per vote or an export. Default: the one whose values are the
        classes.
    sample_column : str, optional
        Column that names the samples. Default: the only column that names a sample in every row.
    say : callable(str) or None
        Receives notes on what was left out.

    Returns
    -------
    Agreed

    Raises
    ------
    InputError
    """
    from fnlkit.audits.consensus import consensus, consensus_of_rows, own_votes
    from fnlkit.audits.votes import read_votes, to_votes

    inputs = read_inputs(federation, probabilities=probabilities, say=say)
    federation = inputs.federation
    arrays = os.fspath(votes).lower().endswith((".npz", ".npy")) if is_path(votes) else not hasattr(votes, "columns")
    if arrays and (control is not None or sample_column is not None):
        raise InputError(
            "and `sample_column` are columns of a table or export of votes; these votes have none", parameter="control"
        )
    if votes is None:
        record = provenance("consensus", None, votes=OWN_VOTES, method=method)
        if "sample_of" in federation.extra:
            agreed, sites = consensus_of_rows(federation, method, provenance=record)
            return Agreed(agreed, method, list(agreed.meta["consensus"][-1]["annotators"]), sites)
        votes, annotators = own_votes(federation)
    source = name_source(votes)
    if is_path(votes):
        votes, annotators = read_votes(str(source), federation, say=say, control=control, sample_column=sample_column)
    elif hasattr(votes, "columns"):
        votes, annotators = to_votes(votes, federation, control=control, sample_column=sample_column)
    chosen = {name: each for name, each in (("control", control), ("sample_column", sample_column)) if each is not None}
    record = provenance("consensus", None, votes=source, method=method, probs=name_source(probabilities), **chosen)
    table: Any = votes
    agreed, sites = consensus(
        federation, table, method, annotators=annotators, probabilities=inputs.probabilities, provenance=record
    )
    return Agreed(agreed, method, list(agreed.meta["consensus"][-1]["annotators"]), sites)
