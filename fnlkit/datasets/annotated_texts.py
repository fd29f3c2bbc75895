"""Texts whose labels people, crowds or heuristics made, from copies of the authors' repositories.

Each reader makes a table of the published files; fnlkit.datasets.manifest encodes it, texts by hashed words.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fnlkit.artifacts import files, paths
from fnlkit.components.parameters import check_arguments
from fnlkit.components.spec import Spec
from fnlkit.datasets.manifest import Manifest
from fnlkit.datasets.repositories import checked_file
from fnlkit.datasets.table import Table, read_table
from fnlkit.datasets.votes import as_matrix

if TYPE_CHECKING:
    from fnlkit.datasets.dataset import Dataset


PROJECTS = ("Ambari", "Camel", "Derby", "Wicket")
ENTAILMENT = ("entailment", "neutral", "contradiction")


@check_arguments
def crowdtruth(
    *,
    relation: Literal["cause", "treat"] = "cause",
    labels: Literal["baseline", "crowd", "expert"] = "baseline",
    path: str = "",
    where: Path,
    download: bool = False,
) -> "Dataset":
    """Return medical sentences that state a relation between two terms, or do not.

    Only sentences with an adjudicated label are read; it is the true label.  Every third is a test sample.  The votes are
    those of distant supervision, the crowd and the expert.

    Parameters
    ----------
    relation : "cause" or "treat"
    labels : "baseline", "crowd" or "expert"
        Source of the given labels: distant supervision, the crowd's score of at least 0.5, or one medical student.
    path : str
        Folder of the repository.  Default: in the cache folder.
    """
    rows, cast = list[dict[str, str]](), list[dict[str, str]]()
    table = read_table(checked_file("crowdtruth", f"ground_truth_{relation}.csv", where=where, path=path))
    for row in table.records(()):
        if row["test_partition"] in ("1", "-1"):
            values = {"true": row["test_partition"], **{name: row[name] for name in ("baseline", "crowd", "expert")}}
            words = {name: relation if float(value) > 0 else "other" for name, value in values.items()}
            test, true = len(rows) % 3 == 2, words.pop("true")
            rows.append(
                {
                    "id": row["SID"], "sentence": row["sentence"], "first": row["term1"], "second": row["term2"],
                    "label": true if test else words[labels], "true_label": true, "split": "test" if test else "train",
                }
            )  # fmt: skip
            cast.append(words)
    parameters = {"relation": relation, "labels": labels, "path": path}
    return _of_rows("crowdtruth", parameters, rows, where, text=("sentence", "first", "second"), cast=cast)


@check_arguments
def varierr(*, path: str = "", where: Path, download: bool = False) -> "Dataset":
    """Return pairs of sentences (NLI) with a row for each label that an annotator gave.

    A label of an item is an error if every annotator who gave it withdrew it in the second round.  The true label of an error
    is the label that most annotators kept; the true label of any other row is its label, because annotators can disagree
    without an error.  Every fifth item is a test sample, with the label that most annotators kept.  Clients are the four
    annotators (``--scheme annotators``); rows of one item are the same sample.

    Parameters
    ----------
    path : str
        Folder of the repository.  Default: in the cache folder.
    """
    text = files.read_text(checked_file("varierr", "varierr.json", where=where, path=path))
    rows, items = [], [json.loads(line) for line in text.splitlines()]
    for i, item in enumerate(item for item in items if item["label_set_round_2"]):
        counts = {label: item["label_count_round_2"][label] or 0 for label in ENTAILMENT}
        best = max(counts, key=counts.__getitem__)  # of equal numbers, the first
        shared = {"context": item["context"], "statement": item["statement"], "sample": str(i)}
        if i % 5 == 4:
            rows.append({**shared, "id": item["id"], "annotator": "", "label": best, "true_label": best, "split": "test"})
            continue
        given = {(entry["annotator"], label) for label in ENTAILMENT for entry in item[label]}
        for annotator, label in sorted(given):
            true = label if label in item["label_set_round_2"] else best
            names = {"id": f"{item['id']} {label} by {annotator}", "annotator": str(annotator)}
            rows.append({**shared, **names, "label": label, "true_label": true, "split": "train"})
    data = _of_rows("varierr", {"path": path}, rows, where, text=("context", "statement"), drop=("annotator", "sample"))
    data.sample_of = data.fields.pop("sample").astype(np.int64)
    return data


@check_arguments
def lewidi(
    *,
    name: Literal["ArMIS", "ConvAbuse", "HS-Brexit", "MD-Agreement"],
    path: str = "",
    where: Path,
    download: bool = False,
) -> "Dataset":
    """Return a set of the shared task Learning With Disagreements, SemEval 2023 (task 11).

    The labels are the published majority labels, of training and test samples; no label is declared true.  The data set has
    the votes of all annotators.  The site is the domain (MD-Agreement) or the chat bot (ConvAbuse).

    Parameters
    ----------
    name : str
    path : str
        Folder of the repository.  Default: in the cache folder.
    """
    rows, cast = list[dict[str, str]](), list[dict[str, str]]()
    for split in ("train", "test"):
        file = f"LeWiDi_2-2023/{name}_dataset/{name}_{split}.json"
        for key, item in json.loads(files.read_text(checked_file("lewidi", file, where=where, path=path))).items():
            votes = item["annotations"].split(",")
            if name == "ConvAbuse":  # grades from -3 to 1, of which negative ones are abuse
                votes = ["1" if int(vote) < 0 else "0" for vote in votes]
            info, row = item["other_info"], {"id": f"{split} {key}", "text": item["text"]}
            site = next(({"site": info[kind]} for kind in ("domain", "bot") if kind in info), {})
            rows.append({**row, "label": str(item["hard_label"]), "split": split, **site})
            cast.append(dict(zip(item["annotators"].split(","), votes, strict=True)))
    return _of_rows("lewidi", {"name": name, "path": path}, rows, where, text=("text",), cast=cast)


@check_arguments
def security_bugs(*, path: str = "", where: Path, download: bool = False) -> "Dataset":
    """Return reports of bugs of four Apache projects: security or other.

    The given labels are the published ones, the true labels those after a manual check of each report.  The first 500 reports
    of a project are training samples, the last 500 test samples with checked labels.  The site is the project.

    Parameters
    ----------
    path : str
        Folder of the repository.  Default: in the cache folder.
    """
    rows = []
    for project in PROJECTS:
        noisy, clean = (
            read_table(checked_file("security-bugs", f"{kind}_sbr_datasets/{project}.csv", where=where, path=path)).records(())
            for kind in ("Noisy", "Clean")
        )
        for i, (before, after) in enumerate(zip(noisy, clean, strict=True)):
            given, true = ("security" if row["security"] == "1" else "other" for row in (before, after))
            test = i >= 500
            rows.append(
                {
                    "id": before["id"], "site": project, "summary": before["summary"], "description": before["description"],
                    "label": true if test else given, "true_label": true, "split": "test" if test else "train",
                }
            )  # fmt: skip
    return _of_rows("security-bugs", {"path": path}, rows, where, text=("summary", "description"))


def _of_rows(
    name: str,
    parameters: dict[str, str],
    rows: Sequence[dict[str, str]],
    where: Path,
    *,
    text: Sequence[str],
    drop: Sequence[str] = (),
    cast: Sequence[dict[str, str]] = (),
) -> "Dataset":
    """Return the Dataset of a table with one row per sample, and the votes of annotators on the training samples.

    Parameters
    ----------
    name, parameters
        Of the spec; empty parameters are left out.
    rows : list of dict
        Cells of each row by column.
    text, drop : list of columns
        Of texts, and of metadata that is no feature.
    cast : list of dict, optional
        For each row, name of an annotator to the label.
    """
    columns = {column: [row[column] for row in rows] for column in rows[0]}
    lists: dict[str, Any] = {"text": list(text), "drop": list(drop)}
    # Fields named annotator are metadata here: rows are samples.
    data = Manifest(
        name, given={"annotator": "-", "sentence": "-"}, lists=lists, table=Table(name, columns, list(range(1, len(rows) + 1)))
    ).dataset(where)
    if cast:
        train = [votes for row, votes in zip(rows, cast, strict=True) if row["split"] == "train"]
        data.votes, data.annotators = as_matrix(train, data.class_names)
    chosen = {key: value for key, value in parameters.items() if value}
    if "path" in chosen:
        chosen["path"] = str(paths.resolve(chosen["path"]))
    data.name = str(Spec(name, chosen)) if chosen else name
    return data
