"""The examples of README.md and the notebooks run; links, commands and options of all pages exist."""

import json
import re
import shlex
import warnings
from pathlib import Path

import pytest

from fnlkit.cli import COMMANDS, group
from fnlkit.core import registry
from fnlkit.core.declarations import declaration
from tests.commands import LIMIT, shell, succeed

# ---- the examples of README.md run, and the links, commands and options of all pages exist
ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_fedcorr_is_ahead_of_fedavg_with_the_first_seed_of_the_quickstart(tmp_path):
    script = (ROOT / "examples/quickstart.sh").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"^(fnlkit reproduce \S+).*$", script, re.MULTILINE)
    for line in succeed(f"{recipe} --seeds 1 --dry-run", tmp_path).stdout.splitlines():
        succeed(line, tmp_path)
    done = succeed("fnlkit evaluate 0-0-fedavg-0.pt 0-1-fedcorr-0.pt --json", tmp_path)
    plain, corrected = (json.loads(row)["accuracy_last"] for row in done.stdout.splitlines())
    assert corrected > plain + 0.02


@pytest.mark.slow
def test_the_quickstart_prints_its_table(tmp_path):
    done = shell(f"bash {shlex.quote(str(ROOT / 'examples' / 'quickstart.sh'))} runs", tmp_path)
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^ *digits +(fedavg|fedcorr) +3 +\S+ ± \S+ +(\S+) ± \S+ *$", done.stdout, re.MULTILINE))
    assert float(found["fedcorr"]) > float(found["fedavg"]) + 2, done.stdout


def test_the_first_pipe_relabels_and_trains_on_the_new_labels(tmp_path):
    """Run the first command line of README with fewer rounds."""
    line = re.search(r"^```sh\n(fnlkit .*)$", README, re.MULTILINE)[1]
    short = line.replace("train ", "train --rounds 4 ")
    assert line.count(" | ") == 3 and short.count("--rounds 4") == 1
    facts = json.loads(succeed(f"{short} --json", tmp_path).stdout)
    assert facts["estimate_label_accuracy"] + 0.05 < facts["label_accuracy_given"] == facts["estimate_suggested_accuracy"]
    assert facts["accuracy_best"] > 0.3 and facts["client_rounds"] == 8


def test_linked_files_exist():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_commands_and_options_in_the_pages_exist():
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for verb, rest in re.findall(r"\bfnlkit ([a-z][a-z-]+)([^\n|`&#]*)", text):
            if verb in COMMANDS:
                command = group.get_command(None, verb)
                known = {name for p in command.params for name in p.opts}
                known |= {name for sub in getattr(command, "commands", {}).values() for p in sub.params for name in p.opts}
                for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest):
                    assert option in known | {"--help"}, f"{page.name}: fnlkit {verb} has no {option}"


def test_the_readme_counts_the_methods():
    """A published method has a citation; FedAvg has one too, but counts as a reference."""
    references = {"fedavg", "local", "centralized", "oracle"}
    published = {name for name in registry.METHODS if declaration(registry.method(name)).cite} - references
    assert set(registry.METHODS) - published - references == {"auto", "fedem", "fedsums"}
    assert re.findall(r"(\d+) methods in all: (\d+) published", README) == [(str(len(registry.METHODS)), str(len(published)))]


def test_the_page_of_methods_names_every_method():
    text = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    assert [name for name in registry.METHODS if f"`{name}`" not in text] == []


def test_the_readme_names_every_command():
    for name in COMMANDS:
        assert re.search(rf"\b{name}\b", README), name


# ---- the notebooks of examples/ have their outputs, a badge on a page, and cells that run
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
