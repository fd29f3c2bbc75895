"""Read CrowdTruth's medical relations from a copy of the authors' repository; fnlkit contains none of its files."""

import hashlib
from pathlib import Path
from typing import Literal

from fnlkit.artifacts.paths import display_path, resolve
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import check_arguments
from fnlkit.core.spec import Spec
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.manifest import Manifest
from fnlkit.datasets.table import Table, read_table
from fnlkit.datasets.votes import as_matrix

URL = "https://github.com/CrowdTruth/Medical-Relation-Extraction"
COMMIT = "585c158864f91d7e7666f70d3b705294186e1378"
# SHA-256 of the file of each relation.
SHA256 = {
    "cause": "31fad88e48b0a778db6b8d594d9575e687372710e3b2d2da003a33a3e5c67429",
    "treat": "ba65cd29e7dac7ce87e6d131c840efd8fec9011903f06bfa78b8fc19199539c3",
}


@check_arguments
def crowdtruth(
    *,
    relation: Literal["cause", "treat"] = "cause",
    labels: Literal["baseline", "crowd", "expert"] = "baseline",
    path: str = "",
    cache: Path,
    download: bool = False,
) -> Dataset:
    """Load medical sentences that state a relation between two terms, or do not.

    Only sentences with an adjudicated label are read; it is the true label.  Every third is a test sample.  The votes are
    those of distant supervision, the crowd and the expert.

    Parameters
    ----------
    relation : "cause" or "treat"
    labels : "baseline", "crowd" or "expert"
        Source of the given labels: distant supervision, the crowd's score of at least 0.5, or one medical student.
    path : str
        Folder of the repository.  Default: in the cache folder.

    Raises
    ------
    InputError
        If the file is missing, or differs from the published file.  The message contains the step to obtain it.
    """
    columns = dict[str, list[str]]()
    votes = list[dict[str, str]]()
    folder = resolve(path) if path else cache / URL.rpartition("/")[2]
    for row in read_table(_published_file(folder, relation)).records(()):
        if row["test_partition"] not in ("1", "-1"):
            continue
        sources = ("test_partition", "baseline", "crowd", "expert")
        words = {name: relation if float(row[name]) > 0 else "other" for name in sources}
        test, true = len(columns.get("id", ())) % 3 == 2, words.pop("test_partition")
        cells = {
            "id": row["SID"], "sentence": row["sentence"], "first": row["term1"], "second": row["term2"],
            "label": true if test else words[labels], "true_label": true, "split": "test" if test else "train",
        }  # fmt: skip
        for name, cell in cells.items():
            columns.setdefault(name, []).append(cell)
        votes += [] if test else [words]
    table = Table("crowdtruth", columns, list(range(1, len(columns["id"]) + 1)))
    roles = {"annotator": "-", "sentence": "-"}  # the sentence is a text, and not the sample that several rows share
    data = Manifest("crowdtruth", given=roles, lists={"text": ["sentence", "first", "second"]}, table=table).dataset(cache)
    data.votes, data.annotators = as_matrix(votes, data.class_names)
    data.name = str(Spec("crowdtruth", {"relation": relation, "labels": labels, **({"path": str(folder)} if path else {})}))
    return data


def _published_file(folder, relation):
    """Path of a file, after a comparison of its SHA-256."""
    file, name = folder / f"ground_truth_{relation}.csv", display_path(folder)
    if not file.is_file():
        raise InputError(f"crowdtruth: no {file.name} in {name}; get it by `git clone {URL} {name}`, or name its `path`")
    if hashlib.sha256(file.read_bytes()).hexdigest() != SHA256[relation]:
        raise InputError(
            f"{display_path(file)}: the SHA-256 is not that of the published file; get that version by "
            f"`git -C {name} checkout -f {COMMIT[:12]}`"
        )
    return file
