"""The notebooks of examples/ have their outputs, a badge on a page, and cells that run."""

import json
import re
import warnings
from pathlib import Path

import pytest

from tests.commands import LIMIT

ROOT = Path(__file__).parent.parent
BOOKS = {path.stem: path for path in sorted((ROOT / "examples").glob("*.ipynb"))}


def load(name):
    return json.loads(BOOKS[name].read_text(encoding="utf-8"))


def code_cells(book):
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def executed(name):
    """Return the executed cells of a notebook, each with its outputs."""
    nbformat = pytest.importorskip("nbformat", reason="needs pip install 'fnlkit[notebook]'")
    client = pytest.importorskip("nbclient", reason="needs pip install 'fnlkit[notebook]'")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from Jupyter's own code
        book = nbformat.reads(json.dumps(load(name)), as_version=4)
        return code_cells(client.NotebookClient(book, timeout=LIMIT, kernel_name="python3").execute())


def texts(cells):
    """Return the printed and displayed texts of cells."""
    outputs = [output for cell in cells for output in cell["outputs"]]
    return ["".join(output.get("text") or output.get("data", {}).get("text/plain", "")) for output in outputs]


@pytest.mark.parametrize("name", BOOKS)
def test_a_notebook_was_executed_in_order_without_errors(name):
    cells = code_cells(load(name))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds and "error" not in kinds
    assert all(cell["outputs"] or cell["source"][-1].startswith(("import ", "from ")) for cell in cells)
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    assert f"[![notebook](notebook.svg)](../examples/{name}.ipynb)" in page


@pytest.mark.slow
def test_the_quickstart_compares_two_methods():
    found = next(text for text in texts(executed("quickstart")) if "fedavg-0" in text)
    last = {line.split()[1]: float(line.split()[3]) for line in found.splitlines()[1:]}
    assert last["fedcorr"] > last["fedavg"], found


@pytest.mark.slow
def test_the_audit_finds_the_hospital_and_its_labels():
    found = "\n".join(texts(executed("audit")))
    assert re.findall(r"(\w+) +wrong labels ", found) == ["Cork"]
    assert int(re.search(r"(\d+) of 50 are wrong", found)[1]) > 40
